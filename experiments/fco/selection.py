"""Selected pairs of rates: the best run of every method over its grid, and its kept files."""

import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedjax_sim as fs
from fedjax_sim.reports import best, scores

PAIR = ["method", "lr", "server_lr"]
RUN = [*PAIR, "seed"]
SCORE = [*RUN, "score", "diverged_at"]

Curve = Mapping[str, np.ndarray]  # a run: "round" and every metric, [evaluations]


class Selected(NamedTuple):
    """Scores of a grid, and the run with the best score of every method."""

    metric: str
    mode: fs.analysis.Mode
    last: int  # evaluations that a score averages
    score: pd.DataFrame  # a row per pair and seed
    ends: pd.DataFrame  # further numbers of the same runs, in columns
    chosen: pd.DataFrame  # a row per method
    winners: pd.DataFrame  # tidy histories of the chosen pairs
    curves: Mapping[str, Curve]  # by method, means over seeds
    rates: Mapping[str, tuple[float, float]]  # by method

    def at_end(self, method: str, metric: str) -> float:
        """The mean of a metric over the last evaluations."""
        return float(np.mean(self.curves[method][metric][-self.last :]))

    def at_rates(self, pair: tuple[float, float], metric: str | None = None) -> dict[str, float]:
        """Means over seeds at a pair of rates by method, infinite for diverged runs."""
        rows = self.score if metric is None else self.score.merge(self.ends, on=RUN)
        here = [np.isclose(rows[name], rate) for name, rate in zip(PAIR[1:], pair, strict=True)]
        groups = rows.loc[np.all(here, axis=0)].groupby("method", sort=False)
        means = groups["score" if metric is None else metric].mean()
        return {str(method): math.inf if math.isnan(v) else v for method, v in means.items()}


def select(
    history: pd.DataFrame,
    metric: str,
    last: int,
    mode: fs.analysis.Mode = "min",
    score: pd.DataFrame | None = None,
    ends: pd.DataFrame | None = None,
) -> Selected:
    """Selects by the mean of a metric over the last evaluations; diverged runs have no score."""
    last = min(last, len(set(history["round"])))
    if score is None:
        score = scores(history, metric, PAIR, last=last)
    numbers = score.loc[:, RUN] if ends is None else ends
    return _selected(history, metric, last, mode, score, numbers)


def by_seed(selected: Selected) -> list[Selected]:
    """The selected runs of each seed, whose rates are those of all; none without histories."""
    if not len(selected.winners):
        return []

    def of(table: pd.DataFrame, seed: int) -> pd.DataFrame:
        return table.loc[table["seed"] == seed]

    return [
        selected._replace(
            score=of(selected.score, seed),
            ends=of(selected.ends, seed),
            winners=of(selected.winners, seed),
            curves=curves_of(of(selected.winners, seed)),
        )
        for seed in sorted(set(selected.winners["seed"]))
    ]


def ends_of(history: pd.DataFrame, metrics: Sequence[str], last: int) -> pd.DataFrame:
    """The means of metrics over every run's last evaluations, a column per metric."""
    parts = [
        scores(history, metric, PAIR, last=last).rename(columns={"score": metric})
        for metric in metrics
    ]
    return functools.reduce(
        lambda left, right: left.merge(right.drop(columns="diverged_at"), on=RUN), parts
    ).drop(columns="diverged_at")


def widened(kept: Selected, new: Selected) -> Selected:
    """The selection among the runs of both grids; runs of both are those of ``new``."""

    def joined(frames: list[pd.DataFrame], keys: list[str]) -> pd.DataFrame:
        return pd.concat(frames, ignore_index=True).drop_duplicates(keys, keep="last")

    score = joined([kept.score, new.score], RUN)
    ends = joined([kept.ends, new.ends], RUN)
    history = joined([kept.winners, new.winners], [*RUN, "round", "metric"])
    wide = _selected(history, new.metric, new.last, new.mode, score, ends)
    missing = set(wide.rates) - set(wide.curves)
    if missing:
        pairs = {method: wide.rates[method] for method in missing}
        raise ValueError(f"the best pairs are {pairs}; expected those with a kept history")
    return wide


