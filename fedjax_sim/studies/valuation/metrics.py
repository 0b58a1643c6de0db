"""Metrics of a run's final model, and checks that all valuations share."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.checks import check_is_setup, check_key
from fedjax_sim.engine import (
    Execution,
    OnHost,
    RunState,
    check_last_round,
    check_run,
    evaluate,
    evaluation_context,
    first_state,
    run,
)
from fedjax_sim.runs import Mode, sign
from fedjax_sim.types import FedAlgorithm, Params, Setup

Metric = str | Callable[[Params], Any]

_NAMELESS = "<lambda>", ""


def evaluated_once(
    algorithm: FedAlgorithm, setup: Setup, key: Array, metric: Metric, mode: Mode
) -> tuple[Setup, str]:
    """Returns a setup whose only evaluation is that of the final model, and the metric's name."""
    check_key(key)
    check_is_setup(setup)
    name, eval_fn = metric, setup.eval_fn
    if not isinstance(name, str):
        if not callable(metric):
            raise ValueError(
                f"metric is {metric!r:.60}; expected a function of the model, or the name of a "
                "metric of setup.eval_fn"
            )
        name = getattr(getattr(metric, "func", metric), "__name__", "")
        if mode is None and name in _NAMELESS:
            raise ValueError("mode is None; expected 'min' or 'max' for a metric without a name")
        inner = metric if isinstance(metric, Partial) else Partial(metric)
        eval_fn = Partial(_Named(name), inner)
    sign(name, mode)
    if eval_fn is None:
        raise ValueError(f"metric is {metric!r} and setup.eval_fn None; expected an evaluation")
    setup = dataclasses.replace(setup, eval_fn=eval_fn, eval_every=1)
    # Whether the last round has the metric is checked below, whatever the initial model has.
    check_run(algorithm, setup, None, eval_initial=True)
    if isinstance(setup.task.placement, OnHost):
        raise ValueError(
            "setup.task has its examples on the host (offload.on_host); expected a task without a "
            "placement or placed by client"
        )
    rounds = setup.timeline.num_rounds
    check_last_round(eval_fn, rounds)
    setup = dataclasses.replace(setup, eval_every=rounds)

    def initial(setup: Setup, key: Array) -> dict[str, Array]:
        return metrics_of(algorithm, setup, first_state(algorithm, setup), key)

    known = jax.eval_shape(initial, setup, key)  # nothing is compiled
    if name not in known and not isinstance(metric, str):
        raise ValueError("metric returns an array; expected a function that returns one number")
    if name not in known:
        raise ValueError(f"metric is {name!r}; expected one of {', '.join(sorted(known))}")
    return setup, name


def metrics_of(
    algorithm: FedAlgorithm, setup: Setup, state: RunState, key: Array
) -> dict[str, Array]:
    """Returns all metrics of a state that are single numbers; NaN if it is not finite."""
    assert setup.eval_fn is not None
    context = evaluation_context(algorithm, setup.task, setup.timeline, state, key)
    finite, metrics = tree.all_finite(state.server), evaluate(setup.eval_fn, context)
    return {name: _if(finite, x) for name, x in metrics.items() if jnp.shape(x) == ()}


def final_metrics(
    algorithm: FedAlgorithm, setup: Setup, key: Array, execution: Execution | None = None
) -> dict[str, Array]:
    """Returns all metrics of the final model that are single numbers; NaN if the run diverged.

    A traceable function.
    """
    state, history = run(algorithm, setup, key, execution=execution)
    finite = state.diverged_at == 0
    return {name: _if(finite, x[-1]) for name, x in history.metrics.items() if x.ndim == 1}


def _if(finite: Array, metric: Any) -> Array:
    """Returns a metric, NaN if it is that of a model of NaN, such as the accuracy of one class."""
    metric = jnp.asarray(metric)
    if not jnp.issubdtype(metric.dtype, jnp.floating):  # numbers of examples
        return metric
    return jnp.where(finite, metric, jnp.nan)


class _Named(NamedTuple):
    """Evaluation with one metric. Hashable by value."""

    name: str

    def __call__(self, metric: Callable[[Params], Any], params: Params) -> dict[str, Any]:
        return {self.name: metric(params)}
