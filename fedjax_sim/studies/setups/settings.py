"""Hyper-parameters of algorithms from ``ALGORITHM.NAME=VALUE`` texts and common options."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.studies.setups.entries import COMMON, PRIVACY_CLIP, AlgorithmEntry, Hyper
from fedjax_sim.studies.setups.private_options import clip_of


def resolve_hyper(
    entries: Mapping[str, AlgorithmEntry],
    settings: Sequence[str] = (),
    shared: Hyper | None = None,
    rates: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """Returns the hyper-parameters of each algorithm; what comes later replaces what came before.

    The order is: defaults of the algorithm, rates of a preset, shared values, settings.

    Args:
        entries: algorithms by name.
        settings: ``ALGORITHM.NAME=VALUE``.
        shared: values of the options for all algorithms; None for those that are not given.
        rates: as ``settings``; those of algorithms that are not among the entries are left out.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, a required one that is missing, or a
            value out of range.

    Example:
        >>> from fedjax_sim.studies.setups.registry import algorithms_of
        >>> resolve_hyper(algorithms_of(["fedprox"]), ["fedprox.mu=1"], {"lr": 0.3})
        {'fedprox': {'lr': 0.3, 'mu': 1.0}}
    """
    resolved = {name: entry.tuned_defaults for name, entry in entries.items()}
    for setting in rates:
        name, key, text = parse_setting(setting)
        if name in resolved:
            resolved[name][key] = value_of(setting, entries[name], key, text)
    given = {key: value for key, value in (shared or {}).items() if value is not None}
    for key, value in given.items():
        takers = [name for name, entry in entries.items() if key in entry.hyper]
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
            raise ValueError(
                f"hyper has {setting!r}; expected one of {', '.join(resolved)}"
                f"{did_you_mean(name, resolved)}"
            )
        known = entries[name].hyper
        if key not in known:
            raise ValueError(
                f"hyper has {setting!r}; {name} has {', '.join(known)}{did_you_mean(key, known)}"
            )
        resolved[name][key] = value_of(setting, entries[name], key, text)
    for name, hyper in resolved.items():
        missing = [key for key in entries[name].required if key not in hyper]
        if missing:
            raise ValueError(f"hyper lacks {name}.{missing[0]}; expected {name}.{missing[0]}=VALUE")
        try:
            entries[name].build(hyper)
        except ValueError as error:  # a range that only the function checks
            field = str(error).partition(" ")[0]
            if entries[name].reference is not None:
                raise
            if field in given and hyper.get(field) == given[field]:  # an option for all algorithms
                raise
            raise ValueError(f"hyper has {hyper} for {name}: {error}") from error
    return resolved


def untuned_rates(
    entries: Mapping[str, AlgorithmEntry],
    resolved: Mapping[str, Hyper],
    settings: Sequence[str],
    shared: Hyper,
    rates: Sequence[str],
) -> dict[str, Any]:
    """Returns the client rates that are defaults, although others were tuned for the preset.

    Args:
        entries: algorithms by name.
        resolved: their hyper-parameters, as :func:`resolve_hyper` returns them.
        settings, shared, rates: as for :func:`resolve_hyper`.

    Example:
        >>> from fedjax_sim.studies.setups.registry import algorithms_of
        >>> entries, rates = algorithms_of(["fedavg", "ditto"]), ["fedavg.lr=0.1"]
        >>> resolved = resolve_hyper(entries, rates=rates)
        >>> untuned_rates(entries, resolved, (), {}, rates)
        {'ditto': 0.2}
    """
    if not rates or shared.get("lr") is not None:
        return {}
    given = {name for name, key, _ in map(parse_setting, (*rates, *settings)) if key == "lr"}
    return {
        name: resolved[name]["lr"]
        for name in entries
        if name not in given and "lr" in resolved[name]
    }


def parse_setting(setting: str) -> tuple[str, str, str]:
    """Returns algorithm, name and value of a setting.

    Raises:
        ValueError: a text of another form.

    Example:
        >>> parse_setting("fedprox.mu=1")
        ('fedprox', 'mu', '1')
    """
    target, equals, text = setting.partition("=")
    name, dot, key = target.rpartition(".")
    if not (equals and dot and name and key and text):
        raise ValueError(f"hyper has {setting!r}; expected ALGORITHM.NAME=VALUE")
    return name, key, text


def value_of(setting: str, entry: AlgorithmEntry, key: str, text: str) -> Any:
    """Returns the value of a hyper-parameter that is given as text.

    Rates are positive, other numbers not negative; a parameter that is annotated as an integer
    takes integers; flags are ``true`` or ``false``.

    Raises:
        ValueError: another text; the message begins with ``hyper has SETTING``.

    Example:
        >>> from fedjax_sim.studies.setups.registry import ALGORITHMS
        >>> value_of("fedprox.mu=0", ALGORITHMS["fedprox"], "mu", "0")
        0.0
    """
    kind = entry.static_hyper.get(key)
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"hyper has {setting!r}; expected true or false")
        return text == "true"
    if kind is str:
        return text
    if kind is int:
        if not text.isdecimal():
            raise ValueError(f"hyper has {setting!r}; expected an integer of at least 0")
        return int(text)
    if key == PRIVACY_CLIP and (text.startswith("adaptive") or "=" in text):
        clip_of(text)
        return text
    positive = key.endswith("lr") or key == PRIVACY_CLIP
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (np.isfinite(value) and (value > 0 if positive else value >= 0)):
        expected = "a positive number" if positive else "a number of at least 0"
        raise ValueError(f"hyper has {setting!r}; expected {expected}")
    return value
