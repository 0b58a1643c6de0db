"""Selected pairs of rates: the best run of every method over its grid, and its table."""

import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.fco.methods import METHODS
from experiments.harness.tables import edge_marks
from fedjax_sim.analysis.selection import Mode, best, scores

PAIR = ["method", "lr", "server_lr"]

Curve = Mapping[str, np.ndarray]  # a run: "round" and every metric, [evaluations]


class Selected(NamedTuple):
    """Scores of a grid, and the run with the best score of every method."""

    metric: str
    mode: Mode
    last: int  # evaluations that a score averages
    score: pd.DataFrame  # a row per pair and seed
    chosen: pd.DataFrame  # a row per method
    winners: pd.DataFrame  # tidy histories of the chosen pairs
    curves: Mapping[str, Curve]  # by method, means over seeds
    rates: Mapping[str, tuple[float, float]]  # by method

    def at_end(self, method: str, metric: str) -> float:
        """The mean of a metric over the last evaluations."""
        return float(np.mean(self.curves[method][metric][-self.last :]))

    def at_rates(self, pair: tuple[float, float]) -> dict[str, float]:
        """By method the mean score over seeds at a pair of rates, infinite for diverged runs."""
        lr, server_lr = (
            np.isclose(self.score[name], rate) for name, rate in zip(PAIR[1:], pair, strict=True)
        )
        means = self.score.loc[lr & server_lr].groupby("method", sort=False)["score"].mean()
        return {str(method): math.inf if math.isnan(v) else v for method, v in means.items()}


def select(
    history: pd.DataFrame,
    metric: str,
    last: int,
    mode: Mode = "min",
    score: pd.DataFrame | None = None,
) -> Selected:
    """Selects by the mean of a metric over the last evaluations; diverged runs have no score.

    Args:
        history: of all runs.
        score: scores of all runs, if they are not the means of the metric.
    """
    last = min(last, len(set(history["round"])))
    if score is None:
        score = scores(history, metric, PAIR, last=last)
    chosen = best(score, per="method", mode=mode)
    return _selected(history, metric, last, mode, score, chosen)


def load(folder: pathlib.Path, name: str, metric: str, last: int, mode: Mode = "min") -> Selected:
    """The selection that ``name.csv`` and ``name-scores.csv`` hold.

    Scores in the file are rounded, so several pairs may have the best one; the selected pairs are
    those whose histories are kept.
    """
    history, score = (
        pd.read_csv(folder / f"{name}{kind}.csv").astype(dict.fromkeys(PAIR[1:], float))
        for kind in ("", "-scores")
    )
    last = min(last, len(set(history["round"])))
    pairs = history[PAIR].drop_duplicates()
    chosen = best(score.merge(pairs, on=PAIR), per="method", mode=mode)
    for rate in PAIR[1:]:
        grids = {m: set(part[rate]) for m, part in score.groupby("method")}
        chosen[f"{rate}_at_edge"] = [
            len(grids[m]) > 1 and value in (min(grids[m]), max(grids[m]))
            for m, value in zip(chosen["method"], chosen[rate], strict=True)
        ]
    return _selected(history, metric, last, mode, score, chosen)


def _selected(
    history: pd.DataFrame,
    metric: str,
    last: int,
    mode: Mode,
    score: pd.DataFrame,
    chosen: pd.DataFrame,
) -> Selected:
    # In the order of the history, which is that of the methods' names in the figures.
    order = {name: place for place, name in enumerate(dict.fromkeys(history["method"]))}
    chosen = chosen.sort_values("method", key=lambda names: names.map(order), ignore_index=True)
    winners = history.merge(chosen[PAIR], on=PAIR, how="inner")
    rates = {
        str(row["method"]): (float(row["lr"]), float(row["server_lr"]))
        for row in chosen.to_dict("records")
    }
    return Selected(metric, mode, last, score, chosen, winners, curves_of(winners), rates)


def curves_of(history: pd.DataFrame) -> Mapping[str, Curve]:
    """The curves of every method, means over seeds."""
    means = history.groupby(["method", "metric", "round"], sort=False)["value"].mean()
    curves: dict[str, dict[str, np.ndarray]] = {}
    for (method, metric), part in means.groupby(level=[0, 1], sort=False):  # pyright: ignore
        curve = curves.setdefault(str(method), {})
        curve["round"] = np.asarray(part.index.get_level_values("round"))
        curve[str(metric)] = np.asarray(part, np.float64)
    return curves


def selected_table(selected: Selected, columns: Callable[[str], Mapping[str, Any]]) -> pd.DataFrame:
    """A row per method: its best pair and ``columns(method)``; rates at the grid's edge are marked.

    A best rate at the edge says that a larger grid may hold a better one.
    """
    rows = []
    chosen = selected.chosen.to_dict("records")
    for row, edge in zip(chosen, edge_marks(selected.chosen), strict=True):
        failed = selected.score.loc[selected.score["method"] == row["method"], "score"].isna()
        rows.append(
            {name: row[name] for name in PAIR}
            | dict(columns(str(row["method"])))
            | {"at the grid's edge": edge, "failed runs": f"{np.sum(failed)} of {len(failed)}"}
        )
    return pd.DataFrame(rows)


def equal_rates_table(selected: Selected) -> pd.DataFrame:
    """Scores of all methods at equal rates, with the server rate of FedDualAvg's best pair."""
    first = "FedDualAvg" if "FedDualAvg" in selected.rates else next(iter(selected.rates))
    server_lr = selected.rates[first][1]
    rows = selected.score.loc[np.isclose(selected.score["server_lr"], server_lr)]
    wide = rows.pivot_table(
        index=["server_lr", "lr"], columns="method", values="score", sort=False, dropna=False
    )
    names = [name for name in METHODS if name in wide]
    return wide[names].reset_index().rename_axis(columns=None)
