"""Queue of measurements for a GPU, in parts of some minutes.

    python -m benchmarks.gpu --list                  # all jobs, with their limits and states
    python -m benchmarks.gpu --minutes 9             # what fits, in order
    python -m benchmarks.gpu --minutes 9 --scale tiny --out /tmp/queue   # every kind, on a CPU

Every job is a process of :mod:`benchmarks.jobs`.  Its record OUT/NAME.json is written when it
ends, so the next call goes on behind it: nothing is measured twice.  A job that fails or exceeds
its limit keeps what it had and its error, and the rest goes on; with ``--retry`` such jobs run
again.  Whole training runs that exceed their limit continue in the next call.  A job whose limit
does not fit into the minutes that are left does not start; shorter ones behind it may.  After every
job the driver prints what is left.

Records in ``benchmarks/results/gpu`` count as done, too: they are those of earlier machines.
"""

import argparse
import datetime
import functools
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from benchmarks import generated, offload, sweep
from benchmarks.jobs import (
    ROOT,
    Failed,
    Job,
    Measured,
    Options,
    PartlyMeasured,
    command_line,
    run,
)
from fedjax_sim.runs import write_json
from fedjax_sim.runs.storage.environment import code_digest, git_revision

KEPT = ROOT / "benchmarks" / "results" / "gpu"
OUT = ROOT / "results" / "gpu"
SHORT, LONG = 3.0, 8.0  # minutes
SECONDS = 0.5  # of timed calls per candidate
PUBLISHED = ("F1", "F2", "F3", "F4", "P1")
METHODS = (
    *("FedMoSWA", "FedAvg", "FedDyn", "SCAFFOLD", "FedSAM", "MoFedSAM", "FedLESAM"),
    *("FedASAM", "FedACG", "FedSWA"),
)
DONE, FAILED, UNFINISHED, OPEN = "done", "failed", "unfinished", "open"


class Queued(NamedTuple):
    """A job, its limit in minutes, and whether it continues an interrupted one."""

    name: str
    job: Job
    minutes: float
    continues: bool = False
    # Measured job, number in its record, most allowed: a run of too many minutes does not start.
    only_if: tuple[str, str, float] | None = None


def queue(scale: str, torch: str, work: pathlib.Path) -> list[Queued]:
    """Returns all jobs in order; ``tiny`` is the scale with one small job of every kind."""
    tiny = scale == "tiny"
    seconds = 0.05 if tiny else SECONDS
    measured = [*_goals(tiny, seconds, torch), *_implicit(tiny), *_kernels(tiny)]
    measured += _distances(tiny)
    measured += _candidates(tiny, seconds)
    trained = [*_losses(tiny, work), *_training(tiny, work)]
    return [*measured, *trained, *_parts(tiny, seconds, work)]


def _goals(tiny: bool, seconds: float, torch: str) -> list[Queued]:
    """Rounds of all workloads, ours and PyTorch's one after the other."""
    groups: dict[str, tuple[float, tuple[str, ...]]]
    groups = {"ResNet-18": (2.0, ("ResNet-18",)), "LeNet-5": (1.5, ("LeNet-5",))}
    groups = {} if tiny else groups
    groups["small"] = (2.5, ("W4", "W2") if tiny else ("W3", "W2", "W1", "W4"))
    found = []
    for precisions in ("bfloat16", "tf32"), ("float32",):
        for group, (minutes, names) in groups.items():
            arguments = {
                "workloads": names, "precisions": precisions, "seconds": seconds, "tiny": tiny,
            }  # fmt: skip
            ours = Job(group, "ours", "benchmarks.goals", arguments)
            peer = Job(group, "torch", "benchmarks.torch_peer", arguments, python=torch)
            name = group if len(precisions) > 1 else f"{group}-{precisions[0]}"
            found += [Queued(f"goal-{name}", ours, minutes), Queued(f"torch-{name}", peer, minutes)]
    return found


def _distances(tiny: bool) -> list[Queued]:
    """Rounds in each precision beside those of the CPU."""
    names = ["W4"] if tiny else ["ResNet-18", "LeNet-5", "W3", "W2", "W1", "W4"]
    return [
        Queued(f"distance-{n}", Job(n, "ours", "benchmarks.distances", {"workload": n}), SHORT)
        for n in names
    ]


def _implicit(tiny: bool) -> list[Queued]:
    """Convolutions as implicit products, layer by layer and in whole rounds."""
    layers = {"seconds": 85.0, "tiny": tiny}
    found = [Queued("implicit-layers", Job("layers", "all", "benchmarks.implicit", layers), 2.0)]
    for name in () if tiny else ("ResNet-18", "LeNet-5"):
        job = Job(name, "all", "benchmarks.implicit", {"network": name})
        found.append(Queued(f"implicit-{name}", job, 2.0))
    return found


