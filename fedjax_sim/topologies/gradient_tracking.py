r"""Gradient tracking (DIGing, DSGT).

References:
    Nedic, Olshevsky, Shi, "Achieving Geometric Convergence for Distributed Optimization over
        Time-Varying Graphs", 2017, arXiv 1607.03218 (DIGing).
    Pu, Nedic, "Distributed Stochastic Gradient Tracking Methods", 2021, arXiv 1805.11454 (DSGT).
"""

from __future__ import annotations

from fedjax_sim import tree
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, rate
from fedjax_sim.topologies._gossip import Sent, gossip, mean_gradient
from fedjax_sim.topologies.topology import Topology, check_topology
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Work, specified


@specified
def gradient_tracking(lr: ScalarOrSchedule, topology: Topology) -> FedAlgorithm:
    r"""Gradient tracking: clients descend an estimate of the mean gradient, which they mix, too.

    .. math::
        x_i^{t+1} &= \sum_j W_{ij} \bigl(x_j^t - \alpha\, y_j^t\bigr) \\
        y_i^{t+1} &= \sum_j W_{ij}\, y_j^t + g_i(x_i^{t+1}) - g_i(x_i^t), \qquad
            y_i^0 = g_i(x_i^0)

    The mean of all :math:`y_i` is that of the gradients, in every round, so the limit with full
    gradients is the optimum, whatever the clients' heterogeneity.  Clients send two vectors.  A
    gradient is the mean over the minibatches of a visit.  A client keeps its last one.

    Args:
        lr: :math:`\alpha`, or a schedule over rounds.
        topology: doubly stochastic mixing matrices; they may change in time and be directed.

    Raises:
        ValueError: as for :func:`~fedjax_sim.topologies.d_psgd`.

    References:
        Pu and Nedic, 2021, the method DSGT; DIGing of Nedic et al., 2017, has
            :math:`W x - \alpha y`.

    Example:
        >>> from fedjax_sim.topologies import ring
        >>> algorithm = gradient_tracking(lr=0.1, topology=ring(8))
    """
    check_rates(lr=lr)
    check_topology(topology)

    def visit(
        x: Params, mixed: Params, last: Params, oracle: Oracle, work: Work
    ) -> tuple[Sent, Params]:
        g = mean_gradient(x, oracle, work)
        y = tree.add(mixed, tree.sub(g, last))  # DSGT, tracked gradient
        return Sent(tree.add_scale(x, -rate(lr, work), y), y), g  # DSGT, model

    return gossip(topology, visit, init_mixed=tree.zeros_like, init_client=tree.zeros_like)
