"""``fedjax-sim measure``: measures ways to execute a comparison and stores the fastest."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Annotated

from fedjax_sim.models import Convolution
from fedjax_sim.studies import executions
from fedjax_sim.studies.setups import OPEN, ResolvedRun, Run, group
from fedjax_sim.types import Setup


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
    status: Callable[[str], AbstractContextManager] = contextlib.nullcontext,
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