def _kernels(tiny: bool) -> list[Queued]:
    """Jobs that list the kernels of a step, without command buffers."""
    found = []
    for name in ["W4"] if tiny else ["ResNet-18", "LeNet-5", "W3"]:
        arguments = {"workload": name, "precision": "bfloat16", "tiny": tiny}
        job = Job(name, "ours", "benchmarks.kernels", arguments, env={"XLA_FLAGS": ""})
        found.append(Queued(f"kernels-{name}", job, SHORT / 2))
    return found


def _candidates(tiny: bool, seconds: float) -> list[Queued]:
    """Strategies and lowerings of convolutions in bfloat16."""
    return [
        Queued(
            f"bfloat16-{name}",
            Job(
                name, "all", "benchmarks.accelerator",
                {"network": name, "seconds": seconds, "precision": "bfloat16", "tiny": tiny},
            ),
            SHORT,
        )
        for name in (["W2"] if tiny else ["W3", "ResNet-18", "W2"])
    ]  # fmt: skip


def _losses(tiny: bool, work: pathlib.Path) -> list[Queued]:
    """Losses after 100 rounds by precision, of W3's network and of a small ResNet."""
    dataset, rounds, seeds = ("digits", 2, 2) if tiny else ("cifar10", 100, 5)
    found = []
    for model in ("softmax_regression",) if tiny else ("lenet5", "resnet20"):
        arguments = {"dataset": dataset, "model": model, "rounds": rounds, "seeds": seeds}
        arguments["work"] = str(work / "precision")
        job = Job(model, "ours", "benchmarks.losses", arguments)
        found.append(Queued(f"losses-{model}", job, SHORT))
    return found


def _training(tiny: bool, work: pathlib.Path) -> list[Queued]:
    """Whole runs of the FedSWA paper's Table 2; each finishes or continues."""
    lenet = ("cifar100-lenet5", 0.6), ("cifar100-lenet5", 0.1), ("cifar10-lenet5", 0.6)
    rows = [(*column, method, 3) for column in lenet for method in METHODS]
    resnet = ("FedMoSWA", "FedAvg", "FedSAM", "SCAFFOLD", "FedSWA")
    rows += [("cifar100-resnet18", 0.1, method, 1) for method in resnet]
    if tiny:
        rows = [("cifar10-lenet5", 0.6, "FedAvg", 2)]
    found = []
    for column, concentration, method, seeds in rows:
        arguments = {
            "column": column, "concentration": concentration, "method": method, "seeds": seeds,
            "scale": "smoke" if tiny else "gpu", "work": str(work),
        }  # fmt: skip
        name = f"train-{column}-{concentration:g}-{method}"
        job = Job(column, method, "benchmarks.training", arguments)
        # 1,000 rounds within the limit, with half a minute for compilation and evaluations.
        quick = ("goal-ResNet-18", "ResNet-18/tf32 seconds", 60 * (LONG - 0.5) / 1000)
        only_if = quick if "resnet18" in column else None
        found.append(Queued(name, job, LONG, continues=True, only_if=only_if))
    return found


def _parts(tiny: bool, seconds: float, work: pathlib.Path) -> list[Queued]:
    """Parts of ``python -m benchmarks``, a job per candidate."""
    vit = {"network": "ViT-Tiny", "seconds": seconds, "precision": None, "tiny": tiny}
    found = [] if tiny else [
        Queued("vit-tiny", Job("ViT-Tiny", "all", "benchmarks.accelerator", vit), SHORT)
    ]  # fmt: skip
    options = functools.partial(Options, candidates=None, seconds=seconds, peers={})
    workloads = ("W2",) if tiny else ("W1", "W2", "W3")
    jobs = offload.jobs(options(workloads, candidates=("resident", "host")))
    jobs += [] if tiny else sweep.jobs(options(("W4",), candidates=("sweep", "loop")))
    populations = generated.jobs(options(()))
    small = {"rounds": 10, "cohort": 10}
    jobs += [
        one._replace(arguments=dict(one.arguments) | (small if tiny else {}))
        for one in populations
        if one.case == ("S1" if tiny else "S15")
    ]
    for one in jobs:
        part = one.module.removeprefix("benchmarks.")
        found.append(Queued(f"{part}-{one.case}-{one.candidate}", one, SHORT))
    for setup in ("F1",) if tiny else PUBLISHED:
        arguments = {"setup": setup, "folder": str(work / "published" / setup), "full": not tiny}
        job = Job(setup, "ours", "benchmarks.published", arguments)
        found.append(Queued(f"published-{setup}", job, LONG, continues=True))
    return found


