"""Algorithms on the command line and the defaults of their hyper-parameters.

Nothing is registered.  Every function of ``fedjax_sim.algorithms.__all__`` that returns a
:class:`~fedjax_sim.types.FedAlgorithm` is an algorithm, and so is a function ``MODULE:FUNCTION`` of
the user.  :mod:`fedjax_sim.studies.setups.entries` reads their hyper-parameters,
:mod:`fedjax_sim.studies.setups.settings` the values, :mod:`fedjax_sim.cli.docstrings` descriptions
and papers.
"""

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedjax_sim import algorithms
from fedjax_sim.studies.setups.entries import COMMON, AlgorithmEntry, Factory
from fedjax_sim.studies.setups.references import find, is_reference
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
# Options that set a hyper-parameter of several algorithms.
SHARED = (*COMMON, "lr", "server_lr")


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


ALGORITHMS: dict[str, AlgorithmEntry] = {
    name: AlgorithmEntry(
        name, factory, DEFAULTS.get(name, {}), private_statistics=name in PRIVATE_STATISTICS
    )
    for name, factory in sorted(_factories().items())
}
GROUP = "algorithms"  # of entry points


def algorithms_of(names: Sequence[str]) -> dict[str, AlgorithmEntry]:
    """Returns the algorithms that an option names, by the names that tables show.

    Args:
        names: built-in names, ``MODULE:FUNCTION``, and names of entry points.

    Raises:
        ValueError: an unknown name, a function that cannot be loaded, or one with a required
            parameter that is no number, name or flag.

    Example:
        >>> list(algorithms_of(["fedavg", "fedprox"]))
        ['fedavg', 'fedprox']
    """
    return {
        label: ALGORITHMS[name] if name in ALGORITHMS else _own(label, name)
        for label, name in labels(names).items()
    }


def labels(names: Sequence[str]) -> dict[str, str]:
    """Returns the names of an option by the names that tables and folders show.

    ``MODULE:FUNCTION`` is shown as FUNCTION, or as MODULE.FUNCTION if another one, or a built-in
    algorithm, has that name.

    Example:
        >>> labels(["fedavg", "mine:nova", "mine:fedavg"])
        {'fedavg': 'fedavg', 'nova': 'mine:nova', 'mine.fedavg': 'mine:fedavg'}
    """
    short = {name: name.rpartition(":")[2] for name in names}
    counts = Counter(short.values())
    unique = {
        name
        for name, label in short.items()
        if counts[label] == 1 and (label not in ALGORITHMS or not is_reference(name))
    }
    return {(short[name] if name in unique else name.replace(":", ".")): name for name in names}


def _own(label: str, name: str) -> AlgorithmEntry:
    """The entry of a function that is not built in."""
    reference = find("algorithms", name, ALGORITHMS, GROUP)
    entry = AlgorithmEntry(label, reference.function, reference=reference)
    for key in entry.required:
        if key not in entry.hyper_defaults:
            reference.fail(
                f"whose parameter {key!r} has no default; expected a number, name or flag: float, "
                "int, str or bool"
            )
    return entry
