"""Part ``selection``: time of a round whose clients are chosen among candidates.

Ten of 100 clients train, five epochs of five minibatches each, with a softmax regression of 610
parameters.  Pairs of calls as in the part ``methods``; the baseline draws ten clients uniformly.
"""

from collections.abc import Sequence

import jax

import fedjax_sim as fs
from benchmarks.candidates import problem
from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Measured, Options, Results
from benchmarks.methods import in_turns, one_call
from benchmarks.report import Case
from benchmarks.workloads import Workload
from fedjax_sim import selection

CHOSEN, CLIENTS = 10, 100
ROUNDS = 20  # a call
BASELINE = "uniform, 10 clients"
# Name -> selector, and clients that the timeline has in a round.
METHODS: dict[str, tuple[fs.selection.Selector | None, int]] = {
    BASELINE: (None, CHOSEN),
    "power_of_choice(10), 20 candidates": (selection.power_of_choice(CHOSEN), 20),
    "power_of_choice(10), 100 candidates": (selection.power_of_choice(CHOSEN), CLIENTS),
    "proportional(10), 100 candidates": (selection.proportional(CHOSEN), CLIENTS),
    "oort(10), 100 candidates": (selection.oort(CHOSEN), CLIENTS),
    "uniform, 100 clients": (None, CLIENTS),
}


def workload(cohort: int) -> Workload:
    """Returns the work of a round in which a number of clients train."""
    return Workload("softmax", (60,), 10, CLIENTS, cohort, 50, 10, 5, 610, 4 * 600)


def jobs(options: Options) -> list[Job]:
    """Returns one job, for all methods."""
    names = options.chosen(METHODS)
    arguments = {"seconds": options.seconds, "names": names}
    return [Job(str(CLIENTS), "methods", "benchmarks.selection", arguments)] if names else []


def measure(seconds: float, names: Sequence[str]) -> Measured:
    """Runs in a process of its own, on one host device; ``seconds`` counts one method's calls."""
    fs.execution.use_all_cores(1)
    w = workload(CLIENTS)
    model, task = problem(w)
    params, plain = model.init(jax.random.key(0)), fs.fedavg(w.lr)
    calls = {}
    for name in dict.fromkeys([BASELINE, *names]):
        selector, cohort = METHODS[name]
        algorithm = plain if selector is None else selection.select(plain, selector)
        calls[name] = one_call(algorithm, workload(cohort), task, params, ROUNDS)
    return in_turns(calls, seconds, ROUNDS, baseline=BASELINE)


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the methods as rows; the floor is that of the baseline's gradients."""
    rows: dict[str, dict[str, float]] = {}
    for key, value in results[str(CLIENTS)]["methods"].items():
        method, _, quantity = key.partition(":")
        rows.setdefault(method, {})[quantity] = value
    w = workload(CHOSEN)
    return [
        Case(
            name=str(CLIENTS),
            title=f"{CHOSEN} of {CLIENTS} clients x {w.steps} steps, softmax regression",
            unit="a round",
            rows={method: row for method, row in rows.items() if "seconds" in row},
            ours="",  # all are
            floor=floor(machine, w.flops_per_round, w.bytes_per_round),
            baseline=BASELINE,
        )
    ]
