"""Hyper-parameters of algorithms from the options."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.studies.setups.entries import COMMON, AlgorithmEntry, Hyper
from fedjax_sim.studies.setups.options_of_algorithms import AlgorithmOptions
from fedjax_sim.studies.setups.registry import ALGORITHMS
from fedjax_sim.studies.setups.study import own_code

# Options that set a hyper-parameter of several algorithms.
SHARED = (*COMMON, "lr", "server_lr")


def resolve_hyper(
    entries: Mapping[str, AlgorithmEntry], options: AlgorithmOptions
) -> dict[str, dict[str, Any]]:
    """Returns the hyper-parameters of each algorithm; what comes later replaces what came before.

    The order is: defaults of the algorithm, rates of a preset, options for all algorithms, those of
    single algorithms.

    Args:
        entries: algorithms by name.
        options: the options; those of known algorithms that are not among the entries are left
            out.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, a required one that is missing, or a
            value out of range.

    Example:
        >>> from fedjax_sim.studies.setups.registry import algorithms_of
        >>> options = AlgorithmOptions(lr=0.3, hyper={"fedprox": {"mu": 1.0}})
        >>> resolve_hyper(algorithms_of(["fedprox"]), options)
        {'fedprox': {'lr': 0.3, 'mu': 1.0}}
    """
    resolved = {name: entry.tuned_defaults for name, entry in entries.items()}
    for name, rate in options.rates.items():
        if name in resolved:
            resolved[name]["lr"] = rate
    shared = {key: getattr(options, key) for key in SHARED}
    given = {key: value for key, value in shared.items() if value is not None}
    for key, value in given.items():
        takers = [name for name, entry in entries.items() if key in entry.hyper]
        if key in COMMON and len(takers) < len(resolved):
            name = next(name for name in resolved if name not in takers)
            raise ValueError(f"{key} is {value}, but {name} does not have it")
        if not takers:
            raise ValueError(f"{key} is {value}, but none of {', '.join(resolved)} has one")
        for name in takers:
            resolved[name][key] = value
    for name, values in options.hyper.items():
        if name not in entries and name not in ALGORITHMS:
            raise ValueError(
                f"hyper has {name!r}; expected one of {', '.join(resolved)}"
                f"{did_you_mean(name, [*resolved, *ALGORITHMS])}"
            )
        for key, value in values.items() if name in resolved else ():
            known = entries[name].hyper
            if key not in known:
                raise ValueError(
                    f"hyper has {name}.{key}; {name} has {', '.join(known)}"
                    f"{did_you_mean(key, known)}"
                )
            resolved[name][key] = checked(entries[name], key, value)
    for name, hyper in resolved.items():
        missing = [key for key in entries[name].required if key not in hyper]
        if missing:
            raise ValueError(f"hyper lacks {name}.{missing[0]}; expected a value")
        try:
            with own_code(f"algorithms has {name!r}, which"):
                entries[name].build(hyper)
        except ValueError as error:  # a range that only the function checks
            field = str(error).partition(" ")[0]
            if entries[name].is_own:
                raise
            if field in given and hyper.get(field) == given[field]:  # an option for all algorithms
                raise
            raise ValueError(f"hyper has {hyper} for {name}: {error}") from error
    return resolved


def check_tuning(entry: AlgorithmEntry, hyper: Hyper) -> None:
    """Refuses a rate of fine-tuning without steps that take it; a grid may have the steps.

    Raises:
        ValueError: naming the rate and the algorithm.

    Example:
        >>> from fedjax_sim.studies.setups.registry import ALGORITHMS
        >>> check_tuning(ALGORITHMS["fedavg"], {"lr": 0.2, "tuning_lr": 0.1})
        Traceback (most recent call last):
        ValueError: tuning_lr is 0.1 for fedavg; expected --tuning-steps with it
    """
    unused = "tuning_lr" not in entry.parameters and "tuning_steps" not in hyper
    if "tuning_lr" in hyper and unused:
        value = hyper["tuning_lr"]
        raise ValueError(f"tuning_lr is {value} for {entry.name}; expected --tuning-steps with it")


def untuned_rates(
    entries: Mapping[str, AlgorithmEntry],
    resolved: Mapping[str, Hyper],
    options: AlgorithmOptions,
) -> dict[str, Any]:
    """Returns the client rates that are defaults, although others were tuned for the preset.

    Args:
        entries: algorithms by name.
        resolved: their hyper-parameters, as :func:`resolve_hyper` returns them.
        options: the options.

    Example:
        >>> from fedjax_sim.studies.setups.registry import algorithms_of
        >>> entries = algorithms_of(["fedavg", "ditto"])
        >>> options = AlgorithmOptions(rates={"fedavg": 0.1})
        >>> untuned_rates(entries, resolve_hyper(entries, options), options)
        {'ditto': 0.2}
    """
    if not options.rates or options.lr is not None:
        return {}
    given = {name for name, values in options.hyper.items() if "lr" in values}
    return {
        name: resolved[name]["lr"]
        for name in entries
        if name not in given | options.rates.keys() and "lr" in resolved[name]
    }


def checked(entry: AlgorithmEntry, key: str, value: Any) -> Any:
    """Returns the value of a hyper-parameter.

    Rates are positive, other numbers not negative; a parameter that is annotated as an integer
    takes integers.

    Raises:
        ValueError: another value.

    Example:
        >>> from fedjax_sim.studies.setups.registry import ALGORITHMS
        >>> checked(ALGORITHMS["fedprox"], "mu", 0)
        0.0
    """
    kind = entry.static_hyper.get(key, float)
    expected = {bool: "true or false", str: "a name", int: "an integer of at least 0"}.get(kind)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float:
        positive = key.endswith("lr")
        expected = "a positive number" if positive else "a number of at least 0"
        if number and np.isfinite(value) and (value > 0 if positive else value >= 0):
            return float(value)
    elif type(value) is kind and (kind is not int or value >= 0):
        return value
    raise ValueError(f"hyper has {entry.name}.{key}={value!r}; expected {expected}")
