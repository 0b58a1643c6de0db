"""``python -m benchmarks compiled``: programs compiled for accelerators that need not be present.

    python -m benchmarks compiled                               # all targets and cases
    python -m benchmarks compiled --target v5e:2x2 --cases W2 --strategies vmapped sequential
    python -m benchmarks compiled --environment cuda=.venv-cuda tpu=.venv-tpu
    python -m benchmarks compiled --show                        # the stored results

The compilers come with jax[cuda12] and jax[tpu], each in an environment of its own; no driver and
no device is needed, and nothing is executed.  For each program the command reports, per local step
of the whole cohort and per round, kernels (GPU) or the compiler's cycles (TPU), memory,
collectives, grouped convolutions, command buffers with and without the recommended XLA flags, and
an estimate of the time.  The figures compare two programs for one device.  They are not times.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compiled import report
from benchmarks.compiled.cases import CASES
from benchmarks.compiled.targets import Target, target
from benchmarks.compiled.thunks import flags
from benchmarks.jobs import ROOT, Job, command_line, run

TARGETS = ("h200", "h200:8", "v5e:2x2", "v5e:2x4", "v5p:2x2x1", "v6e:2x2")
ENVIRONMENTS = {"cuda": ".venv-cuda", "tpu": ".venv-tpu"}
MANY = 8  # devices of targets that by default compile the sharded programs only
# Without them the TPU's library asks a metadata server what it runs on.
TPU_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the library's lock protects a chip, and there is none
}
RESULTS = ROOT / "benchmarks" / "results" / "compiled.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles what the command line names, prints tables and updates the stored results."""
    args = _parser().parse_args(arguments)
    stored = _stored(args.out)
    if args.show:
        for one in args.target:
            keys = [f"{one.name} {c} {s}" for c, case in CASES.items() for s in case.strategies]
            if rows := {key: stored[key] for key in keys if key in stored}:
                print(f"{report.table(one, rows, {})}\n")
        return
    environments = ENVIRONMENTS | dict(args.environment)
    if text := missing(args.target, environments):
        raise SystemExit(text)
    for one in args.target:
        fresh: dict[str, dict[str, Any]] = {}
        for case in args.cases or default_cases(one):
            strategies = [s for s in CASES[case].strategies if s in (args.strategies or (s,))]
            if not strategies:
                continue
            found = attempted(one, case, strategies, environments[one.platform], args.timeout)
            if not found:
                continue
            now = datetime.datetime.now(datetime.UTC).date().isoformat()
            for strategy, row in found.items():
                fresh[f"{one.name} {case} {strategy}"] = {"date": now, **row}
            print(f"{one.name} {case}: {', '.join(found)}", file=sys.stderr, flush=True)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            # Read again: another process may have stored rows since.
            rows = _stored(args.out) | fresh
            args.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        if fresh:
            print(f"\n{report.table(one, fresh, stored)}", flush=True)


def _stored(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of a file of results, none if it does not exist."""
    return json.loads(path.read_text())["rows"] if path.is_file() else {}


def default_cases(one: Target) -> list[str]:
    """Returns the cases of a target: the sharded one needs several devices.

    Example:
        >>> default_cases(target("h200:8")), "sharded" in default_cases(target("h200"))
        (['sharded'], False)
    """
    if one.num_devices >= MANY:
        return ["sharded"]
    return [name for name in CASES if name != "sharded" or one.num_devices > 1]


def attempted(
    one: Target, case: str, strategies: Sequence[str], environment: str, timeout: float
) -> dict[str, dict[str, Any]]:
    """Returns :func:`compiled` of the strategies that compile, and prints why others do not.

    A compiler can end the process, so strategies of which one fails are compiled one by one.
    """
    try:
        return compiled(one, case, strategies, environment, timeout)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        if len(strategies) > 1:
            alone = (attempted(one, case, [s], environment, timeout) for s in strategies)
            return {strategy: row for found in alone for strategy, row in found.items()}
        where = f"{one.name} {case} {strategies[0]}"
        print(f"{where}: not compiled: {error}", file=sys.stderr, flush=True)
        return {}


def compiled(
    one: Target, case: str, strategies: Sequence[str], environment: str, timeout: float
) -> dict[str, dict[str, Any]]:
    """Returns the figures of a case by strategy.

    On a GPU, those with the recommended flags, and under ``default`` the ones that the flags
    change.
    """
    python = str(interpreter(environment))
    arguments = {"target": one.name, "case": case, "strategies": list(strategies)}

    def measured(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        job = Job(case, one.name, "benchmarks.compiled.measure", arguments, python, env)
        return run(job, timeout)  # pyright: ignore

    if one.platform == "tpu":
        return measured({"JAX_PLATFORMS": "cpu", **TPU_SETTINGS})
    found = []
    for recommended in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            xla_flags = flags(os.environ, folder, recommended)
            settings = {"XLA_FLAGS": xla_flags, "COMPILED_DUMP": folder, "JAX_PLATFORMS": "cpu"}
            found.append(measured(settings))
    changed = (
        "command_buffers", "loops_outside", "kernels_outside", "host_iterations_per_round",
    )  # fmt: skip
    with_flags, without = found
    return {
        strategy: row | {"default": {name: without[strategy][name] for name in changed}}
        for strategy, row in with_flags.items()
    }


def interpreter(environment: str) -> pathlib.Path:
    """Returns the Python of an environment."""
    return (ROOT / environment / "bin" / "python").absolute()


def missing(targets: Sequence[Target], environments: Mapping[str, str]) -> str:
    """Returns the commands that create the environments that are needed and absent."""
    absent = [
        platform
        for platform in dict.fromkeys(one.platform for one in targets)
        if not interpreter(environments[platform]).is_file()
    ]
    return "\n".join(
        f"The {platform} compiler needs an environment, {environments[platform]}, which does not "
        f"exist. Create it with\n"
        f"    python -m venv {environments[platform]}\n"
        f"    {environments[platform]}/bin/pip install -r requirements/{platform}.txt\n"
        f"or name another one: --environment {platform}=FOLDER"
        for platform in absent
    )


def _environment(text: str) -> tuple[str, str]:
    platform, _, folder = text.partition("=")
    if platform not in ENVIRONMENTS or not re.fullmatch(r".+", folder):
        raise argparse.ArgumentTypeError(f"{text!r}; expected cuda=FOLDER or tpu=FOLDER")
    return platform, folder


def _target(text: str) -> Target:
    try:
        return target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = command_line("compiled", __doc__)
    add = parser.add_argument
    add("--target", nargs="+", type=_target, default=[target(name) for name in TARGETS],
        help=f"default {' '.join(TARGETS)}")  # fmt: skip
    add("--cases", nargs="+", choices=list(CASES), help="default: all that fit the target")
    names = dict.fromkeys(name for case in CASES.values() for name in case.strategies)
    add("--strategies", nargs="+", choices=list(names), help="default: all of the case")
    add("--environment", nargs="+", type=_environment, default=[], metavar="PLATFORM=FOLDER",
        help="virtual environments (default cuda=.venv-cuda tpu=.venv-tpu)")  # fmt: skip
    add("--show", action="store_true", help="print the stored results, compile nothing")
    add("--timeout", type=float, default=1800.0, help="seconds per process (default 1800)")
    add("--out", type=pathlib.Path, default=RESULTS,
        help="to compare with and update (default benchmarks/results/compiled.json)")  # fmt: skip
    return parser
