r"""D-PSGD: decentralised parallel SGD.

References:
    Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can Decentralized Algorithms Outperform Centralized
        Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", 2017,
        arXiv 1705.09056.
"""

from __future__ import annotations

from fedjax_sim import tree
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, rate
from fedjax_sim.topologies._gossip import Sent, gossip, mean_gradient
from fedjax_sim.topologies.topology import Topology, check_topology
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Work, specified


@specified
def d_psgd(lr: ScalarOrSchedule, topology: Topology) -> FedAlgorithm:
    r"""D-PSGD: every client averages its neighbours' models and takes a step of its own.

    .. math:: x_i \leftarrow \sum_j W_{ij} x_j - \gamma\, g_i(x_i)

    The gradient is the mean over the minibatches of a visit, all taken at the old :math:`x_i`.  At
    a constant rate the clients' models stay apart by their heterogeneity: with full gradients
    :math:`(I - W) X = -\gamma G(X)` in the limit.

    Args:
        lr: :math:`\gamma`, or a schedule over rounds.
        topology: doubly stochastic mixing matrices.

    Raises:
        ValueError: a number outside its range, another topology; at the start of the run, another
            number of clients, rounds without some of them, or weights other than equal ones.

    References:
        Lian et al., 2017, Algorithm 1.

    Example:
        >>> from fedjax_sim.topologies import ring
        >>> algorithm = d_psgd(lr=0.1, topology=ring(8))
    """
    check_rates(lr=lr)
    check_topology(topology)

    def visit(
        x: Params, mixed: tuple, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[Sent, tuple]:
        g = mean_gradient(x, oracle, work)
        # Algorithm 1, lines 4 and 5: x_j is sent, the client subtracts its gradient afterwards.
        return Sent(x, kept=tree.scale(-rate(lr, work), g)), state

    return gossip(topology, visit)
