"""Reports of the federated LASSO and of low-rank estimation."""

import pathlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.fco import reports
from experiments.fco.claims import judged
from experiments.fco.methods import BEST, BEST_OF_OTHERS
from experiments.fco.recovery import (
    EVAL_EVERY,
    LAST_ROUNDS,
    DataSet,
    Experiment,
    Options,
    make_problem,
    trained,
)
from experiments.fco.selection import (
    PAIR,
    RUN,
    Curve,
    Selected,
    curves_of,
    ends_of,
    load,
    select,
    widened,
)
from experiments.fco.tables import fastest_table, grid_text, selected_table
from experiments.harness.options import check_names, settings
from experiments.harness.report import Report, earlier_commands

ROUNDS = (50, 100, 200, 300, 500)  # in tables
LOSSES = ("train/loss", "test/mse")
TIE_BREAK = 1e-6
TIES = (
    "Of pairs with equal scores the one with the best mean over all rounds is selected: a "
    "millionth of that mean is part of the score."
)
START = {"glorot": "Glorot-uniform weights without a bias", "zeros": "zeros"}
KINDS = ("references", "thesis")  # of further tables


def scored(
    history: pd.DataFrame, experiment: Experiment, initial_losses: np.ndarray
) -> pd.DataFrame:
    """The score of every run: the metric's mean over the last 100 rounds, NaN if it diverged.

    A run that ends above its seed's initial training loss has diverged, too: entries that grow
    without bound are a support like any other.  Several pairs may recover the truth perfectly: a
    millionth of the mean over all rounds is added, so that the one that is best all along is
    selected.
    """
    count = len(set(history["round"]))
    last, whole = (
        fs.analysis.scores(history, experiment.score, PAIR, last=evaluations, mode=experiment.mode)
        for evaluations in (min(LAST_ROUNDS // EVAL_EVERY, count), count)
    )
    loss = fs.analysis.scores(history, "train/loss", PAIR)["score"]
    initial_loss = initial_losses[last["seed"].to_numpy(dtype=int)]
    score = last["score"] + TIE_BREAK * whole["score"]
    return last.assign(score=score.where(loss <= initial_loss))


def first_rounds(history: pd.DataFrame, experiment: Experiment, sizes: DataSet) -> pd.DataFrame:
    """The first evaluated round of the experiment's event in every run, infinite if none."""
    wide = history.pivot_table(
        index=[*RUN, "round"], columns="metric", values="value", sort=False
    ).reset_index()
    columns = {str(metric): wide[metric].to_numpy() for metric in wide}
    happened = wide.loc[experiment.reaches(sizes, columns), :]
    runs = pd.MultiIndex.from_frame(history.loc[:, RUN].drop_duplicates())
    first = happened.groupby(RUN)["round"].min().astype(float).reindex(runs)
    return first.fillna(np.inf).rename(experiment.event).reset_index()


def reference_table(history: pd.DataFrame, references: Any) -> pd.DataFrame:
    """A row per pair and metric of the reference program that was run here, too."""
    rows = []
    for reference in references:
        pair = dict(zip(PAIR, reference[:3], strict=True))
        curve = curves_of(history.merge(pd.DataFrame([pair]), on=PAIR)).get(reference.method)
        at = [] if curve is None else np.isin(curve["round"], list(reference.values))
        if curve is None or not np.any(at):
            continue
        rounds, here = curve["round"][at], curve[reference.metric][at]
        there = np.array([reference.values[int(done)] for done in rounds])
        both = np.isfinite(here) & np.isfinite(there)
        values = {"rounds": rounds, "here": here, "reference": there}
        rows.append(
            {**pair, "metric": reference.metric}
            | {name: " / ".join(f"{v:.4g}" for v in value) for name, value in values.items()}
            | {"largest difference": np.abs(here - there)[both].max(initial=0)}
        )
    return pd.DataFrame(rows)


def fixed_table(history: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """A row per method, metric and seed at the thesis's rates of the LASSO's set I."""
    metrics, rows = dict.fromkeys((experiment.score, experiment.structure)), []
    for method in dict.fromkeys(history["method"]):
        lr, server_lr = BEST if method == "FedDualAvg" else BEST_OF_OTHERS
        pair = {"method": method, "lr": lr, "server_lr": server_lr}
        run = history.merge(pd.DataFrame([pair]), on=PAIR)
        for metric in metrics if len(run) else ():
            values = run.loc[run["metric"] == metric, :].pivot(
                index="seed", columns="round", values="value"
            )
            rows += [
                {**pair, "metric": metric, "seed": seed}
                | {f"round {done}": row[done] for done in ROUNDS if done in row.index}
                for seed, row in values.iterrows()
            ]
    return pd.DataFrame(rows)


def fixed_means(table: pd.DataFrame) -> pd.DataFrame:
    """The means over seeds of :func:`fixed_table`, and the least and largest last values."""
    if not len(table):
        return table
    rounds = [name for name in table if name.startswith("round ")]
    groups = table.groupby([*PAIR, "metric"], sort=False)
    last = groups[rounds[-1]]
    return (
        groups.agg(seeds=("seed", "size"), **{name: (name, "mean") for name in rounds})
        .assign(**{"last, least": last.min(), "last, largest": last.max()})
        .reset_index()
    )


def at_thesis(selected: Selected, table: pd.DataFrame) -> Selected:
    """The runs at the thesis's rates instead of the selected ones, from :func:`fixed_table`."""
    history = table.melt([*RUN, "metric"], var_name="round")
    history = history.assign(round=history["round"].str.removeprefix("round ").astype(int))
    pairs = zip(table["method"], zip(table["lr"], table["server_lr"], strict=True), strict=True)
    return selected._replace(curves=curves_of(history), rates=dict(pairs), last=1, winners=history)


def describe(name: str, experiment: Experiment, options: Options) -> str:
    """The part of the paper's setting that was run."""
    return (
        f"{experiment.described.format(**experiment.sets[name]._asdict())}; lambda "
        f"{experiment.penalty_weight(options):g}, features times {options.feature_scale:g}; "
        f"{options.rounds} rounds from {START[options.start]}"
    )


def columns(experiment: Experiment, selected: Selected, method: str) -> dict[str, Any]:
    """The selected run of a method: its score, the metric at some rounds, the last values."""
    curve: Curve = selected.curves[method]
    mean = selected.chosen.loc[selected.chosen["method"] == method, "mean"].iloc[0]
    along = zip(curve["round"], curve[experiment.score], strict=True)
    return (
        {"score": mean}
        | {f"{experiment.score}, round {r}": float(v) for r, v in along if r in ROUNDS}
        | {f"last {m}": float(curve[m][-1]) for m in (*experiment.shown, *LOSSES)}
    )


def build(
    experiment: Experiment,
    name: str,
    selected: Selected,
    tables: Mapping[str, pd.DataFrame],
    facts: Mapping[str, Any],
) -> tuple[Report, dict[str, Figure]]:
    """Text and figures of a data set."""
    least = ", ".join(f"{metric} {value:.4g}" for metric, value in facts["optimum"].items())
    report = Report(
        f"{experiment.title}, set {name}",
        f"{facts['setting']}; {grid_text(selected)}.  Centralised optimum: {least}.",
    )
    report.section(
        f"Best rates, by the mean {experiment.score} over the last {LAST_ROUNDS} rounds",
        TIES,
        selected_table(selected, lambda method: columns(experiment, selected, method)),
    )
    report.section(
        "At the thesis's rates of the LASSO's set I, whatever is selected",
        fixed_means(tables["thesis"]),
    )
    if len(tables["thesis"]):
        fixed = at_thesis(selected, tables["thesis"])
        report.claims(judged(name, experiment.statements, selected, fixed))
    report.section(
        f"Fastest pairs, by the {experiment.event}, evaluated every {EVAL_EVERY} rounds",
        fastest_table(selected, experiment.event),
    )
    report.section("Beside an independent program with other draws", tables["references"])
    rounds = np.asarray(selected.winners["round"])
    flat = [
        {"method": "optimum", "seed": 0, "round": done, "metric": metric, "value": value}
        for metric, value in facts["optimum"].items()
        for done in {int(rounds.min()), int(rounds.max())}
    ]
    lines = pd.concat([selected.winners, pd.DataFrame(flat)], ignore_index=True)
    shown = selected._replace(winners=lines)
    curves = reports.curves_figure(shown, (*experiment.shown, *LOSSES))
    for axes in curves.axes[len(experiment.shown) :]:
        axes.set_yscale("log")
    return report, {name: curves, f"{name}-rates": reports.rates_figure(selected)}


def conduct(experiment: Experiment, options: Options) -> None:
    """Runs the data sets and writes their reports."""
    fs.execution.use_all_cores(threads=4)  # the metrics contain singular values of matrices
    check_names("sets", options.sets, experiment.sets)
    for name in options.sets:
        problem = make_problem(experiment, name, options)
        history = trained(experiment, name, problem.shared, options)
        score = scored(history, experiment, problem.initial_losses())
        last = LAST_ROUNDS // EVAL_EVERY
        shown = history.loc[history["metric"].isin([*experiment.shown, *LOSSES])]
        first = first_rounds(shown, experiment, experiment.sets[name])
        late = ends_of(shown, [experiment.structure], min(last, shown["round"].nunique()))
        ends = first.merge(late, on=RUN)
        selected = select(shown, experiment.score, last, experiment.mode, score, ends)
        usual = options.feature_scale == 1 and options.start == "zeros"
        usual &= experiment.penalty_weight(options) == experiment.weight
        known = experiment.references.get(name, []) if usual else []
        tables = {
            "references": reference_table(history, known),
            "thesis": fixed_table(history, experiment),
        }
        facts = {
            "options": settings(options),
            "setting": describe(name, experiment, options),
            "optimum": problem.optimum(),
        }
        folder = options.output / f"{experiment.name}{options.variant()}"
        if options.widen:
            kept = load(folder, name, experiment.score, last, experiment.mode)
            selected = widened(kept, selected)
            facts |= earlier_commands(folder, name)
            tables = {kind: reports.read_table(folder, f"{name}-{kind}") for kind in KINDS}
        reports.save(partial(build, experiment, name), folder, name, selected, tables, facts)


def redraw(experiment: Experiment, folder: pathlib.Path, name: str, grids: bool = False) -> None:
    """Writes the report of a data set again from its kept files."""
    selected = load(folder, name, experiment.score, LAST_ROUNDS // EVAL_EVERY, experiment.mode)
    written = partial(build, experiment, name)
    reports.redraw(written, folder, name, selected, KINDS, grids)
