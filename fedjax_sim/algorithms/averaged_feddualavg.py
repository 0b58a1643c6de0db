r"""FedDualAvg whose output is an average of its shadow iterates, as in the theorems.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 4,
        whose equations and theorems are cited.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import dual_step, total_rate
from fedjax_sim.algorithms.feddualavg import feddualavg
from fedjax_sim.checks import check_rates, is_concrete
from fedjax_sim.local import ScalarOrSchedule, local_path, rate
from fedjax_sim.prox import Composite, like
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Task,
    Timeline,
    Work,
    specified,
)

__all__ = ["averaged_feddualavg"]


class AveragedDualState(NamedTuple):
    average: Params  # so far
    dual: Params  # y
    elapsed: Array  # H
    num_averaged: Array  # number of models in the average

    @property
    def params(self) -> Params:
        """The average so far, which is evaluated."""
        return self.average


class _Path(NamedTuple):
    descent: Params  # [K, ...] start - dual, after 1 .. K steps
    elapsed: Array  # [K] the sum of the rates of these steps


@specified
def averaged_feddualavg(
    lr: ScalarOrSchedule, composite: Composite, *, project_start: bool = True
) -> FedAlgorithm:
    r"""Averaged FedDualAvg: the model is the mean of the models of all mean dual states so far.

    .. math::
        \hat x^{(r,k)} = P_{H^{(r,k)}}\Bigl(\sum_i w_i\, y_i^{(r,k)}\Bigr), \qquad
        x = \frac{1}{K R} \sum_{r < R} \sum_{k=1}^K \hat x^{(r,k)}

    with unit server rate.  P is not linear, so the clients' dual states are uploaded step by step:
    an upload is as many models as a visit has steps.  Visits must be equally long: a client that
    has finished would keep its last dual state, and the average would count it again.

    Args:
        lr: client learning rate :math:`\eta_c`, or a schedule over rounds.
        composite: psi and h, see :func:`fedjax_sim.prox.composite`.
        project_start: as for :func:`~fedjax_sim.algorithms.feddualavg`.

    Raises:
        ValueError: a number outside its range; at the start of the run, staleness, or a visit with
            fewer steps than the timeline's ``max_steps``.

    References:
        Yuan, 2023, Theorems 4.4 and 4.7; for Theorem 4.3 see
        :func:`fedjax_sim.average_rounds`.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = averaged_feddualavg(0.01, prox.composite(prox.L1(0.2)))
    """
    check_rates(lr=lr)
    plain = feddualavg(lr, composite, project_start=project_start)

    def init(params: Params) -> AveragedDualState:
        state = plain.init(params)
        zero = jnp.zeros_like(state.elapsed)
        return AveragedDualState(state.params, state.dual, state.elapsed, zero)

    def local(message: tuple, state: tuple, oracle: Oracle, work: Work) -> tuple[_Path, tuple]:
        dual, elapsed = message
        eta = rate(lr, work)
        path = local_path(dual_step(eta, composite, elapsed, oracle), dual, work)
        done = jnp.asarray(work.num_steps)
        steps = jnp.minimum(jnp.arange(1, work.max_steps + 1, dtype=done.dtype), done)
        descent = jax.tree.map(lambda path, y: y[None] - path[1:], path, dual)
        return _Path(descent, total_rate(eta, steps)), state

    def update(state: AveragedDualState, mean: _Path, round: Round) -> AveragedDualState:

        def shadow(at: _Path) -> tuple[Params, Params, Array]:
            dual, elapsed = tree.sub(state.dual, at.descent), state.elapsed + at.elapsed
            return composite.argmin(dual, elapsed), dual, elapsed  # Eq. (4.9)

        models, duals, elapsed = jax.vmap(shadow)(mean)
        count = state.num_averaged + elapsed.shape[0]

        def extended(old: Array, models: Array) -> Array:
            # The initial model has the weight 0 and drops out.
            return old + (models - old[None]).sum(axis=0) / like(old, count)

        average = jax.tree.map(extended, state.average, models)
        dual, elapsed = jax.tree.map(lambda x: x[-1], (duals, elapsed))
        return AveragedDualState(average, dual, elapsed, count)

    return FedAlgorithm(
        init,
        local,
        update,
        plain.broadcast,
        requires=Requires(
            synchronous="the average is over means of clients that started from one dual state",
            exact_mean=plain.requires.exact_mean,
            no_selection="the average is over the steps of equally long visits",
            check=_check,
        ),
    )


def _check(task: Task, timeline: Timeline) -> None:
    if not (is_concrete(timeline.num_steps) and is_concrete(timeline.mask)):
        return
    steps = np.asarray(timeline.num_steps)[np.asarray(timeline.mask)]
    least, expected = steps.min(initial=timeline.max_steps), timeline.max_steps
    if least < expected:
        raise ValueError(
            f"timeline.num_steps is {least} in a visit; expected {expected}, timeline.max_steps, "
            "in all visits: the average is over the steps of equally long visits"
        )
