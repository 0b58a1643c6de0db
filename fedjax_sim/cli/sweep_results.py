"""Tables and figures of a finished sweep."""

import contextlib
import fnmatch
import pathlib
from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from fedjax_sim.cli.grid import SweepOptions, mode_of
from fedjax_sim.reports import (
    best,
    bounds_of,
    metric_label,
    paired_differences,
    render,
    score_values,
    scores,
    speed_up,
    table,
)
from fedjax_sim.reports.figures import (
    client_distribution,
    heat_map,
    sensitivity,
    speed_up_figure,
)
from fedjax_sim.runs import Sweep

# Tables and figures that only some grids have; see results_of.
_OF_GRID = (
    "best.csv", "paired.csv", "cells.md", "privacy.csv", "speed_up.*", "clients.csv",
    "over_*.png", "sensitivity_*.png", "heat_map_*.png", "clients_*.png",
)  # fmt: skip


class SweepResult(NamedTuple):
    """Results of a sweep; the files of its output folder hold the same.

    The frames are empty if the sweep is a part and runs of other parts are missing.
    """

    history: pd.DataFrame  # algorithm, hyper-parameters, seed, round, metric, value, diverged_at
    scores: pd.DataFrame  # a row per run
    best: pd.DataFrame  # a row per algorithm and cell
    sweep: Sweep


def no_results(result: Sweep) -> SweepResult:
    """Returns empty frames, of a sweep without runs or with runs that others have to finish."""
    none = result._replace(runs=[]).to_frame()
    return SweepResult(none, none, none, result)


def results_of(config: SweepOptions, result: Sweep) -> tuple[SweepResult, dict[str, Any]]:
    """Returns the results of the finished runs, with the files that hold them by name.

    Those of the speed-up are not among them, see :func:`speed_up_of`.
    """
    history = result.to_frame()
    if history.empty:
        return no_results(result), {}
    mode = mode_of(config)
    score = scores(
        history,
        config.score_metric,
        last=config.last,
        reduce="best" if config.best else "mean",
        mode=mode,
    )
    files: dict[str, Any] = {"history.csv": history, "scores.csv": score}
    complete = _complete(score, config.run.seeds)
    if complete.empty:
        return SweepResult(history, score, complete, result), files
    cells = _cells(config)
    bounds = bounds_of(config.score_metric, score_values(complete))
    chosen = best(complete, per=["algorithm", *cells], mode=mode, bounds=bounds)
    files["best.csv"] = chosen
    label = metric_label(config.score_metric)
    if config.run.seeds > 1:
        # Of a part of a model, metrics of the server's model mean nothing.
        personal = config.score_metric.startswith("personal/")
        alone = [] if personal else [*result.partial_models]
        whole = complete.loc[~complete["algorithm"].isin(alone), :]
        if len(set(whole["algorithm"])) > 1:
            files["paired.csv"] = _paired(whole, cells, mode)
    if len(config.cells) == 2:
        rows, columns = config.cells
        files["cells.md"] = render(table(chosen, ["algorithm", rows], columns)) + "\n"
    files |= {f"{name}.png": x for name, x in _figures(config, complete, label).items()}
    clients = result.per_client()
    if not clients.empty:
        files["clients.csv"] = clients
        files |= _distributions(clients, chosen, mode)
    return SweepResult(history, score, chosen, result), files


def speed_up_of(config: SweepOptions, results: SweepResult) -> dict[str, Any]:
    """Returns the table and the figure of the speed-up by the names of their files."""
    if config.over is None or config.reference is None or results.best.empty:
        return {}
    mode, label = mode_of(config), metric_label(config.score_metric)
    others = ["algorithm", *(name for name in config.cells if name != config.over)]
    complete = _complete(results.scores, config.run.seeds)
    curve = speed_up(complete, config.over, per=others, mode=mode, reference=config.reference)
    panel = next((name for name in others if name != "algorithm"), None)
    error = f"{label} - {config.reference:g}" if config.reference else label
    if mode == "max":
        error = f"{config.reference:g} - {label}"
    figure = speed_up_figure(curve, config.over, by="algorithm", panel=panel, label=error)
    return {"speed_up.csv": curve, "speed_up.png": figure}


