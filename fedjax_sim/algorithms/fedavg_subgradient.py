r"""FedAvg with subgradients of a penalty.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, section 4.5.
"""

from __future__ import annotations

from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate
from fedjax_sim.prox import Composite, Euclidean, Penalty, check_composite
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Work, specified

__all__ = ["fedavg_subgradient"]


@specified
def fedavg_subgradient(
    lr: ScalarOrSchedule, composite: Composite, server_lr: Scalar = 1.0
) -> FedAlgorithm:
    r"""FedAvg with subgradients: a penalty is treated as if it were smooth.

    .. math:: y \leftarrow y - \eta\, (g_i(y) + s)

    s is a subgradient of psi at y; for l1 it is :math:`\lambda \operatorname{sign}(y)`.  Models are
    never sparse.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        composite: psi, a penalty, with a Euclidean h.
        server_lr: server learning rate, that of the mean change of the model.

    Raises:
        ValueError: no composite regulariser, a constraint, or another geometry.

    References:
        Yuan, 2023, section 4.5, "FedAvg (d)".

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = fedavg_subgradient(0.01, prox.composite(prox.L1(0.2)))
    """
    check_rates(lr=lr)
    check_composite(composite)
    check_at_least(0, server_lr=server_lr)
    if not isinstance(composite.psi, Penalty):
        raise ValueError(f"composite has psi {composite.psi}; expected a penalty, not a constraint")
    if not isinstance(composite.mirror, Euclidean):
        raise ValueError(f"composite has mirror {composite.mirror}; expected Euclidean")

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Params, tuple]:
        eta = rate(lr, work)

        def step(y: Params, k: Array) -> Params:
            moved = tree.add_scale(y, -eta, oracle.grad(y, k))
            return tree.add_scale(moved, -eta, composite.subgradient(y))

        return tree.sub(x, local_steps(step, x, work)), state

    def update(state: ModelState, descent: Params, round: Round) -> ModelState:
        return ModelState(tree.add_scale(state.params, -server_lr, descent))

    return FedAlgorithm(ModelState, local, update)
