r"""D2: decentralised training over decentralised data.

References:
    Tang, Lian, Yan, Zhang, Liu, "D2: Decentralized Training over Decentralized Data", 2018, arXiv
        1803.07068.
"""

from __future__ import annotations

from fedjax_sim import tree
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, rate
from fedjax_sim.topologies._gossip import Sent, gossip, mean_gradient
from fedjax_sim.topologies.topology import Topology, check_topology, known_weights
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Work, specified

_LEAST = -1 / 3
_ROUNDING = 1e-6  # of an eigenvalue of a matrix in single precision


@specified
def d2(lr: ScalarOrSchedule, topology: Topology) -> FedAlgorithm:
    r"""D2: D-PSGD without the variance between the clients.

    .. math::
        x_i^{t+1} = \sum_j W_{ij} \bigl(2 x_j^t - x_j^{t-1} - \gamma\, g_j(x_j^t)
            + \gamma\, g_j(x_j^{t-1})\bigr), \qquad
        x_i^1 = \sum_j W_{ij} \bigl(x_j^0 - \gamma\, g_j(x_j^0)\bigr)

    With full gradients the limit is the optimum, whatever the clients' heterogeneity; clients send
    one vector.  A gradient is the mean over the minibatches of a visit.  A client keeps
    :math:`x_i^{t-1} - \gamma\, g_i(x_i^{t-1})`.

    Args:
        lr: :math:`\gamma`, or a schedule over rounds.
        topology: one symmetric mixing matrix whose eigenvalues are above -1/3.  Those of an even
            ring reach -1/3; ``ring(8).lazy(0.1)`` satisfies the condition.

    Raises:
        ValueError: as for :func:`~fedjax_sim.topologies.d_psgd`; a directed topology, one that
            changes in time, or an eigenvalue of at most -1/3, with which the models oscillate.

    References:
        Tang et al., 2018, Algorithm 1 and Assumption 1.

    Example:
        >>> from fedjax_sim.topologies import ring
        >>> algorithm = d2(lr=0.1, topology=ring(8).lazy(0.1))
    """
    check_rates(lr=lr)
    check_topology(topology, symmetric=True)
    _check_eigenvalues(topology)

    def visit(
        x: Params, mixed: tuple, last: Params, oracle: Oracle, work: Work
    ) -> tuple[Sent, Params]:
        g = mean_gradient(x, oracle, work)
        new = tree.add_scale(x, -rate(lr, work), g)
        return Sent(tree.add(new, tree.sub(x, last))), new  # Algorithm 1, lines 5 to 7

    # x^{-1} = x^0 and a gradient of 0 before the first round give the first line.
    return gossip(topology, visit, init_client=lambda params: params)


def _check_eigenvalues(topology: Topology) -> None:
    """Refuses mixing matrices with which D2 does not converge; traced weights pass."""
    if topology.period > 1:
        raise ValueError(
            f"topology has {topology.period} mixing matrices; expected one, since the correction "
            "of D2 is that of the last round's matrix"
        )
    weights = known_weights(topology)
    if weights is None:
        return
    own = weights[0].diagonal() if topology.neighbours is None else weights[0, :, 0]
    # Gershgorin: no eigenvalue is below 2 w_ii - 1, w_ii without the mean's part, whose eigenvalues
    # are 0 and its weight. It spares large networks their eigenvalues.
    mean_weight = 0 if topology.mean_weight is None else float(topology.mean_weight[0])
    if 2 * own.min() - (1 - mean_weight) > _LEAST + _ROUNDING:
        return
    if (least := topology.smallest_eigenvalue) <= _LEAST + _ROUNDING:
        raise ValueError(
            f"topology has the eigenvalue {least:.4f}; expected more than -1/3, as from "
            "topology.lazy(0.1)"
        )
