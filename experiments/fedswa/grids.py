"""Tables of methods over hyper-parameters, ours beside the paper's."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedswa.comparison import LAST_ROUNDS, shown
from experiments.fedswa.histories import tall, wide
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
    save_report,
    settings,
)

LAST = 5  # evaluations
MEASURED: tuple[tuple[str, fs.analysis.Mode], ...] = (
    (ACCURACY, "max"),
    (TRAIN_LOSS, "min"),
    (TEST_LOSS, "min"),
)


def grid_table(
    experiment: str,
    setting: Setting,
    grid: Grid,
    over: str,
    published: Mapping[tuple[str, float], float],
    options: Options,
) -> None:
    """Runs methods over a hyper-parameter; prints and writes table, history and a plot."""
    history, _ = compared(setting, grid, options)
    facts = {"options": settings(options), "setting": setting._asdict(), "over": over}
    facts |= {"published": [[*key, value] for key, value in published.items()]}
    tables = {"": wide(history)}
    folder = options.folder(experiment)
    save_report(folder, options.file(setting), tables, build, experiment=experiment, **facts)


def build(tables: dict[str, pd.DataFrame], facts: dict[str, Any]) -> tuple[Report, dict]:
    """Report and figure of a table over hyper-parameters from its files."""
    setting, options, runs = Setting(**facts["setting"]), Options.of(facts), tables[""]
    other = ("method", "lr", "seed", "diverged_at", "round", *METRICS)
    names = [name for name in runs.columns if name not in other]
    grid: dict[str, Any] = {
        str(method): pd.DataFrame(part[names]).dropna(axis=1).drop_duplicates().to_dict("records")
        for method, part in runs.groupby("method", sort=False)
    }
    lrs = dict(zip(runs["method"], runs["lr"].tolist(), strict=True))
    over, published = facts["over"], {(m, at): value for m, at, value in facts["published"]}
    text, table = report(
        facts["experiment"], setting, tall(runs), grid, lrs, published, over, options
    )
    by = ["method", *(name for name in names if name != over)]
    figure = lines(table, over, "accuracy", by, label="test accuracy, %")
    return text, {options.file(setting): figure}


def report(
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
