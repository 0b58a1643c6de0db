r"""DFedAvgM: decentralised FedAvg with local momentum.

References:
    Sun, Li, Wang, "Decentralized Federated Averaging", 2021, arXiv 2104.11375.
"""

from __future__ import annotations

from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_decay, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate
from fedjax_sim.topologies._gossip import Sent, gossip
from fedjax_sim.topologies.topology import Topology, check_topology
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Scalar, Work, specified


@specified
def dfedavgm(lr: ScalarOrSchedule, topology: Topology, momentum: Scalar = 0.9) -> FedAlgorithm:
    r"""DFedAvgM: local steps with momentum, then every client averages its neighbours' models.

    .. math::
        y^{k+1} &= y^k - \eta\, g_i(y^k) + \theta\, (y^k - y^{k-1}), \qquad
            y^0 = y^{-1} = x_i \\
        x_i &\leftarrow \sum_j W_{ij}\, y_j^{K_j}

    The momentum starts over at every visit.  With ``momentum=0`` and the complete graph this is
    FedAvg.

    Args:
        lr: :math:`\eta`, or a schedule over rounds.
        topology: doubly stochastic mixing matrices.
        momentum: :math:`\theta` in [0, 1).

    Raises:
        ValueError: as for :func:`~fedjax_sim.topologies.d_psgd`.

    References:
        Sun et al., 2021, Algorithm 1.

    Example:
        >>> from fedjax_sim.topologies import torus
        >>> algorithm = dfedavgm(lr=0.1, topology=torus(4, 4), momentum=0.5)
    """
    check_rates(lr=lr)
    check_decay(momentum=momentum)
    check_topology(topology)

    def visit(
        x: Params, mixed: tuple, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[Sent, tuple]:
        eta = rate(lr, work)

        def step(carry: tuple[Params, Params], k: Array) -> tuple[Params, Params]:
            y, last = carry
            inertia = tree.scale(momentum, tree.sub(y, last))
            return tree.add(tree.add_scale(y, -eta, oracle.grad(y, k)), inertia), y

        return Sent(local_steps(step, (x, x), work)[0]), state

    return gossip(topology, visit)
