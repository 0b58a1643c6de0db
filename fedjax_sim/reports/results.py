"""Results of a comparison: means over seeds, paired tests against the best, rounds to a target."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedjax_sim.checks import check_one_number
from fedjax_sim.reports.frames import (
    check_columns,
    configuration_columns,
    first_rows,
    row_ids,
    score_values,
)
from fedjax_sim.reports.labels import better, bounds_of
from fedjax_sim.reports.selection import Mode, over_seeds, rounds_to_target, scores, sign_of
from fedjax_sim.reports.statistics import holm, paired_difference
from fedjax_sim.types import shown


@shown
class Target(NamedTuple):
    """A value of a metric; a table shows the rounds until runs reach it.

    Example:
        >>> Target("test/accuracy", 0.8).value
        0.8
    """

    metric: str
    value: float


def results(
    history: pd.DataFrame,
    metrics: str | Sequence[str],
    *,
    modes: dict[str, Mode] | None = None,
    last: int = 1,
    target: Target | None = None,
    level: float = 0.95,
    alpha: float = 0.05,
    partial: Collection[str] = (),
    among: Sequence[str] | Mapping[str, str] = (),
) -> pd.DataFrame:
    """Returns a row per metric and configuration (algorithm, hyper-parameters), in their order.

    A configuration's score is its mean over seeds of each run's last evaluations.  One with a seed
    that diverged has no mean and cannot be best: the mean of the other seeds would reward it.

    The configurations that cannot be distinguished from the best mean are marked with it: those
    whose differences to it, seed by seed, have a two-sided paired t test with p >= ``alpha``,
    adjusted for the number of tests by Holm (1979), "A simple sequentially rejective multiple test
    procedure".  Only seeds that both have count.  With fewer than two such seeds there is no test,
    and only means that equal the best one are marked with it.  Few seeds distinguish little: with
    three, a t test needs a mean difference of 2.5 of its standard deviations.  Only configurations
    of one setting (``among``), such as the same data, are compared; one alone is not marked.

    Args:
        history: tidy frame: columns of the configuration, ``seed``, ``round``, ``metric``,
            ``value`` and, if runs may have diverged, ``diverged_at``.
        metrics: metrics of the rows.
        modes: per metric "max" or "min", the better direction; default: as its name says, "min" if
            it does not.
        last: number of evaluations at the end of a run over which the metric is averaged.
        target: adds the median rounds to a value of a metric, over the seeds that reach it.
        level: level of the intervals.
        alpha: level of the tests.
        partial: values of ``algorithm`` whose server's model is no complete one (FedPer): by
            metrics of this model, which do not begin with ``personal/``, they are not compared.
        among: columns of the setting, such as ``["alpha"]`` of a partition; or the setting by the
            value of ``algorithm``, as :class:`~fedjax_sim.reports.FolderHistory` has it.

    Returns:
        columns: the configuration, ``metric``, ``mean``, ``std`` (sample standard deviation),
        ``low``, ``high`` (:func:`shown_interval`, cut to [0, 1] for accuracies), ``num_seeds``,
        ``num_failed``, ``diverged`` (a text), ``p_holm`` (against the best), ``is_best`` (also of
        ties), and with a target ``rounds_to_target`` (infinite if no seed reaches it) and
        ``reached`` (seeds).

        The frame's ``attrs`` have ``level`` and ``alpha``.

    Raises:
        ValueError: as :func:`~fedjax_sim.reports.scores`; no metrics; another mode, or one of an
            unknown metric; columns of ``among`` that the history lacks; ``alpha`` or ``level``
            outside (0, 1).

    Example:
        >>> columns = ["algorithm", "seed", "round", "metric", "value"]
        >>> values = {"fedavg": (0.80, 0.82, 0.81), "scaffold": (0.90, 0.93, 0.91)}
        >>> rows = [(name, s, 5, "test/accuracy", v)
        ...         for name, column in values.items() for s, v in enumerate(column)]
        >>> table = results(pd.DataFrame(rows, columns=columns), "test/accuracy")
        >>> table[["algorithm", "mean", "is_best"]].round(3).values.tolist()
        [['fedavg', 0.81, False], ['scaffold', 0.913, True]]
    """
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    if not metrics:
        raise ValueError("metrics is empty; expected at least one")
    check_one_number(alpha=alpha)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; expected a number between 0 and 1")
    known = history["metric"].unique().tolist()
    if unknown := [name for name in modes or () if name not in known]:
        raise ValueError(f"modes has {unknown}; expected some of {known}, the metrics")
    check_columns(
        history, ["algorithm"] if isinstance(among, Mapping) and among else list(among), "history"
    )
    if "diverged_at" not in history:
        history = history.assign(diverged_at=0)
    parts, config = [], []
    for metric in metrics:
        mode = (modes or {}).get(metric) or better(metric)
        score = scores(history, metric, last=last, mode=mode)
        config = configuration_columns(score)
        part = _rows(score, config, bounds_of(metric, score_values(score)), level)
        skipped = np.zeros(len(part), bool)
        if "algorithm" in config and not metric.startswith("personal/"):
            skipped = np.asarray(part["algorithm"].isin(list(partial)))
        groups = row_ids(part, [name for name in config if name in among])
        if isinstance(among, Mapping):
            groups = np.asarray([among.get(name, "") for name in part["algorithm"]])
        part = _compared(part, score, config, mode, alpha, skipped, groups)
        order = pd.unique(row_ids(history, config))  # of appearance; rows are in grid order
        parts.append(part.iloc[order].assign(metric=metric))
    table = pd.concat(parts, ignore_index=True)
    if target is not None:
        reached = _reached(history, target, (modes or {}).get(target.metric))
        keys: dict[str, Any] = {"on": config, "how": "left"} if config else {"how": "cross"}
        table = table.merge(reached, **keys)
    table.attrs |= {"level": level, "alpha": alpha}  # for the note under a rendered table
    return table


def _rows(
    score: pd.DataFrame, config: list[str], bounds: tuple[float, float] | None, level: float
) -> pd.DataFrame:
    """Returns the statistics over seeds, a row per configuration in grid order."""
    ids = row_ids(score, config)
    left = score[config].iloc[first_rows(ids)].reset_index(drop=True)
    parts = [score.iloc[np.flatnonzero(ids == i)] for i in range(len(left))]
    table = left.join(pd.DataFrame([over_seeds(part, level, bounds) for part in parts]))
    values = [score_values(part) for part in parts]
    std = [x.std(ddof=1) if len(x) > 1 else math.nan for x in values]
    table.insert(table.columns.get_loc("low"), "std", std)
    return table


def _compared(
    table: pd.DataFrame,
    score: pd.DataFrame,
    config: list[str],
    mode: Mode,
    alpha: float,
    skipped: np.ndarray,
    groups: np.ndarray,
) -> pd.DataFrame:
    """Adds the columns ``p_holm`` and ``is_best``; rows that are skipped are never the best."""
    sign = sign_of(mode)
    mean = np.where(skipped, math.nan, np.asarray(table["mean"], np.float64))
    p, is_best = np.full(len(table), math.nan), np.zeros(len(table), bool)
    numbered = score.assign(row=row_ids(score, config))[["row", "seed", "score"]]
    seeds = {i: set(part["seed"]) for i, part in numbered.groupby("row")}
    for group in np.unique(groups):
        rivals = np.flatnonzero((groups == group) & np.isfinite(mean))
        if len(rivals) < 2:
            continue
        winner = int(rivals[np.argmin(sign * mean[rivals])])
        is_best[winner] = True
        for i in rivals[rivals != winner]:
            common = seeds[i] & seeds[winner]
            if len(common) > 1:
                paired = numbered.loc[[seed in common for seed in numbered["seed"]], :]
                pair = paired_difference(paired, "row", i, winner, mode=mode)
                # Equal scores have no deviation to test with.
                p[i] = 1.0 if not pair.differences.any() else pair.p_value
        p[rivals] = holm(p[rivals])
        is_best[rivals] |= (p[rivals] >= alpha) | (mean[rivals] == mean[winner])
    return table.assign(p_holm=p, is_best=is_best)


def _reached(history: pd.DataFrame, target: Target, mode: Mode | None) -> pd.DataFrame:
    """Returns the median rounds over the seeds that reach the target, and their number."""
    mode = mode or better(target.metric)
    rounds = rounds_to_target(history, target.metric, target.value, mode=mode)
    config = configuration_columns(rounds)
    ids = row_ids(rounds, config)
    left = rounds[config].iloc[first_rows(ids)].reset_index(drop=True)
    values = score_values(rounds)
    finite = [values[(ids == i) & np.isfinite(values)] for i in range(len(left))]
    return left.assign(
        rounds_to_target=[float(np.median(x)) if len(x) else math.inf for x in finite],
        reached=[len(x) for x in finite],
    )
