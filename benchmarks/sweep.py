"""Part ``sweep``: 49 pairs of learning rates x 3 seeds of W1 and W4, as one sweep and otherwise.

``sweep`` is :func:`fedjax_sim.sweep` on all cores.  ``loop`` and ``loop-1dev`` do the same 147 runs
one after the other with one compiled :func:`fedjax_sim.run`, the learning rates its arguments, on
all cores and on one host device: 12 runs are measured and their median is counted 147 times.
``vmap`` runs all of them at once, on one device.  Seconds are without compilation.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_sim as fs
from benchmarks.candidates import placed, problem, timeline
from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Options, Results
from benchmarks.report import Case
from benchmarks.workloads import WORKLOADS, Workload
from fedjax_sim.runs import expand

GRID = {"lr": np.geomspace(1e-3, 1e-1, 7).tolist(), "server_lr": np.geomspace(0.1, 1, 7).tolist()}
SEEDS = 3
ROUNDS = {"W1": 2, "W4": 10}
SAMPLE = 12  # runs measured one after the other

CANDIDATES = {"sweep": None, "loop": None, "loop-1dev": 1, "vmap": 1}  # host devices, None: all
TARGETS = {"W1": {"loop": 2.0}, "W4": {"loop": 5.0}}


class Training(NamedTuple):
    """Values that all runs of a sweep share."""

    factory: Callable[..., fs.FedAlgorithm]  # (lr, server_lr) -> algorithm
    setup: fs.Setup
    keys: jax.Array  # [seeds]


class Outcome(NamedTuple):
    """Results and times of the runs (configuration, seed)."""

    norms: dict[tuple[int, int], float]  # of the final models
    seconds: float  # of all runs, without compilation
    compile_seconds: float


def jobs(options: Options) -> list[Job]:
    """A job per workload that has a sweep, and candidate."""
    names = options.chosen(CANDIDATES)
    return [
        Job(workload, name, "benchmarks.sweep", {"workload": workload, "candidate": name})
        for workload in options.workloads
        if workload in ROUNDS
        for name in names
    ]


def measure(workload: str, candidate: str) -> dict[str, float]:
    """Runs in the candidate's own process."""
    fs.execution.use_all_cores(CANDIDATES[candidate])
    measured = {"sweep": together, "vmap": at_once}.get(candidate, one_by_one)
    outcome = measured(training(WORKLOADS[workload], ROUNDS[workload], SEEDS), GRID)
    return {
        "seconds": outcome.seconds,
        "compile_seconds": outcome.compile_seconds,
        "with_compilation_seconds": outcome.seconds + outcome.compile_seconds,
    }


def training(w: Workload, rounds: int, seeds: int) -> Training:
    """The runs of a workload: every seed has its own timeline, model and minibatches."""
    model, task = problem(w)
    keys = jax.random.split(jax.random.key(5), seeds)
    setup = fs.Setup(
        task=task,
        timeline=jax.vmap(lambda key: timeline(w, key, rounds))(keys),
        params=jax.vmap(model.init)(keys),
        eval_fn=lambda params: {"norm": optax.tree.norm(params)},
        eval_every=rounds,
    )
    return Training(lambda lr, server_lr: fs.fedavg(lr, optax.sgd(server_lr)), setup, keys)


def together(training: Training, grid: dict[str, list[float]]) -> Outcome:
    """Runs all as :func:`fedjax_sim.sweep`."""
    began = time.perf_counter()
    result = fs.sweep(training.factory, training.setup, grid, training.keys)
    seconds = time.perf_counter() - began - result.compile_seconds
    configurations = expand(grid)
    norms = {}
    for run in result.runs:
        number = configurations.index(run.configuration), int(run.seed)
        norms[number] = float(run.history.metrics["norm"][-1])
    return Outcome(norms, seconds, result.compile_seconds)


def one_by_one(training: Training, grid: dict[str, list[float]], sample: int = SAMPLE) -> Outcome:
    """Runs ``sample`` of the runs one after the other; their median is counted for every run."""
    runs, arguments = _arguments(training, grid)
    began = time.perf_counter()
    call, task = placed(_one(training), training.setup.task, *_run(arguments, 0))
    compile_seconds = time.perf_counter() - began
    norms, times = {}, []
    for i in np.linspace(0, len(runs) - 1, min(sample, len(runs))).astype(int):
        run = jax.block_until_ready(_run(arguments, i))
        began = time.perf_counter()
        norms[runs[i]] = float(call(task, *run))
        times.append(time.perf_counter() - began)
    return Outcome(norms, statistics.median(times) * len(runs), compile_seconds)


def _run(arguments: Sequence, number: int) -> Sequence:
    return jax.tree.map(lambda x: x[number], arguments)


def at_once(training: Training, grid: dict[str, list[float]]) -> Outcome:
    """Runs all as one ``vmap``."""
    runs, arguments = _arguments(training, grid)
    began = time.perf_counter()
    every = jax.vmap(_one(training), (None, 0, 0, 0, 0, 0))
    call, task = placed(every, training.setup.task, *arguments)
    compile_seconds = time.perf_counter() - began
    began = time.perf_counter()
    norms = np.asarray(call(task, *arguments))
    seconds = time.perf_counter() - began
    return Outcome(dict(zip(runs, norms.tolist(), strict=True)), seconds, compile_seconds)


def _one(training: Training):
    def one(task, lr, server_lr, timeline, params, key) -> jax.Array:
        setup = dataclasses.replace(training.setup, task=task, timeline=timeline, params=params)
        _, history = fs.run(training.factory(lr, server_lr), setup, key)
        return history.metrics["norm"][-1]

    return one


def _arguments(
    training: Training, grid: dict[str, list[float]]
) -> tuple[list[tuple[int, int]], Sequence]:
    """Returns the runs (configuration, seed), and their arguments with a leading axis of runs."""
    setup, keys = training.setup, training.keys
    configurations = expand(grid)
    runs = [(i, j) for i in range(len(configurations)) for j in range(keys.shape[0])]
    rates = [
        jnp.array([configurations[i][name] for i, _ in runs], jnp.float32)
        for name in ("lr", "server_lr")
    ]
    seed = np.array([j for _, j in runs])
    per_run = jax.tree.map(lambda x: jnp.asarray(x)[seed], (setup.timeline, setup.params))
    return runs, (*rates, *per_run, keys[seed])


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the sweeps with their floors and targets."""

    def case(workload: str, rows: dict[str, dict[str, float]]) -> Case:
        w, count = WORKLOADS[workload], 49 * SEEDS * ROUNDS[workload]
        return Case(
            name=workload,
            title=f"{workload}: 49 learning-rate pairs x {SEEDS} seeds, {ROUNDS[workload]} rounds",
            unit="a sweep",
            rows=rows,
            ours="sweep",
            floor=floor(machine, count * w.flops_per_round, 0),  # minibatches can be shared
            targets=TARGETS[workload],
            local_steps=count * w.steps_per_round,
        )

    return [case(workload, rows) for workload, rows in results.items()]
