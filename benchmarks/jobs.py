"""Measurements, each in a process of its own, one at a time.

A job names a module with a function ``measure(**arguments) -> {name: number}``; its process is

    python -m benchmarks.jobs MODULE '{"argument": value}'

and may be that of another virtual environment: this file needs the standard library only.  What a
measurement of several things prints before it ends, as lines of JSON, counts if its time is over.
"""

import argparse
import importlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parent.parent

OneCall = Callable[[], int]  # does some rounds, waits for them, returns their number
Measured = dict[str, float]  # name -> number
Results = dict[str, dict[str, Measured]]  # case -> candidate -> its numbers


class Job(NamedTuple):
    """One measurement: a candidate on a case."""

    case: str
    candidate: str
    module: str
    arguments: Mapping[str, Any] = {}
    python: str = sys.executable
    env: Mapping[str, str] = {}  # environment variables besides those of this process
    root: pathlib.Path = ROOT  # folder of the package and of the benchmarks


class Options(NamedTuple):
    """Options of all parts of the benchmarks."""

    workloads: tuple[str, ...]
    candidates: tuple[str, ...] | None  # None: the part's own choice
    seconds: float  # of timed calls per measurement
    peers: Mapping[str, str]  # name -> Python interpreter
    setups: tuple[str, ...] = ()  # of the part published; none: all
    full: bool = False  # all rounds of the published setups

    def chosen(self, candidates: Iterable[str]) -> list[str]:
        """Returns those of a part's candidates that are to be measured."""
        known = list(candidates)
        return [name for name in self.candidates or known if name in known]


def command_line(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns a parser that prints a module's docstring as it stands."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}".strip(),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def peak_mb() -> float:
    """Returns the most memory that this process has had."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1)


class PartlyMeasured(Exception):
    """The time of a job was over; ``measured`` is what it had."""

    def __init__(self, measured: Measured):
        super().__init__("its time is over")
        self.measured = measured


class Failed(RuntimeError):
    """The process of a job failed; ``measured`` is what it had."""

    def __init__(self, message: str, measured: Measured):
        super().__init__(message)
        self.measured = measured


def run(job: Job, timeout: float | None = None) -> Measured:
    """Runs a job in its process and returns what it measured.

    Raises:
        Failed: the process failed; with the end of its error output and what it had measured.
        PartlyMeasured: it took more seconds than the timeout, and measured something.
        TimeoutExpired: of ``subprocess``; it measured nothing in that time.
    """
    command = [job.python, "-m", "benchmarks.jobs", job.module, json.dumps(dict(job.arguments))]
    env = {"JAX_PLATFORMS": "cpu", **os.environ, **job.env}
    env["PYTHONUNBUFFERED"] = "1"
    try:
        done = subprocess.run(
            command, env=env, cwd=job.root, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        measured = _last(printed)
        if not measured:
            raise
        raise PartlyMeasured(measured) from error
    if done.returncode:
        message = f"{job.candidate} on {job.case} failed:\n{done.stderr[-2000:]}"
        raise Failed(message, _last(done.stdout))
    return json.loads(done.stdout.splitlines()[-1])


def _last(printed: str) -> Measured:
    """Returns the numbers of the last whole line of JSON; none without one."""
    lines = [line for line in printed.split("\n")[:-1] if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


class Collected(NamedTuple):
    """Measurements, and jobs that were left out."""

    runs: dict[str, dict[str, list[Measured]]]  # case -> candidate -> of each repeat
    # "case candidate", of repeats without time or with an error; ": the rest" of those cut short
    left_out: list[str]


def collect(
    jobs: Sequence[Job],
    repeats: int,
    deadline: float | None = None,
    measure: Callable[[Job, float | None], Measured] = run,
) -> Collected:
    """Runs all jobs ``repeats`` times in turns, so that a disturbance affects all of them.

    After ``deadline``, by ``time.perf_counter``, no job starts.  With a deadline, jobs that fail
    are left out as well, so that the others have results.
    """
    runs: dict[str, dict[str, list[Measured]]] = {}
    left_out = []
    for repeat in range(repeats):
        for number, job in enumerate(jobs):
            began = time.perf_counter()
            left = None if deadline is None else deadline - began
            try:
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired(job.candidate, 0)
                one = measure(job, left)
            except PartlyMeasured as error:
                left_out.append(f"{job.case} {job.candidate}: the rest")
                one = error.measured
            except (subprocess.TimeoutExpired, RuntimeError) as error:
                if deadline is None:
                    raise
                left_out.append(f"{job.case} {job.candidate}")
                print(f"  left out: {left_out[-1]}: {error}", file=sys.stderr, flush=True)
                continue
            runs.setdefault(job.case, {}).setdefault(job.candidate, []).append(one)
            print(
                f"  {repeat + 1}/{repeats} {number + 1:2d}/{len(jobs)} {job.case} {job.candidate}"
                f" ({time.perf_counter() - began:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    return Collected(runs, left_out)


def summary(repeats: Sequence[Measured]) -> Measured:
    """Returns medians over the repeats, and the least ``seconds``."""
    row = {name: statistics.median(one[name] for one in repeats) for name in repeats[0]}
    if "seconds" in row:
        row["best_seconds"] = min(one["seconds"] for one in repeats)
    return row


def timed(one_call: OneCall, seconds: float) -> Measured:
    """Returns medians per round over ``seconds`` of calls, without compilation.

    ``seconds`` are by the clock, ``cpu_seconds`` those of all threads together, which other work on
    a shared machine disturbs less.
    """
    began = time.perf_counter()
    one_call()
    first = time.perf_counter() - began
    if first < seconds:
        one_call()
    times, cpu_times, start = [], [], time.perf_counter()
    while not times or (time.perf_counter() - start < seconds and len(times) < 50):
        began, cpu_began = time.perf_counter(), time.process_time()
        done = one_call()
        cpu_times.append((time.process_time() - cpu_began) / done)
        times.append((time.perf_counter() - began) / done)
    return {
        "seconds": statistics.median(times),
        "cpu_seconds": statistics.median(cpu_times),
        "first_call_seconds": first,
        "calls": len(times),
    }


if __name__ == "__main__":
    print(json.dumps(importlib.import_module(sys.argv[1]).measure(**json.loads(sys.argv[2]))))
