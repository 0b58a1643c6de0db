"""Hyper-parameters of algorithms from ``ALGORITHM.NAME=VALUE`` texts and common options."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_sim.cli.registry import (
    ALGORITHMS,
    COMMON,
    Hyper,
    algorithm,
    common_hyper,
    hyper_defaults,
    required_hyper,
    tuned_defaults,
)


def resolve_hyper(
    names: Sequence[str], settings: Sequence[str] = (), shared: Hyper | None = None
) -> dict[str, dict[str, Any]]:
    """Returns the hyper-parameters of each algorithm: defaults, then shared ones, then settings.

    Args:
        names: algorithms.
        settings: ``ALGORITHM.NAME=VALUE``.
        shared: values of the options for all algorithms; None for those that are not given.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, a required one that is missing, or a
            value out of range.

    Example:
        >>> resolve_hyper(["fedprox"], ["fedprox.mu=1"], {"lr": 0.3})
        {'fedprox': {'lr': 0.3, 'mu': 1.0}}
    """
    for name in names:
        if name not in ALGORITHMS:
            raise ValueError(f"algorithms has {name!r}; expected some of {', '.join(ALGORITHMS)}")
    resolved = {name: tuned_defaults(name) for name in names}
    given = {key: value for key, value in (shared or {}).items() if value is not None}
    for key, value in given.items():
        takers = [name for name in resolved if key in (*hyper_defaults(name), *common_hyper(name))]
        if key in COMMON and len(takers) < len(resolved):
            name = next(name for name in resolved if name not in takers)
            raise ValueError(f"{key} is {value}, but {name} does not have it")
        if not takers:
            raise ValueError(f"{key} is {value}, but none of {', '.join(resolved)} has one")
        for name in takers:
            resolved[name][key] = value
    for setting in settings:
        name, key, text = parse_setting(setting)
        if name not in resolved:
            raise ValueError(f"hyper has {setting!r}; expected one of {', '.join(resolved)}")
        known = (*hyper_defaults(name), *common_hyper(name))
        if key not in known:
            raise ValueError(f"hyper has {setting!r}; {name} has {', '.join(known)}")
        resolved[name][key] = value_of(setting, name, key, text)
    for name, hyper in resolved.items():
        missing = [key for key in required_hyper(name) if key not in hyper]
        if missing:
            raise ValueError(f"hyper lacks {name}.{missing[0]}; expected {name}.{missing[0]}=VALUE")
        try:
            algorithm(name, hyper)
        except ValueError as error:  # a range that only the function checks
            raise ValueError(f"hyper has {hyper} for {name}: {error}") from error
    return resolved


def parse_setting(setting: str) -> tuple[str, str, str]:
    """Returns algorithm, name and value of a setting.

    Raises:
        ValueError: a text of another form.

    Example:
        >>> parse_setting("fedprox.mu=1")
        ('fedprox', 'mu', '1')
    """
    target, equals, text = setting.partition("=")
    name, dot, key = target.partition(".")
    if not (equals and dot and name and key and text):
        raise ValueError(f"hyper has {setting!r}; expected ALGORITHM.NAME=VALUE")
    return name, key, text


def value_of(setting: str, name: str, key: str, text: str) -> Any:
    """Returns the value of a hyper-parameter that is given as text.

    Rates are positive, other numbers not negative; flags are ``true`` or ``false``.

    Raises:
        ValueError: another text; the message begins with ``hyper has SETTING``.

    Example:
        >>> value_of("fedprox.mu=0", "fedprox", "mu", "0")
        0.0
    """
    default = hyper_defaults(name).get(key)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"hyper has {setting!r}; expected true or false")
        return text == "true"
    if isinstance(default, str):
        return text
    positive = key.endswith("lr")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (np.isfinite(value) and (value > 0 if positive else value >= 0)):
        expected = "a positive number" if positive else "a number of at least 0"
        raise ValueError(f"hyper has {setting!r}; expected {expected}")
    return value
