"""``advise``: what theory says about a setup, in one call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count, check_counts, check_key, check_number, check_positive
from fedjax_sim.engine import NO_PROBES, Execution, check_options
from fedjax_sim.studies.advice.conditions import conditions_of, sizes_of
from fedjax_sim.studies.advice.measurement import measure_constants
from fedjax_sim.studies.advice.predictions import predict
from fedjax_sim.studies.advice.result import Advice
from fedjax_sim.studies.advice.sources import value_of
from fedjax_sim.studies.advice.theorems import GAP, THEOREMS, Theorem
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import Params, Setup

_LOCAL_STEPS = tuple(2**i for i in range(11))


def advise(
    setup: Setup,
    key: Array | None = None,
    *,
    target: float | None = None,
    gradient_target: float | None = None,
    known: ProblemConstants | None = None,
    lower_bound: float | None = None,
    points: Params | None = None,
    local_steps: Sequence[int] = _LOCAL_STEPS,
    theorems: Collection[Theorem] | None = None,
    iterations: int = 30,
    num_samples: int = 256,
    execution: Execution | None = None,
) -> Advice:
    r"""Returns the constants of a setup, the theorems that apply, and what they prescribe.

    1. Measures the constants of :class:`~fedjax_sim.theory.ProblemConstants` at the initial model,
       at the optimum if F is convex, and at ``points``.  What follows from the text of the task's
       program (constant Hessians, one objective, gradients without noise) is exact; other suprema
       are estimates from below, and the result says so.
    2. Checks the conditions of every theorem, and names those that fail.
    3. Computes the rates that the theorems prescribe, and their bounds.  With a target it computes
       the fewest rounds until the bound reaches it, otherwise the smallest bound after the setup's
       rounds, both over the numbers of local steps.

    :meth:`Advice.compare() <fedjax_sim.studies.advice.result.Advice.compare>` runs the prescribed
    settings beside a tuned sweep.  The objective is the mean of the clients' objectives with equal
    weights. A measurement passes ``iterations`` times over all clients' data per model.

    Args:
        setup: of one run; the task with whole arrays on the device.
        key: one key, for Lanczos and sampled gradients; default ``jax.random.key(0)``.
        target: of ``F - F*``, positive.
        gradient_target: of ``||grad F||^2``, positive, for theorems about gradients.
        known: constants that hold at every model; they replace measured ones.  A known mu says
            that all clients are convex.  Linear models:
            :meth:`fedjax_sim.diagnostics.linear_models.LinearModelBounds.constants`.
        lower_bound: a number that F is at least, such as 0 for a cross-entropy; where the optimum
            is unknown, Delta is the distance of ``F(x_0)`` from it.
        points: further models at which constants are measured, leaves ``[P, ...]``, for example
            those of an earlier run.
        local_steps: candidates for the number of local steps.
        theorems: theorems to apply; default: :data:`fedjax_sim.studies.advice.THEOREMS`.
        iterations: number of iterations of Lanczos and of the power method.
        num_samples: sampled gradients per client and model, for sigma and G.
        execution: strategy that executes the clients.

    Raises:
        ValueError: an invalid setup, one of several runs, a target that is not positive or that the
            initial model meets, local steps below 1, or a known constant that a measured value
            contradicts.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(20, 2, num_steps=1), np.float32(0))
        >>> advice = fs.advise(setup, target=0.01)
        >>> advice.constants.L, advice.sources["L"].kind
        (1.0, 'exact')
        >>> best = advice.prediction("FedAvg, small client rate").prescribed
        >>> best.local_steps, best.lr, best.rounds  # K lr = 1 / (4 L); B_h^2 / (K lr R) <= 0.01
        (1, 0.25, 800)
    """
    sizes = sizes_of(setup)
    check_positive(target=target, gradient_target=gradient_target)
    check_counts(1, local_steps=local_steps)
    if not len(local_steps):
        raise ValueError("local_steps is empty; expected candidates")
    check_count(1, iterations=iterations, num_samples=num_samples)
    key = jax.random.key(0) if key is None else key
    check_key(key)
    check_options(execution, NO_PROBES)
    if not (known is None or isinstance(known, ProblemConstants)):
        raise ValueError(f"known is {known!r:.60}; expected a fedjax_sim.theory.ProblemConstants")
    if lower_bound is not None:
        check_number(lower_bound=lower_bound)
    chosen = _checked(THEOREMS if theorems is None else theorems)
    measurement = measure_constants(
        setup.task,
        setup.params,
        key,
        points=points,
        known=known,
        lower_bound=lower_bound,
        iterations=iterations,
        num_samples=num_samples,
        execution=execution,
    )
    gap = None if measurement.optimum is None else value_of(measurement.constants, "Delta")
    if target is not None and gap is not None and target >= gap:
        raise ValueError(f"target is {target}; expected less than F(x_0) - F*, {gap:.4g}")
    if gradient_target is not None and measurement.loss is not None:
        gradient = jax.jit(jax.grad(measurement.loss))(setup.params)
        slope = float(tree.vdot(gradient, gradient))
        if gradient_target >= slope:
            raise ValueError(
                f"gradient_target is {gradient_target}; expected less than ||grad F(x_0)||^2, "
                f"{slope:.4g}"
            )
    conditions = conditions_of(setup, measurement)
    steps = tuple(sorted({int(K) for K in local_steps}))
    predictions = tuple(
        predict(
            theorem,
            measurement,
            conditions,
            sizes,
            target=target if theorem.measure == GAP else gradient_target,
            local_steps=steps,
        )
        for theorem in chosen
    )
    return Advice(setup, measurement, sizes, predictions)


def _checked(theorems: Any) -> tuple[Theorem, ...]:
    """Returns theorems; refuses other objects, such as their names."""
    every = tuple(theorems) if isinstance(theorems, Collection) else (theorems,)
    for one in every:
        if not isinstance(one, Theorem):
            raise ValueError(
                f"theorems has {one!r:.60}; expected those of fs.advice.THEOREMS, which are objects"
            )
    return every
