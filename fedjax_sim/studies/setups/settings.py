"""Options of the algorithms and of their local steps, and the hyper-parameters that follow."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.studies.setups.entries import COMMON, AlgorithmEntry, Hyper
from fedjax_sim.studies.setups.fields import HIDDEN, Count, Inside, NotNegative, Positive, group
from fedjax_sim.studies.setups.own_code import own_code
from fedjax_sim.studies.setups.registry import ALGORITHMS

HyperParameters = dict[str, bool | int | float | str]
COMPARED = ("fedavg", "fedprox", "fedavgm", "fedadam", "scaffold")


@group
class AlgorithmOptions:
    """The algorithms, their hyper-parameters, and what all of them share."""

    algorithms: tuple[str, ...] = COMPARED
    """Algorithms to compare (see fedjax-sim list)."""
    lr: Positive | None = None
    """Client learning rate of all algorithms; default: one per algorithm (see fedjax-sim list)."""
    server_lr: Positive | None = None
    """Server learning rate of the algorithms that have one; default: one per algorithm."""
    lr_decay: Positive | None = None
    """Factor of the client learning rate from one round to the next; default: constant rates."""
    clip: Positive | None = None
    """Largest norm of a local gradient, longer ones are clipped; default: no clipping."""
    weight_decay: NotNegative | None = None
    """Weight decay in the local steps, added after clipping; default: none."""
    tuning_steps: Count | None = None
    """With --personal: local steps that a client's model takes on the client's training examples
    before it is evaluated, for any algorithm; fedavg_ft and fedbabu have their own number of
    visits; default: none."""
    tuning_lr: Positive | None = None
    """Rate of --tuning-steps, fedavg_ft and fedbabu; default: the algorithm's lr."""
    hyper: dict[str, HyperParameters] = dataclasses.field(default_factory=dict)
    """Hyper-parameters of single algorithms, as --hyper.fedprox.mu 0.1; default: see fedjax-sim
    list."""
    rates: Annotated[dict[str, Positive], HIDDEN] = dataclasses.field(default_factory=dict)
    """Client rates that were tuned for a preset, by algorithm; all other options replace them."""
    local_epochs: Count = 5
    """Passes of a client over its examples per round."""
    epoch_fraction: Inside | None = None
    """Fraction of an epoch per round: the first minibatches of one pass, rounded up; default: whole
    epochs."""
    local_steps: Count | None = None
    """Local steps on minibatches drawn with replacement; default: local epochs. With time:clock:
    steps per report, and the largest number of steps between two contacts."""
    batch_size: Count = 7
    """Examples per local step."""


# Options that set a hyper-parameter of several algorithms.
SHARED = (*COMMON, "lr", "server_lr")


def resolve_hyper(
    entries: Mapping[str, AlgorithmEntry], options: AlgorithmOptions
) -> dict[str, dict[str, Any]]:
    """Returns the hyper-parameters of each algorithm; what comes later replaces what came before.

    The order is: defaults of the algorithm, rates of a preset, options for all algorithms, those of
    single algorithms.
    """
    resolved = {name: entry.tuned_defaults for name, entry in entries.items()}
    for name, rate in _tuned_rates(entries, options).items():
        resolved[name]["lr"] = rate
    shared = {key: getattr(options, key) for key in SHARED}
    given = {key: value for key, value in shared.items() if value is not None}
    for key, value in given.items():
        takers = [name for name, entry in entries.items() if key in entry.hyper]
        if key in COMMON and len(takers) < len(resolved):
            name = next(name for name in resolved if name not in takers)
            hint = ""
            if key == "lr_decay" and entries[name].is_own and "lr" in entries[name].parameters:
                hint = (
                    "; expected the annotation lr: float | Callable, if lr may be a schedule over "
                    "rounds (fs.local.rate)"
                )
            raise ValueError(f"{key} is {value}, but {name} does not have it{hint}")
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
    """Refuses a rate of fine-tuning without steps that take it; a grid may have the steps."""
    unused = "tuning_lr" not in entry.parameters and "tuning_steps" not in hyper
    if "tuning_lr" in hyper and unused:
        value = hyper["tuning_lr"]
        raise ValueError(f"tuning_lr is {value} for {entry.name}; expected --tuning-steps with it")


def _tuned_rates(
    entries: Mapping[str, AlgorithmEntry], options: AlgorithmOptions
) -> dict[str, float]:
    """Returns a preset's rates of algorithms, which are not those of a study's own of one name."""
    built_in = {name for name, entry in entries.items() if not entry.is_own}
    return {name: rate for name, rate in options.rates.items() if name in built_in}


def untuned_rates(
    entries: Mapping[str, AlgorithmEntry],
    resolved: Mapping[str, Hyper],
    options: AlgorithmOptions,
) -> dict[str, Any]:
    """Returns the client rates that are defaults, although others were tuned for the preset."""
    if not options.rates or options.lr is not None:
        return {}
    given = {name for name, values in options.hyper.items() if "lr" in values}
    given |= _tuned_rates(entries, options).keys()
    return {
        name: resolved[name]["lr"]
        for name in entries
        if name not in given and "lr" in resolved[name]
    }


def checked(entry: AlgorithmEntry, key: str, value: Any) -> Any:
    """Returns the value of a hyper-parameter.

    Rates are positive, other numbers not negative; a parameter that is annotated as an integer
    takes integers.
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
