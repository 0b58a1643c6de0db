"""Networks other than one server: gossip on graphs, and hierarchical FedAvg.

A :class:`Topology` has the mixing matrices of a graph.  The algorithms are plain
:class:`~fedjax_sim.types.FedAlgorithm` values: the server's state holds the models of all clients,
``[M, ...]``, a client reads its own, and the update mixes them.
"""

from fedjax_sim.topologies._gossip import consensus_distance
from fedjax_sim.topologies.d2 import d2
from fedjax_sim.topologies.d_psgd import d_psgd
from fedjax_sim.topologies.dfedavgm import dfedavgm
from fedjax_sim.topologies.gradient_tracking import gradient_tracking
from fedjax_sim.topologies.graphs import (
    alternate,
    complete,
    directed,
    erdos_renyi,
    exponential,
    from_matrix,
    one_peer_exponential,
    random_matching,
    ring,
    torus,
    undirected,
)
from fedjax_sim.topologies.hier_fedavg import hier_fedavg
from fedjax_sim.topologies.sgp import sgp
from fedjax_sim.topologies.topology import Topology

__all__ = [
    "Topology",
    "alternate",
    "complete",
    "consensus_distance",
    "d2",
    "d_psgd",
    "dfedavgm",
    "directed",
    "erdos_renyi",
    "exponential",
    "from_matrix",
    "gradient_tracking",
    "hier_fedavg",
    "one_peer_exponential",
    "random_matching",
    "ring",
    "sgp",
    "torus",
    "undirected",
]
