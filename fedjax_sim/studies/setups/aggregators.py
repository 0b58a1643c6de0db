"""Robust rules on the command line: ``--aggregator NAME:KEY=VALUE``, and mixing in front of it.

The hyper-parameters of a rule are those of its function.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_sim.checks import did_you_mean
from fedjax_sim.types import FedAlgorithm, Timeline
from fedjax_sim.wrappers import check_counts, robust

RULES: dict[str, Callable[..., robust.Rule]] = {
    rule.__name__: rule
    for rule in (
        robust.mean, robust.median, robust.trimmed_mean, robust.krum, robust.multi_krum,
        robust.bulyan, robust.geometric_median, robust.rfa, robust.centred_clipping,
    )
}  # fmt: skip
MIXING: dict[str, Callable[..., robust.Rule]] = {
    "nnm": robust.nnm,
    "bucketing": robust.bucketing,
}


def aggregated(algorithm: FedAlgorithm, aggregator: str | None) -> FedAlgorithm:
    """Returns an algorithm with the robust rule of a text; with "none" or None the algorithm.

    Raises:
        ValueError: as :func:`rule_of`.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> aggregated(fedavg(0.1), "nnm+krum:f=2").aggregation.f
        2
    """
    if aggregator in (None, "none"):
        return algorithm
    return robust.aggregate(algorithm, rule_of(aggregator))


def check_uploads(aggregator: str | None, timeline: Timeline) -> None:
    """Refuses timelines with fewer uploads in a round than the rule of a text requires.

    Raises:
        ValueError: with the text and the round, or as :func:`rule_of`.

    Example:
        >>> from fedjax_sim.timelines import full
        >>> check_uploads("krum:f=2", full(5, 6, 1))
        Traceback (most recent call last):
        ValueError: aggregator is 'krum:f=2': timeline has 6 slots; expected at least 7, which ...
    """
    if aggregator in (None, "none"):
        return
    rule = rule_of(aggregator)
    try:
        check_counts(rule, timeline)
    except ValueError as error:
        raise ValueError(f"aggregator is {aggregator!r}: {error}") from error


def rule_of(aggregator: str) -> robust.Rule:
    """Returns the rule of a text ``NAME:KEY=VALUE:...``, with ``nnm+`` or ``bucketing+`` before it.

    Raises:
        ValueError: an unknown name or hyper-parameter, one that is missing, or a value out of
            range.

    Example:
        >>> rule_of("median").name, rule_of("bucketing:size=3+multi_krum:f=1:m=2").name
        ('median()', 'bucketing(multi_krum(f=1, m=2), size=3)')
    """
    *mixing, last = aggregator.split("+")
    rule = _built(aggregator, last, RULES)
    for part in reversed(mixing):
        rule = _built(aggregator, part, MIXING, rule)
    return rule


def hyper_parameters(rule: Callable[..., robust.Rule]) -> dict[str, Any]:
    """Returns the hyper-parameters of a rule's function with their defaults, ... where required.

    Example:
        >>> hyper_parameters(robust.krum), hyper_parameters(robust.bucketing)
        ({'f': Ellipsis}, {'size': 2})
    """
    parameters = dict(inspect.signature(rule).parameters)
    parameters.pop("rule", None)
    return {
        name: ... if parameter.default is parameter.empty else parameter.default
        for name, parameter in parameters.items()
    }


def described(values: Mapping[str, Any]) -> str:
    """Returns hyper-parameters as text: ``KEY=DEFAULT``, or ``KEY`` without a default.

    Example:
        >>> described({"f": ..., "m": None, "size": 2}), described({})
        ('f m=none size=2', 'none')
    """
    texts = {None: "=none", ...: ""}
    return " ".join(f"{k}{texts.get(v, f'={v}')}" for k, v in values.items()) or "none"


def _built(
    text: str, part: str, known: dict[str, Callable[..., robust.Rule]], *rule: robust.Rule
) -> robust.Rule:
    """Returns the rule of one part of a text, in front of another rule if there is one."""
    name, *settings = part.split(":")
    if name not in known:
        raise ValueError(
            f"aggregator is {text!r}; expected none or one of {', '.join(RULES)}, after "
            f"{' or '.join(f'{mixing}+' for mixing in MIXING)} if at all"
            f"{did_you_mean(name, [*RULES, *MIXING])}"
        )
    allowed = hyper_parameters(known[name])
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (equals and value and key in allowed):
            names = " or ".join(f"{key}=VALUE" for key in allowed) or "no hyper-parameter"
            raise ValueError(f"aggregator is {text!r}; {name} expects {names}, not {setting!r}")
        values[key] = _number(value)
        if isinstance(values[key], str) and not isinstance(allowed[key], str):
            raise ValueError(f"aggregator is {text!r}; expected a number in {setting!r}")
    try:
        return known[name](*rule, **values)
    except TypeError as error:
        required = [key for key in allowed if allowed[key] is ... and key not in values]
        raise ValueError(f"aggregator is {text!r}; expected {name}:{required[0]}=VALUE") from error
    except ValueError as error:
        raise ValueError(f"aggregator is {text!r}: {error}") from error


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
