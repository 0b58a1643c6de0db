"""From the sweeps of the composite experiments to tables, claims and figures."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.fco_common import (
    EVALUATED,
    LAST_ROUNDS,
    LRS,
    Claim,
    Curve,
    Curves,
    Experiment,
    Options,
    Problem,
    Rates,
    check_names,
    optimum,
    penalty_weight,
    problem,
    run,
    start_loss,
    variant,
)
from experiments.output import write
from fedjax_sim import plotting
from fedjax_sim.analysis.selection import best, scores
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.execution.devices import use_all_cores
from fedjax_sim.plotting import heat_maps

Check = Callable[[Curves, Rates], tuple[str, bool]]
PAIR = ["method", "lr", "server_lr"]
ROUNDS = (50, 100, 200, 300, 500)  # in tables
LOSSES = ("train/loss", "test/mse")
TIE_BREAK = 1e-6


Condition = Callable[[Curve], np.ndarray]  # in which evaluations something holds


def first_round(curve: Curve, holds: Condition) -> float:
    """The first evaluated round in which it holds; infinity if there is none."""
    rounds = curve["round"][holds(curve)]
    return float(rounds[0]) if len(rounds) else math.inf


def said(rounds: Mapping[str, float]) -> str:
    """Of every method the round."""
    texts = {m: f"round {at:.0f}" if math.isfinite(at) else "never" for m, at in rounds.items()}
    return ", ".join(f"{method} {text}" for method, text in texts.items())


def within(method: str, holds: Condition, bound: int) -> Check:
    """Whether something holds for the first time before a round."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        at = first_round(curves[method], holds)
        return said({method: at}), at < bound

    return check


def not_within(method: str, holds: Condition, bound: int) -> Check:
    """Whether it holds only after a round, or never."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        text, _ = within(method, holds, bound)(curves, rates)
        return text, first_round(curves[method], holds) > bound

    return check


def fastest(method: str, holds: Condition) -> Check:
    """Whether it holds for a method before it does for any other."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        at = {m: first_round(curve, holds) for m, curve in curves.items()}
        return said(at), all(at[method] < other for m, other in at.items() if m != method)

    return check


def at_end(method: str, metric: str, holds: Callable[[float], bool]) -> Check:
    """Whether it holds for the last value of a metric."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        value = float(curves[method][metric][-1])
        return f"{value:.4g}", holds(value)

    return check


def largest_rate(curves: Curves, rates: Rates) -> tuple[str, bool]:
    """Whether FedDualAvg's client rate is above all others."""
    del curves
    found = ", ".join(f"{m} {lr:g}" for m, (lr, _) in rates.items())
    ours = rates["FedDualAvg"][0]
    return found, all(ours > lr for m, (lr, _) in rates.items() if m != "FedDualAvg")


