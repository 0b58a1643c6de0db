"""Configurations as JSON: the files ``config.json`` that runs and sweeps write."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from fedjax_sim.datasets import is_table, is_text
from fedjax_sim.runs import FolderError, is_sealed, read_json
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig, from_comparison
from fedjax_sim.studies.setups.references import FUNCTIONS, is_reference
from fedjax_sim.studies.setups.registry import SHARED, labels
from fedjax_sim.studies.setups.validation import validated

LAW = "privacy_noise_law"
HyperParameters = dict[str, bool | int | float | str | None]


@dataclasses.dataclass(frozen=True)
class SavedData:
    """The part of ``config.json`` on the examples of a model."""

    shape: tuple[int, ...] | None = None  # of one example
    classes: int | None = None
    dtype: str = "float32"
    class_names: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """The part of ``config.json`` on the model, whose name is never auto."""

    name: str | None = None


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """The parts of a comparison's ``config.json`` that are read again."""

    config: RunConfig
    algorithms: dict[str, HyperParameters]  # as resolved
    code: dict[str, str] = dataclasses.field(default_factory=dict)  # of the user's functions
    data: SavedData = SavedData()
    model: SavedModel = SavedModel()


@dataclasses.dataclass(frozen=True)
class SavedSweep:
    """The parts of a sweep's ``config.json`` that are read again."""

    config: SweepConfig
    code: dict[str, str] = dataclasses.field(default_factory=dict)  # of the user's functions
    # Options and hyper-parameters, as resolved, that a grid did not vary.
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    algorithms: dict[str, HyperParameters] = dataclasses.field(default_factory=dict)
    files: tuple[str, ...] = ()  # names of its tables and figures


