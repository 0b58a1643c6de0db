"""A comparison with parts of one's own: what a study module returns."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    options: Run = dataclasses.field(default_factory=Run)
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


@contextlib.contextmanager
def own_code(part: str) -> Iterator[None]:
    """Context of calls of a study's functions: an error in them is one line that names the place.

    Args:
        part: the part of the study, with which the line begins.

    Raises:
        ValueError: an error whose traceback has a frame of neither this nor an installed package.
    """
    try:
        yield
    except Exception as error:
        frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        text = (str(error).strip().splitlines() or [""])[0]
        if isinstance(error, SyntaxError):
            frames.append((error.filename or "", error.lineno))
            text = error.msg
        own = [(file, line) for file, line in frames if _is_own(file)]
        if not own:
            raise
        file, line = own[-1]
        place = f"{os.path.basename(file)}, line {line}"
        raise ValueError(f"{part} raised {type(error).__name__}: {text} ({place})") from error


_PACKAGE = str(pathlib.Path(__file__).parents[2])


def _is_own(file: str) -> bool:
    """Returns True for a file of neither this package, an installed one nor Python itself."""
    installed = (_PACKAGE, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    return os.path.isfile(file) and not file.startswith(installed)
