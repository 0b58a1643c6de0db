"""Part ``topologies``: time of a round without a server, relative to FedAvg.

16 to 4,096 clients, all in every round, with a softmax regression of 610 parameters and five local
steps each: a model so small that the mixing counts.  Pairs of calls as in the part ``methods``.
``complete`` adds a mean, Erdos-Renyi graphs with many neighbours are a matrix product, all others
gather rows.  ``bits_per_link`` is what a client sends to one neighbour, or to its server.
"""

import math
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
from fedjax_sim.runs.storage.outcome import visit_shapes
from fedjax_sim.tree import upload_bits

CLIENTS = (16, 64, 256, 1024, 4096)
MOST_ROUNDS = 10  # a call


def _dfedavg(lr: float, topology: topologies.Topology) -> fs.FedAlgorithm:
    return topologies.dfedavgm(lr, topology, momentum=0.0)


def _square(clients: int) -> topologies.Topology:
    return topologies.torus(math.isqrt(clients), clients // math.isqrt(clients))


def _random(clients: int) -> topologies.Topology:
    """Returns a random graph with about 2 log M neighbours, with which it is connected."""
    return topologies.erdos_renyi(clients, 2 * math.log(clients) / clients, seed=1)


# (rate, clients) -> algorithm. The numbers of clients are powers of 4.
METHODS: dict[str, Callable[[float, int], Any]] = {
    BASELINE: lambda lr, m: fs.fedavg(lr),
    "hier_fedavg": lambda lr, m: topologies.hier_fedavg(lr, np.arange(m) // 4, 5),
    "dfedavg-ring": lambda lr, m: _dfedavg(lr, topologies.ring(m)),
    "dfedavg-torus": lambda lr, m: _dfedavg(lr, _square(m)),
    "dfedavg-erdos_renyi": lambda lr, m: _dfedavg(lr, _random(m)),
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


def rounds_per_call(clients: int) -> int:
    """Returns a number of rounds that take some milliseconds at least, and less than a second."""
    return max(2, min(MOST_ROUNDS, 2560 // clients))


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
    rounds = rounds_per_call(clients)
    algorithms = {name: METHODS[name](w.lr, clients) for name in names}
    calls = {name: one_call(each, w, task, params, rounds) for name, each in algorithms.items()}
    setup = fs.Setup(task, fs.timelines.full(1, clients, w.steps), params)
    found = in_turns(calls, seconds, rounds)
    for name, algorithm in algorithms.items():
        _, upload = visit_shapes(algorithm, setup, batched=False)
        found[f"{name}:bits_per_link"] = upload_bits(algorithm)(upload)
        links = algorithm.requires.bits.links
        found[f"{name}:links_per_client"] = 1 if links is None else links
    return found


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
