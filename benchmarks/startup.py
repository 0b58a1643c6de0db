"""Part ``startup``: seconds from typing ``fedjax-sim run quickstart`` to its first rounds on disk.

``empty``: no program has been compiled before; ``warm``: those of an earlier run are in the
persistent compilation cache, which is a folder of the benchmark's own.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks.floors import Machine
from benchmarks.jobs import Job, Options, Results
from benchmarks.report import Case

CANDIDATES = ("ours",)
TARGET_SECONDS = 10.0  # with a warm cache
GIVE_UP_SECONDS = 300.0


def jobs(options: Options) -> list[Job]:
    """Returns one job: the warm start needs the empty one before it."""
    if not options.chosen(CANDIDATES):
        return []
    return [Job("quickstart", "ours", "benchmarks.startup")]


def measure() -> dict[str, float]:
    """Measures a start with an empty cache and one with a warm cache."""
    with tempfile.TemporaryDirectory() as folder:
        cache = pathlib.Path(folder) / "cache"
        empty = first_rounds(cache, pathlib.Path(folder) / "1")
        warm = first_rounds(cache, pathlib.Path(folder) / "2")
    return {"seconds": warm, "empty_seconds": empty}


def first_rounds(cache: pathlib.Path, output: pathlib.Path) -> float:
    """Returns the seconds until the first algorithm's history has rows; then ends the command."""
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "fedjax_sim.cli", "run", "quickstart"]
    command += ["--output", str(output)]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            while process.poll() is None and time.perf_counter() - began < GIVE_UP_SECONDS:
                if any(_has_rows(path) for path in output.glob("*/history.csv")):
                    return time.perf_counter() - began
                time.sleep(0.01)
            log.seek(0)
            raise RuntimeError(f"no rounds: {log.read()[-2000:].decode()}")
        finally:
            process.kill()
            process.wait()


def _has_rows(history: pathlib.Path) -> bool:
    return history.read_bytes().count(b"\n") > 1  # more than the header


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the warm start beside the empty one."""
    del machine
    row = results["quickstart"]["ours"]
    rows = {"warm": {"seconds": row["seconds"]}, "empty": {"seconds": row["empty_seconds"]}}
    title = f"fedjax-sim run quickstart, target {TARGET_SECONDS:g} s with a warm cache"
    return [Case("quickstart", title, "to the first rounds", rows, ours="warm")]