def outdated(written: Iterable[str], files: Collection[str]) -> list[str]:
    """Returns the names of tables and figures of an earlier grid, which ``files`` replace."""
    return [
        name
        for name in written
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _OF_GRID)
        and name not in files
        and pathlib.PurePath(name).name == name
    ]


def _cells(config: SweepOptions) -> list[str]:
    """Returns the names for each of whose values a best configuration is chosen."""
    over = [] if config.over in (None, *config.cells) else [config.over]
    return [*over, *config.cells]


def _paired(score: pd.DataFrame, cells: list[str], mode: Literal["max", "min"]) -> pd.DataFrame:
    """Returns the paired differences of algorithms in every cell, and the cell before them."""
    if not cells:
        return paired_differences(score, mode=mode)
    tables = []
    for _, part in score.groupby(cells, sort=False, dropna=False):
        if len(set(part["algorithm"])) > 1:
            table = paired_differences(part, mode=mode)
            for i, name in enumerate(cells):
                table.insert(i, name, part[name].iloc[0])
            tables.append(table)
    return pd.concat(tables) if tables else pd.DataFrame(columns=cells)


def _figures(config: SweepOptions, score: pd.DataFrame, label: str) -> dict[str, Figure]:
    """Returns per algorithm the sensitivity to every swept number, and a heat map of two.

    The figure over a number of clients has a curve per algorithm.
    """
    figures, mode = {}, mode_of(config)
    if config.over is not None:
        bounds = bounds_of(config.score_metric, score_values(score))
        figures[f"over_{config.over}"] = sensitivity(
            score, config.over, by="algorithm", mode=mode, label=label, bounds=bounds
        )
    for algorithm in score["algorithm"].unique():
        own = score.loc[score["algorithm"] == algorithm].dropna(axis="columns", how="all")
        if "score" not in own:  # all diverged
            continue
        swept = [
            name
            for name in own
            if name not in ("seed", "score", "diverged_at", config.over)
            and pd.api.types.is_numeric_dtype(own[name])
            and own[name].nunique() > 1
        ]
        for name in swept:
            key = f"sensitivity_{algorithm}_{name}"
            bounds = bounds_of(config.score_metric, score_values(own))
            figures[key] = sensitivity(own, name, mode=mode, label=label, bounds=bounds)
        if len(swept) > 1:
            drawn = heat_map(own, swept[0], swept[1], mode=mode, label=label)
            figures[f"heat_map_{algorithm}"] = drawn
    return figures


def _distributions(
    clients: pd.DataFrame, chosen: pd.DataFrame, mode: Literal["max", "min"]
) -> dict[str, Figure]:
    """Returns the distributions of accuracies over clients, a figure per split.

    Of each algorithm they show the configuration that is best in all cells.
    """
    if "accuracy" not in clients:
        return {}
    ranked = chosen.sort_values("mean", ascending=mode == "min").drop_duplicates("algorithm")
    names = [name for name in clients if name in ranked]
    values = clients.merge(ranked[names], on=names)
    figures = {}
    for split in values["split"].unique():
        with contextlib.suppress(ValueError):  # no finite value
            figure = client_distribution(values, "accuracy", split=split)
            figures[f"clients_{split.replace('/', '_')}.png"] = figure
    return figures


def _complete(score: pd.DataFrame, num_seeds: int) -> pd.DataFrame:
    """Returns the configurations with all their seeds; an interrupted sweep has others, too."""
    names = [name for name in score if name not in ("seed", "score", "diverged_at")]
    counts = score.groupby(names, dropna=False)["seed"].transform("size")
    return score.loc[counts == num_seeds]
