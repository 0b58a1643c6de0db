"""Everything that docs/performance.md quotes, measured beside its peers in one run.

    python -m benchmarks                                   # all parts, about twenty minutes
    python -m benchmarks rounds --workloads W1 W4
    python -m benchmarks rounds --candidates ours ours=chunked:8@2 jax-vmap --out /tmp/try
    python -m benchmarks compare main~5 .                  # two revisions, see its --help
    python -m benchmarks cold                              # what first calls compile
    python -m benchmarks --peer fedjax=ENV/bin/python --peer pfl=ENV/bin/python
    python -m benchmarks published B1 F1                   # two setups of other simulators
    python -m benchmarks compiled --help                   # for accelerators, without one

Every measurement is a process of its own, one at a time (the methods of a workload take turns in
one); a part's list is gone through --repeats times and medians are reported.  Ratios within one run
are what counts: machines differ, and shared ones are noisy.  The tables are printed, the numbers
stored as OUT/PART.json and the bars drawn as IMAGES/benchmark_PART.png.
"""

import argparse
import datetime
import importlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import fedjax_sim as fs
from benchmarks import (
    accelerator,
    asynchrony,
    cells,
    composite,
    evaluation,
    generated,
    hypergradients,
    memory,
    methods,
    offload,
    published,
    report,
    rounds,
    selection,
    startup,
    sweep,
    topologies,
)
from benchmarks.floors import Machine
from benchmarks.jobs import ROOT, Job, Options, collect, command_line, summary
from benchmarks.published_setups import SETUPS
from benchmarks.workloads import WORKLOADS
from fedjax_sim.runs import environment


class Part(NamedTuple):
    """A module of measurements: ``jobs``, ``cases``, and the names of its candidates."""

    module: Any
    candidates: Container[str]
    most_repeats: int  # more say nothing new, or take long
    seconds: bool = True  # a quantity that bars and a floor make sense for
    keeps_cases: bool = False  # the cases of earlier runs stay among the results


PARTS = {
    "rounds": Part(rounds, rounds.Names(), 20),
    "sweep": Part(sweep, sweep.CANDIDATES, 20),
    "cells": Part(cells, cells.CANDIDATES, 2),
    "methods": Part(methods, methods.METHODS, 1),
    "topologies": Part(topologies, topologies.METHODS, 1),
    "selection": Part(selection, selection.METHODS, 1),
    "evaluation": Part(evaluation, evaluation.CANDIDATES, 1),
    "composite": Part(composite, composite.CANDIDATES, 1),
    "asynchrony": Part(asynchrony, asynchrony.ENGINE, 1),
    "offload": Part(offload, offload.CANDIDATES, 2),
    "memory": Part(memory, memory.CANDIDATES, 1, seconds=False),
    "generated": Part(generated, generated.CANDIDATES, 1, seconds=False),
    "hypergradients": Part(hypergradients, hypergradients.CANDIDATES, 1, seconds=False),
    "startup": Part(startup, startup.CANDIDATES, 2, seconds=False),
    "accelerator": Part(accelerator, accelerator.NETWORKS, 1),
    "published": Part(published, published.CANDIDATES, 1, seconds=False, keeps_cases=True),
}
ELSEWHERE = {"accelerator", "published"}  # parts that are only measured if they are named
# With options of their own.
COMMANDS = {
    "compiled": "benchmarks.compiled.command",
    "cold": "benchmarks.cold",
    "compare": "benchmarks.compare",
}