def kept_tables(selected: Selected) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of ``name.csv``, a column per metric, and of ``name-scores.csv``."""
    wide = selected.winners.pivot_table(
        index=[*RUN, "diverged_at", "round"], columns="metric", values="value", sort=False
    )
    return wide.reset_index(), selected.score.merge(selected.ends, on=RUN)


def from_tables(
    histories: pd.DataFrame,
    table: pd.DataFrame,
    metric: str,
    last: int,
    mode: fs.analysis.Mode = "min",
) -> Selected:
    """The selection of which :func:`kept_tables` made the tables.

    Scores in files are rounded, so several pairs may have the best one; the selected pairs are
    those whose histories are kept.  The winners are all kept histories.
    """
    numbers = dict.fromkeys(PAIR[1:], float)
    history = histories.melt([*RUN, "diverged_at", "round"], var_name="metric").astype(numbers)
    last = min(last, len(set(history["round"])))
    table = table.astype(numbers)
    score, ends = table.loc[:, SCORE], table.drop(columns=SCORE[len(RUN) :])
    selected = _selected(history, metric, last, mode, score, ends, history.loc[:, PAIR])
    return selected._replace(winners=history)


def load(
    folder: pathlib.Path, name: str, metric: str, last: int, mode: fs.analysis.Mode = "min"
) -> Selected:
    """The selection whose tables are ``name.csv`` and ``name-scores.csv``."""
    histories, table = (pd.read_csv(folder / f"{name}{kind}.csv") for kind in ("", "-scores"))
    return from_tables(histories, table, metric, last, mode)


def _selected(
    history: pd.DataFrame,
    metric: str,
    last: int,
    mode: fs.analysis.Mode,
    score: pd.DataFrame,
    ends: pd.DataFrame,
    candidates: pd.DataFrame | None = None,
) -> Selected:
    among = score if candidates is None else score.merge(candidates.drop_duplicates(), on=PAIR)
    chosen = best(among, per="method", mode=mode)
    for rate, other in (PAIR[1:], PAIR[:0:-1]):
        chosen[f"{rate}_at_edge"] = [
            _is_edge(score, pair, rate, other) for pair in chosen.to_dict("records")
        ]
    # In the order of the history, which is that of the methods' names in the figures.
    order = {name: place for place, name in enumerate(dict.fromkeys(history["method"]))}
    chosen = chosen.sort_values("method", key=lambda names: names.map(order), ignore_index=True)
    winners = history.merge(chosen[PAIR], on=PAIR, how="inner")
    rates = {
        str(row["method"]): (float(row["lr"]), float(row["server_lr"]))
        for row in chosen.to_dict("records")
    }
    return Selected(metric, mode, last, score, ends, chosen, winners, curves_of(winners), rates)


def _is_edge(score: pd.DataFrame, pair: Mapping, rate: str, other: str) -> bool:
    """True if a neighbour of the pair along one rate was not run; grids need not be products."""
    beside = (score["method"] == pair["method"]) & np.isclose(score[other], pair[other])
    values = set(score.loc[beside, rate])
    return len(values) > 1 and pair[rate] in (min(values), max(values))


def curves_of(history: pd.DataFrame) -> Mapping[str, Curve]:
    """The curves of every method, means over seeds; NaN where a seed has no value."""
    groups: Any = history.groupby(["method", "metric", "round"], sort=False)["value"]
    means = groups.mean().where(groups.count() == groups.size())  # the mean of others is another
    curves: dict[str, dict[str, np.ndarray]] = {}
    for (method, metric), part in means.groupby(level=[0, 1], sort=False):  # pyright: ignore
        curve = curves.setdefault(str(method), {})
        curve["round"] = np.asarray(part.index.get_level_values("round"))
        curve[str(metric)] = np.asarray(part, np.float64)
    return curves
