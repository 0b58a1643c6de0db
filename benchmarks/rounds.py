"""Part ``rounds``: seconds per round of W1 to W4, beside other programs.

These are plain JAX, DrJAX, a PyTorch loop, and peers in virtual environments of their own.

``ours`` is what a user gets: ``use_all_cores()`` before JAX starts, strategy ``auto``.
``ours-1dev`` is ``auto`` on one host device; ``ours=STRATEGY[:N][@DEVICES]`` any strategy of ours.
"""

import importlib.util
import sys
from typing import Any, NamedTuple

from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Options, Results, timed
from benchmarks.report import Case
from benchmarks.workloads import WORKLOADS


class Candidate(NamedTuple):
    module: str
    arguments: dict[str, Any]
    needs: str | None = None  # a package


def _jax(function: str, devices: int | None, needs: str | None = None, **arguments) -> Candidate:
    """Candidate in JAX; ``devices``: host devices, None: one per core."""
    arguments = {"function": function, "devices": devices} | arguments
    return Candidate("benchmarks.rounds", arguments, needs)


CANDIDATES = {
    "ours": _jax("ours", None, strategy="auto"),
    "ours-1dev": _jax("ours", 1, strategy="auto"),
    "jax-vmap": _jax("jax_vmap", 1),
    "jax-map": _jax("jax_map", 1),
    "drjax-mesh": _jax("drjax_mesh", None, "drjax"),
    "torch-loop-1": Candidate("benchmarks.torch_loop", {"threads": 1}, "torch"),
    "torch-loop": Candidate("benchmarks.torch_loop", {"threads": None}, "torch"),
}
PEERS = {  # name -> candidates, in an interpreter of their own
    "fedjax": {"fedjax": Candidate("benchmarks.peer_fedjax", {})},
    "pfl": {
        "pfl-1": Candidate("benchmarks.peer_pfl", {"threads": 1}),
        "pfl": Candidate("benchmarks.peer_pfl", {"threads": None}),
    },
}
PACKAGES = {"fedjax": ("fedjax", "jax"), "pfl": ("pfl", "torch")}  # whose versions are stored

# Measured only if they are named: plain JAX with convolutions takes half a minute a round, small
# dense models gain nothing from several torch threads.
NOT_CONVOLUTIONAL = {"jax-vmap", "jax-map", "drjax-mesh"}
NOT_DENSE = {"torch-loop", "pfl"}

# How many times faster than a peer `ours` is meant to be; of several variants, than the fastest.
TARGETS = {
    "W1": {"drjax-mesh": 1.0, "fedjax": 2.4},
    "W2": {"torch-loop": 1.4, "pfl": 1.3, "fedjax": 1.7},
    "W3": {"pfl": 3.2, "fedjax": 2.8},
    "W4": {"drjax-mesh": 1.7, "fedjax": 70.0, "torch-loop": 250.0},
}
TITLES = {
    "W1": "W1: softmax regression, 100 clients x 30 steps",
    "W2": "W2: FEMNIST CNN, 10 clients x 5 steps",
    "W3": "W3: LeNet-5, 10 clients x 50 steps",
    "W4": "W4: logistic regression, 1,000 clients x 16 steps",
}


class Names:
    """The names of this part's candidates."""

    def __contains__(self, candidate: object) -> bool:
        peers = any(candidate in variants for variants in PEERS.values())
        return peers or candidate in CANDIDATES or str(candidate).startswith("ours=")


def jobs(options: Options) -> list[Job]:
    """A job per workload and candidate."""
    found = []
    for workload in options.workloads:
        images = len(WORKLOADS[workload].shape) == 3
        chosen = [(name, one, sys.executable) for name, one in _own(options).items()]
        for peer, python in options.peers.items():
            chosen += [(name, one, python) for name, one in PEERS[peer].items()]
        if options.candidates is None:
            left_out = NOT_CONVOLUTIONAL if images else NOT_DENSE
            chosen = [entry for entry in chosen if entry[0] not in left_out]
        else:
            chosen = [entry for entry in chosen if entry[0] in options.candidates]
        basic = {"workload": workload, "seconds": options.seconds}
        found += [
            Job(workload, name, candidate.module, basic | candidate.arguments, python)
            for name, candidate, python in chosen
        ]
    return found


def _own(options: Options) -> dict[str, Candidate]:
    """Returns the candidates that run in this interpreter; by default those that are installed."""
    if options.candidates is None:
        return {
            name: candidate
            for name, candidate in CANDIDATES.items()
            if candidate.needs is None or importlib.util.find_spec(candidate.needs)
        }
    chosen = {}
    for name in options.candidates:
        if name.startswith("ours="):
            strategy, _, devices = name.removeprefix("ours=").partition("@")
            chosen[name] = _jax("ours", int(devices or 1), strategy=strategy)
        elif name in CANDIDATES:
            chosen[name] = CANDIDATES[name]
    return chosen


def measure(
    workload: str, function: str, devices: int | None, seconds: float, **arguments: str
) -> dict[str, float]:
    """Runs in the process of a candidate of :mod:`benchmarks.candidates`."""
    from fedjax_sim.engine import use_all_cores

    use_all_cores(devices)
    from benchmarks import candidates

    one_call = getattr(candidates, function)(WORKLOADS[workload], **arguments)
    return timed(one_call, seconds)


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the workloads with their floors and targets."""

    def case(workload: str, rows: dict[str, dict[str, float]]) -> Case:
        w = WORKLOADS[workload]
        return Case(
            name=workload,
            title=TITLES[workload],
            unit="a round",
            rows=rows,
            ours="ours",
            floor=floor(machine, w.flops_per_round, w.bytes_per_round),
            targets=TARGETS[workload],
            local_steps=w.steps_per_round,
        )

    return [case(workload, rows) for workload, rows in results.items()]
