"""Tables of the FedSWA experiments: methods on a column, ours beside the paper's.

A method's accuracy is the mean of the evaluations in a run's last 50 rounds, since a single
evaluation is noisy (FedSWA reads 61.0 % at round 195 and 57.1 % at round 200 of one run), with the
95 % interval over seeds.  The paper prints the accuracy after the last round.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.fedswa.claims import Published, claims, gains, released_variant, unfinished
from experiments.fedswa.runs import Grid, compared, edge
from experiments.fedswa.settings import (
    ACCURACY,
    METRICS,
    TEST_LOSS,
    TRAIN_LOSS,
    Options,
    Setting,
    describe,
)
from experiments.harness import (
    Report,
    interval_text,
    late_scores,
    lines,
    ordering,
    percent,
    rounded,
    rounds_by,
    settings,
    tidy,
)
from fedjax_sim import plotting
from fedjax_sim.analysis.selection import Mode, scores

LAST_ROUNDS = 50  # over which accuracies are averaged
LAST = 5  # evaluations
MEASURED: tuple[tuple[str, Mode], ...] = (
    (ACCURACY, "max"),
    (TRAIN_LOSS, "min"),
    (TEST_LOSS, "min"),
)


def comparison(
    history: pd.DataFrame,
    methods: Sequence[str],
    lrs: Mapping[str, float],
    published: Mapping[str, Published],
    target: float,
    options: Options,
) -> pd.DataFrame:
    """A row per method: accuracy in percent with the interval over seeds, rounds, ranks, the
    paper's.

    ``rounds to FedAvg`` counts the rounds to FedAvg's mean accuracy, since a shorter run or a
    smaller model may never reach the paper's target.
    """

    def by_method(score: pd.DataFrame) -> Any:
        return score.set_index("method")["score"]

    late = by_method(late_scores(history, ACCURACY, LAST_ROUNDS, "max"))
    final = by_method(scores(history, ACCURACY, mode="max"))
    top = by_method(scores(history, ACCURACY, reduce="best", mode="max"))
    train, test = (
        by_method(late_scores(history, metric, LAST_ROUNDS, "min"))
        for metric in (TRAIN_LOSS, TEST_LOSS)
    )
    reference = float(late.loc[["FedAvg"]].mean()) if "FedAvg" in methods else math.nan
    to_target = rounds_by(history, "method", ACCURACY, target / 100, "max")
    to_fedavg = {}
    if math.isfinite(reference):
        to_fedavg = rounds_by(history, "method", ACCURACY, reference, "max")
    rows = []
    for method in methods:
        paper = published.get(method)
        rows.append(
            {
                "method": method,
                "lr": lrs[method],
                "lr in its grid": edge(lrs[method], options),
                "accuracy": 100 * late.loc[[method]].to_numpy().mean(),
                "interval": interval_text(100 * late.loc[[method]].to_numpy()),
                "last evaluation": 100 * final.loc[[method]].to_numpy().mean(),
                "best": 100 * top.loc[[method]].to_numpy().mean(),
                "train loss": train.loc[[method]].mean(),
                "test loss": test.loc[[method]].mean(),
                "test - train loss": (test - train).loc[[method]].mean(),
                f"rounds to {target:g} %": to_target[method],
                "rounds to FedAvg": to_fedavg.get(method, ""),
                "paper": math.nan if paper is None else paper.accuracy,
                "paper's rounds": "" if paper is None else str(paper.rounds or "not reached"),
            }
        )
    table = pd.DataFrame(rows)
    table.insert(5, "rank", table["accuracy"].rank(ascending=False, na_option="bottom"))
    table["paper's rank"] = table["paper"].rank(ascending=False)
    return table


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table with percentages as texts; marks of the grid's edge only where there are any."""
    names = [name for name in ("accuracy", "last evaluation", "best") if name in table]
    table = table.assign(**{name: percent(table[name]) for name in names})
    return table if any(table["lr in its grid"]) else table.drop(columns="lr in its grid")


def report(
    setting: Setting,
    history: pd.DataFrame,
    methods: Sequence[str],
    lrs: Mapping[str, float],
    published: Mapping[str, Published],
    options: Options,
) -> Report:
    """Text of a table's column from the history of its runs, of methods that have any."""
    ran = [method for method in methods if method in set(history["method"])]
    table = comparison(history, ran, lrs, published, setting.target, options)
    explained = (
        f"Accuracy and losses: means of the evaluations in the last {LAST_ROUNDS} rounds; accuracy "
        "in percent with the 95 % interval over seeds; ranks are those of this mean."
    )
    text = Report(setting.name, describe(setting, options), explained)
    text.add(unfinished(history, methods, options.seeds), shown(table))
    text.add(ordering(table["accuracy"], table["paper"]))
    late = late_scores(history, ACCURACY, LAST_ROUNDS, "max")
    text.section("Gains", gains(late, published))
    accuracy = dict(zip(table["method"], table["accuracy"].tolist(), strict=True))
    text.section("The released program", released_variant(accuracy, published))
    text.claims(claims(table))
    return text