def scored(history: pd.DataFrame, experiment: Experiment, at_start: float) -> pd.DataFrame:
    """The score of every run: the metric's mean over the last 100 rounds, NaN if it diverged.

    A run that ends above the training loss of the start has diverged, too: entries that grow
    without bound are a support like any other.  Several pairs may recover the truth perfectly: a
    millionth of the mean over all rounds is added, so that of these the fastest is the best.
    """
    count = len(set(history["round"]))
    last, whole = (
        scores(history, experiment.score, PAIR, last=evaluations, mode=experiment.mode)
        for evaluations in (min(LAST_ROUNDS // EVALUATED, count), count)
    )
    loss = scores(history, "train/loss", PAIR)["score"]
    score = last["score"] + TIE_BREAK * whole["score"]
    return last.assign(score=score.where(loss <= at_start))


def selected(history: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """The histories of every method's best pair, of all seeds."""
    return history.merge(chosen[PAIR], on=PAIR, how="inner")


def curves_of(history: pd.DataFrame) -> Mapping[str, Curve]:
    """By method, means over seeds."""
    means = history.groupby(["method", "metric", "round"], sort=False)["value"].mean()
    curves: dict[str, dict[str, np.ndarray]] = {}
    for (method, metric), part in means.groupby(level=[0, 1], sort=False):  # pyright: ignore
        curve = curves.setdefault(str(method), {})
        curve["round"] = np.asarray(part.index.get_level_values("round"))
        curve[str(metric)] = np.asarray(part, np.float64)
    return curves


def along(curve: Curve, metric: str) -> dict[str, float]:
    """A metric at the rounds of the tables that the run has."""
    return {
        f"{metric}, round {done}": float(value)
        for done, value in zip(curve["round"], curve[metric], strict=True)
        if done in ROUNDS
    }


def selected_table(
    chosen: pd.DataFrame, curves: Curves, score: pd.DataFrame, experiment: Experiment
) -> pd.DataFrame:
    """A row per method: its best pair, the score, what was reached when."""
    rows = []
    for row in chosen.to_dict("records"):
        curve = curves[str(row["method"])]
        failed = score.loc[score["method"] == row["method"], "score"].isna()
        edge = row["lr_at_edge"] or row["server_lr_at_edge"]
        rows.append(
            {name: row[name] for name in PAIR}
            | {"score": row["mean"]}
            | along(curve, experiment.score)
            | {f"last {m}": float(curve[m][-1]) for m in (*experiment.shown, *LOSSES)}
            | {"at the grid's edge": "yes" if edge else ""}
            | {"failed runs": f"{np.sum(failed)} of {len(failed)}"}
        )
    return pd.DataFrame(rows)


def reference_table(history: pd.DataFrame, name: str, experiment: Experiment) -> pd.DataFrame:
    """A row per pair and metric of the reference program that was run here, too."""
    rows = []
    for reference in experiment.references.get(name, []):
        pair = dict(zip(PAIR, reference[:3], strict=True))
        curve = curves_of(history.merge(pd.DataFrame([pair]), on=PAIR)).get(reference.method)
        at = [] if curve is None else np.isin(curve["round"], list(reference.values))
        if curve is None or not np.any(at):
            continue
        rounds, here = curve["round"][at], curve[reference.metric][at]
        there = np.array([reference.values[int(done)] for done in rounds])
        both = np.isfinite(here) & np.isfinite(there)
        rows.append(
            {
                **pair,
                "metric": reference.metric,
                "rounds": _joined(rounds),
                "here": _joined(here),
                "reference": _joined(there),
                "largest difference": np.abs(here - there)[both].max(initial=0),
            }
        )
    return pd.DataFrame(rows)


def claims_table(name: str, claims: Sequence[Claim], curves: Curves, rates: Rates) -> pd.DataFrame:
    """A row per claim of the paper that the methods that were run can be held against."""
    rows = []
    for claim in claims:
        if name in claim.sets and all(method in curves for method in claim.methods):
            found, holds = claim.check(curves, rates)
            rows.append({"claim": claim.text, "found": found, "holds": "yes" if holds else "no"})
    return pd.DataFrame(rows)


def describe(name: str, experiment: Experiment, options: Options) -> str:
    """What was run of the paper's setting."""
    small = [lr for lr in options.lrs if lr < min(LRS)]
    return (
        f"{experiment.described.format(**experiment.sets[name]._asdict())}; lambda "
        f"{penalty_weight(experiment, options):g}, features times {options.feature_scale:g}; "
        f"{options.rounds} rounds, {len(options.lrs)} client rates ({len(small)} below the "
        f"paper's), {len(options.server_lrs)} server rates, "
        f"{options.seeds} seed{'s' if options.seeds > 1 else ''}"
    )


def conduct(experiment: Experiment, options: Options) -> None:
    """Runs the data sets, prints and writes what was found."""
    use_all_cores(threads=4)  # singular values of matrices among what is computed
    check_names("sets", options.sets, experiment.sets)
    for name in options.sets:
        shared = problem(experiment, name, options)
        history = pd.concat(
            [run(experiment, name, shared, method, options) for method in options.methods],
            ignore_index=True,
        )
        report(experiment, name, shared, history, options)


def report(
    experiment: Experiment, name: str, shared: Problem, history: pd.DataFrame, options: Options
) -> None:
    """Text, tables and figures of one data set."""
    score = scored(history, experiment, start_loss(shared))
    chosen = best(score, per="method", mode=experiment.mode)
    winners = selected(history, chosen)
    curves = curves_of(winners)
    rates = {
        str(row["method"]): (float(row["lr"]), float(row["server_lr"]))
        for row in chosen.to_dict("records")
    }
    least = optimum(shared)
    centralised = ", ".join(f"{metric} {value:.4g}" for metric, value in least.items())
    sections = {
        f"Best rates, by the mean {experiment.score} over the last {LAST_ROUNDS} rounds": (
            selected_table(chosen, curves, score, experiment)
        ),
        "The paper's claims": claims_table(name, experiment.claims, curves, rates),
    }
    if options.feature_scale == 1 and penalty_weight(experiment, options) == experiment.weight:
        beside = "Beside an independent program with other draws"
        sections[beside] = reference_table(history, name, experiment)
    parts = [
        f"# {experiment.title}, set {name}",
        f"{describe(name, experiment, options)}.  Centralised optimum: {centralised}.",
        *(f"## {head}\n\n{markdown(table)}" for head, table in sections.items() if len(table)),
    ]
    text = "\n\n".join(parts)
    print(text, flush=True)
    folder = options.output / f"{experiment.name}{variant(options)}"
    kept = winners.loc[~winners["metric"].isin(["time", "local_steps"]), :]
    write(folder, name, kept, text, options=dataclasses.asdict(options))
    score.to_csv(
        folder / f"{name}-scores.csv", index=False, lineterminator="\n", float_format="%.5g"
    )
    draw(folder, name, winners, score, least, experiment)


def draw(
    folder: pathlib.Path,
    name: str,
    winners: pd.DataFrame,
    score: pd.DataFrame,
    least: Mapping[str, float],
    experiment: Experiment,
) -> None:
    """Curves of the selected runs, and of every method the scores of all pairs."""
    ends = {int(np.min(winners["round"])), int(np.max(winners["round"]))}
    flat = [
        {"method": "optimum", "seed": 0, "round": done, "metric": metric, "value": value}
        for metric, value in least.items()
        for done in ends
    ]
    shown = pd.concat([winners, pd.DataFrame(flat)], ignore_index=True)
    shown = shown.rename(columns={"method": "algorithm"})
    figure = plotting.curves(shown, experiment.shown, band="minmax", max_columns=2)
    figure.savefig(folder / f"{name}.png", dpi=90)
    figure = plotting.curves(shown, LOSSES, band="minmax", yscale="log")
    figure.savefig(folder / f"{name}-losses.png", dpi=90)
    for method, part in score.groupby("method", sort=False):
        pairs = part.drop(columns="method")
        label = f"{method}: {experiment.score}"
        figure = heat_maps.heat_map(pairs, "lr", "server_lr", mode=experiment.mode, label=label)
        figure.savefig(folder / f"{name}-{str(method).lower()}-grid.png", dpi=80)


def _joined(values: Any) -> str:
    return " / ".join(f"{value:.4g}" for value in values)
