"""Settings of ``simulate``, ``compare`` and ``sweep``: where results are kept, how runs execute."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fedjax_sim.checks import check_bytes, is_concrete
from fedjax_sim.engine import NO_PROBES, Execution, Probes, check_options
from fedjax_sim.runs.seeds import Seed
from fedjax_sim.runs.storage.identity import check_json
from fedjax_sim.types import shown

Config: TypeAlias = Mapping[str, Any]
SEGMENT_SECONDS = 30.0
CHECKPOINT_SECONDS = 5.0


@shown
@dataclasses.dataclass(frozen=True)
class Storage:
    """Folder of results, and what is kept in it.

    A plain path in the place of a storage means ``Storage(path)``.

    Args:
        folder: folder for histories, checkpoints and models, from which a later call with the same
            arguments continues; None: everything stays in memory.
        config: JSON-able values that describe the work; a folder with others is refused.  For
            ``compare`` it may be a function of the algorithm's name, for ``sweep`` a function of
            the configuration (a dict), which returns what else results depend on, besides the
            configuration and the arrays of the setup.
        checkpoint_seconds: least time between two checkpoints of a run, which are written after
            segments.  A sweep writes every finished slice and has no checkpoints.
        keep_models: keep the final model of every run of a sweep, in the folder and in the result.
            Other runs always keep their last models.

        accept_changed_code: continue a run although its functions compute something else than those
            that began it, for example after a change that does not matter or with another version
            of JAX; ``run.json`` keeps the digests of both.  A sweep returns the runs of the folder,
            and other runs have the present functions.

    Raises:
        ValueError: a config that JSON does not have, or a negative time.

    Example:
        >>> storage = Storage("results/first", config={"seed": 3})
        >>> storage.folder, storage.checkpoint_seconds
        ('results/first', 5.0)
        >>> Storage("results/first", checkpoint_seconds=-1.0)
        Traceback (most recent call last):
        ...
        ValueError: storage.checkpoint_seconds is -1.0; expected a number of at least 0
    """

    folder: str | pathlib.Path | None = None
    _: dataclasses.KW_ONLY
    config: Config | Callable[[Any], Config] | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    keep_models: bool = False
    accept_changed_code: bool = False

    def __post_init__(self) -> None:
        if not (self.folder is None or isinstance(self.folder, str | pathlib.Path)):
            raise ValueError(
                f"storage.folder is {self.folder!r:.60}; expected a path, or None to keep "
                "everything in memory"
            )
        if not callable(self.config):
            check_json(self.config, "storage.config")
        seconds = self.checkpoint_seconds
        if not is_concrete(seconds) or not seconds >= 0:
            raise ValueError(
                f"storage.checkpoint_seconds is {seconds!r}; expected a number of at least 0"
            )

    @property
    def path(self) -> pathlib.Path | None:
        """The folder; None: everything stays in memory."""
        return None if self.folder is None else pathlib.Path(self.folder)

    def config_of(self, name: Any) -> Config:
        """Returns the config of an algorithm, by its name, or of a configuration.

        Raises:
            ValueError: the function returns what JSON does not have.
        """
        if not callable(self.config):
            return self.config or {}
        config = self.config(name)
        check_json(config, f"storage.config({name!r})")
        return config


def storage_of(storage: Storage | str | pathlib.Path | None) -> Storage:
    """Returns the storage that an argument ``storage`` means."""
    if isinstance(storage, Storage):
        return storage
    if storage is None or isinstance(storage, str | pathlib.Path):
        return Storage(storage)
    raise ValueError(f"storage is {storage!r:.60}; expected a folder, an fs.Storage or None")


@shown
@dataclasses.dataclass(frozen=True)
class Options:
    """Settings that do not change what an algorithm computes in its rounds.

    Args:
        execution: execution strategy; default :func:`~fedjax_sim.engine.execution.auto`, in a sweep
            chosen for the number of runs together.  For ``compare`` also a mapping of strategies by
            algorithm.
        probes: diagnostics inside every round.
        seeds: names of the seeds, in histories and files, and the values of ``seed`` for a setup
            that is a function of it; default 0, 1, ...
        eval_initial: also evaluate the initial model, as round 0.  Not in a sweep.
        segment_seconds: most seconds of a segment, after which signals act, callbacks are called
            and checkpoints are written; at least one round.  Lengths follow from the time of the
            segments before, planned for a third of this time, and are at most a twentieth of the
            run.  Results do not depend on them.  Not in a sweep.
        memory: bytes that a program may need on a device for data, state and temporaries, in
            ``sweep``, which divides its runs by it, and in ``forecast``; default
            :func:`~fedjax_sim.engine.execution.devices.memory_limit`.

    Raises:
        ValueError: naming the setting, its value and what was expected.

    Example:
        >>> Options(seeds=[7, 8]).eval_initial
        False
        >>> Options(segment_seconds=0)
        Traceback (most recent call last):
        ...
        ValueError: options.segment_seconds is 0; expected a positive number
    """

    execution: Execution | Mapping[str, Execution | None] | None = None
    probes: Probes = NO_PROBES
    seeds: Sequence[Seed] | None = None
    eval_initial: bool = False
    segment_seconds: float = SEGMENT_SECONDS
    memory: int | None = None

    def __post_init__(self) -> None:
        execution = self.execution
        for own in execution.values() if isinstance(execution, Mapping) else [execution]:
            check_options(own, self.probes, "options.")
        seconds = self.segment_seconds
        if not is_concrete(seconds) or not seconds > 0:
            raise ValueError(f"options.segment_seconds is {seconds!r}; expected a positive number")
        check_bytes(**{"options.memory": self.memory})

    @property
    def strategy(self) -> Execution | None:
        """The execution strategy, of a call that has one algorithm or one strategy for all.

        Raises:
            ValueError: strategies by algorithm.
        """
        if isinstance(self.execution, Mapping):
            raise ValueError(
                f"options.execution is {self.execution!r:.60}; expected one strategy: only "
                "fs.compare takes strategies by algorithm"
            )
        return self.execution


DEFAULT_OPTIONS = Options()


def check_unused(call: str, record: Storage | Options, *names: str) -> None:
    """Refuses settings that a call does not have, so that none is ignored silently."""
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    for name in names:
        value = getattr(record, name)
        if value != defaults[name]:
            raise ValueError(
                f"{type(record).__name__.lower()}.{name} is {value!r:.60}; expected "
                f"{defaults[name]!r}, the default: {call} has no use for it"
            )


def check_options_type(options: object) -> None:
    """Refuses a value that is no options."""
    if not isinstance(options, Options):
        raise ValueError(f"options is {options!r:.60}; expected fs.Options(...)")
