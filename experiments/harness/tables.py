"""Tables of experiments: intervals over seeds, published numbers beside ours, claims."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from scipy import stats

import fedjax_sim as fs
from experiments.harness.options import counted

__all__ = [
    "EXACT", "NUMBER", "TOLERANCES", "Claim", "Estimate", "Spread", "at_edge", "bounds_hold",
    "claims_table", "edge_marks", "exact", "interval_text", "late_scores", "means", "number",
    "ordering", "paired", "percent", "rounds_by", "rounds_text", "select", "unfinished"
]  # fmt: skip


class Estimate(NamedTuple):
    """A number and its 95 % interval; a format is that of each of the three numbers.

    Example:
        >>> f"{Estimate.of([1.0, 2.0, 3.0]):.2f}"
        '2.00 [-0.48, 4.48]'
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> Self:
        """Student's interval of the mean over seeds."""
        interval = fs.analysis.mean_interval(np.asarray(values, np.float64))
        return cls(*(float(value) for value in interval))

    def between(self, low: float, high: float) -> bool | None:
        """True if the interval lies between the limits, False if outside, None if it crosses one.

        Example:
            >>> [Estimate(1.0, 0.5, 1.5).between(*limits) for limits in ((0, 2), (2, 3), (1, 2))]
            [True, False, None]
        """
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None

    def __format__(self, spec: str) -> str:
        mean, low, high = (format(value, spec or ".3g") for value in self)
        return f"{mean} [{low}, {high}]"


def interval_text(values: Any, digits: int = 2) -> str:
    """Half the width of the 95 % interval of the mean over seeds; empty for one seed.

    Example:
        >>> interval_text([1.0, 2.0, 3.0]), interval_text([1.0])
        ('± 2.48', '')
    """
    interval = fs.analysis.mean_interval(np.asarray(values, np.float64))
    half = float(interval.high - interval.low) / 2
    return "" if math.isnan(half) else f"± {half:.{digits}f}"


def late_scores(
    history: pd.DataFrame, metric: str, last_rounds: int, mode: fs.analysis.Mode, **options: Any
) -> pd.DataFrame:
    """The mean of every run's evaluations in its last rounds, at least of its last evaluation.

    One evaluation is noisy; the ranking of methods by it changes from one evaluation to the next.
    """
    rounds = history.loc[history["metric"] == metric, "round"]
    late = rounds[rounds > rounds.max() - last_rounds].nunique()
    return fs.analysis.scores(history, metric, last=max(1, late), mode=mode, **options)


def rounds_text(rounds: float) -> str:
    """The number of rounds; "not reached" if it is not finite."""
    return f"{rounds:.0f}" if math.isfinite(rounds) else "not reached"


def rounds_by(
    history: pd.DataFrame, by: str, metric: str, level: float, mode: fs.analysis.Mode
) -> dict[Any, str]:
    """Per value of a column the median over seeds of the rounds to a level, as texts."""
    reached = fs.analysis.rounds_to_target(history, metric, level, mode=mode)
    medians = reached.groupby(by)["score"].median()
    return dict(zip(medians.index, map(rounds_text, medians.tolist()), strict=True))


def ordering(ours: Any, paper: Any) -> str:
    """Kendall's tau between our ordering and the paper's; empty for fewer than three pairs."""
    both = pd.DataFrame({"ours": list(ours), "paper": list(paper)}).dropna()
    if len(both) < 3:
        return ""
    tau, p = stats.kendalltau(both["ours"], both["paper"])
    return (
        f"Ordering against the paper's, {len(both)} entries: Kendall's tau {tau:.2f} "
        f"(p = {p:.2g}; 1 is the same order, 0 none)."
    )


