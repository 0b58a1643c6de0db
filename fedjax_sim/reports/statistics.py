"""Comparisons between algorithms or numbers of clients, seed by seed.

They start from the scores of :mod:`fedjax_sim.reports.selection`, which explains frames and failed
runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtr

from fedjax_sim.reports.frames import (
    check_columns,
    configuration_columns,
    first_rows,
    grid_values,
    row_ids,
    rows_with,
    score_values,
)
from fedjax_sim.reports.intervals import mean_interval, shown_interval, standard_error
from fedjax_sim.reports.selection import Mode, best, choose, sign_of
from fedjax_sim.types import shown


@shown
class PairedDifference(NamedTuple):
    """Score of a minus score of b, seed by seed, with interval and test of the mean difference."""

    differences: pd.Series  # by seed; NaN where a or b failed
    mean: float  # over the seeds where neither failed, like everything below
    low: float
    high: float
    p_value: float
    num_seeds: int
    failed: tuple[Any, ...]  # the seeds left out
    setting_a: dict[str, Any]  # the configurations compared
    setting_b: dict[str, Any]


def paired_difference(
    scores: pd.DataFrame,
    between: str,
    a: Any,
    b: Any,
    *,
    mode: Mode,
    at: Mapping[Any, Mapping[str, Any]] | None = None,
    level: float = 0.95,
) -> PairedDifference:
    """Compares two values of the column ``between``, each at its best configuration.

    With d_s = score_a(s) - score_b(s) over the n seeds where neither failed: the mean of d, its
    t interval, and the two-sided p value of Student's paired t test (of
    :func:`scipy.stats.ttest_rel`).  One seed: NaN.  Seeds where one failed, or has an infinite
    score, are in ``failed``; the other numbers are then about the seeds where both succeed.

    Configurations chosen by these very scores make small p values too likely.  To report one,
    choose on other seeds and pass ``at``.

    Args:
        at: hyper-parameters to fix, ``{a: {"lr": 0.1}}``; the others are the best (:func:`best`).
        level: level of the interval.

    Raises:
        ValueError: an unknown column or value, ``at`` of another value than a and b, nothing at the
            given hyper-parameters, a and b with different seeds.

    Example:
        >>> rows = [("fedavg", s, s + 0.5) for s in (1, 2)] + [("scaffold", s, s) for s in (1, 2)]
        >>> frame = pd.DataFrame(rows, columns=["algorithm", "seed", "score"])
        >>> paired_difference(frame, "algorithm", "scaffold", "fedavg", mode="min").mean
        -0.5
    """
    at = at or {}
    if unknown := [name for name in at if name not in (a, b)]:
        raise ValueError(f"at has {unknown}; expected {a!r} or {b!r}, which are compared")
    one, other = (_at_best(scores, between, x, at.get(x, {}), mode) for x in (a, b))
    seeds = _same_seeds(one, other)
    with np.errstate(invalid="ignore"):
        differences = score_values(one) - score_values(other)
    kept = np.isfinite(differences)
    d = differences[kept]
    mean, low, high = mean_interval(d if len(d) else [math.nan], level)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Pairs, since runs of one seed share clients and minibatches; Wilcoxon's test cannot reach
        # 5 % with fewer than six of them.
        p = 2 * stdtr(len(d) - 1, -np.abs(mean) / standard_error(d))
    config = configuration_columns(scores)
    return PairedDifference(
        differences=pd.Series(np.where(kept, differences, math.nan), index=seeds),
        mean=float(mean),
        low=float(low),
        high=float(high),
        p_value=float(p),
        num_seeds=len(d),
        failed=tuple(seeds[~kept].tolist()),
        setting_a=one[config].iloc[0].to_dict(),
        setting_b=other[config].iloc[0].to_dict(),
    )


def paired_differences(
    scores: pd.DataFrame, between: str = "algorithm", *, mode: Mode, level: float = 0.95
) -> pd.DataFrame:
    """:func:`paired_difference` of all pairs, each value at its best configuration.

    ``p_holm`` is adjusted for the number of pairs: Holm (1979), "A simple sequentially rejective
    multiple test procedure"; p values below a bound q then include a false one with probability at
    most q.  The intervals are not adjusted.

    Args:
        scores: frame of :func:`scores`.
        between: column with the values to compare.
        mode: whether larger or smaller scores are better.
        level: level of the intervals.

    Returns:
        columns ``a``, ``b``, ``mean``, ``low``, ``high``, ``p_value``, ``p_holm``, ``num_seeds``,
        ``num_failed``; pairs in grid order.

    Raises:
        ValueError: as :func:`paired_difference`; fewer than two values of ``between``.

    Example:
        >>> rows = [(name, s, s * x) for x, name in enumerate(("c", "b", "a")) for s in (1, 2, 3)]
        >>> frame = pd.DataFrame(rows, columns=["algorithm", "seed", "score"])
        >>> paired_differences(frame, mode="min")[["a", "b", "mean"]].values.tolist()
        [['a', 'b', 2.0], ['a', 'c', 4.0], ['b', 'c', 2.0]]
    """
    values = grid_values(scores, between)
    if len(values) < 2:
        raise ValueError(f"scores has {between} = {values}; expected at least two values")
    rows = []
    for a, b in itertools.combinations(values, 2):
        pair = paired_difference(scores, between, a, b, mode=mode, level=level)
        rows.append((a, b, *pair[1:6], len(pair.failed)))
    names = ["a", "b", "mean", "low", "high", "p_value", "num_seeds", "num_failed"]
    frame = pd.DataFrame(rows, columns=names)
    frame.insert(6, "p_holm", holm(frame["p_value"].to_numpy()))
    return frame


def speed_up(
    scores: pd.DataFrame,
    over: str = "num_clients",
    *,
    per: str | Sequence[str] = (),
    mode: Mode = "min",
    reference: float = 0.0,
    level: float = 0.95,
) -> pd.DataFrame:
    r"""Speed-up by more clients: error(M0) / error(M), M0 the smallest M of the curve.

    error(M) is the mean over seeds of score - ``reference`` (F*, the optimum; with ``mode="max"``
    of ``reference`` - score) at the best configuration of that M.  Linear speed-up is M / M0.  With
    scores of :func:`rounds_to_target` the error is the number of rounds.

    The interval of S = error(M0) / error(M) is exp(log S +- t se) by the delta method, paired by
    seed: log S has the first-order deviations d_s = error_s(M0) / error(M0) -
    error_s(M) / error(M),
    and se is the standard error of their mean.  It contains S, and needs positive means only, not
    a positive error of every seed.

    Args:
        over: column of M.
        per: columns with a curve per value, ``["algorithm", "local_steps"]`` for the figures of
            Yuan and Ma (2020).
        level: level of the intervals.

    Returns:
        :func:`best`'s frame per (``per``, ``over``) with ``error``, ``error_low``, ``error_high``
        for the mean and its interval, and ``speed_up``, ``speed_up_low``, ``speed_up_high``,
        ``linear``.  The speed-up is NaN where error(M0) or error(M) is not finite.

    Raises:
        ValueError: as :func:`best`; M not positive numbers, different seeds along a curve, a mean
            error that is not positive.

    Example:
        >>> rows = [(m, seed, 0.5 + (1 + seed) / m) for m in (2, 4, 8) for seed in (0, 1)]
        >>> frame = pd.DataFrame(rows, columns=["num_clients", "seed", "score"])
        >>> speed_up(frame, reference=0.5)[["error", "speed_up", "linear"]].values.tolist()
        [[0.75, 1.0, 1.0], [0.375, 2.0, 2.0], [0.1875, 4.0, 4.0]]
    """
    per = [per] if isinstance(per, str) else list(per)
    check_columns(scores, [*per, over])
    sizes = np.asarray(scores[over])
    if sizes.dtype.kind not in "iuf" or not (sizes > 0).all():
        raise ValueError(
            f"scores has {over} = {scores[over].unique().tolist()}; expected positive numbers"
        )
    errors = scores.assign(score=sign_of(mode) * (scores["score"] - reference))
    frame = best(errors, per=[*per, over], mode="min", level=level)
    error, size = np.asarray(frame["mean"]), np.asarray(frame[over])
    if (error <= 0).any():
        raise ValueError(
            f"reference is {reference}; expected it to be better than every mean score, but "
            f"the smallest error is {np.nanmin(error):.6g}"
        )
    # Cells are in grid order: the smallest M of a curve comes first.
    curve = row_ids(frame, per)
    base = first_rows(curve)[curve]
    chosen = [rows for _, rows in choose(errors, [*per, over], "min")]
    ratios = [
        _ratio(chosen[i], rows, level)._asdict() for i, rows in zip(base, chosen, strict=True)
    ]
    renamed = frame.rename(columns={"mean": "error", "low": "error_low", "high": "error_high"})
    result = renamed.join(pd.DataFrame(ratios)).assign(linear=size / size[base])
    result.attrs["level"] = level  # for the text under a figure
    return result


class _Ratio(NamedTuple):
    speed_up: float
    speed_up_low: float
    speed_up_high: float


def _ratio(base: pd.DataFrame, rows: pd.DataFrame, level: float) -> _Ratio:
    """Returns the ratio of two mean scores and its interval, see :func:`speed_up`."""
    _same_seeds(base, rows)
    above, below = score_values(base), score_values(rows)
    if not (np.isfinite(above).all() and np.isfinite(below).all()):
        return _Ratio(math.nan, math.nan, math.nan)
    ratio = above.mean() / below.mean()
    deviations = above / above.mean() - below / below.mean()  # their mean is 0
    _, low, high = shown_interval(deviations - deviations.mean(), level)
    return _Ratio(ratio, ratio * math.exp(low), ratio * math.exp(high))


def _at_best(
    scores: pd.DataFrame, between: str, value: Any, fixed: Mapping[str, Any], mode: Mode
) -> pd.DataFrame:
    """Returns the rows, by seed, of the best configuration with the fixed hyper-parameters."""
    wanted = {between: value, **fixed}
    part = scores
    for name, setting in wanted.items():
        part = rows_with(part, name, setting)
    if not len(part):
        raise ValueError(f"scores has no row with {wanted}; expected some")
    ((_, chosen),) = choose(part, (), mode)
    return chosen


def _same_seeds(one: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    a, b = np.asarray(one["seed"]), np.asarray(other["seed"])
    if a.tolist() != b.tolist():
        raise ValueError(
            f"scores has seeds {a.tolist()} and {b.tolist()} for two configurations to compare; "
            "expected the same"
        )
    return a


def holm(p: np.ndarray) -> np.ndarray:
    """Returns adjusted p values: the k-th smallest of m times m - k + 1, monotone; NaN stays."""
    order = np.argsort(p)  # NaN last
    factors = np.isfinite(p).sum() - np.arange(len(p))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * p[order]), 1)
    return adjusted
