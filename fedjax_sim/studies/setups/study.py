"""A comparison with parts of one's own: what a study module returns."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flax import linen
from jax import Array

from fedjax_sim.datasets import Dataset
from fedjax_sim.models import Model
from fedjax_sim.studies.setups.entries import Factory
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

    options: Run = Run()
    """The options; those that are typed replace them."""
    algorithms: Mapping[str, FedAlgorithm | Factory] = dataclasses.field(default_factory=dict)
    """Algorithms by name, or functions that return them, whose hyper-parameters (numbers, names and
    flags) are options then; they are compared unless the option names others."""
    dataset: Dataset | None = None
    """Data set, in place of the one that the options name."""
    model: Model | linen.Module | None = None
    """Model; one of flax nnx is ``fs.models.from_nnx(...)``."""
    loss: PerExample | None = None
    """Loss of outputs and labels, ``(outputs, y) -> [B]``."""
    metrics: PerExample | None = None
    """Metrics beside the built-in ones, ``(outputs, y) -> {name: [B]}``."""
    rows: Sequence[np.ndarray] | Callable[[Dataset, int], Sequence[np.ndarray]] | None = None
    """Rows of the training examples of every client, or a function of data set and partition seed
    that returns them."""
    timeline: Timeline | Callable[[Array, Task], Timeline] | None = None
    """Timeline ``[T, S]`` of all seeds, or a function of a seed's key and the task, which is called
    outside of compiled programs."""
    setup: Callable[[int], Setup] | None = None
    """Setup of a seed, in place of everything above but the algorithms; the seeds then run one
    after the other."""

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Names of the parts that are objects, which a file does not name.

        Example:
            >>> Study(metrics=lambda outputs, y: {}).own_parts
            ('metrics',)
        """
        names = [field.name for field in dataclasses.fields(self) if field.name != "options"]
        return tuple(name for name in names if not _is_empty(getattr(self, name)))

    def replaced(self, **changes: Any) -> "Study":
        """Returns the study with other fields."""
        return dataclasses.replace(self, **changes)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and not value)