def to_json(config: RunConfig) -> dict[str, Any]:
    """Returns the configuration as JSON values.

    Example:
        >>> to_json(RunConfig())["output"]
        'results/quickstart'
    """
    return as_json(dataclasses.asdict(config))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns a text for every value that differs, among the names that both have.

    Example:
        >>> differences({"rounds": 100, "noise": 0.1}, {"rounds": 50, "lost": 0.5})
        ['rounds is 100 there and 50 here']
    """
    return [
        f"{name} is {value!r} there and {new[name]!r} here"
        for name, value in old.items()
        if name in new and new[name] != value
    ]


def read_saved(path: pathlib.Path) -> SavedRun:
    """Returns the configuration and the resolved hyper-parameters of a comparison.

    Options that the file lacks have their defaults.

    Raises:
        FolderError: not a file that :func:`fedjax_sim.cli.run.compare` wrote.
    """
    if is_of_sweep(path):
        raise FolderError(f"{path} is the file of a sweep; expected one that fedjax-sim run wrote")
    return validated(SavedRun, path, _content(path))


def read(path: str | pathlib.Path, replaced: Collection[str] = ()) -> RunConfig:
    """Returns the configuration in a comparison's ``config.json``, hyper-parameters as resolved.

    Options for all algorithms remain, for algorithms that the file does not have.

    Args:
        path: the file, which may come from others and therefore names no code.
        replaced: options whose values in the file do not count, since the caller replaces them.

    Raises:
        FolderError: not a file that :func:`fedjax_sim.cli.run.compare` wrote, or one that names a
            function ``MODULE:FUNCTION``.
    """
    saved = read_saved(pathlib.Path(path))
    config, resolved = saved.config, saved.algorithms
    _refuse_code(path, config, replaced)
    names = labels(config.algorithms)
    missing = [name for name in names if name not in resolved]
    if missing:
        raise FolderError(f"{path} lacks algorithms.{missing[0]}")
    settings = tuple(
        f"{name}.{key}={_text(value)}" for name in names for key, value in resolved[name].items()
    )
    noise = config.privacy_noise
    if config.privacy_epsilon is not None:  # the noise that it requires is a hyper-parameter
        law = config.privacy_noise_law
        same_law = (resolved[name] for name in names if resolved[name].get(LAW) == law)
        noise = next((hyper.get("privacy_noise") for hyper in same_law), None)
    return dataclasses.replace(config, privacy_noise=noise, privacy_epsilon=None, hyper=settings)


def read_sweep(path: str | pathlib.Path, replaced: Collection[str] = ()) -> SweepConfig:
    """Returns the configuration in the ``config.json`` of a sweep or a comparison.

    The hyper-parameters of a comparison are kept where the grid does not vary them, and so are the
    algorithms that they belong to.

    Args:
        path, replaced: as for :func:`read`.

    Raises:
        FolderError: not such a file, or one that names a function ``MODULE:FUNCTION``.
    """
    path = pathlib.Path(path)
    if is_of_sweep(path):
        config = read_saved_sweep(path).config
        _refuse_code(path, config, replaced)
        return config
    run = dataclasses.replace(read(path, replaced), **dict.fromkeys(SHARED))
    return dataclasses.replace(from_comparison(run), algorithms=run.algorithms)


def read_saved_sweep(path: pathlib.Path) -> SavedSweep:
    """Returns what is read again of a sweep's ``config.json``.

    Raises:
        FolderError: not a file that :func:`fedjax_sim.cli.sweep.run_sweep` wrote.
    """
    return validated(SavedSweep, path, _content(path))


def is_of_sweep(path: pathlib.Path) -> bool:
    """Returns True for the ``config.json`` of a sweep, whose configuration has a grid."""
    config = _members(path).get("config")
    return isinstance(config, dict) and "grid" in config


def named_code(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yields the option and the text of every ``MODULE:FUNCTION`` that a configuration names.

    Example:
        >>> list(named_code(SweepConfig(model="mine:net", grid=("partition=iid,mine:split",))))
        [('model', 'mine:net'), ('grid', 'mine:split')]
    """
    for name in config.algorithms:
        if is_reference(name):
            yield "algorithms", name
    for option in FUNCTIONS:
        name = getattr(config, option)
        is_file = option == "dataset" and (is_table(name) or is_text(name))
        if isinstance(name, str) and is_reference(name) and not is_file:
            yield option, name
    for text in getattr(config, "grid", ()):
        name, _, values = text.partition("=")
        for value in values.split(","):
            if name.strip() in FUNCTIONS and is_reference(value):
                yield "grid", value.strip()


def _refuse_code(path: str | pathlib.Path, config: RunConfig, replaced: Collection[str]) -> None:
    """Refuses a configuration of a file that names functions outside of installed packages."""
    for option, name in named_code(config):
        if option not in replaced:
            raise FolderError(
                f"{path} has {name!r} in {option}, and a file may not say which code runs; "
                f"expected --{option} beside the file, with {name} if you trust that module"
            )


def _members(path: pathlib.Path) -> dict[str, Any]:
    """Returns the members of a JSON object; none without one.

    Raises:
        FolderError: the file has a digest, and is not what was written.
    """
    advice = "restore it from a copy, or remove its member sha256 to use it as it is"
    content = path.read_bytes() if path.is_file() else b""
    if is_sealed(content):
        return read_json(path, advice)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _content(path: pathlib.Path) -> bytes | None:
    """Returns the content of a file, with the infinite alpha that JSON lacks; None if damaged."""
    values = _members(path)
    config = values.get("config")
    if not isinstance(config, dict) or config.get("alpha", 0) is not None:
        return None
    return json.dumps(values | {"config": config | {"alpha": math.inf}}).encode()


def _text(value: Any) -> str:
    """A hyper-parameter as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_json(value: Any) -> Any:
    """Returns JSON values: paths as text, tuples as lists, NaN and infinities as null.

    Example:
        >>> as_json({"lr": (0.1, float("nan")), "output": pathlib.Path("results")})
        {'lr': [0.1, None], 'output': 'results'}
    """
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(entry) for entry in value]
    if isinstance(value, pathlib.PurePath):
        return value.as_posix()
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
