"""Kernels of one round by JAX's profiler: where the time of the device goes.

A round of ten clients and five local steps runs under ``jax.profiler``, in the form that
``execution.auto`` gives it but without command buffers, whose kernels the profiler may not list one
by one.  Numbers are per local step of the whole cohort, by the operation in the compiled program
that a kernel belongs to: microseconds, and how often it ran.  ``busy us`` is the sum over all
kernels, ``span us`` the time between the first one's start and the last one's end.
"""

import collections
import json
import pathlib
import re
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

import jax
from jax.profiler import ProfileData

from benchmarks.candidates import ours
from benchmarks.goals import arithmetic
from benchmarks.jobs import Measured
from benchmarks.workloads import GOALS, reduced

STEPS = 5
MOST = 60  # operations listed one by one


class Kernel(NamedTuple):
    """A kernel that ran: its name, the operation it belongs to, nanoseconds."""

    name: str
    operation: str
    start: float
    duration: float


def measure(workload: str, precision: str, tiny: bool = False) -> Measured:
    """Runs in a process of its own."""
    w = GOALS[workload]
    w = reduced(w) if tiny else w._replace(examples=STEPS * w.batch, epochs=1)
    with arithmetic(precision):
        call = ours(w, "auto", 1, half=precision == "bfloat16")
        call()
        call()
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                call()
            found = kernels(pathlib.Path(folder))
    numbers = summed(found, w.steps)
    print(json.dumps(numbers), flush=True)
    return numbers


def kernels(folder: pathlib.Path) -> list[Kernel]:
    """Returns the kernels of a profile, those of the host's XLA where there is no device."""
    planes = [
        plane
        for path in sorted(folder.rglob("*.xplane.pb"))
        for plane in ProfileData.from_file(str(path)).planes
    ]
    streams = [
        line
        for plane in planes
        if plane.name.startswith("/device:")
        for line in plane.lines
        if line.name.startswith("Stream")
    ]
    found = []
    for line in streams or (line for plane in planes for line in plane.lines):
        for event in line.events:
            operation = _operation(event.stats) or (event.name if streams else None)
            if operation is not None:
                found.append(Kernel(event.name, operation, event.start_ns, event.duration_ns))
    if not found:
        names = sorted({plane.name for plane in planes})
        raise ValueError(f"profile has no operation of XLA in {names}; expected some kernels")
    return found


def _operation(stats: Iterable[tuple]) -> str | None:
    for name, value in stats:
        if name == "hlo_op":
            return str(value)
    return None


def summed(found: Iterable[Kernel], steps: int) -> Measured:
    """Returns microseconds and runs per local step: of all, of kinds, of the longest operations."""
    found = list(found)
    kinds: dict[str, float] = collections.defaultdict(float)
    times: dict[str, float] = collections.defaultdict(float)
    runs: dict[str, float] = collections.defaultdict(float)
    for one in found:
        name = one.operation if one.name == one.operation else f"{one.operation} {one.name}"
        kinds[re.sub(r"[._\d]+$", "", one.operation)] += one.duration / 1e3 / steps
        times[name] += one.duration / 1e3 / steps
        runs[name] += 1 / steps
    start = min(one.start for one in found)
    end = max(one.start + one.duration for one in found)
    numbers = {
        "kernels": len(found) / steps,
        "busy us": sum(times.values()),
        "span us": (end - start) / 1e3 / steps,
    }
    kinds = dict(sorted(kinds.items(), key=lambda item: -item[1]))
    numbers |= {f"kind {name} us": value for name, value in kinds.items()}
    for name in sorted(times, key=lambda name: -times[name])[:MOST]:
        numbers |= {f"{name} us": times[name], f"{name} runs": runs[name]}
    return {name: round(value, 3) for name, value in numbers.items()}
