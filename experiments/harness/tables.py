"""Tables of experiments: intervals over seeds, published numbers beside ours, claims."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

import fedjax_sim as fs
from experiments.harness.options import counted

__all__ = [
    "Claim", "at_edge", "claims_table", "edge_marks", "interval_text", "late_scores",
    "ordering", "percent", "rounds_by", "rounds_text", "select", "unfinished"
]  # fmt: skip


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

    Args:
        options: further arguments of :func:`fedjax_sim.reports.selection.scores`.
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
    """Kendall's tau between our ordering and the paper's; empty for fewer than three pairs.

    Example:
        >>> ordering([1.0, 2.0, 4.0], [10.0, 30.0, 20.0]).partition(" (")[0]
        "Ordering against the paper's, 3 entries: Kendall's tau 0.33"
    """
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


class Claim(NamedTuple):
    """A statement of a paper, and whether our numbers support it."""

    text: str
    found: str | Mapping[str, float]  # our numbers
    holds: bool
    setting: str = ""  # of the experiment, if there are several
    ours: str = ""  # a threshold or criterion that the paper does not state, e.g. "> 1.5 x"


def claims_table(claims: Iterable[Claim]) -> pd.DataFrame:
    """A row per claim; columns that are empty everywhere are left out.

    Example:
        >>> claims = [Claim("a helps", {"a": 2.0, "b": 1.0}, True, ours="> 1.5 x")]
        >>> claims_table(claims).to_dict("records")
        [{'claim': 'a helps', 'found': 'a 2, b 1', 'holds': 'yes', 'our threshold': '> 1.5 x'}]
    """
    rows = []
    for claim in claims:
        measured = claim.found
        if not isinstance(measured, str):
            measured = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
        row = {"setting": claim.setting, "claim": claim.text, "found": measured}
        rows.append(row | {"holds": "yes" if claim.holds else "no", "our threshold": claim.ours})
    table = pd.DataFrame(rows, columns=["setting", "claim", "found", "holds", "our threshold"])
    empty = [name for name in ("setting", "our threshold") if not any(table[name])]
    return table.drop(columns=empty)


def unfinished(
    history: pd.DataFrame, methods: Sequence[str], seeds: int, by: str = "method"
) -> str:
    """A sentence on the runs that are not in the history; empty if all are.

    Args:
        by: the history's column of methods.

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
