"""Part ``methods``: time of a round with other methods, relative to FedAvg.

The same model, data, cohort size, steps and learning rate for all, every other hyper-parameter at
its default; W3 (LeNet-5) and W1 (softmax regression, where the arithmetic of control variates is
not small beside a gradient).  ``W1-1dev`` is W1 on one host device; on several, ``execution.auto``
divides the clients among them.

A process per method, as in the other parts, would compare minutes of the machine that differ by
more than the methods do.  So all methods of a workload are compiled in one process, which takes
turns: a call of FedAvg and one of the method directly after or before it, method after method, then
the whole list again.  ``ratio`` is the median of the quotients of such pairs, with their quartiles;
``cpu_ratio`` is that of the pairs' CPU times, which other processes disturb less, and
``least_cpu_ratio`` the quotient of both shortest ones.  FedAvg's own row is a pair of two equal
calls: its quartiles are the noise.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

import fedjax_sim as fs
from benchmarks.candidates import problem, timeline
from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Measured, Options, Results
from benchmarks.memory import loop
from benchmarks.report import Case
from benchmarks.workloads import WORKLOADS, Workload
from fedjax_sim.types import Params

BASELINE = "fedavg"
METHODS: dict[str, Callable[..., fs.FedAlgorithm]] = {
    BASELINE: fs.fedavg,
    "fedswa": fs.fedswa,
    "fedmoswa": fs.fedmoswa,
    "scaffold": fs.scaffold,
    "fedsam": fs.fedsam,
    "mofedsam": fs.mofedsam,
    "fedacg": fs.fedacg,
    "feddyn": fs.feddyn,
    "fedlesam": fs.fedlesam,
    "fedasam": fs.fedasam,
    "fedgamma": fs.fedgamma,
    "fedsmoo": fs.fedsmoo,
    "fixed_order": lambda lr: fs.fixed_order(fs.fedavg(lr)),
}
CASES = {"W1": ("W1", None), "W1-1dev": ("W1", 1), "W3": ("W3", None)}  # workload, host devices
ROUNDS = {"W1": 10, "W3": 1}  # a call
LEAST_PASSES = 5
LIMITS = {"W3": {"fedmoswa": 1.15, "fedsam": 2.2}}  # times FedAvg
TITLES = {
    "W1": "W1: softmax regression, 100 clients x 30 steps",
    "W1-1dev": "W1 on one host device",
    "W3": "W3: LeNet-5, 10 clients x 50 steps",
}

Timed = Callable[[], tuple[float, float]]  # seconds and CPU seconds of a call


def jobs(options: Options) -> list[Job]:
    """Returns a job per case, for all methods."""
    names = options.chosen(METHODS)
    return [
        Job(
            case,
            "methods",
            "benchmarks.methods",
            {"workload": workload, "devices": devices, "seconds": options.seconds, "names": names},
        )
        for case, (workload, devices) in CASES.items()
        if names and workload in options.workloads
    ]


def measure(workload: str, devices: int | None, seconds: float, names: Sequence[str]) -> Measured:
    """Runs in a process of its own; ``seconds`` counts the calls of one method."""
    fs.execution.use_all_cores(devices)
    w, rounds = WORKLOADS[workload], ROUNDS[workload]
    names = list(dict.fromkeys([BASELINE, *names]))
    model, task = problem(w)  # once: 600 MB of W3
    params = model.init(jax.random.key(0))
    calls = {name: one_call(METHODS[name](w.lr), w, task, params, rounds) for name in names}
    return in_turns(calls, seconds, rounds)


def one_call(
    algorithm: fs.FedAlgorithm, w: Workload, task: fs.Task, params: Params, rounds: int
) -> Timed:
    """Returns a compiled function whose calls run ``rounds`` rounds from the last state."""
    run = loop(algorithm, lambda key: timeline(w, key, rounds), params)
    state = run.begin(task)
    compiled = run.proceed.lower(task, state, jax.random.key(0)).compile()
    task, state, _ = jax.device_put((task, state, jax.random.key(0)), compiled.input_shardings[0])
    keys = (jax.random.key(number) for number in itertools.count())

    def timed() -> tuple[float, float]:
        nonlocal state
        key = jax.block_until_ready(next(keys))
        began = time.perf_counter(), time.process_time()
        state = jax.block_until_ready(compiled(task, state, key))
        ended = time.perf_counter(), time.process_time()
        if int(state.diverged_at):
            raise FloatingPointError("the benchmark's model diverged")
        return ended[0] - began[0], ended[1] - began[1]

    timed()
    return timed


def in_turns(
    calls: dict[str, Timed], seconds: float, rounds: int, baseline: str = BASELINE
) -> Measured:
    """Calls the baseline and a method in pairs, in turns; returns ``METHOD:QUANTITY`` -> number.

    There are at least ``LEAST_PASSES`` passes over the methods, and ``seconds`` per method.
    """
    pairs: dict[str, list[tuple]] = {name: [] for name in calls}
    start, passes = time.perf_counter(), 0
    while passes < LEAST_PASSES or time.perf_counter() - start < seconds * len(calls):
        for name, call in calls.items():
            # Each goes first in every other pass.
            if passes % 2:
                own, base = call(), calls[baseline]()
            else:
                base, own = calls[baseline](), call()
            pairs[name].append((own, base))
        passes += 1
    found: Measured = {}
    for name, measured in pairs.items():
        ratios = [own[0] / base[0] for own, base in measured]
        low, high = np.percentile(ratios, [25, 75])
        row = {
            "seconds": statistics.median(own[0] for own, _ in measured) / rounds,
            "ratio": statistics.median(ratios),
            "lower_quartile": float(low),
            "upper_quartile": float(high),
            "cpu_ratio": statistics.median(own[1] / base[1] for own, base in measured),
            "least_cpu_ratio": min(own[1] for own, _ in measured)
            / min(base[1] for _, base in measured),
            "cpu_seconds": min(own[1] for own, _ in measured) / rounds,
            "pairs": len(measured),
        }
        found |= {f"{name}:{quantity}": value for quantity, value in row.items()}
    return found


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the methods as rows; the floor is that of one gradient per step."""

    def case(name: str, flat: Measured) -> Case:
        w, rows = WORKLOADS[CASES[name][0]], {}
        for key, value in flat.items():
            method, _, quantity = key.partition(":")
            rows.setdefault(method, {})[quantity] = value
        return Case(
            name=name,
            title=TITLES[name],
            unit="a round",
            rows={method: row for method, row in rows.items() if "seconds" in row},
            ours="",  # all are
            floor=floor(machine, w.flops_per_round, w.bytes_per_round),
            baseline=BASELINE,
            limits=LIMITS.get(name, {}),
        )

    return [case(name, rows["methods"]) for name, rows in results.items()]
