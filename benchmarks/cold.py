"""``python -m benchmarks cold``: what a first call compiles, and how long that takes.

    python -m benchmarks cold                                  # quickstart, and W1 to W4
    python -m benchmarks cold run quickstart --algorithms fedavg --rounds 20 --seeds 2
    python -m benchmarks cold W1 W4 --repeats 3 --programs

Each start is a process of its own, with an empty compilation cache or none, so every program is
compiled.  JAX reports the seconds that it traces, lowers and compiles each program; the seconds of
the backend's compiler count once per program, also where programs compile at the same time.
``last`` is the wall time from the start of the process until the last program was compiled.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.jobs import ROOT, command_line
from benchmarks.workloads import WORKLOADS

_PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_QUICKSTART = ("run", "quickstart")


class Event(NamedTuple):
    """One phase of one program."""

    phase: str  # trace, lower or compile
    program: str
    seconds: float
    end: float  # wall time since the start of the process


class Start(NamedTuple):
    """A cold start."""

    events: list[Event]
    wall: float  # seconds of the whole process
    cpu: float  # of all its threads

    def totals(self) -> dict[str, float]:
        """Returns the numbers of a row of the table."""
        compiled = [event for event in self.events if event.phase == "compile"]
        seconds = {
            phase: sum(event.seconds for event in self.events if event.phase == phase)
            for phase in _PHASES.values()
        }
        last = max((event.end for event in compiled), default=0.0)
        return {"programs": len(compiled), **seconds, "last": last, "wall": self.wall,
                "cpu": self.cpu}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Measures cold starts and prints them."""
    parser = command_line("cold", __doc__)
    parser.add_argument("--repeats", type=int, default=1, help="medians are printed (default 1)")
    parser.add_argument("--programs", action="store_true", help="also print every program")
    parser.add_argument("what", nargs="*", metavar="WHAT",
                        help="workloads, or the arguments of fedjax-sim")  # fmt: skip
    options, rest = parser.parse_known_args(arguments)
    what = [*options.what, *rest]
    if what and not set(what) <= set(WORKLOADS):
        cases = [what]
    else:
        cases = [[name] for name in what] or [[*_QUICKSTART], *([name] for name in WORKLOADS)]
    for case in cases:
        starts = [measured(case) for _ in range(options.repeats)]
        print(f"\n{' '.join(case)}\n{table(starts)}", flush=True)
        if options.programs:
            print(programs(starts[-1]))


def measured(case: Sequence[str]) -> Start:
    """Returns the start of a workload, or of a command of fedjax-sim, in a process of its own."""
    env = {"JAX_PLATFORMS": "cpu", **os.environ}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    with tempfile.TemporaryDirectory() as folder:
        if case[0] not in WORKLOADS:  # the command line keeps programs, and finds none
            env["JAX_COMPILATION_CACHE_DIR"] = str(pathlib.Path(folder) / "cache")
        events = pathlib.Path(folder) / "events.json"
        call = [sys.executable, "-m", "benchmarks.cold", str(events), repr(time.time()), *case]
        if case[0] not in WORKLOADS and "--output" not in case:
            call += ["--output", str(pathlib.Path(folder) / "output")]
        before = os.times()
        began = time.perf_counter()
        done = subprocess.run(call, env=env, cwd=ROOT, capture_output=True, text=True)
        wall, after = time.perf_counter() - began, os.times()
        if done.returncode or not events.exists():
            raise RuntimeError(f"{' '.join(case)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
        cpu = after.children_user + after.children_system
        cpu -= before.children_user + before.children_system
        return Start([Event(*event) for event in json.loads(events.read_text())], wall, cpu)


def table(starts: Sequence[Start]) -> str:
    """Returns medians of the totals, a column each."""
    rows = [start.totals() for start in starts]
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    head = "".join(f"{name:>10}" for name in medians)
    return f"{head}\n" + "".join(
        f"{value:10.0f}" if name == "programs" else f"{value:10.2f}"
        for name, value in medians.items()
    )


def programs(start: Start) -> str:
    """Returns the seconds of every program's name, those that compile longest first."""
    rows: dict[str, dict[str, float]] = {}
    for event in start.events:
        # Functions are traced by their names; their programs are called jit(NAME) or jit_NAME.
        name = event.program.removeprefix("jit(").removesuffix(")").removeprefix("jit_")
        row = rows.setdefault(name, dict.fromkeys(("count", *_PHASES.values(), "end"), 0.0))
        row[event.phase] += event.seconds
        row["count"] += event.phase == "compile"
        row["end"] = max(row["end"], event.end)
    kept = {name: row for name, row in rows.items() if row["count"]}
    ordered = sorted(kept, key=lambda name: -kept[name]["compile"])
    lines = [f"{'count':>6}{'trace':>8}{'lower':>8}{'compile':>9}{'end':>8}  program"]
    for name in ordered:
        row = kept[name]
        lines.append(
            f"{row['count']:6.0f}{row['trace']:8.3f}{row['lower']:8.3f}{row['compile']:9.3f}"
            f"{row['end']:8.2f}  {name}"
        )
    return "\n".join(lines)


def _child(file: str, began: str, *case: str) -> None:
    """Runs in the process of a start and writes its events to a file."""
    start = float(began)
    with _recorded(start) as events:
        if case[0] in WORKLOADS:
            _first_call(case[0])
        else:
            _command(case)
    pathlib.Path(file).write_text(json.dumps(events))


def _first_call(workload: str) -> None:
    from fedjax_sim.engine import use_all_cores

    use_all_cores()
    from benchmarks.candidates import ours

    ours(WORKLOADS[workload], "auto")()


def _command(arguments: Sequence[str]) -> None:
    from fedjax_sim.cli.main import main as command

    with contextlib.suppress(SystemExit):
        command([*arguments])


@contextlib.contextmanager
def _recorded(start: float) -> Iterator[list[Any]]:
    """Context with a list to which the events of all programs are added."""
    events: list[Any] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event in _PHASES:
            name = str(kwargs.get("fun_name", ""))
            events.append(Event(_PHASES[event], name, duration_secs, time.time() - start))

    import jax.monitoring

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events


if __name__ == "__main__":
    _child(*sys.argv[1:])
