"""Executions that ``fedjax-sim measure`` found: where they are stored, how a run records them.

A choice changes the order of floating-point sums, and with it the last bits of a run.  So a run
records the choices that it used in ``config.json`` (the option ``measured``); resuming and
repeating use those, whatever was measured since.
"""

import pathlib
from collections.abc import Iterable, Sequence

from fedjax_sim.engine import Execution
from fedjax_sim.models import Convolution
from fedjax_sim.studies import executions
from fedjax_sim.studies.executions import LOWERINGS, ExecutionChoice
from fedjax_sim.studies.setups.build import ResolvedRun
from fedjax_sim.types import Setup

NONE = "rules"  # no choice was stored: the rules of strategies.auto
Choices = dict[str, ExecutionChoice | None]  # by algorithm


def as_text(choice: ExecutionChoice | None) -> str:
    """Returns a choice as ``CLIENTSxDEVICES:LOWERING``.

    Example:
        >>> as_text(ExecutionChoice(4, 2, "im2col")), as_text(None)
        ('4x2:im2col', 'rules')
    """
    if choice is None:
        return NONE
    return f"{choice.chunk}x{choice.num_devices}:{choice.lowering}"


def parse(settings: Iterable[str]) -> Choices:
    """Returns the choices in texts ``ALGORITHM=CLIENTSxDEVICES:LOWERING``.

    Raises:
        ValueError: a text of another form.

    Example:
        >>> parse(["fedavg=4x2:im2col", "scaffold=rules"])
        {'fedavg': ExecutionChoice(chunk=4, num_devices=2, lowering='im2col'), 'scaffold': None}
    """
    choices: Choices = {}
    for setting in settings:
        name, _, text = setting.rpartition("=")
        numbers, _, lowering = text.partition(":")
        chunk, _, devices = numbers.partition("x")
        whole = chunk.isdecimal() and devices.isdecimal() and int(chunk) and int(devices)
        if not name or not (text == NONE or (whole and lowering in LOWERINGS)):
            raise ValueError(
                f"measured has {setting!r}; expected ALGORITHM=CLIENTSxDEVICES:LOWERING, as "
                f"fedavg=4x2:auto, or ALGORITHM={NONE}; lowerings are {', '.join(LOWERINGS)}"
            )
        choices[name] = (
            None if text == NONE else ExecutionChoice(int(chunk), int(devices), lowering)
        )
    return choices


def choices(
    comparison: ResolvedRun, files: Sequence[pathlib.Path], recorded: Iterable[str] = ()
) -> Choices:
    """Returns the choice of every algorithm: given, else recorded, else stored in the first file.

    Args:
        comparison: the comparison; with an execution of its own, or with clients divided over
            devices, it takes no choices.
        files: files that :func:`fedjax_sim.studies.executions.store` wrote.
        recorded: choices of earlier calls.

    Raises:
        ValueError: choices of another form, or a damaged file.
    """
    placed = comparison.problem.setup.task.placement is not None
    if comparison.options["execution"] != "auto" or placed:
        return {}
    given = parse(comparison.options["measured"])
    known = parse(recorded) | given
    result: Choices = {}
    for name in comparison.hyper:
        if name not in known:
            problem = executions.Problem(
                comparison.algorithm(name), comparison.setups[name], comparison.problem.keys
            )
            with comparison.arithmetic():
                described = executions.describe(problem, comparison.options["batch_size"])
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