def select(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows with the given values."""
    keep = np.ones(len(table), bool)
    for name, value in values.items():
        keep &= np.asarray(table[name]) == value
    return table.take(np.flatnonzero(keep))


def percent(values: Iterable[float]) -> list[str]:
    """Two decimals; "diverged" for NaN."""
    return [f"{value:.2f}" if math.isfinite(value) else "diverged" for value in values]


def edge_marks(best: pd.DataFrame) -> list[str]:
    """Per row of :func:`fedjax_sim.reports.selection.best` the names that lie at their grid's
    edge, beyond which the true best may be.

    Example:
        >>> edge_marks(pd.DataFrame({"lr_at_edge": [True, False], "mu_at_edge": [True, False]}))
        ['lr, mu', '']
    """
    names = [str(name) for name in best.columns if str(name).endswith("_at_edge")]
    marks = best.filter(names).to_numpy()
    short = [name.removesuffix("_at_edge") for name in names]
    return [", ".join(name for name, at in zip(short, row, strict=True) if at) for row in marks]


def at_edge(value: Any, grid: Sequence[Any]) -> str:
    """A mark for a selected value that is its grid's least or largest.

    Example:
        >>> at_edge(0.1, (0.03, 0.1)), at_edge(0.1, (0.03, 0.1, 0.3)), at_edge(0.1, (0.1,))
        ('at the edge', '', '')
    """
    return "at the edge" if len(grid) > 1 and value in (min(grid), max(grid)) else ""


# How far a number may be from the paper's: set before the runs, the same for all papers.
TOLERANCES = {
    "accuracy of a table, points": 1.0,
    "exponent of a rate": 0.1,
    "formula beside a run, relative": 0.02,
}

SEEDS, EXACT, NUMBER = "seeds", "exact", "number"  # kinds of evidence


class Spread(NamedTuple):
    """A margin over seeds whose values were not kept."""

    mean: float
    std: float
    seeds: int

    @property
    def interval(self) -> tuple[float, float]:
        """Student's 95 % interval of the mean."""
        half = stats.t.ppf(0.975, self.seeds - 1) * self.std / math.sqrt(self.seeds)
        return float(self.mean - half), float(self.mean + half)


class Claim(NamedTuple):
    """A statement of a paper, and our numbers on it.

    The statement holds where its margins are positive: by how much a method is ahead, or how far a
    number is inside of its tolerance.
    """

    text: str
    found: str | Mapping[str, float]  # our numbers
    holds: bool  # by the means
    setting: str = ""  # of the experiment, if there are several
    ours: str = ""  # a threshold or criterion that the paper does not state, e.g. "> 1.5 x"
    margins: Sequence[Any] = ()  # per part of the statement its values by seed, or a Spread
    kind: str = SEEDS  # EXACT: formula, bound or deterministic run; NUMBER: entry of a table


def paired(
    text: str,
    found: str | Mapping[str, float],
    margins: Sequence[Any],
    setting: str = "",
    ours: str = "",
) -> Claim:
    """The claim whose parts all hold if every part's mean over seeds is positive."""
    values = [np.asarray(part, np.float64) for part in margins]
    holds = all(bool(part.mean() > 0) for part in values)
    return Claim(text, found, holds, setting, ours, values)


def means(wide: pd.DataFrame, names: Iterable[str] | None = None) -> dict[str, float]:
    """The means of a table's columns, a row per seed: all columns, or those named."""
    return {str(name): float(np.nanmean(wide[name])) for name in (names or wide.columns)}


def exact(
    text: str,
    found: str | Mapping[str, float],
    margins: Sequence[float],
    setting: str = "",
    ours: str = "",
) -> Claim:
    """The claim of a formula or of deterministic runs, which holds if no margin is negative."""
    holds = all(margin >= 0 for margin in margins)
    return Claim(text, found, holds, setting, ours, [[margin] for margin in margins], EXACT)


def number(text: str, ours: Spread, paper: float, tolerance: float, setting: str = "") -> Claim:
    """The claim of a table's entry: our mean over seeds is at most the tolerance away.

    It has two parts, that we are not below and that we are not above.
    """
    above = ours.mean - paper
    margins = [ours._replace(mean=tolerance + sign * above) for sign in (1, -1)]
    found, holds = {"ours": ours.mean}, abs(above) <= tolerance
    return Claim(text, found, holds, setting, f"within {tolerance:g}", margins, NUMBER)


def bounds_hold(text: str, holds: Any, setting: str = "") -> Claim:
    """The claim that a bound is above its measurement in all cases.

    Example:
        >>> bounds_hold("Theorem 1", [True, True, False]).found
        '2 of 3 cases'
    """
    kept = np.asarray(holds, bool)
    found = f"{kept.sum()} of {len(kept)} cases"
    return exact(text, found, [kept.mean() - 1], setting, "at most 3 standard errors above")


def claims_table(claims: Iterable[Claim]) -> pd.DataFrame:
    """A row per claim; columns that are empty everywhere are left out.

    ``low`` and ``high`` are the 95 % interval of the margin over seeds; of several parts the least
    ``low`` and the least ``high``, so that ``low > 0`` says it of all and ``high < 0`` of one.
    """
    rows = []
    for claim in claims:
        measured = claim.found
        if not isinstance(measured, str):
            measured = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
        row = {"setting": claim.setting, "claim": claim.text, "found": measured}
        row |= {"agrees": "yes" if claim.holds else "no", "kind": claim.kind}
        rows.append(row | _evidence(claim) | {"our threshold": claim.ours})
    table = pd.DataFrame(rows, columns=CLAIM_COLUMNS)
    empty = [name for name in ("setting", "our threshold") if not any(table[name])]
    return table.drop(columns=empty)


CLAIM_COLUMNS = [
    "setting", "claim", "found", "agrees", "kind", "seeds", "low", "high", "our threshold"
]  # fmt: skip


def _evidence(claim: Claim) -> dict[str, Any]:
    if not len(claim.margins):
        return {"seeds": "", "low": math.nan, "high": math.nan}
    bounds, counts = zip(*(_interval(part, claim.kind) for part in claim.margins), strict=True)
    lows, highs = zip(*bounds, strict=True)
    # One part that fails decides; all parts have to hold.
    least = {"low": float(np.min(lows)), "high": float(np.fmin.reduce(highs))}
    return {"seeds": min(counts), **least}


def _interval(part: Any, kind: str) -> tuple[tuple[float, float], int]:
    """Interval and number of seeds of one part of a statement."""
    if isinstance(part, Spread):
        return part.interval, part.seeds
    values = np.asarray(part, np.float64)
    if kind == EXACT:
        return (float(values.mean()), float(values.mean())), len(values)
    interval = fs.analysis.mean_interval(values)
    return (float(interval.low), float(interval.high)), len(values)


def unfinished(
    history: pd.DataFrame, methods: Sequence[str], seeds: int, by: str = "method"
) -> str:
    """A sentence on the runs that are not in the history; empty if all are.

    Example:
        >>> history = pd.DataFrame({"method": ["a", "a", "b"], "seed": [0, 1, 0]})
        >>> unfinished(history, ["a", "b", "c"], 2)
        'Not finished yet: b has 1 seed of 2; c has none.'
        >>> unfinished(history, ["c", "d"], 2)
        'Not finished yet: all methods have none.'
        >>> unfinished(history, ["a"], 2)
        ''
    """
    counts = history.groupby(by)["seed"].nunique().to_dict()
    groups: dict[int, list[str]] = {}
    for method in methods:
        count = counts.get(method, 0)
        if count < seeds:
            groups.setdefault(count, []).append(method)
    parts = []
    for count, names in groups.items():
        several = len(names) > 1
        who = "all methods" if several and names == list(methods) else ", ".join(names)
        few = f"{counted(count, 'seed')} of {seeds}" if count else "none"
        parts.append(f"{who} {'have' if several else 'has'} {few}")
    return f"Not finished yet: {'; '.join(parts)}." if parts else ""
