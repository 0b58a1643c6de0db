"""Part ``topologies``: time of a round without a server, relative to FedAvg.

16 to 4,096 clients, all in every round, with a softmax regression of 610 parameters and five local
steps each: a model so small that the mixing counts.  Pairs of calls as in the part ``methods``.
``complete`` is DFedAvg with the dense product, the other graphs gather rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import fedjax_sim as fs
from benchmarks.candidates import problem
from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Measured, Options, Results
from benchmarks.methods import BASELINE, in_turns, one_call
from benchmarks.report import Case
from benchmarks.workloads import Workload
from fedjax_sim import topologies

CLIENTS = (16, 256, 4096)
ROUNDS = 10  # a call


def _dfedavg(lr: float, topology: topologies.Topology) -> fs.FedAlgorithm:
    return topologies.dfedavgm(lr, topology, momentum=0.0)


# (rate, clients) -> algorithm. The numbers of clients are powers of 4.
METHODS: dict[str, Callable[[float, int], Any]] = {
    BASELINE: lambda lr, m: fs.fedavg(lr),
    "hier_fedavg": lambda lr, m: topologies.hier_fedavg(lr, np.arange(m) // 4, 5),
    "dfedavg-ring": lambda lr, m: _dfedavg(lr, topologies.ring(m)),
    "dfedavg-matching": lambda lr, m: _dfedavg(lr, topologies.random_matching(m, 10)),
    "dfedavg-exponential": lambda lr, m: _dfedavg(lr, topologies.exponential(m)),
    "dfedavg-complete": lambda lr, m: _dfedavg(lr, topologies.complete(m)),
    "d_psgd-ring": lambda lr, m: topologies.d_psgd(lr, topologies.ring(m)),
    "gradient_tracking-ring": lambda lr, m: topologies.gradient_tracking(lr, topologies.ring(m)),
    "d2-ring": lambda lr, m: topologies.d2(lr, topologies.ring(m).lazy(0.1)),
    "sgp-exponential": lambda lr, m: topologies.sgp(lr, topologies.exponential(m)),
}


def workload(clients: int) -> Workload:
    """Returns the work of a round: 60 features, 10 classes, 5 steps of batches of 10."""
    return Workload("softmax", (60,), 10, clients, clients, 50, 10, 1, 610, 4 * 600)


def jobs(options: Options) -> list[Job]:
    """Returns a job per number of clients, for all methods."""
    names = options.chosen(METHODS)
    return [
        Job(
            str(clients),
            "methods",
            "benchmarks.topologies",
            {"clients": clients, "seconds": options.seconds, "names": names},
        )
        for clients in CLIENTS
        if names
    ]


def measure(clients: int, seconds: float, names: Sequence[str]) -> Measured:
    """Runs in a process of its own, on one host device; ``seconds`` counts one method's calls."""
    fs.execution.use_all_cores(1)
    w = workload(clients)
    model, task = problem(w)
    params = model.init(jax.random.key(0))
    names = list(dict.fromkeys([BASELINE, *names]))
    calls = {
        name: one_call(METHODS[name](w.lr, clients), w, task, params, ROUNDS) for name in names
    }
    return in_turns(calls, seconds, ROUNDS)


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the methods as rows; the floor is that of FedAvg's gradients."""

    def case(name: str, flat: Measured) -> Case:
        w, rows = workload(int(name)), {}
        for key, value in flat.items():
            method, _, quantity = key.partition(":")
            rows.setdefault(method, {})[quantity] = value
        return Case(
            name=name,
            title=f"{int(name):,} clients x 5 steps, softmax regression",
            unit="a round",
            rows={method: row for method, row in rows.items() if "seconds" in row},
            ours="",  # all are
            floor=floor(machine, w.flops_per_round, w.bytes_per_round),
            baseline=BASELINE,
        )

    return [case(name, rows["methods"]) for name, rows in results.items()]