class Records:
    """Records of ended jobs by name, in a folder and in that of earlier machines."""

    def __init__(self, out: pathlib.Path, kept: pathlib.Path = KEPT):
        self.out, self.kept = out, kept
        out.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Mapping[str, Any] | None:
        """Returns the record of a job, or None if it never ended."""
        for folder in (self.out, self.kept):
            path = folder / f"{name}.json"
            if path.exists():
                return json.loads(path.read_text())
        return None

    def state(self, name: str) -> str:
        """Returns ``done``, ``failed``, ``unfinished`` or ``open``."""
        record = self.read(name)
        return OPEN if record is None else record["state"]

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes the record of a job that ended."""
        write_json(self.out / f"{name}.json", dict(record), indent=1)


def work_through(
    jobs: Sequence[Queued],
    records: Records,
    minutes: float,
    *,
    retry: bool = False,
    machine: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
    measure: Callable[[Job, float], Measured] = run,
) -> None:
    """Runs the jobs that are open and fit into the time, in order."""
    end = clock() + 60 * minutes
    started = {FAILED, UNFINISHED, OPEN} if retry else {OPEN}
    for place, (name, job, limit, continues, only_if) in enumerate(jobs):
        state = records.state(name)
        if not (state in started or (state == UNFINISHED and continues)):
            continue
        if only_if is not None and (reason := _too_long(only_if, records)):
            print(f"not started: {name}: {reason}", flush=True)
            continue
        left = end - clock()
        if 60 * limit > left:
            print(
                f"not started: {name} may take {limit:g} min; {left / 60:.1f} are left", flush=True
            )
            continue
        began, date = clock(), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        state, error, numbers = DONE, None, {}
        try:
            numbers = measure(job, 60 * limit)
        except PartlyMeasured as cut:
            state, error, numbers = UNFINISHED, f"took more than {limit:g} min", cut.measured
        except subprocess.TimeoutExpired:
            state, error = UNFINISHED, f"took more than {limit:g} min"
        except Failed as failure:
            state, error, numbers = FAILED, str(failure), failure.measured
        except (ValueError, OSError) as failure:  # ValueError: no numbers printed
            state, error = FAILED, str(failure)
        record = {
            "state": state,
            "date": date,
            "machine": dict(machine or {}),
            "command": ["-m", "benchmarks.jobs", job.module, json.dumps(dict(job.arguments))],
            "minutes": (clock() - began) / 60,
            "limit_minutes": limit,
            "error": error,
            "numbers": numbers,
        }
        records.write(name, record)
        rest = [q.name for q in jobs[place + 1 :] if records.state(q.name) in (OPEN, UNFINISHED)]
        print(
            f"{state}: {name} ({record['minutes']:.1f} min)"
            f"{'' if error is None else ': ' + error.strip().splitlines()[-1]}; "
            f"{len(rest)} behind it; {(end - clock()) / 60:.1f} min left",
            flush=True,
        )


def _too_long(only_if: tuple[str, str, float], records: Records) -> str:
    """Returns why a run is not started; empty if it may."""
    name, quantity, most = only_if
    record = records.read(name) or {"numbers": {}}
    value = record["numbers"].get(quantity)
    if value is None:
        return f"{name} has no {quantity}"
    return f"{quantity} of {name} is {value:.3g}; at most {most:.3g} may be" if value > most else ""


def machine(python: str) -> dict[str, Any]:
    """Returns the card, the versions of JAX and of PyTorch's interpreter, and those of the code."""
    import jax

    code = "import torch; print(torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        card = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    except OSError:
        card = ""
    return {
        "card": card or f"none, {jax.default_backend()}",
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "torch": done.stdout.strip() or "not installed",
        "python": sys.version.split()[0],
        "fedjax_sim": code_digest(),
        "git": git_revision(pathlib.Path(__file__)),
    }


def main(arguments: list[str] | None = None) -> None:
    """Works through the queue."""
    parser = command_line("gpu", __doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=9.0, help="until the last job has ended (default 9)")
    add("--out", type=pathlib.Path, default=OUT, help="folder of records (default results/gpu)")
    add("--work", type=pathlib.Path, default=ROOT / "results" / "fedswa", help="training runs")
    add("--scale", choices=("full", "tiny"), default="full")
    add("--only", nargs="+", metavar="START", help="jobs whose names start so")
    add("--retry", action="store_true", help="also jobs that failed or took too long")
    add("--torch", default=sys.executable, help="Python interpreter that has PyTorch")
    add("--list", action="store_true", help="print the jobs and stop")
    args = parser.parse_args(arguments)
    if not args.minutes > 0:
        raise argparse.ArgumentTypeError(f"minutes is {args.minutes}; expected a positive number")
    jobs = queue(args.scale, args.torch, args.work)
    jobs = [one for one in jobs if not args.only or one.name.startswith(tuple(args.only))]
    records = Records(args.out) if args.scale == "full" else Records(args.out, args.out)
    if not args.list:
        facts = machine(args.torch)
        print(facts, flush=True)
        work_through(jobs, records, args.minutes, retry=args.retry, machine=facts)
    for one in jobs:
        print(f"{records.state(one.name):10s} {one.minutes:g} min  {one.name}")


if __name__ == "__main__":
    main()
