"""Configurations as JSON: the files ``config.json`` that runs and sweeps write."""

import dataclasses
import pathlib
import typing
from typing import Any, TypeVar

from fedjax_sim.cli.config import RunConfig, SweepConfig, from_comparison
from fedjax_sim.cli.registry import SHARED
from fedjax_sim.cli.report import as_json, read_json

Kind = TypeVar("Kind", bound=RunConfig)


def to_json(config: RunConfig) -> dict[str, Any]:
    """Returns the configuration as JSON values.

    Example:
        >>> to_json(RunConfig())["output"]
        'results/quickstart'
    """
    return as_json(dataclasses.asdict(config))


def read(path: str | pathlib.Path) -> RunConfig:
    """Returns the configuration in a comparison's ``config.json``, hyper-parameters as resolved.

    Raises:
        ValueError: not a file that :func:`fedjax_sim.cli.run.compare` wrote.
    """
    saved = read_json(pathlib.Path(path))
    try:
        resolved = saved["algorithms"]
        config = _from_json(RunConfig, saved["config"])
        settings = tuple(
            f"{name}.{key}={_text(value)}"
            for name in config.algorithms
            for key, value in resolved[name].items()
        )
        return dataclasses.replace(config, **dict.fromkeys(SHARED), hyper=settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the config.json of a comparison: {error!r}") from error


def read_sweep(path: str | pathlib.Path) -> SweepConfig:
    """Returns the configuration in the ``config.json`` of a sweep or a comparison.

    The hyper-parameters of a comparison are kept where the grid does not vary them, and so are the
    algorithms that they belong to.

    Raises:
        ValueError: not such a file.
    """
    saved = read_json(pathlib.Path(path))
    try:
        if "grid" in saved["config"]:
            return _from_json(SweepConfig, saved["config"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the config.json of a sweep: {error!r}") from error
    run = read(path)
    return dataclasses.replace(from_comparison(run), algorithms=run.algorithms)


def _from_json(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """JSON values as the fields' types: paths and tuples.

    Raises:
        TypeError: an unknown field; KeyError: a field that is missing.
    """
    values = dict(values)
    for name, hint in typing.get_type_hints(kind).items():
        if pathlib.Path in (hint, *typing.get_args(hint)):
            values[name] = None if values[name] is None else pathlib.Path(values[name])
        elif typing.get_origin(hint) is tuple:
            values[name] = tuple(values[name])
    return kind(**values)


def _text(value: Any) -> str:
    """A hyper-parameter as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
