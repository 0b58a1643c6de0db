"""Tables of the FedSWA experiments: methods on a column, ours beside the paper's.

A method's accuracy is the mean of the evaluations in a run's last 50 rounds, since a single
evaluation is noisy (FedSWA reads 61.0 % at round 195 and 57.1 % at round 200 of one run), with the
95 % interval over seeds.  The paper prints the accuracy after the last round.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

import fedjax_sim as fs
from experiments.fedswa.claims import Published, claims, gains, released_variant
from experiments.fedswa.histories import tall, wide
from experiments.fedswa.runs import compared, edge
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
    ordering,
    percent,
    reported_rows,
    rounds_by,
    save_report,
    settings,
    unfinished,
)

LAST_ROUNDS = 50  # over which accuracies are averaged


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
    final = by_method(fs.analysis.scores(history, ACCURACY, mode="max"))
    top = by_method(fs.analysis.scores(history, ACCURACY, reduce="best", mode="max"))
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
    train, test = (
        late_scores(history, name, LAST_ROUNDS, "min") for name in (TRAIN_LOSS, TEST_LOSS)
    )
    text.claims(claims(late, test.assign(score=test["score"] - train["score"])))
    return text


def column(
    experiment: str,
    setting: Setting,
    methods: Sequence[str],
    published: Mapping[str, Published],
    options: Options,
) -> None:
    """Runs all methods on a setting; prints and writes table, history and curves.

    Other methods and seeds of the earlier files of this report stay in it.  With
    ``options.checkpoints`` its runs of these methods are not repeated.
    """
    grid = {method: [{}] for method in methods}
    earlier = reported(experiment, setting, options)
    history, _ = compared(setting, grid, options, earlier)
    before = earlier["method"].tolist() if len(earlier) else []
    methods = list(dict.fromkeys([*before, *methods]))
    history = with_others(history, earlier, methods)
    seeds = max(options.seeds, *(seed + 1 for seed in history["seed"].tolist()))
    options = dataclasses.replace(options, methods=tuple(methods), seeds=seeds)
    facts = {"options": settings(options), "setting": setting._asdict(), "methods": list(methods)}
    facts |= {"published": {name: list(published[name]) for name in methods if name in published}}
    tables = {"": wide(history)}
    save_report(options.folder(experiment), options.file(setting), tables, build, **facts)


def reported(experiment: str, setting: Setting, options: Options) -> pd.DataFrame:
    """The tidy history of an earlier report with the same setting, or an empty one."""
    same = ("scale", "rounds", "compressed", "pilot_rounds", "pilot_on", "lrs", "pretrained")
    chosen = {name: value for name, value in settings(options).items() if name in same}
    folder, name = options.folder(experiment), options.file(setting)
    rows = reported_rows(folder, name, setting=setting._asdict(), options=chosen)
    return tall(rows) if len(rows) else rows


def with_others(
    history: pd.DataFrame, earlier: pd.DataFrame, methods: Sequence[str]
) -> pd.DataFrame:
    """A history with the runs of an earlier one that it does not have, by methods and seeds.

    Example:
        >>> history = pd.DataFrame({"method": ["b", "a"], "seed": [0, 0], "value": [0.5, 0.4]})
        >>> earlier = pd.DataFrame({"method": ["a", "a"], "seed": [0, 1], "value": [0.1, 0.2]})
        >>> with_others(history, earlier, ["a", "b"]).values.tolist()
        [['a', 0, 0.4], ['a', 1, 0.2], ['b', 0, 0.5]]
    """
    both = history
    if len(earlier):
        runs = (x.loc[:, ["method", "seed"]] for x in (history, earlier))
        mine, old = map(pd.MultiIndex.from_frame, runs)
        both = pd.concat([history, earlier.loc[~old.isin(mine), :]])
    parts = [both.loc[both["method"] == method, :] for method in methods]
    ordered = [part.sort_values("seed", kind="stable") for part in parts]
    return pd.concat(ordered, ignore_index=True)


def build(tables: dict[str, pd.DataFrame], facts: dict[str, Any]) -> tuple[Report, dict]:
    """Report and figure of a column from its files."""
    setting, options = Setting(**facts["setting"]), Options.of(facts)
    history = tall(tables[""])
    lrs = dict(zip(history["method"], history["lr"].tolist(), strict=True))
    published = {name: Published(*entry) for name, entry in facts["published"].items()}
    text = report(setting, history, facts["methods"], lrs, published, options)
    figure = fs.plotting.curves(history, list(METRICS), by="method", band="minmax")
    return text, {options.file(setting): figure}
