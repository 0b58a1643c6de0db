"""Tables and figures of the perceptron."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.heterogeneity import perceptron_bounds as bounds
from experiments.heterogeneity import perceptron_problem as problem
from experiments.heterogeneity.perceptron_bounds import Constants
from experiments.heterogeneity.perceptron_problem import (
    MODELS,
    OUTLIER,
    Case,
    Cases,
    Participation,
    Points,
    Published,
)
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.theory.fedavg.heterogeneity import limit_bound

SETTLED = 10  # heterogeneity is averaged from this round on
PLATEAU = 20  # and the gap of Figure 5 from this one


def measured(
    name: str,
    cases: Sequence[Case],
    data: Sequence[tuple[Points, Points]],
    known: Sequence[Constants],
) -> pd.DataFrame:
    """A row per participation, case, seed and round; ``data`` are the projected points."""
    rows = []
    for participation in get_args(Participation):
        for case in cases:
            seeds = range(len(data))
            given = [problem.dealt(t, s) if case.iid else t for s, (t, _) in enumerate(data)]
            clients = np.stack([problem.cohorts(participation, case.rounds, s) for s in seeds])
            longest = max(other.tau for other in cases if other.rounds == case.rounds)
            server, local = problem.paths(case, clients, MODELS[name].start, given, longest)
            for seed, (train, test) in enumerate(data):
                b, last = server[seed], Points(given[seed].x[OUTLIER], given[seed].y[OUTLIER])
                drift = bounds.slope(last, local[seed]) - bounds.slope(train.pooled, local[seed])
                columns = {"model": name, "participation": participation, "case": case.name}
                columns |= {"tau": case.tau, "seed": seed, "round": np.arange(case.rounds) + 1}
                columns |= {"b": b, "heterogeneity": np.abs(drift)}
                columns["train gap"] = bounds.gap(train.pooled, b, known[seed].optimum)
                columns["test gap"] = bounds.gap(test.pooled, b, known[seed].test_optimum)
                rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)


def per_seed(history: pd.DataFrame) -> pd.DataFrame:
    """The numbers of the tables: a row per model, participation, case and seed."""
    rows = []
    key = ["model", "participation", "case", "seed"]
    for _, run in history.groupby(key, sort=False):
        late = run.loc[run["round"] >= min(PLATEAU, len(run))]
        settled = run.loc[run["round"] >= min(SETTLED, len(run))]
        rows.append(
            {name: run[name].iloc[0] for name in key}
            | {"final b": run["b"].iloc[-1], "test gap": run["test gap"].iloc[-1]}
            | {"late test gap": late["test gap"].mean(), "late train gap": late["train gap"].mean()}
            | {"heterogeneity": settled["heterogeneity"].mean()}
        )
    return pd.DataFrame(rows)


def beside(
    summary: pd.DataFrame,
    name: str,
    participation: Participation,
    cases: Cases,
    published: Mapping[tuple[str, Case], Published],
) -> pd.DataFrame:
    """Ours, mean and standard deviation over seeds, beside the numbers on the authors' data."""
    selected = summary.loc[(summary["model"] == name) & (summary["participation"] == participation)]
    rows = []
    for case in cases.all:
        runs = selected.loc[selected["case"] == case.name]
        row: dict[str, Any] = {"case": case.name}
        for column in ("final b", "test gap", "late test gap", "heterogeneity"):
            spread = f" ± {runs[column].std():.1g}" if len(runs) > 1 else ""
            row[column] = f"{runs[column].mean():.4g}{spread}"
        if participation == "pair":
            authors = published.get((name, case), Published(np.nan, np.nan))
            row |= {"b, notebook": authors.official, "b, their data": authors.final}
            row |= {"gap, their data": authors.gap, "late gap, their data": authors.late}
            row["het., their data"] = authors.heterogeneity
        rows.append(row)
    return pd.DataFrame(rows)


