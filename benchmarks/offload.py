"""Part ``offload``: rounds whose examples come from the host's memory, beside resident ones.

The workloads with 40 cohorts of clients, FedAvg. ``resident`` has all examples on the device;
``host`` may use a tenth of their bytes: two rounds' examples are there, those of the next two on
their way.  ``file`` is ``host`` with the examples in memory maps of files.  The memory of a CPU is
one; what is measured is the work of loading, not a bus.
"""

import pathlib
import tempfile

import jax
import numpy as np

import fedjax_sim as fs
from benchmarks.candidates import problem
from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Options, Results, peak_mb
from benchmarks.report import Case
from benchmarks.workloads import WORKLOADS, Workload, make_data
from fedjax_sim.engine import offload, strategies
from fedjax_sim.timelines import sampling

CANDIDATES = ("resident", "host", "file")
COHORTS, SHARE, LIMIT = 40, 10, 1.2
ROUNDS = {"W1": 60, "W2": 12, "W3": 12}


def jobs(options: Options) -> list[Job]:
    """A job per workload and candidate."""
    names = options.chosen(CANDIDATES)
    return [
        Job(name, candidate, "benchmarks.offload", {"workload": name, "candidate": candidate})
        for name in options.workloads
        if name in ROUNDS
        for candidate in names
    ]


def measure(workload: str, candidate: str) -> dict[str, float]:
    """Runs in a process of its own."""
    w = WORKLOADS[workload]
    with tempfile.TemporaryDirectory() as folder:
        return training(w, candidate, ROUNDS[workload], pathlib.Path(folder))


def training(w: Workload, candidate: str, rounds: int, folder: pathlib.Path) -> dict[str, float]:
    """Returns the seconds per round, without compilation."""
    w = w._replace(clients=COHORTS * w.cohort)
    model, task = problem(w._replace(clients=1))
    x, y = make_data(w)
    examples = {"x": x.reshape(-1, *w.shape), "y": y.reshape(-1)}
    size = sum(array.nbytes for array in examples.values())
    if candidate == "file":
        for name, array in examples.items():
            np.save(folder / f"{name}.npy", array)
        examples = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in examples}
    data = fs.FederatedData(examples, np.arange(w.clients + 1, dtype=np.int32) * w.examples)
    where = None if candidate == "resident" else offload.on_host(size // SHARE)
    oracle = task.oracle.func  # pyright: ignore[reportFunctionMemberAccess]
    task = fs.empirical_task(oracle.objective, data, oracle.batches, placement=where)
    timeline = sampling.uniform(jax.random.key(0), rounds, w.clients, w.cohort, w.steps)
    setup = fs.Setup(task, timeline, model.init(jax.random.key(1)), eval_every=rounds)
    done = fs.simulate(
        fs.fedavg(w.lr),
        setup,
        jax.random.key(2),
        options=fs.Options(execution=strategies.auto(devices=())),
    )
    norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(done.state.server.params)))
    return {
        "seconds": done.run_seconds / rounds,
        "compile_seconds": done.compile_seconds,
        "data_mb": round(size / 1e6, 1),
        "peak_rss_mb": peak_mb(),
        "norm": norm,
    }


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the workloads with their floors, and the cost of loading as a ratio."""
    found = []
    for name, rows in results.items():
        w = WORKLOADS[name]
        least = floor(machine, w.flops_per_round, w.bytes_per_round)
        if "resident" in rows:
            base = rows["resident"]["seconds"]
            rows = {k: row | {"ratio": row["seconds"] / base} for k, row in rows.items()}
        found.append(
            Case(
                name,
                f"{name}, {COHORTS} cohorts of clients, examples on the host",
                "a round",
                rows,
                "",
                least,
                baseline="resident",
                limits=dict.fromkeys(("host", "file"), LIMIT) if "resident" in rows else {},
            )
        )
    return found
