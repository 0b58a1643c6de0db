"""Scores of runs and the best configurations of a sweep.

A sweep's frame is tidy, one value per row.  Its columns are the configuration (``algorithm`` if
there are several, and the hyper-parameters; NaN where the algorithm lacks one), ``seed``,
``round``, ``metric``, ``value`` and ``diverged_at`` (the round of the run's first server state that
is not finite, 0 if none).  Runs of one seed share timelines and minibatches, so configurations are
compared seed by seed.

A run that failed has the score NaN, and so has every mean over seeds with a failed one: the mean of
the other runs would reward a configuration for failing.  :mod:`fedjax_sim.reports.frames` defines
grid order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from fedjax_sim.checks import check_count, did_you_mean
from fedjax_sim.reports.frames import (
    check_columns,
    check_unique,
    configuration_columns,
    divergence_text,
    first_divergences,
    first_rows,
    row_ids,
    score_values,
)
from fedjax_sim.reports.intervals import shown_interval

Mode: TypeAlias = Literal["min", "max"]

_NOT_HYPER = ("algorithm", "seed", "round", "metric", "value", "diverged_at", "score")


def scores(
    frame: pd.DataFrame,
    metric: str,
    hyper: Sequence[str] | None = None,
    *,
    last: int = 1,
    reduce: Literal["mean", "best"] = "mean",
    mode: Mode = "min",
) -> pd.DataFrame:
    """Returns one number per run: a row per (configuration, seed), in grid order.

    ``reduce="mean"`` is the mean of the metric's last ``last`` evaluations.  ``reduce="best"`` is
    the best evaluation of the whole run, as in the experiments of Yuan and Ma (2020), "Federated
    Accelerated Stochastic Gradient Descent".

    A run has the score NaN if it diverged, or if a value that the score uses is not finite.  This
    holds for "best", too: the best value of a run before it diverged depends on how often it was
    evaluated, and the setting is of no use.

    Args:
        frame: frame of a sweep, see the module.
        hyper: columns of the hyper-parameters; default: every column that the module does not name.
        mode: whether "best" is the smallest value or the largest.

    Returns:
        columns: the configuration, ``seed``, ``score``, ``diverged_at``.

    Raises:
        ValueError: missing columns, an unknown metric, two values for one round of a run (is a
            hyper-parameter missing from ``hyper``?), ``diverged_at`` not constant within a run, a
            run that did not diverge with fewer than ``last`` evaluations.

    Example:
        >>> columns = ["lr", "seed", "round", "metric", "value", "diverged_at"]
        >>> rows = [(lr, 0, r, "loss", 1 / (lr * r), 0) for lr in (0.1, 0.5) for r in (1, 2, 4)]
        >>> rows += [(2.0, 0, 1, "loss", 3.0, 2), (2.0, 0, 2, "loss", float("nan"), 2)]
        >>> scores(pd.DataFrame(rows, columns=columns), "loss", last=2)["score"].tolist()
        [3.75, 0.75, nan]
    """
    sign_of(mode)
    if reduce not in ("mean", "best"):
        raise ValueError(f'reduce is {reduce!r}; expected "mean" or "best"')
    check_count(1, last=last)
    if reduce == "best" and last != 1:
        raise ValueError(f'last is {last}; expected 1 with reduce="best"')
    if reduce == "mean":
        return _reduce(frame, metric, hyper, last, lambda rounds, values: values.mean())
    optimum = np.min if mode == "min" else np.max
    return _reduce(frame, metric, hyper, None, lambda rounds, values: optimum(values))


def rounds_to_target(
    frame: pd.DataFrame,
    metric: str,
    target: float,
    hyper: Sequence[str] | None = None,
    *,
    count: Literal["first", "run"] = "first",
    mode: Mode = "min",
) -> pd.DataFrame:
    """Returns the rounds that each run takes to reach ``target``; infinity if it does not.

    ``count="first"``: the first evaluated round with value <= target (>= with ``mode="max"``).
    ``count="run"``: all rounds of the run, if any of its values reaches the target.  Yuan and Ma
    (2020) count so, since their runs of T/K rounds differ in K: with
    ``best(..., per=["algorithm", "num_clients"], mode="min")`` it gives the rounds of the largest K
    that reaches the target.

    The frame has the columns of :func:`scores`, fewer rounds being better, so :func:`best`
    (``mode="min"``) and :func:`speed_up` take it.  Failed runs are NaN, as there.

    Args:
        hyper: columns of the configuration; default: as in :func:`scores`.

    Raises:
        ValueError: as :func:`scores`; a target that is not finite.

    Example:
        >>> columns = ["lr", "seed", "round", "metric", "value", "diverged_at"]
        >>> rows = [(lr, 0, r, "loss", 1 / (lr * r), 0) for lr in (0.1, 0.5) for r in (1, 2, 4)]
        >>> rounds_to_target(pd.DataFrame(rows, columns=columns), "loss", 1.0)["score"].tolist()
        [inf, 2.0]
    """
    sign = sign_of(mode)
    if not math.isfinite(target):
        raise ValueError(f"target is {target}; expected a finite number")
    if count not in ("first", "run"):
        raise ValueError(f'count is {count!r}; expected "first" or "run"')

    def rounds_of(rounds: np.ndarray, values: np.ndarray) -> float:
        reached = rounds[sign * values <= sign * target]
        if not len(reached):
            return math.inf
        return reached[0] if count == "first" else rounds[-1]

    return _reduce(frame, metric, hyper, None, rounds_of)


def best(
    scores: pd.DataFrame,
    *,
    per: str | Sequence[str] = (),
    mode: Mode,
    level: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> pd.DataFrame:
    """Returns the best configuration of every cell; cells are the values of the columns ``per``.

    The best mean over seeds wins, but a configuration with a failed seed never beats one without,
    since it has no mean.  Where every configuration has failed seeds, the one with the fewest wins,
    then the one with the best mean over the other seeds; the cell's mean is NaN.  Ties go to the
    first in grid order.

    ``<hyper>_at_edge`` is True if the chosen value is the smallest or the largest of its algorithm
    in the cell, so that the best value may lie outside the grid.  Values that are not numbers, and
    grids of one value, have no edge.

    Args:
        scores: as :func:`scores` returns them.
        per: columns of the cells.
        mode: whether the smallest or the largest mean wins.
        level: level of the intervals.
        bounds: range of the scores, to which the intervals are cut (:func:`shown_interval`).

    Returns:
        a row per cell in grid order; columns: ``per``, the rest of the configuration, ``mean``,
        ``low`` and ``high`` (:func:`shown_interval`), ``num_seeds``, ``num_failed``, with
        ``diverged_at`` in the scores ``diverged`` ("diverged in round 3 (1 of 2 seeds)" or empty),
        and ``<hyper>_at_edge`` for every hyper-parameter not in ``per``.

    Raises:
        ValueError: an unknown column in ``per``, two scores for one configuration and seed,
            configurations of one cell with different seeds (drop incomplete ones of an unfinished
            sweep).

    Example:
        >>> rows = [(lr, s, (lr - 0.1) ** 2 + s) for lr in (0.01, 0.1, 1.0) for s in (0, 1)]
        >>> frame = best(pd.DataFrame(rows, columns=["lr", "seed", "score"]), mode="min")
        >>> frame[["lr", "mean", "num_failed", "lr_at_edge"]].values.tolist()
        [[0.1, 0.5, 0, False]]
    """
    config = configuration_columns(scores)
    per = [per] if isinstance(per, str) else list(per)
    tuned = [name for name in config if name not in (*per, "algorithm")]
    first, statistics = [], []
    for cell, chosen in choose(scores, per, mode):
        if "algorithm" in config:
            same = np.asarray(cell["algorithm"] == chosen["algorithm"].iloc[0])
            cell = cell.loc[same, :]
        statistics.append(
            over_seeds(chosen, level, bounds)
            | {f"{name}_at_edge": _at_edge(chosen[name].iloc[0], cell[name]) for name in tuned}
        )
        first.append(chosen.head(1))
    left = pd.concat(first, ignore_index=True)[[*per, *(n for n in config if n not in per)]]
    return left.join(pd.DataFrame(statistics))


def over_seeds(
    scores: pd.DataFrame, level: float, bounds: tuple[float, float] | None
) -> dict[str, Any]:
    """Returns the mean and its interval, and numbers of seeds, of one configuration's scores."""
    values = score_values(scores)
    statistics = shown_interval(values, level, bounds)._asdict()
    statistics |= {"num_seeds": len(values), "num_failed": int(np.isnan(values).sum())}
    if "diverged_at" in scores:
        statistics["diverged"] = divergence_text(first_divergences(scores))
    return statistics


