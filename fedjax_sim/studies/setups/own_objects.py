"""Names of options become functions: built-in rows, and the user's functions with their contracts.

:mod:`fedjax_sim.studies.setups.references` lists the contracts.  Results of the user's functions
are checked here, before anything is compiled.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen, nnx
from jax import Array

from fedjax_sim import datasets, models
from fedjax_sim.datasets import (
    Dataset,
    check_dataset,
    data_folder,
    is_table,
    is_text,
    read_table,
    read_text,
)
from fedjax_sim.models import MODELS, BuildModel, Convolution, Model, Shape
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.names import REGRESSION_LOSSES, SAMPLINGS, Sampling
from fedjax_sim.studies.setups.partitions import PARTITIONS, Division, Partition
from fedjax_sim.studies.setups.references import Reference, find, load
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.types import Timeline

_CONTEXT = 80  # characters of an example of a plain text, as the models for tokens take

# Options that name one function (references.FUNCTIONS) -> its group of entry points, and built-in
# names.
_KINDS: dict[str, tuple[str | None, Sequence[str]]] = {
    "dataset": ("datasets", datasets.NAMES),
    "model": ("models", ("auto", *MODELS)),
    "partition": ("partitions", tuple(PARTITIONS)),
    "sampling": (None, tuple(SAMPLINGS)),
    "timeline": (None, ()),
    "loss": (None, tuple(REGRESSION_LOSSES)),
    "metrics": (None, ()),
}


def reference_of(config: RunConfig, option: str) -> Reference | None:
    """Returns the function that an option names; None for a built-in name or a file.

    Raises:
        ValueError: an unknown name, or a function that cannot be loaded.

    Example:
        >>> reference_of(RunConfig(), "model")
    """
    name, (group, known) = getattr(config, option), _KINDS[option]
    if callable(name):  # of a program, which has no need of references
        return Reference(option, getattr(name, "__qualname__", type(name).__name__), name)
    if name is None or name in known:
        return None
    if option == "dataset" and (is_table(name) or is_text(name)):
        return None
    if option in ("timeline", "loss", "metrics"):
        return load(option, name)
    return find(option, name, known, group)


def references(config: RunConfig) -> Iterator[Reference]:
    """Yields the functions of the user that the options name.

    Raises:
        ValueError: as :func:`reference_of`.
    """
    for entry in algorithms_of(config.algorithms).values():
        if entry.reference is not None:
            yield entry.reference
    for option in _KINDS:
        reference = reference_of(config, option)
        if reference is not None:
            yield reference


def load_dataset(config: RunConfig) -> Dataset:
    """Returns the data set of a comparison.

    Raises:
        ValueError: an unknown name, files that are missing or malformed, a function that returns
            something else.
    """
    reference = reference_of(config, "dataset")
    if reference is not None:
        dataset = reference.call_by_name(data_dir=data_folder(config.data_dir))
        reference.check_result(dataset, Dataset, "a fedjax_sim.datasets.Dataset")
        try:
            return check_dataset(dataset)
        except ValueError as error:
            reference.fail(f"whose data set is not usable: {error}", error)
    if is_table(config.dataset):
        return read_table(
            pathlib.Path(config.dataset),
            label_column=config.label_column,
            client_column=config.client_column,
            target="numbers" if config.loss in REGRESSION_LOSSES else None,
        )
    if is_text(config.dataset):
        return read_text(config.dataset, context=_CONTEXT)
    return datasets.load(config.dataset, config.data_dir)


def model_row(config: RunConfig, dtype: Any = np.float32) -> tuple[Shape | None, BuildModel]:
    """Returns the shape of the examples that a model takes (None: any), and its builder."""
    reference = reference_of(config, "model")
    return (
        MODELS[config.model]
        if reference is None
        else (None, _OwnModel(reference, np.dtype(dtype).name))
    )


@dataclasses.dataclass(frozen=True)
class _OwnModel:
    """Builder of a model of the user's. Hashable by value."""

    reference: Reference
    dtype: str  # of the inputs

    def __call__(self, shape: Shape, num_classes: int, conv: Convolution) -> Model:
        del conv
        available = {"shape": shape, "num_classes": num_classes}
        if "rngs" in self.reference.parameters():
            return models.from_nnx(
                lambda rngs: self._checked(
                    self.reference.call_by_name(**available, rngs=rngs), nnx.Module, "a flax module"
                )
            )
        value = self.reference.call_by_name(**available)
        if isinstance(value, linen.Module):
            inputs = jax.dtypes.canonicalize_dtype(self.dtype)
            return models.from_linen(value, jax.ShapeDtypeStruct((1, *shape), inputs))
        return self._checked(value, Model, "a fedjax_sim.models.Model, or a flax linen module")

    def _checked(self, value: Any, kind: type, expected: str) -> Any:
        return self.reference.check_result(value, kind, expected)


def partition_of(config: RunConfig) -> Partition:
    """Returns the rule that divides the training examples among the clients."""
    reference = reference_of(config, "partition")
    if reference is None:
        return PARTITIONS[config.partition][1]
    return functools.partial(_own_partition, reference)


def _own_partition(reference: Reference, config: RunConfig, dataset: Dataset) -> Division:
    value = reference.call_by_name(
        dataset=dataset,
        num_clients=config.num_clients,
        seed=config.partition_seed,
        alpha=config.alpha,
    )
    names: Sequence[str] | None = None
    rows = value
    if isinstance(value, tuple) and len(value) == 2 and _are_names(value[1]):
        rows, names = value
    reference.check_result(rows, (list, tuple), "a list of row numbers per client")
    parts = []
    for client, part in enumerate(rows):
        part = np.asarray(part)
        if part.ndim != 1 or (part.size and not np.issubdtype(part.dtype, np.integer)):
            reference.fail(
                f"which returned {part.dtype}{list(part.shape)} for client {client}; expected row "
                "numbers, integers [n]"
            )
        parts.append(part.astype(np.int64))
    return Division(parts, None if names is None else tuple(names))


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def sampling_of(config: RunConfig) -> Sampling:
    """Returns the rule that draws the cohorts of one seed."""
    reference = reference_of(config, "sampling")
    return SAMPLINGS[config.sampling][1] if reference is None else own_timeline(reference)


def own_timeline(reference: Reference) -> Sampling:
    """Returns the rule of the user's function, with its result checked."""

    def rule(config: RunConfig, key: Array, sizes: Any, num_steps: Any) -> Timeline:
        timeline = reference.call_by_name(
            key=key,
            rounds=config.rounds,
            sizes=np.asarray(sizes),
            num_clients=len(sizes),
            cohort_size=config.cohort_size,
            num_steps=np.asarray(num_steps),
        )
        reference.check_result(timeline, Timeline, "a fedjax_sim.Timeline")
        shape = np.shape(timeline.clients)
        if len(shape) != 2:
            reference.fail(f"which returned clients of shape {list(shape)}; expected [T, S]")
        return timeline

    return rule