def main(arguments: list[str] | None = None) -> None:
    """Runs the parts, or the command, that the command line names."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        importlib.import_module(COMMANDS[arguments[0]]).main(arguments[1:])
        return
    parser = _parser()
    args = parser.parse_args(arguments)
    setups = [name for name in args.parts if name in SETUPS]
    parts = [name for name in args.parts if name not in SETUPS]
    parts = parts or [name for name in PARTS if name not in ELSEWHERE]
    if setups and "published" not in parts:
        parser.error(f"{', '.join(setups)} given without published; expected published before it")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"part is {', '.join(unknown)}; expected {', '.join(PARTS)}")
    for name in args.candidates or []:
        if not any(name in PARTS[part].candidates for part in parts):
            parser.error(f"candidate is {name!r}, which {' and '.join(parts)} do not have")
    peers = dict(args.peer)
    if unknown := set(peers) - set(rounds.PEERS):
        parser.error(f"peer is {', '.join(unknown)}; expected {', '.join(rounds.PEERS)}")
    if args.repeats < 1 or args.seconds <= 0:
        parser.error(
            f"repeats is {args.repeats}, seconds {args.seconds}; expected positive numbers"
        )
    candidates = tuple(args.candidates) if args.candidates else None
    options = Options(
        tuple(args.workloads), candidates, args.seconds, peers, tuple(setups), args.full
    )
    images = args.images or (args.out or ROOT / "docs" / "images")
    out = args.out or ROOT / "benchmarks" / "results"
    if args.minutes is None:
        for name in parts:
            # Each setup takes minutes, so its results are written before the next one begins.
            separate = setups or list(SETUPS) if name == "published" else [None]
            for setup in separate:
                chosen = options if setup is None else options._replace(setups=(setup,))
                run_part(name, chosen, args.repeats, out, images)
        return
    end, machine = time.perf_counter() + 60 * args.minutes, None
    for number, name in enumerate(parts):
        # What a part does not use of its share is left to the others.
        now = time.perf_counter()
        share = now + (end - now) / (len(parts) - number)
        machine = run_part(name, options, args.repeats, out, images, share, machine)


def run_part(
    name: str,
    options: Options,
    repeats: int,
    out: pathlib.Path,
    images: pathlib.Path,
    deadline: float | None = None,
    machine: Machine | None = None,
) -> Machine | None:
    """Measures one part, prints and writes its results; returns the machine's rates, if known."""
    part = PARTS[name]
    jobs = part.module.jobs(options)
    if not jobs:
        return machine
    repeats = min(repeats, part.most_repeats)
    began = datetime.datetime.now(datetime.UTC)
    print(f"\n== {name}: {len(jobs)} measurements x {repeats}", flush=True)
    rates = [Job("machine", "rates", "benchmarks.floors")] if machine is None else []
    runs, left_out = collect([*rates, *jobs], repeats, deadline)
    if measured := runs.pop("machine", {}).get("rates"):
        # Bounds, which disturbances only lower.
        machine = Machine(*(max(one[name] for one in measured) for name in Machine._fields))
    if not runs or machine is None:
        print(f"nothing of {name} was measured in time")
        return machine
    results = {
        case: {name: summary(repeated) for name, repeated in rows.items()}
        for case, rows in runs.items()
    }
    cases = part.module.cases(results, machine)
    print(
        f"{machine.flops / 1e9:.0f} GFLOP/s float32 product, {machine.bytes / 1e9:.1f} GB/s copied"
    )
    for case in cases:
        print(f"\n{report.table(case)}")
    conditions = {
        "date": began.isoformat(timespec="minutes"),
        "environment": environment()
        | {"cores": fs.execution.num_cores()}
        | _peer_versions(options.peers),
        "machine": machine._asdict(),
        "repeats": repeats,
        "left_out": left_out,
    }
    measured = {case.name: report.as_json(case) for case in cases}
    if part.keeps_cases:
        measured = {case: conditions | values for case, values in measured.items()}
        record = {"cases": _earlier_cases(out / f"{name}.json") | measured}
    else:
        record = conditions | {"cases": measured}
    if left_out:
        print(f"\nleft out for lack of time or memory: {', '.join(left_out)}")
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    if part.seconds:
        images.mkdir(parents=True, exist_ok=True)
        report.chart(cases).savefig(images / f"benchmark_{name}.png", dpi=100)
    return machine


def _earlier_cases(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text())["cases"] if path.exists() else {}


def _peer_versions(peers: Mapping[str, str]) -> dict[str, Any]:
    """Returns versions of the packages of peers, also of those with an interpreter of their own."""
    found: dict[str, Any] = {name: _version(name, sys.executable) for name in ("torch", "drjax")}
    for peer, python in peers.items():
        found[f"peer {peer}"] = {name: _version(name, python) for name in rounds.PACKAGES[peer]}
    return found


def _version(package: str, python: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or "not installed"


def _peer(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if not pathlib.Path(python).is_file():
        raise argparse.ArgumentTypeError(f"{text!r}; expected NAME=PATH of a Python interpreter")
    return name, str(pathlib.Path(python).absolute())


def _parser() -> argparse.ArgumentParser:
    parser = command_line("", __doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default all but "
        f"{' and '.join(sorted(ELSEWHERE))}); with published also {', '.join(SETUPS)}")  # fmt: skip
    add("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    add("--candidates", nargs="+", help="only these, also ours=STRATEGY[:N][@DEVICES]")
    add("--repeats", type=int, default=3, help="at most; long parts do fewer (default 3)")
    add("--seconds", type=float, default=2.0, help="of timed rounds per measurement (default 2)")
    add("--peer", type=_peer, action="append", default=[], metavar="NAME=PYTHON",
        help="also measure fedjax or pfl, with the interpreter that has it")  # fmt: skip
    add("--full", action="store_true", help="published: all rounds of the sources")
    add("--minutes", type=float, help="what is not measured then, or fails, is left out")
    add("--out", type=pathlib.Path, help="folder (default benchmarks/results)")
    add("--images", type=pathlib.Path, help="folder (default docs/images, or OUT if given)")
    return parser


if __name__ == "__main__":
    main()
