"""Running statistics of a model (batch normalisation) by ``--statistics``."""

from collections.abc import Iterable

from fedjax_sim.models import Model, frozen_statistics
from fedjax_sim.studies.setups.entries import AlgorithmEntry
from fedjax_sim.tree import Where
from fedjax_sim.types import FedAlgorithm
from fedjax_sim.wrappers.freeze import freeze
from fedjax_sim.wrappers.running_statistics import running_statistics


def trained_model(net: Model, statistics: str) -> Model:
    """Returns the model as the clients train it.

    Raises:
        ValueError: an option other than the default for a model without running statistics.

    Example:
        >>> from fedjax_sim import models
        >>> trained_model(models.mlp(3, (4,), 2), "frozen")
        Traceback (most recent call last):
        ...
        ValueError: statistics is 'frozen'; expected 'averaged', the default, since the model ...
    """
    if net.statistics is None and statistics != "averaged":
        raise ValueError(
            f"statistics is {statistics!r}; expected 'averaged', the default, since the model has "
            "no running statistics"
        )
    return frozen_statistics(net) if statistics == "frozen" else net


def statistics_of(option: str, entries: Iterable[AlgorithmEntry]) -> str:
    """Returns "private" for algorithms whose clients keep running statistics by definition.

    Args:
        option: ``--statistics``, which the other algorithms have.
        entries: of algorithms; one of them is enough.

    Example:
        >>> from fedjax_sim.studies.setups.registry import ALGORITHMS
        >>> statistics_of("averaged", [ALGORITHMS["fedavg"]])
        'averaged'
        >>> statistics_of("averaged", [ALGORITHMS["fedbn"]])
        'private'
        >>> statistics_of("frozen", [ALGORITHMS["fedbn"]])
        'frozen'
    """
    keeps = any(entry.private_statistics for entry in entries)
    return "private" if keeps and option == "averaged" else option


def for_model(algorithm: FedAlgorithm, where: Where | None, statistics: str) -> FedAlgorithm:
    """Returns the algorithm for a model with these running statistics (None: without).

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = fedavg(0.1)
        >>> for_model(algorithm, None, "averaged") is algorithm
        True
    """
    if where is None:
        return algorithm
    if statistics == "frozen":
        return freeze(algorithm, where)
    combine = "private" if statistics == "private" else "averaged"
    return running_statistics(algorithm, where, combine)
