r"""Asynchronous SGD: every gradient is applied when it arrives.

References:
    Koloskova, Stich, Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD for Distributed
        and Federated Learning", 2022.
"""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState, real
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Upload,
    Work,
    specified,
)

__all__ = ["async_sgd"]


@specified
def async_sgd(
    lr: ScalarOrSchedule, *, patience: Scalar | None = None, bound: Scalar | None = None
) -> FedAlgorithm:
    r"""Asynchronous SGD: every gradient is applied when it arrives, to a newer model.

    .. math::
        w \leftarrow w - \eta_t\, g_i(w_{t - \tau}), \qquad
        \eta_t = \begin{cases} \eta & \tau \le \tau_c \\ \min(\eta, c / \tau) & \text{else}
        \end{cases}

    Runs on :func:`~fedjax_sim.timelines.arrivals` with one step per report; bounded concurrency and
    random assignment are options there.

    Args:
        lr: learning rate :math:`\eta`, or a schedule over server updates, of which the one that
            applies the gradient counts.
        patience: staleness :math:`\tau_c` up to which gradients count fully; None: any staleness.
        bound: c, the bound on the rate times the staleness of staler gradients; with ``patience``.
            It is the paper's constant over L.

    Raises:
        ValueError: one of ``patience`` and ``bound`` without the other; when the run begins, a
            timeline of ``contacts(receives="current")``.

    References:
        Koloskova et al., 2022, Algorithm 2 and Equation 7.

    Example:
        >>> algorithm = async_sgd(lr=0.1, patience=10, bound=1.0)
    """
    check_rates(lr=lr)
    check_at_least(0, patience=patience, bound=bound)
    if (patience is None) != (bound is None):
        raise ValueError(f"patience is {patience} and bound {bound}; expected both or none")

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        # A gradient has the rate of the update that applies it, however old its model is.
        eta = real(rate(lr, work._replace(staleness=jnp.zeros_like(work.round))))
        if patience is not None and bound is not None:
            delay = real(work.staleness)
            late = jnp.minimum(eta, real(bound) / jnp.maximum(delay, 1))
            eta = jnp.where(delay <= real(patience), eta, late)
        return tree.sub(local_steps(sgd(eta, oracle.grad), x, work), x), state

    def update(state: ModelState, step: Upload, round: Round) -> ModelState:
        return ModelState(tree.add(state.params, step))

    requires = Requires(other_uploads="steps that the server adds")
    return FedAlgorithm(ModelState, local, update, requires=requires)
