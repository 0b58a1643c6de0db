"""Compiles one case for one target, in a process of the target's environment."""

import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import time
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks.compiled import figures, targets, thunks
from benchmarks.compiled.cases import CASES
from fedjax_sim.runs import code_digest

Row = dict[str, Any]


def measure(target: str, case: str, strategies: Sequence[str]) -> dict[str, Row]:
    """Returns the figures by strategy; equal programs are compiled once.

    Two environment variables name folders: COMPILED_DUMP the one of XLA's dumps, which XLA_FLAGS
    names as well, and COMPILED_TEXT one for the compiled programs.
    """
    where = targets.target(target)
    devices = where.devices()
    rows: dict[str, Row] = {}
    programs: dict[str, str] = {}  # digest -> strategy
    for strategy in strategies:
        program = CASES[case].build(devices, strategy)
        jitted = jax.jit(
            program.function, in_shardings=program.shardings, donate_argnums=program.donated
        )
        lowered = jitted.lower(*program.arguments)
        before = lowered.as_text()
        digest = hashlib.sha256(before.encode()).hexdigest()
        if digest in programs:
            rows[strategy] = rows[programs[digest]] | {"same_as": programs[digest]}
            continue
        programs[digest] = strategy
        dump = os.environ.get("COMPILED_DUMP")
        if dump:
            shutil.rmtree(dump)  # dumps of other programs
            pathlib.Path(dump).mkdir()
        began = time.perf_counter()
        compiled = lowered.compile()
        seconds = time.perf_counter() - began
        text, memory = compiled.as_text() or "", compiled.memory_analysis()
        if folder := os.environ.get("COMPILED_TEXT"):
            name = re.sub(r"\W", "_", f"{where.name} {case} {strategy}")
            (pathlib.Path(folder) / f"{name}.txt").write_text(text)
        rows[strategy] = {
            "versions": _versions(),
            "compile_seconds": round(seconds, 1),
            "grouped_convolutions": figures.grouped_convolutions(before),
        }
        on_host = ()
        if dump:
            sequence = thunks.read(pathlib.Path(dump))
            on_host = sequence.loops
            rows[strategy] |= {
                "command_buffers": sequence.command_buffers,
                "loops_outside": sequence.loops_outside,
                "kernels_outside": len(sequence.others),
            }
        rows[strategy] |= figures.figures(
            text, memory, where, program.rounds, program.max_steps, on_host
        )
        if dump and (counts := thunks.accumulators(pathlib.Path(dump))):
            rows[strategy]["accumulators"] = counts
    return rows


def _versions() -> dict[str, str]:
    found = {"fedjax_sim": code_digest()}
    for package in ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
