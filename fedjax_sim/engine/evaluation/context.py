"""The argument of evaluators that receive more than the server's model."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array

from fedjax_sim.types import FedAlgorithm, Task, Timeline, shown

OUTPUTS = "pooled/outputs"  # last part of the name of the array that a pooled evaluator returns


@shown
class RunContext(NamedTuple):
    """Argument of an evaluator that needs more than a state.

    Example:
        >>> personal = lambda context: {"personal": context.algorithm is not None}
        >>> personal(RunContext(state=None))
        {'personal': False}
    """

    state: Any  # RunState
    algorithm: FedAlgorithm | None = None
    task: Task | None = None
    max_steps: int = 0  # static: bounds the local steps of a visit
    key: Array | None = None  # of this run's evaluations
    timeline: Timeline | None = None  # the last round before the evaluation, or several
    # The run whose wrapper contains the evaluated algorithm; None: the algorithm is not in one.
    outer: RunContext | None = None


def context_of(argument: Any) -> RunContext:
    """Returns a context; a run's state becomes a context that has only this state."""
    return argument if isinstance(argument, RunContext) else RunContext(argument)