def complete(scores: pd.DataFrame, per: Sequence[str]) -> pd.DataFrame:
    """Returns the scores of the configurations that have the most seeds of their cell."""
    counts = np.bincount(ids := row_ids(scores, configuration_columns(scores)))[ids]
    cell = row_ids(scores, per)
    most = np.zeros(cell.max() + 1, int)
    np.maximum.at(most, cell, counts)
    return scores.loc[counts == most[cell], :]


def _reduce(
    frame: pd.DataFrame,
    metric: str,
    hyper: Sequence[str] | None,
    last: int | None,
    reduce: Callable[[np.ndarray, np.ndarray], float],
) -> pd.DataFrame:
    """Returns ``reduce(rounds, values)`` of the last evaluations (None: all); NaN: failed."""
    check_columns(frame, ["seed", "round", "metric", "value", "diverged_at", *(hyper or ())])
    measured = np.asarray(frame["metric"] == metric)
    if not measured.any():
        known = frame["metric"].unique().tolist()
        raise ValueError(
            f"metric is {metric!r}; expected one of {known}{did_you_mean(metric, known)}"
        )
    if hyper is None:
        hyper = [name for name in frame.columns if name not in _NOT_HYPER]
    algorithm = ["algorithm"] if "algorithm" in frame.columns else []
    key = [*dict.fromkeys([*algorithm, *hyper]), "seed"]
    run = row_ids(frame, key)
    runs = frame[key].iloc[first_rows(run)].reset_index(drop=True)
    diverged_at = np.asarray(frame["diverged_at"])
    # NaN differs from itself, so it is refused, too.
    if (diverged_at != diverged_at[first_rows(run)][run]).any():
        raise ValueError("diverged_at differs within a run; expected one round, 0 if none")
    diverged_at = diverged_at[first_rows(run)]

    run, rounds = run[measured], np.asarray(frame["round"])[measured]
    values = np.asarray(frame["value"], np.float64)[measured]
    order = np.lexsort((rounds, run))
    run, rounds, values = run[order], rounds[order], values[order]
    if (twice := (np.diff(run) == 0) & (np.diff(rounds) == 0)).any():
        at = runs.iloc[run[:-1][twice][0]].to_dict() | {"round": rounds[:-1][twice][0].item()}
        raise ValueError(f"frame has two values for {at}; expected one (is another column varied?)")
    stops = np.searchsorted(run, np.arange(len(runs)), side="right")
    starts = np.concatenate([[0], stops[:-1]])
    if (short := (diverged_at == 0) & (stops - starts < (last or 1))).any():
        run, num = runs.iloc[short.argmax()].to_dict(), (stops - starts)[short][0]
        if num == 0:
            raise ValueError(f"metric is {metric!r}; expected one that {run} has, too")
        raise ValueError(
            f"last is {last}; expected at most {num}, the evaluations of {metric!r} for {run}"
        )
    score = np.full(len(runs), math.nan)
    for i in np.flatnonzero(diverged_at == 0):
        used = slice(starts[i] if last is None else stops[i] - last, stops[i])
        if np.isfinite(values[used]).all():
            score[i] = reduce(rounds[used], values[used])
    return runs.assign(score=score, diverged_at=diverged_at)


