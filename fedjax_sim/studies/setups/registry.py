"""Algorithms on the command line and the defaults of their hyper-parameters.

Nothing is registered.  Every function of ``fedjax_sim.algorithms.__all__`` that returns a
:class:`~fedjax_sim.types.FedAlgorithm` is an algorithm, unless it requires functions or data of the
user, such as the features of MOON; a study module has these and others.
:mod:`fedjax_sim.studies.setups.entries` reads their hyper-parameters,
:mod:`fedjax_sim.studies.setups.settings` the values, :mod:`fedjax_sim.cli.docstrings` descriptions
and papers.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_sim import algorithms, topologies
from fedjax_sim.checks import did_you_mean
from fedjax_sim.studies.setups.entries import AlgorithmEntry, Factory
from fedjax_sim.types import FedAlgorithm

# Defaults of parameters that have none, or another one, in the function.  One client rate for all
# where possible, so that curves compare methods.  The values were chosen on the quickstart from
# coarse grids by the test accuracy that a run reports: they are sensible, but the table of a preset
# is no ranking of methods.  Those of the asynchronous algorithms were only checked to train on the
# preset asynchronous: favano counts the steps of one visit as about one, so its rate is larger;
# async_sgd applies single stale gradients, so its rate is smaller.
DEFAULTS: dict[str, dict[str, Any]] = {
    "afl": {"lr": 0.5},
    "agd": {"smoothness": 2.0, "mu": 0.1},
    "async_sgd": {"lr": 0.02},
    "diloco": {"lr": 0.003},
    "favano": {"lr": 1.0},
    "fedac": {"lr": 0.05, "mu": 0.1},
    "fedadagrad": {"server_lr": 0.1},
    "fedadam": {"server_lr": 0.03},
    "fedadamw": {"lr": 0.003},
    "fedasync": {"staleness_power": 0.5},
    "fedavgm": {"server_lr": 1.0, "momentum": 0.7},
    "fedbuff": {"server_lr": 1.0, "staleness_power": 0.5},
    "feddyn": {"mu": 0.1},
    "fedlin": {"lr": 0.5},
    "fedmuon": {"lr": 0.01},
    "fedprox": {"mu": 0.1},
    "fedsgd": {"lr": 0.5},
    "fedyogi": {"server_lr": 0.03},
    "ifca": {"lr": 0.4},
    "mb_ac_sgd": {"lr": 0.5, "mu": 0.1},
    "mb_sgd": {"lr": 0.5},
    "mimelite": {"lr": 0.1},
    "perfedavg": {"lr": 0.4},
    "pfedme": {"lr": 0.04},  # times mu = 15: a share of 0.6 per step
    "scaffnew": {"probability": 0.1},
    "scaffold": {"server_lr": 1.0},
    "streaming_diloco": {"lr": 0.003},
}
# Algorithms whose clients keep the running statistics of normalisation layers by definition.
PRIVATE_STATISTICS = ("fedbn",)


def _factories() -> dict[str, Factory]:
    functions = {name: getattr(algorithms, name) for name in algorithms.__all__}
    factories = {}
    for name, function in functions.items():
        if not inspect.isfunction(function):
            continue
        signature = inspect.signature(function, eval_str=True)
        takes = [parameter.annotation for parameter in signature.parameters.values()]
        if signature.return_annotation is FedAlgorithm and FedAlgorithm not in takes:
            factories[name] = function
    return factories


def _entries() -> dict[str, AlgorithmEntry]:
    """Returns the entries of all functions whose required parameters can be written as text."""
    entries = {
        name: AlgorithmEntry(
            name, factory, DEFAULTS.get(name, {}), private_statistics=name in PRIVATE_STATISTICS
        )
        for name, factory in sorted(_factories().items())
    }
    return {
        name: entry
        for name, entry in entries.items()
        if entry.hyper_defaults.keys() >= set(entry.required)
    }


ALGORITHMS = _entries()


def algorithms_of(
    names: Sequence[str], own: Mapping[str, FedAlgorithm | Factory] | None = None
) -> dict[str, AlgorithmEntry]:
    """Returns the algorithms that an option names."""
    known = dict(ALGORITHMS)
    for name, factory in (own or {}).items():
        if name not in known or factory is not known[name].factory:
            known[name] = _own(name, factory)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"algorithms is {tuple(names)}; expected distinct names, at least one")
    for name in names:
        if name not in known:
            raise ValueError(f"algorithms has {name!r}; {_hint(name, known)}")
    return {name: known[name] for name in names}


def _hint(name: str, known: Mapping[str, AlgorithmEntry]) -> str:
    """Returns what was expected, with the right spelling of a name that is almost known."""
    parts = [part for part in name.lower().split(",") if part]
    if len(parts) > 1 and all(part in known for part in parts):
        return f"expected blanks between names: {' '.join(parts)}"
    if name.lower() in known:
        return f"expected {name.lower()}"
    for place, module in (("fs", algorithms), ("fs.topologies", topologies)):
        if name in module.__all__:
            return (
                f"expected a name of fedjax-sim list: {place}.{name} requires arguments that are "
                "no options, and a study module gives them (fedjax-sim init study.py)"
            )
    return f"expected a name of fedjax-sim list{did_you_mean(name, known)}"


def _own(name: str, own: FedAlgorithm | Factory) -> AlgorithmEntry:
    """The entry of an algorithm or a function that is not built in."""
    factory = (lambda: own) if isinstance(own, FedAlgorithm) else own
    if not callable(factory):
        raise ValueError(
            f"algorithms has {name!r}, which is {type(own).__name__}; expected a "
            "fedjax_sim.FedAlgorithm, or a function that returns one"
        )
    entry = AlgorithmEntry(name, factory, is_own=True)
    for key in entry.required:
        if key not in entry.hyper_defaults:
            raise ValueError(
                f"algorithms has {name!r}, whose parameter {key!r} has no default; expected a "
                "number, name or flag: float, int, str or bool"
            )
    return entry
