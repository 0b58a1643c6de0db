"""Evaluators that receive the run's state, or the run, instead of the server's model.

An ``eval_fn`` is a function of the server's model.  If the function of a ``Partial`` has the
attribute ``takes_state``, the engine passes a :class:`RunContext` instead: the
:class:`~fedjax_sim.engine.RunState` with the states of all clients, the algorithm and the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.tree_util import Partial

from fedjax_sim.checks import called, check_count, is_real
from fedjax_sim.engine.evaluation.context import context_of
from fedjax_sim.engine.evaluation.visits import keeps_statistics, mean_over_models
from fedjax_sim.types import EvalFn, Setup

# A mark of its own, since NaN would look like a divergence.
EVALUATED = "evaluated"  # metric of `at_rounds`: False where the other values mean nothing
CLOCK = ("time", "local_steps")  # metrics that every history of a simulation begins with


def takes_state(eval_fn: Any) -> bool:
    """Returns True for an evaluator that receives a :class:`RunContext`.

    Example:
        >>> norm = Partial(lambda params: {"norm": jnp.abs(params)})
        >>> takes_state(norm), takes_state(at_rounds(norm, 10))
        (False, True)
    """
    return bool(getattr(getattr(eval_fn, "func", eval_fn), "takes_state", False))


def evaluate(eval_fn: EvalFn, run: Any) -> dict[str, Any]:
    """Returns the metrics of a run: of its server's model unless the evaluator takes more.

    If clients keep the running statistics of batch normalisation, those of the server's model stay
    initial.  The metrics are then means over models with the statistics of clients
    (:func:`~fedjax_sim.engine.evaluation.visits.mean_over_models`).

    Args:
        eval_fn: an evaluator.
        run: a :class:`~fedjax_sim.engine.RunState`, or a :class:`RunContext` for evaluators that
            need the algorithm and the task.

    Raises:
        ValueError: the evaluator returns no dict of real numbers.

    Example:
        >>> import fedjax_sim as fs
        >>> server = fs.fedavg(0.1).init(jnp.array(-2.0))
        >>> state = fs.RunState(jnp.array(3), server, (), (), jnp.array(0))
        >>> norm = Partial(lambda params: {"norm": jnp.abs(params)})
        >>> {name: value.item() for name, value in evaluate(at_rounds(norm, 3), state).items()}
        {'norm': 2.0, 'evaluated': True}
    """
    context = context_of(run)
    if takes_state(eval_fn):
        return _metrics(eval_fn, context)
    if keeps_statistics(context.outer or context):
        return mean_over_models(lambda params: _metrics(eval_fn, params), context)
    return _metrics(eval_fn, context.state.server.params)


def _metrics(eval_fn: Any, argument: Any) -> dict[str, Any]:
    """Returns the metrics of a model or a run, which are real numbers by name."""
    given = "a run" if takes_state(eval_fn) else "the server's model"
    expected = "a function that JAX can trace and that returns a dict of metrics"
    metrics = called("eval_fn", given, expected, eval_fn, argument)
    if not isinstance(metrics, Mapping):
        kind = "an array" if isinstance(metrics, Array) else f"a {type(metrics).__name__}"
        raise ValueError(f"eval_fn returns {kind}; expected a dict of metrics by name")
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise ValueError(f"eval_fn returns the name {name!r}; expected text")
        if not isinstance(value, (int, float, np.ndarray, np.generic, Array)):
            raise ValueError(f"eval_fn returns {name!r}: {value!r:.60}; expected a number")
        if jnp.iscomplexobj(value):
            raise ValueError(
                f"eval_fn returns {name!r}, which is complex; expected real metrics, such as its "
                "absolute value"
            )
        if not is_real(value):
            raise ValueError(
                f"eval_fn returns {name!r}, which is a random key; expected real metrics, such as "
                "its words jax.random.key_data(key)"
            )
        if is_mark(name) and jnp.asarray(value).dtype != bool:
            raise ValueError(
                f"eval_fn returns {name!r} with numbers; expected another name, since False under "
                "this one marks a skipped evaluation (fs.evaluation.at_rounds)"
            )
    return dict(metrics)


def is_mark(name: str) -> bool:
    """Returns True for the mark of :func:`at_rounds` among metrics."""
    return f"/{name}".endswith(f"/{EVALUATED}")


def due(metrics: Mapping[str, Any], name: str) -> bool:
    """Returns True if a metric of one evaluation is a value; False for marks and skipped ones."""
    prefixes = [
        key.removesuffix(EVALUATED) for key, mark in metrics.items() if is_mark(key) and not mark
    ]
    return not is_mark(name) and not name.startswith(tuple(prefixes))


def check_names(metrics: Iterable[str], probes: Iterable[str]) -> None:
    """Refuses names of metrics and probes that a history could not tell apart or read again."""
    seen: set[str] = set()
    for argument, names in (("eval_fn", metrics), ("probes", probes)):
        for name in names:
            has = f"{argument} has {name!r}"
            if name in CLOCK:
                raise ValueError(
                    f"{has}; expected another name, since histories have the clock's {name}"
                )
            if not isinstance(name, str):
                raise ValueError(f"{has}; expected a name that is text")
            if len(f"{name}.".splitlines()) > 1:
                raise ValueError(f"{has}; expected a name without line breaks")
            if name in seen:
                raise ValueError(
                    f"{has}, which is another value's name, too; expected another name"
                )
            seen.add(name)


def at_rounds(eval_fn: EvalFn, every: int) -> Partial:
    """Evaluates only after rounds that are multiples of ``every``; otherwise costs nothing.

    The result has a metric ``evaluated``.  Where it is False the other metrics are 0 and have no
    meaning; tables and files leave them out.

    Args:
        eval_fn: an expensive evaluator, for instance of all clients.
        every: rounds; a multiple of the setup's ``eval_every``.

    Raises:
        ValueError: ``every`` below 1.  At the start of a run: no evaluation is after a multiple of
            ``every`` rounds.

    Example:
        >>> import fedjax_sim as fs
        >>> slow = fs.evaluation.at_rounds(lambda w: {"norm": abs(w)}, 50)
        >>> both = fs.evaluation.merge_evaluators(test=lambda w: {"loss": w**2}, slow=slow)
    """
    check_count(1, every=every)
    return Partial(_AtRounds(every), eval_fn if isinstance(eval_fn, Partial) else Partial(eval_fn))


def periods(eval_fn: Any) -> set[int]:
    """Returns the periods of all :func:`at_rounds` in an evaluator."""
    if isinstance(eval_fn, tuple) and not isinstance(eval_fn, _AtRounds):
        return {period for part in eval_fn for period in periods(part)}
    if not isinstance(eval_fn, Partial):
        return set()
    own = {eval_fn.func.every} if isinstance(eval_fn.func, _AtRounds) else set()
    return own | periods(eval_fn.args)


def check_periods(setup: Setup, *, eval_initial: bool = False) -> None:
    """Refuses a setup with a part of :func:`at_rounds` that no evaluation of the run reaches."""
    if eval_initial:
        return
    rounds, every = setup.timeline.num_rounds, setup.eval_every
    evaluated = {*range(every, rounds, every), rounds}
    for period in sorted(periods(setup.eval_fn)):
        if all(t % period for t in evaluated):
            raise ValueError(
                f"eval_fn has a part every {period} rounds (at_rounds), which no evaluation "
                f"reaches with eval_every {every} in {rounds} rounds; expected a divisor of an "
                f"evaluated round, such as {min(every, rounds)}"
            )


def check_last_round(eval_fn: Any, num_rounds: int) -> None:
    """Refuses an evaluator with a part of :func:`at_rounds` that skips the last round."""
    if skipped := [period for period in periods(eval_fn) if num_rounds % period]:
        raise ValueError(
            f"setup.eval_fn evaluates every {skipped[0]} rounds; expected the last round, "
            f"{num_rounds}, to be one of them"
        )


class _AtRounds(NamedTuple):
    """Static part of an evaluator at some rounds."""

    every: int
    takes_state = True

    def __call__(self, eval_fn: Partial, run: Any) -> dict[str, Any]:
        due = _common(context_of(run).state.round) % self.every == 0
        shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, evaluate(eval_fn, run)))

        def skip() -> dict[str, Any]:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def measure() -> dict[str, Any]:
            return jax.tree.map(jnp.asarray, evaluate(eval_fn, run))

        result = lax.cond(due, measure, skip)
        return result | {EVALUATED: due & result[EVALUATED] if EVALUATED in result else due}


@custom_vmap
def _common(round: Array) -> Array:
    """Round of all replicas: a condition on it does not become a selection under ``vmap``."""
    return round


@_common.def_vmap
def _(axis_size: int, in_batched: list[bool], round: Array) -> tuple[Array, bool]:
    del axis_size
    return (round[0] if in_batched[0] else round), False
