"""Measurement of the constants of a task, with their sources."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.diagnostics import Optimum, curvature, measure, sampled_moments, suboptimality
from fedjax_sim.diagnostics.optimum import optimum
from fedjax_sim.engine import Execution
from fedjax_sim.studies.advice.sources import (
    Source,
    Sourced,
    check_known,
    convexity,
    measured_sources,
    models,
    proven,
    rounding,
    value_of,
)
from fedjax_sim.studies.advice.structure import (
    has_full_gradients,
    is_deterministic,
    is_quadratic,
    is_shared,
    mean_objective,
)
from fedjax_sim.theory import ProblemConstants, is_known
from fedjax_sim.types import Params, Task, shown

_SEARCHED = 2000  # parameters, up to which the optimum is searched without a known mu


@shown
class Measurement(NamedTuple):
    """Constants of a task, measured at P models."""

    constants: ProblemConstants
    sources: dict[str, Source]  # by name
    convex: Source  # of the claim that all clients are convex; "unknown": they are not
    deterministic: bool  # gradients of local steps are full gradients
    loss: Partial | None  # F; None: the task's oracles have no full losses
    optimum: Optimum | None
    num_points: int  # P


def measure_constants(
    task: Task,
    params: Params,
    key: Array,
    *,
    points: Params | None = None,
    known: ProblemConstants | None = None,
    lower_bound: float | None = None,
    iterations: int = 30,
    num_samples: int = 256,
    execution: Execution | None = None,
) -> Measurement:
    """Measures constants at the initial model, at given models and at the optimum of F.

    The arguments are those of :func:`fedjax_sim.advise`.
    """
    known = known or ProblemConstants()
    curvature_key, constants_key, noise_key = jax.random.split(key, 3)
    loss = mean_objective(task, params)
    above = None if lower_bound is None else _above(loss, params, lower_bound)
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    best, reason = _search(loss, params, size <= _SEARCHED or is_known(known.mu))
    stack = _stacked(params, points, best)
    count = len(jax.tree.leaves(stack)[0])
    bent = curvature(task, stack, curvature_key, iterations=iterations, execution=execution)
    concave = float(np.min(np.asarray(bent.total.smallest))) < -rounding(bent)
    if best is not None and concave and not is_known(known.mu):
        best, reason = None, "F is not convex at a measured model, so its minimum is unknown"
    # The text cannot exclude a dependence on the step: oracles look up batch sizes by step.
    deterministic = is_deterministic(task, params) and has_full_gradients(
        task, stack, noise_key, num_steps=num_samples
    )
    samples = 1 if deterministic else num_samples
    moments = sampled_moments(task, stack, noise_key, num_samples=samples)
    constants = measure(
        task,
        stack,
        constants_key,
        moments=moments,
        found=best,
        loss=loss,
        bent=bent,
        iterations=iterations,
        execution=execution,
    )
    lowest = float(np.min(np.asarray(bent.clients.smallest)))
    if lowest > rounding(bent):  # ||grad F_m||^2 >= 2 mu (F_m - inf F_m)
        constants = constants._replace(lojasiewicz_mu=2 * lowest, lojasiewicz_alpha=1.0)
    sourced = Sourced(constants, measured_sources(constants, count, samples, reason))

    quadratic = is_quadratic(task, params)
    if quadratic:
        note = f"largest value at {models(count)}; without bound if Hessians differ"
        zeta = {"zeta": constants.zeta, "zeta_mean": constants.zeta_mean}
        sourced = sourced.but(Source("estimate", note), **zeta)
    exact = proven(
        constants,
        quadratic=quadratic,
        spectrum=iterations >= size,
        shared=task.num_clients == 1 or is_shared(task, params),
        deterministic=deterministic,
    )
    for name, (value, note) in exact.items():
        sourced = sourced.but(Source("exact", note), **{name: value})
    if above is not None and best is None:
        note = f"F(x_0) minus the lower bound {lower_bound:g}"
        sourced = sourced.but(Source("bound", note), Delta=above)
    check_known(known, sourced.constants)
    sourced = sourced.but(Source("given", "by the caller"), **known.known)
    sourced = _with_implied(sourced, known)
    convex = convexity(bent, known, quadratic, count)
    return Measurement(*sourced, convex, deterministic, loss, best, count)


def _with_implied(sourced: Sourced, known: ProblemConstants) -> Sourced:
    """Returns constants with those that others imply, unless the caller knows them."""
    constants, sources = sourced
    mu, B = value_of(constants, "mu"), value_of(constants, "B")
    if mu and sources["mu"].kind != "estimate" and not is_known(known.G):
        note = "gradients of strongly convex objectives have no bound"
        sourced = sourced.but(Source("unknown", note), G=None)
    if B is not None and not is_known(known.B_h):  # h = ||x||^2 / 2
        sourced = sourced.but(sources["B"], B_h=B / math.sqrt(2))
    return sourced


def _search(loss: Partial | None, params: Params, searched: bool) -> tuple[Optimum | None, str]:
    """The optimum, or None and the reason."""
    if loss is None:
        return None, "the task's oracles have no full_loss"
    if not searched:
        return None, f"no optimum is searched for more than {_SEARCHED} parameters without known.mu"
    try:
        return optimum(loss, params), ""
    except FloatingPointError as error:
        return None, str(error)


def _stacked(params: Params, points: Params | None, best: Optimum | None) -> Params:
    """Initial model, given models and optimum: leaves ``[P, ...]``."""
    parts = [jax.tree.map(lambda x: jnp.asarray(x)[None], params)]
    if points is not None:
        shapes, expected = ([jnp.shape(x) for x in jax.tree.leaves(p)] for p in (points, params))
        if [shape[1:] for shape in shapes] != expected:
            raise ValueError(
                f"points has leaves of shapes {shapes[:3]}; expected [P, ...] of the initial "
                f"model's shapes {expected[:3]}"
            )
        parts.append(points)
    if best is not None:
        parts.append(jax.tree.map(lambda x: jnp.asarray(x)[None], best.params))
    return jax.tree.map(
        lambda first, *rest: np.concatenate([first, *(np.asarray(x, first.dtype) for x in rest)]),
        *parts,
    )


def _above(loss: Partial | None, params: Params, lower_bound: float) -> float:
    """``F(x_0) - lower_bound``."""
    if loss is None:
        raise ValueError(f"lower_bound is {lower_bound}; expected None: the task has no full_loss")
    gap = suboptimality(loss, params, Optimum(params, lower_bound, 0.0, 0))
    if not gap >= 0:
        value = gap + lower_bound
        raise ValueError(f"lower_bound is {lower_bound}; expected at most F(x_0), {value:.4g}")
    return gap
