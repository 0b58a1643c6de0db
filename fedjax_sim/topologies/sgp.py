r"""SGP: stochastic gradient push, for directed graphs.

References:
    Assran, Loizou, Ballas, Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", 2019,
        arXiv 1811.10792.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, rate
from fedjax_sim.topologies._gossip import Sent, gossip, mean_gradient
from fedjax_sim.topologies.topology import Topology, check_topology
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Work, specified


@specified
def sgp(lr: ScalarOrSchedule, topology: Topology) -> FedAlgorithm:
    r"""SGP: SGD with push-sum, which needs matrices whose columns have the sum 1.

    .. math::
        z_i = x_i / w_i, \qquad
        x_i \leftarrow \sum_j P_{ij} \bigl(x_j - \gamma\, g_j(z_j)\bigr), \qquad
        w_i \leftarrow \sum_j P_{ij} w_j, \qquad w_i^0 = 1

    A client divides what it sends among its receivers and need not know what it receives.
    :math:`z_i` is its model; the mean of all :math:`x_i` is what is evaluated.  With a doubly
    stochastic matrix all :math:`w_i` stay 1.  The gradient is the mean over the minibatches of a
    visit.

    Args:
        lr: :math:`\gamma`, or a schedule over rounds.
        topology: P, for example :func:`~fedjax_sim.topologies.directed`; it may change in time.

    Raises:
        ValueError: as for :func:`~fedjax_sim.topologies.d_psgd`.

    References:
        Assran et al., 2019, Algorithm 1.

    Example:
        >>> from fedjax_sim.topologies import directed
        >>> algorithm = sgp(lr=0.1, topology=directed(3, [(0, 1), (1, 2), (2, 0), (0, 2)]))
    """
    check_rates(lr=lr)
    check_topology(topology, doubly=False)

    def visit(x: Params, w: Array, state: tuple, oracle: Oracle, work: Work) -> tuple[Sent, tuple]:
        g = mean_gradient(tree.divide(x, w), oracle, work)  # Algorithm 1, line 3
        return Sent(tree.add_scale(x, -rate(lr, work), g), w), state  # lines 4 and 5

    return gossip(
        topology,
        visit,
        init_mixed=lambda params: jnp.ones((), jnp.result_type(float)),
        model=tree.divide,
    )
