"""Executions that ``fedjax-sim measure`` found: where they are stored, how a run records them.

A choice changes the order of floating-point sums, and with it the last bits of a run.  So a run
records the choices that it used in ``config.json`` (the option ``measured``); resuming and
repeating use those, whatever was measured since.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fedjax_sim.engine import Execution
from fedjax_sim.models import Convolution
from fedjax_sim.runs import Forecast, Options, forecast
from fedjax_sim.studies import executions
from fedjax_sim.studies.executions import LOWERINGS, ExecutionChoice
from fedjax_sim.studies.setups import OPEN, ExecutionOptions, ResolvedRun, Run, group
from fedjax_sim.types import Setup

Choices = dict[str, ExecutionChoice | None]  # by algorithm; None: the rules of strategies.auto


def as_text(choice: ExecutionChoice | None) -> str:
    """Returns a choice as ``CLIENTSxDEVICES:LOWERING``."""
    if choice is None:
        return "rules"
    return f"{choice.chunk}x{choice.num_devices}:{choice.lowering}"


def recorded(options: ExecutionOptions) -> Choices:
    """Returns the choices that the options of a run hold."""
    choices: Choices = {}
    for name, measured in options.measured.items():
        if measured is not None and measured.lowering not in LOWERINGS:
            raise ValueError(
                f"measured has {name}.lowering={measured.lowering!r}; expected one of "
                f"{', '.join(LOWERINGS)}"
            )
        choices[name] = None if measured is None else ExecutionChoice(**vars(measured))
    return choices


def choices(
    comparison: ResolvedRun, files: Sequence[pathlib.Path], earlier: Mapping[str, Any] | None = None
) -> Choices:
    """Returns the choice of every algorithm: recorded, else stored in the first file with one."""
    placed = comparison.problem.setup.task.placement is not None
    if comparison.computed.execution != "auto" or placed:
        return {}
    known = {**(earlier or {}), **recorded(comparison.computed)}
    result: Choices = {}
    for name in comparison.hyper:
        if name not in known:
            problem = executions.Problem(
                comparison.algorithm(name), comparison.setups[name], comparison.problem.keys
            )
            with comparison.arithmetic():
                described = executions.describe(problem, comparison.batch_size)
            found = (executions.stored(file, described) for file in files)
            known[name] = next((choice for choice in found if choice is not None), None)
        result[name] = known[name]
    return result


def lowering(choice: ExecutionChoice | None) -> Convolution:
    """Returns the lowering of convolutions by a choice; the default one without a choice."""
    return LOWERINGS["auto" if choice is None else choice.lowering]


def executed(
    comparison: ResolvedRun, name: str, choice: ExecutionChoice | None
) -> tuple[Setup, Execution | None]:
    """Returns an algorithm's setup and execution by a choice; without one, by the options."""
    setup = comparison.setups[name]
    if choice is None:
        return setup, comparison.execution
    if choice.lowering != "auto":
        setup = comparison.lowered(lowering(choice)).setup_of(name)
    return setup, choice.execution()


def run_forecast(
    comparison: ResolvedRun, measured_files: Sequence[pathlib.Path] = ()
) -> Iterator[tuple[str, Forecast]]:
    """Yields ``(algorithm, forecast)`` for a comparison's algorithms; writes nothing."""
    found = choices(comparison, measured_files)
    for name in comparison.hyper:
        with comparison.arithmetic():
            setup, execution = executed(comparison, name, found.get(name))
            algorithm = comparison.algorithm(name)
            keys = comparison.problem.keys
            result = forecast(
                algorithm, setup, keys, delta=None, options=Options(execution=execution)
            )
        yield name, result._replace(privacy=comparison.guarantee)


@group
class MeasureOptions:
    """Options of ``fedjax-sim measure``."""

    run: Annotated[Run, OPEN]
    user: bool = False
    """Store the fastest execution for all folders of this user; default: for the current one."""


# Rounds that a measurement dispatches at once.
_ROUNDS = 5


def run_measure(
    comparison: ResolvedRun,
    path: pathlib.Path,
    status: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> Iterator[tuple[str, list[executions.Measured]]]:
    """Measures one algorithm without client state and one with it; stores the fastest choices."""
    measured_kinds: set[bool] = set()
    for name in comparison.hyper:
        algorithm, keys = comparison.algorithm(name), comparison.problem.keys
        whole = executions.Problem(algorithm, comparison.setups[name], keys)
        described = executions.describe(whole, comparison.batch_size)
        if described["client_state"] in measured_kinds:
            continue
        measured_kinds.add(described["client_state"])

        def short(conv: Convolution, name=name) -> Setup:
            setup = comparison.lowered(conv).setup_of(name)
            return dataclasses.replace(setup, timeline=setup.timeline[:_ROUNDS])

        with status(f"measuring {name}"), comparison.arithmetic():
            measured = executions.measure_executions(algorithm, short, keys)
        executions.store(path, described, measured)
        yield name, measured
