"""Presets of the command line as setups, from which a notebook changes one thing.

The options are those of ``fedjax-sim run``, by name.  ``model``, ``dataset``, ``partition``,
``loss``, ``metrics``, ``sampling`` and ``timeline`` also take objects: a
:class:`~fedjax_sim.models.Model`, a :class:`~fedjax_sim.datasets.Dataset`, or a function with the
contract in :mod:`fedjax_sim.studies.setups.references`.

Example:
    Your own algorithm beside FedAvg, as ``fedjax-sim run quickstart --seeds 2 --rounds 4``:

    >>> import fedjax_sim as fs
    >>> setup = fs.presets.quickstart(seeds=2, rounds=4, model="softmax_regression")
    >>> algorithms = {"FedAvg": fs.fedavg(0.2), "FedProx": fs.fedprox(0.2, mu=0.1)}
    >>> result = fs.compare(algorithms, setup, fs.presets.keys(2))
    >>> [name for name in result.to_frame()["metric"].unique() if name.startswith("test/")]
    ['test/accuracy', 'test/loss']
"""

import dataclasses
from typing import Any

from jax import Array

from fedjax_sim.checks import did_you_mean
from fedjax_sim.datasets import Dataset
from fedjax_sim.models import Model
from fedjax_sim.studies.setups import build, own_objects
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.names import PRESETS
from fedjax_sim.studies.setups.problem import prepare, seed_keys
from fedjax_sim.types import Setup

__all__ = ["asynchronous", "femnist", "keys", "quickstart"]

# Options that do not belong to a setup: arguments of algorithms, of compare, and of the process.
_OTHERS = {
    "output", "algorithms", "lr", "server_lr", "lr_decay", "clip", "weight_decay",
    "tuning_steps", "tuning_lr", "compress", "feedback", "feedback_rate", "compress_down",
    "aggregator", "hyper", "rates", "target_accuracy", "execution", "chunk_size", "measured",
    "precision", "on_divergence", "partition_per_seed", "attack", "attackers",
}  # fmt: skip


def quickstart(**options: Any) -> Setup:
    """Returns the setup of ``fedjax-sim run quickstart``: digits, 100 clients, 5 seeds.

    Args:
        options: those of ``fedjax-sim run`` that replace the preset's; ``seeds=None`` returns the
            setup of the seed ``seed`` alone, without the axis of seeds.

    Raises:
        ValueError: an unknown option, or a value out of range.

    Example:
        A split of the data per seed:

        >>> make_setup = lambda seed: quickstart(seed=seed, partition_seed=seed, seeds=None)
        >>> make_setup(3).timeline.clients.shape
        (100, 10)
    """
    return _setup("quickstart", "fedavg", options)


def asynchronous(algorithm: str = "fedavg", **options: Any) -> Setup:
    """Returns the setup of ``fedjax-sim run asynchronous`` for one algorithm: 30 clients, 3 seeds.

    Args:
        algorithm: name of the algorithm, which decides when clients report, such as ``favano``,
            ``quafl``, ``fedbuff``, ``fedasync`` or ``async_sgd``; any other name is synchronous.
            :func:`fedjax_sim.compare` passes it: ``compare(algorithms, asynchronous, keys)``.
        options: as for :func:`quickstart`.

    Raises:
        ValueError: as :func:`quickstart`.

    Example:
        >>> setup = asynchronous("fedbuff", horizon=200.0, seeds=2)
        >>> bool(setup.timeline.time.max() <= 200)
        True
    """
    return _setup("asynchronous", algorithm, options)


def femnist(**options: Any) -> Setup:
    """Returns the setup of ``fedjax-sim run femnist``: characters by writer, one seed.

    Args:
        options: as for :func:`quickstart`, for example ``data_dir``.

    Raises:
        ValueError: as :func:`quickstart`; no files of the data set.

    Example:
        >>> femnist(data_dir="/no/such/folder")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_sim.datasets.dataset.DataError: femnist: nothing found in ...
    """
    return _setup("femnist", "fedavg", options)


def keys(seeds: int = 5, seed: int = 0) -> Array:
    """Returns the keys of the runs that the command line uses, ``[seeds]``.

    Args:
        seeds: number of seeds.
        seed: the first seed.

    Example:
        >>> keys(2).shape
        (2,)
    """
    return seed_keys(RunConfig(seeds=seeds, seed=seed))[2]


def _setup(preset: str, algorithm: str, options: dict[str, Any]) -> Setup:
    known = {field.name for field in dataclasses.fields(RunConfig)} - _OTHERS
    for name in options:
        if name not in known:
            raise ValueError(f"{name} is no option of a setup{did_you_mean(name, known)}")
    alone = "seeds" in options and options["seeds"] is None
    values = {name: _function(value) for name, value in options.items()}
    config = dataclasses.replace(PRESETS[preset], **(values | ({"seeds": 1} if alone else {})))
    build.check(config)
    setup = prepare(config, own_objects.load_dataset(config)).setup_of(algorithm)
    return build.one_seed(setup) if alone else setup


def _function(value: Any) -> Any:
    """A model or data set as the function that returns it."""
    return (lambda: value) if isinstance(value, (Model, Dataset)) else value
