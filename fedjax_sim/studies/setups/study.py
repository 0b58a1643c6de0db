"""A comparison with parts of one's own: what a study module returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flax import linen
from jax import Array

from fedjax_sim.datasets import Dataset
from fedjax_sim.models import Model
from fedjax_sim.studies.setups.data import Generated
from fedjax_sim.studies.setups.entries import Factory
from fedjax_sim.studies.setups.fields import fields_of, flat, names_in
from fedjax_sim.studies.setups.losses import PerExample
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.types import FedAlgorithm, Setup, Task, Timeline


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """Options, and objects that replace what options name.

    Example:
        Two algorithms on the clients of the quickstart, as ``fedjax-sim run study.py`` runs them:

        >>> import fedjax_sim as fs
        >>> def study():
        ...     own = {"fedavg": fs.fedavg, "mine": lambda lr=0.2: fs.fedprox(lr, mu=1.0)}
        ...     return fs.Study(fs.presets.options("quickstart", rounds=20), algorithms=own)
        >>> list(study().algorithms)
        ['fedavg', 'mine']
    """

    options: Run = dataclasses.field(default_factory=Run)
    """The options; those that are typed replace them."""
    algorithms: Mapping[str, FedAlgorithm | Factory] = dataclasses.field(default_factory=dict)
    """Algorithms by name, or functions that return them, whose hyper-parameters (numbers, names and
    flags) are options then; they are compared unless the options name others."""
    dataset: Dataset | None = None
    """Data set, in place of the one that the options name."""
    model: Model | linen.Module | None = None
    """Model; one of flax nnx is ``fs.models.from_nnx(...)``."""
    loss: PerExample | None = None
    """Loss of outputs and labels, ``(outputs, y) -> [B]``."""
    metrics: PerExample | None = None
    """Metrics beside the built-in ones, ``(outputs, y) -> {name: [B]}``."""
    rows: Sequence[np.ndarray] | Callable[[Dataset, int], Sequence[np.ndarray]] | None = None
    """Rows of the examples of every client, or a function of data set and partition seed that
    returns them. The data set has the examples that are divided: without a validation part of the
    pool, and of clients with own test examples those for testing, too."""
    timeline: Timeline | Callable[[Array, Task], Timeline] | None = None
    """Timeline ``[T, S]`` of all seeds, or a function of a seed's key and the task, which is called
    outside of compiled programs."""
    setup: Callable[[int], Setup] | None = None
    """Setup of a seed, in place of everything above but the algorithms; the seeds then run one
    after the other."""

    def __post_init__(self):
        for name, (kinds, expected) in _KINDS.items():
            value = getattr(self, name)
            may_be_called = name in _CALLED and callable(value)
            if not (isinstance(value, kinds) or may_be_called or _is_empty(value)):
                given = type(value).__name__
                raise ValueError(f"{name} of the study is {given}; expected {expected}")

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Names of the parts that are objects, which a file does not name.

        Example:
            >>> Study(metrics=lambda outputs, y: {}).own_parts
            ('metrics',)
        """
        names = [field.name for field in dataclasses.fields(self) if field.name != "options"]
        return tuple(name for name in names if not _is_empty(getattr(self, name)))

    def replaced(self, **changes: Any) -> Study:
        """Returns the study with other fields."""
        return dataclasses.replace(self, **changes)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and not value)


# Types of the fields of a study, and how messages name them.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "options": ((Run,), "those of fs.presets.options(...)"),
    "algorithms": ((Mapping,), "a dictionary of algorithms by name"),
    "dataset": ((Dataset,), "a fedjax_sim.datasets.Dataset"),
    "model": (
        (Model, linen.Module),
        "a fedjax_sim.models.Model or a flax linen module (of flax nnx fs.models.from_nnx(...))",
    ),
    "loss": ((), "a function of outputs and labels"),
    "metrics": ((), "a function of outputs and labels"),
    "rows": ((list, tuple), "a list of row numbers per client, or a function"),
    "timeline": ((Timeline,), "a fedjax_sim.Timeline, or a function"),
    "setup": ((), "a function of a seed"),
}
_CALLED = ("loss", "metrics", "rows", "timeline", "setup")


# A part of a study's own -> groups of options, and single ones, without effect beside it.
_REPLACED = {
    "dataset": ("data",),
    "rows": ("partition", "num_clients"),
    "timeline": (
        "sampling",
        "rounds",
        "cohort_size",
        "cohort_fraction",
        "cohort_rounding",
    ),
    "model": ("model",),
    "loss": ("loss",),
    "setup": (
        "data", "partition", "population", "shift", "model", "initial_model", "loss", "statistics",
        "adapters", "local_epochs", "epoch_fraction", "local_steps", "batch_size", "rounds",
        "eval_every", "sampling", "cohort", "eval_examples", "per_client", "personal",
        "first_visit", "scores",
    ),
}  # fmt: skip
_KEPT = ("partition_seed",)  # which also draws the attackers


def own_names(study: Study) -> dict[str, str]:
    """Returns the names of the options that own parts of a study replace, with these parts."""
    gone = {
        place: part
        for part, places in _REPLACED.items()
        if getattr(study, part) is not None
        for place in places
    }
    if isinstance(study.options.data, Generated) and study.dataset is None:
        gone.pop("num_clients", None)  # of the examples
    found = {}
    for field in fields_of(Run):
        # The initial model and statistics are options of any model.
        whole = gone.get(field.name) if field.name != "model" else None
        for name in names_in(Run, field):
            if (part := gone.get(name, whole)) and name not in _KEPT:
                found[name] = part
    return found


def shown_settings(study: Study, options: Any) -> dict[str, Any]:
    """Returns options by name as tables and figures show them.

    Those that own parts of the study replace are left out, since they say nothing about the run;
    ``own`` has the names of the parts.
    """
    gone = own_names(study)
    settings = {name: value for name, value in flat(options).items() if name not in gone}
    return settings | ({"own": list(study.own_parts)} if study.own_parts else {})
