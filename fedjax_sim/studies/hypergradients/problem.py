"""A run's metric as a function of its hyper-parameters, round by round."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.engine import (
    Execution,
    RunState,
    advance,
    evaluate,
    evaluation_context,
    first_state,
)
from fedjax_sim.studies.hypergradients.checkpointing import scan_rounds
from fedjax_sim.types import FedAlgorithm, PyTree, Setup, Timeline


class Arrays(NamedTuple):
    """Arrays of a run: arguments of the compiled program."""

    setup: Setup
    key: Array
    metric: Partial | None


class Problem(NamedTuple):
    """A run as a function of its hyper-parameters; has no arrays."""

    name: str | None  # of a metric of the setup; None: a function
    algorithm_of: Callable[[PyTree], FedAlgorithm]
    setup_of: Callable[[PyTree, Setup], Setup]
    execution: Execution
    levels: int

    def value(self, hyper: PyTree, arrays: Arrays, levels: int | None = None) -> Array:
        """Returns the metric after all rounds."""
        state = self.begin(hyper, arrays)

        def step(state: RunState, now: Timeline) -> RunState:
            return self.round(hyper, arrays, state, now)

        levels = self.levels if levels is None else levels
        state = scan_rounds(step, state, arrays.setup.timeline, levels)
        return self.end(hyper, arrays, state)

    def begin(self, hyper: PyTree, arrays: Arrays) -> RunState:
        """Returns the state before the first round."""
        return first_state(self.algorithm_of(hyper), self.setup_of(hyper, arrays.setup))

    def round(self, hyper: PyTree, arrays: Arrays, state: RunState, now: Timeline) -> RunState:
        """Returns the state after a round of the engine; ``now`` has leaves ``[S]``."""
        setup = self.setup_of(hyper, arrays.setup)
        one = jax.tree.map(lambda x: x[None], now)
        setup = dataclasses.replace(setup, timeline=one, params=None, eval_fn=None, eval_every=1)
        algorithm = self.algorithm_of(hyper)
        return advance(algorithm, setup, state, arrays.key, execution=self.execution)[0]

    def end(self, hyper: PyTree, arrays: Arrays, state: RunState) -> Array:
        """Returns the metric of the final state."""
        if arrays.metric is not None:
            name, value = "metric", arrays.metric(state.server.params)
        else:
            setup = self.setup_of(hyper, arrays.setup)
            context = evaluation_context(
                self.algorithm_of(hyper), setup.task, setup.timeline, state, arrays.key
            )
            assert setup.eval_fn is not None
            values = evaluate(setup.eval_fn, context)
            if self.name not in values:
                raise ValueError(f"metric is {self.name!r}; expected one of {sorted(values)}")
            name, value = f"metric {self.name!r}", values[self.name]
        value = jnp.asarray(value)
        if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"{name} has shape {value.shape} and dtype {value.dtype}; expected one floating "
                "number"
            )
        return value