def limits(
    name: str,
    summary: pd.DataFrame,
    history: pd.DataFrame,
    trains: Sequence[Points],
    known: Sequence[Constants],
    local_steps: Sequence[Case],
) -> pd.DataFrame:
    """Figure 5: measured gaps, where they end, and the bounds.

    Means over seeds, but for the shadow iterates' gap, which is the first seed's.  "bound" is the
    report's Equation 2 with its zeta and L, "bound (1)" Equation 1 with the suprema it asks for.
    """
    means = summary.loc[summary["model"] == name].groupby(["participation", "case"])
    means = means.mean(numeric_only=True)
    zeta = float(means["heterogeneity"].loc["pair", local_steps[-1].name])
    ends = [bounds.ends(train, c) for train, c in zip(trains, known, strict=True)]
    few, pair, full = np.mean(ends, axis=0)
    first = history.loc[(history["model"] == name) & (history["participation"] == "full")]
    first = first.loc[first["seed"] == 0]
    rows = []
    for case in local_steps:
        late, key = means["late train gap"], ("pair", case.name)
        server = np.asarray(first.loc[first["case"] == case.name, "b"])
        limit = [
            limit_bound(ProblemConstants(L=c.L, zeta=zeta), lr=problem.LR, local_steps=case.tau)
            for c in known
        ]
        whole = [bounds.bound(c, c.client_L, case.tau, case.rounds) for c in known]
        rows.append(
            {"tau": case.tau, "pair, test": means["late test gap"].loc[key], "pair": late.loc[key]}
            | {"pair, few steps": few, "pair, many steps": pair}
            | {"full": late.loc["full", case.name], "full, many steps": full}
            | {"full, shadow": bounds.shadow_gap(trains[0], server, MODELS[name].start, case.tau)}
            | {"bound": np.mean(limit), "bound (1)": np.mean(whole)}
        )
    return pd.DataFrame(rows)


def figure(
    name: str, history: pd.DataFrame, gaps: pd.DataFrame, points: Points, c: Constants, cases: Cases
) -> Any:
    """Figures 2, 3 and 5 of the report, lines of the first seed, and the gaps of full rounds."""
    drawn, axes = plt.subplots(2, 3, figsize=(14, 8), layout="constrained")
    first = history.loc[(history["model"] == name) & (history["seed"] == 0)]
    runs: dict[tuple[str, str], pd.DataFrame] = {
        (str(p), str(case)): run for (p, case), run in first.groupby(["participation", "case"])
    }
    w, x = MODELS[name].slope, np.linspace(-1.0, 5.0, 2)
    axes[0, 0].scatter(*points.pooled.x.T, c=points.pooled.y, s=2, cmap="coolwarm")
    for i, case in enumerate((*cases.local_steps, cases.iid)):
        color, run = f"C{i}", runs["pair", case.name]
        b = run["b"].iloc[-1]
        axes[0, 0].plot(x, (-b - w[0] * x) / w[1], color, label=case.name)
        axes[0, 1].semilogy(run["round"], run["test gap"].clip(lower=1e-8), color, label=case.name)
        axes[0, 2].plot(run["round"], run["heterogeneity"], color, label=case.name)
        run = runs["full", case.name]
        axes[1, 0].semilogy(run["round"], run["train gap"].clip(lower=1e-8), color, label=case.name)
    rounds = np.arange(1, 51)
    one_step = [bounds.bound(c, c.L, 1, int(R)) for R in rounds]
    for axis in (axes[0, 1], axes[1, 0]):
        axis.semilogy(rounds, one_step, "k:", label="bound, tau 1")
    for i, case in enumerate(cases.proximal):
        for participation, style in (("pair", "-"), ("full", "--")):
            run, label = runs[participation, case.name], f"{case.name}, {participation}"
            axes[1, 1].plot(run["round"], run["test gap"], f"C{i}{style}", label=label)
    for column, style in (("bound", "ks-"), ("pair, test", "C0o-"), ("full", "C1o-")):
        axes[1, 2].loglog(gaps["tau"], gaps[column], style, label=column)
    for column, color in (("pair, many steps", "C0"), ("full, many steps", "C1")):
        axes[1, 2].axhline(gaps[column].iloc[0], color=color, ls=":", label=column)
    axes[0, 0].set(title="Separators after 50 rounds, pair", xlim=(-1, 5), ylim=(-1, 5.5))
    axes[0, 1].set(title="Test loss above its minimum, pair", xlabel="round")
    axes[0, 2].set(title="|F_19' - F'| at client 19's last b, pair", xlabel="round")
    axes[1, 0].set(title="Train loss above its minimum, full", xlabel="round")
    axes[1, 1].set(title="Test loss above its minimum", xlabel="round")
    axes[1, 2].set(title="Gap and bound", xlabel="tau")
    for axis in axes.flat:
        axis.legend(frameon=False, fontsize=7)
    return drawn


def constants_table(known: Sequence[Constants]) -> pd.DataFrame:
    """Means and standard deviations of the constants over seeds."""
    rows = [c._asdict() | {"optima": c.optima[:OUTLIER].mean()} for c in known]
    scalars = pd.DataFrame(rows).rename(columns={"optima": "mean optimum, clients 0 to 18"})
    table = pd.DataFrame({"constant": scalars.columns, "mean": np.asarray(scalars.mean())})
    table["std over seeds"] = np.asarray(scalars.std())
    return table