def choose(
    scores: pd.DataFrame, per: Sequence[str], mode: Mode
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Yields for every cell in grid order its rows, and those of its best configuration by seed."""
    config, sign = configuration_columns(scores), sign_of(mode)
    check_columns(scores, per)
    rows = scores.iloc[np.argsort(row_ids(scores, [*config, "seed"]))].reset_index(drop=True)
    check_unique(rows, [*config, "seed"], "scores")
    ids = row_ids(rows, config)
    for _, cell in rows.groupby(row_ids(rows, per)):
        count = len(np.unique(ids[cell.index]))
        size = len(cell) // count
        seeds = np.asarray(cell["seed"])
        if (seeds != np.resize(seeds[:size], len(cell))).any():
            raise ValueError(
                "scores has configurations with different seeds in the cell "
                f"{cell[list(per)].iloc[0].to_dict()}; expected the same seeds for all"
            )
        values = score_values(cell).reshape(count, size)
        failed = np.isnan(values).sum(axis=1)
        # Among configurations with equally many failures, sums rank like means.  The sort is
        # stable: ties in grid order.
        winner = int(np.lexsort((sign * np.nansum(values, axis=1), failed))[0])
        yield cell, cell.iloc[winner * size : (winner + 1) * size]


def sign_of(mode: str) -> int:
    """Returns 1 for ``"min"`` and -1 for ``"max"``."""
    if mode not in ("min", "max"):
        raise ValueError(f'mode is {mode!r}; expected "min" or "max"')
    return 1 if mode == "min" else -1


def _at_edge(value: Any, grid: Any) -> bool:
    values = grid.dropna().unique()
    if values.dtype.kind not in "iuf" or len(values) < 2:
        return False
    return bool(value in (values.min(), values.max()))
