"""Statements of the paper about selected runs, and checks of them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.fco.selection import Curve, Selected, by_seed
from experiments.harness.tables import Claim

# Our numbers, and of every part of the statement its margin, which is positive where it holds.
Check = Callable[[Selected], tuple[str, Sequence[float]]]
Condition = Callable[[Curve], np.ndarray]  # in which evaluations something holds

LATE = 10  # evaluations whose scatter says whether two ends are apart


class Statement(NamedTuple):
    """A statement of the paper about some data sets."""

    sets: tuple[str, ...]
    methods: tuple[str, ...]  # which it needs
    text: str
    check: Check
    ours: str = ""  # a threshold that the paper does not state
    needs: str = ""  # a column of the selection's ``ends``
    of_selection: bool = False  # about the selected rates, which all seeds have in common


def judged(
    name: str,
    statements: Iterable[Statement],
    selected: Selected,
    fixed: Selected | None = None,
) -> list[Claim]:
    """The statements about a data set whose methods were run and whose numbers were kept.

    Whether one holds is decided by the means over seeds; its margins are those of each seed, as far
    as its curves were kept.
    """
    claims = []
    for statement in statements:
        runs = selected if fixed is None or statement.of_selection else fixed
        if name not in statement.sets or not runs.curves.keys() >= set(statement.methods):
            continue
        if statement.needs and statement.needs not in runs.ends:
            continue
        text, parts = statement.check(runs)
        seeds = () if statement.of_selection else by_seed(runs)
        margins = list(zip(*(statement.check(one)[1] for one in seeds), strict=True))
        holds = all(part > 0 for part in parts)
        claims.append(Claim(statement.text, text, holds, ours=statement.ours, margins=margins))
    return claims


def values_text(values: Mapping[str, float]) -> str:
    """Values by method as a text."""
    return ", ".join(f"{method} {value:.4g}" for method, value in values.items())


def first_round(curve: Curve, holds: Condition) -> float:
    """The first evaluated round in which a condition holds; infinity if there is none."""
    rounds = curve["round"][holds(curve)]
    return float(rounds[0]) if len(rounds) else math.inf


def first_rounds_text(rounds: Mapping[str, float]) -> str:
    """The first round of every method as a text."""
    texts = {m: f"round {at:.0f}" if math.isfinite(at) else "never" for m, at in rounds.items()}
    return ", ".join(f"{method} {text}" for method, text in texts.items())


def reached(method: str, holds: Condition, *, by: float | None = None, after: float = 0) -> Check:
    """Checks that a condition first holds by a round, or without one after a round or never."""

    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        curve = selected.curves[method]
        at, (first, step) = first_round(curve, holds), _counted(curve, holds)
        margin = first - after if by is None else by + step - first
        return first_rounds_text({method: at}), [margin]

    return check


def _counted(curve: Curve, holds: Condition) -> tuple[float, float]:
    """The first round of a condition and the rounds between evaluations.

    If it never holds, that is one evaluation after the last one.
    """
    step = float(np.min(np.diff(curve["round"], prepend=0)))
    return min(first_round(curve, holds), float(curve["round"][-1]) + step), step


def fastest(method: str, holds: Condition) -> Check:
    """Checks whether a condition holds for a method before it does for any other.

    Methods are evaluated every few rounds: two that reach it between the same two evaluations are
    as fast as each other, and neither is first.
    """

    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        at = {m: first_round(curve, holds) for m, curve in selected.curves.items()}
        counted = {m: _counted(curve, holds)[0] for m, curve in selected.curves.items()}
        margins = [other - counted[method] for m, other in counted.items() if m != method]
        return first_rounds_text(at), margins

    return check


def at_end(method: str, metric: str, *, least: float = -math.inf, below: float = math.inf) -> Check:
    """Checks whether the last value of a metric is in ``[least, below)``."""

    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        value = float(selected.curves[method][metric][-1])
        above = np.nextafter(value, math.inf) - least  # positive if they are equal
        return f"{value:.4g}", [m for m in (above, below - value) if not math.isinf(m)]

    return check


def above(
    method: str, others: Sequence[str], metric: str, factor: float = 1.0, sign: int = 1
) -> Check:
    """Checks whether a metric's end is above ``factor`` times all others' (sign -1: below).

    The text names those that are so close that the order of the ends may be chance.
    """

    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        ends = {m: selected.at_end(m, metric) for m in (method, *others)}
        margins = [sign * (ends[method] - factor * ends[m]) for m in others]
        text, holds = values_text(ends), min(margins) > 0
        if holds and (close := _close(selected, method, others, metric, sign)):
            text += f"; not clearly apart in the last {LATE} evaluations: {', '.join(close)}"
        return text, margins

    return check


def _close(
    selected: Selected, method: str, others: Sequence[str], metric: str, sign: int
) -> list[str]:
    """Those whose late differences have a mean below their standard deviation."""
    late = {m: selected.curves[m][metric][-LATE:] for m in (method, *others)}
    apart = {m: sign * (late[method] - late[m]) for m in others}
    return [m for m, values in apart.items() if np.mean(values) < np.std(values)]


def above_at_equal_rates(
    method: str, others: Sequence[str], factor: float = 1.0, metric: str | None = None
) -> Check:
    """Checks whether the score at FedDualAvg's best pair is above ``factor`` times all others'.

    The text says of how many pairs of the grid that holds.
    """

    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        def margins(scores: Mapping[str, float]) -> list[float]:
            return [scores[method] - factor * scores[m] for m in others]

        pairs = selected.score[["lr", "server_lr"]].drop_duplicates().itertuples(index=False)
        everywhere = [selected.at_rates((lr, server_lr), metric) for lr, server_lr in pairs]
        complete = [scores for scores in everywhere if scores.keys() >= {method, *others}]
        best = selected.rates["FedDualAvg"]
        here = selected.at_rates(best, metric)
        if not here.keys() >= {method, *others}:
            return f"not all methods were run at {best}", [math.nan]
        text = values_text({m: here[m] for m in (method, *others)})
        count = sum(all(margin > 0 for margin in margins(scores)) for scores in complete)
        return (
            f"at ({best[0]:g}, {best[1]:g}) {text}; at {count} of {len(complete)} pairs",
            margins(here),
        )

    return check


def coincide(methods: Sequence[str], metric: str, tolerance: float) -> Check:
    """Checks whether curves stay within a share of each other in their second half."""

    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        values = np.stack([selected.curves[m][metric] for m in methods])
        later = values[:, values.shape[1] // 2 :]
        low, high = later.min(axis=0), later.max(axis=0)
        apart = float(np.max((high - low) / np.abs(low)))
        rates = selected.rates
        pairs = ", ".join(f"{m} ({rates[m][0]:g}, {rates[m][1]:g})" for m in methods)
        return f"at most {100 * apart:.2g} % apart: {pairs}", [tolerance - apart]

    return check


def largest_rate(selected: Selected) -> tuple[str, Sequence[float]]:
    """Checks whether FedDualAvg's client rate is above all others."""
    lrs = {m: lr for m, (lr, _) in selected.rates.items()}
    text = ", ".join(f"{m} {lr:g}" for m, lr in lrs.items())
    return text, [lrs["FedDualAvg"] - lr for m, lr in lrs.items() if m != "FedDualAvg"]