def column(
    experiment: str,
    setting: Setting,
    methods: Sequence[str],
    published: Mapping[str, Published],
    options: Options,
) -> None:
    """Runs all methods on a setting; prints and writes table, history and curves."""
    result, lrs = compared(setting, {method: [{}] for method in methods}, options)
    table = rounded(wide(result.to_frame()))
    history, name = tall(table), options.file(setting)
    text = report(setting, history, methods, lrs, published, options)
    folder, facts = options.folder(experiment), settings(options)
    text.save(folder, name, table, {name: curves(history)}, options=facts)


def curves(history: pd.DataFrame) -> Any:
    """The figure of a comparison."""
    return plotting.curves(history, list(METRICS), by="method", band="minmax")


def wide(history: pd.DataFrame) -> pd.DataFrame:
    """The table of a CSV file: a row per run and evaluation with the metrics of the reports.

    Example:
        >>> rows = [("a", 5, ACCURACY, 0.5), ("a", 5, TEST_LOSS, 1.0), ("a", 5, TRAIN_LOSS, 0.9)]
        >>> history = pd.DataFrame(rows, columns=["method", "round", "metric", "value"])
        >>> wide(history).to_dict("records")
        [{'method': 'a', 'round': 5, 'test/accuracy': 0.5, 'test/loss': 1.0, 'train/loss': 0.9}]
        >>> tall(wide(history)).equals(history)
        True
    """
    part = pd.DataFrame(history[history["metric"].isin(METRICS)])
    names = [name for name in history.columns if name not in ("metric", "value")]
    table = part.pivot(index=names, columns="metric", values="value")
    order = pd.DataFrame(part[names]).drop_duplicates()
    return order.merge(table.reset_index(), on=names).rename_axis(columns=None)


def tall(table: pd.DataFrame) -> pd.DataFrame:
    """The tidy history of a CSV file's table."""
    return tidy(table, METRICS, [name for name in table.columns if name not in METRICS])


def grid_report(
    experiment: str,
    setting: Setting,
    history: pd.DataFrame,
    grid: Grid,
    lrs: Mapping[str, float],
    published: Mapping[tuple[str, float], float],
    over: str,
    options: Options,
) -> tuple[Report, pd.DataFrame]:
    """Text and table of methods over hyper-parameters, from the history of their runs.

    ``deviation`` is the standard deviation of a run's last evaluations, a measure of how much its
    accuracy still moves; mean over seeds.
    """
    rows = []
    for method, points in grid.items():
        for point in points:
            runs = history.query("method == @method")
            for name, value in point.items():
                runs = pd.DataFrame(runs[runs[name] == value])
            late, train, test = (
                np.asarray(late_scores(runs, metric, LAST_ROUNDS, mode)["score"])
                for metric, mode in MEASURED
            )
            curves = runs.query("metric == @ACCURACY").groupby("seed")["value"]
            deviation = curves.apply(lambda values: values.tail(LAST).std()).mean()
            rows.append(
                {"method": method, "lr": lrs[method], "lr in its grid": edge(lrs[method], options)}
                | {**point, "accuracy": 100 * late.mean(), "interval": interval_text(100 * late)}
                | {"deviation": 100 * deviation, "train loss": train.mean()}
                | {"test loss": test.mean()}
                | {"paper": published.get((method, point[over]), math.nan)}
            )
    table = pd.DataFrame(rows)
    explained = (
        f"Accuracy and losses: means of the evaluations in the last {LAST_ROUNDS} rounds; "
        f"deviation: of the last {LAST} evaluations of a run, percent."
    )
    title = f"{experiment}: {setting.name}"
    return Report(title, describe(setting, options), explained, shown(table)), table


def grid_table(
    experiment: str,
    setting: Setting,
    grid: Grid,
    over: str,
    published: Mapping[tuple[str, float], float],
    options: Options,
) -> None:
    """Runs methods over a hyper-parameter; prints and writes table, history and a plot."""
    result, lrs = compared(setting, grid, options)
    runs = rounded(wide(result.to_frame()))
    history, file = tall(runs), options.file(setting)
    text, table = grid_report(experiment, setting, history, grid, lrs, published, over, options)
    names = list(dict.fromkeys(n for points in grid.values() for point in points for n in point))
    by = ["method", *(name for name in names if name != over)]
    figure = lines(table, over, "accuracy", by, label="test accuracy, %")
    folder, facts = options.folder(experiment), settings(options)
    text.save(folder, file, runs, {file: figure}, options=facts)
