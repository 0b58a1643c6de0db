"""Tables and figures of the perceptron."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness.figures import legends
from experiments.harness.report import Report
from experiments.heterogeneity import perceptron_bounds as bounds
from experiments.heterogeneity import perceptron_problem as problem
from experiments.heterogeneity.claims import claims
from experiments.heterogeneity.limits import limit_bound
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
from fedjax_sim.reports.figures import legend_above

SETTLED = 10  # heterogeneity is averaged from this round on
PLATEAU = 20  # and the gap of Figure 5 from this one
ONE_STEP = "bound, tau 1"  # a line of the figure


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
        start = MODELS[run["model"].iloc[0]].start
        rows.append(
            {name: run[name].iloc[0] for name in key}
            | {"final b": run["b"].iloc[-1], "test gap": run["test gap"].iloc[-1]}
            | {"late test gap": late["test gap"].mean(), "late train gap": late["train gap"].mean()}
            | {"heterogeneity": settled["heterogeneity"].mean()}
            | {"rounds": problem.rounds_to_settle(run["b"].tolist(), start, len(late))}
        )
    return pd.DataFrame(rows)


def averaged(history: pd.DataFrame, points: int = 20) -> pd.DataFrame:
    """Means over seeds after about ``points`` rounds, evenly on a logarithmic scale."""
    kept = set(np.geomspace(1, max(history["round"]), points).round().tolist())
    columns = ["model", "participation", "case", "round"]
    groups = history.loc[history["round"].isin(list(kept))].groupby(columns, sort=False)
    return groups[["test gap", "train gap", "heterogeneity"]].agg("mean").reset_index()


def summarised(seeds: pd.DataFrame) -> pd.DataFrame:
    """Means of :func:`per_seed`, and their standard deviations in columns "... std"."""
    groups = seeds.drop(columns="seed").groupby(["model", "participation", "case"], sort=False)
    summary = groups.agg(["mean", "std"])
    summary.columns = [name + " std" * (of == "std") for name, of in summary.columns]
    return summary.reset_index()


def beside(
    summary: pd.DataFrame,
    name: str,
    participation: Participation,
    cases: Cases,
    published: Mapping[tuple[str, Case], Published],
) -> pd.DataFrame:
    """Ours, mean and standard deviation over seeds, beside the numbers on the authors' data."""
    selected = summary.loc[(summary["model"] == name) & (summary["participation"] == participation)]
    ours = selected.set_index("case").to_dict("index")
    rows = []
    for case in cases.all:
        numbers = ours[case.name]
        row: dict[str, Any] = {"case": case.name}
        for column in ("final b", "test gap", "late test gap", "heterogeneity"):
            std = numbers[f"{column} std"]
            row[column] = f"{numbers[column]:.4g}" + ("" if np.isnan(std) else f" ± {std:.1g}")
        if participation == "pair":
            authors = published.get((name, case), Published(np.nan, np.nan))
            row |= {"b, notebook": authors.official, "b, their data": authors.final}
            row |= {"gap, their data": authors.gap, "late gap, their data": authors.late}
            row["het., their data"] = authors.heterogeneity
        rows.append(row)
    return pd.DataFrame(rows)


def limits(
    name: str,
    seeds: pd.DataFrame,
    history: pd.DataFrame,
    trains: Sequence[Points],
    known: Sequence[Constants],
    local_steps: Sequence[Case],
) -> pd.DataFrame:
    """Figure 5: measured gaps, their limits, and the bounds; ``seeds`` is :func:`per_seed`'s table.

    Means over seeds, but for the shadow iterates' gap, which is the first seed's.  "bound" is the
    report's Equation 2 with its zeta and L, "bound (1)" Equation 1 with the suprema it asks for.
    """
    columns = ["heterogeneity", "late test gap", "late train gap"]
    means = seeds.pivot_table(columns, ["participation", "case"])
    zeta = float(means["heterogeneity"].loc["pair", local_steps[-1].name])
    ends = [bounds.ends(train, c) for train, c in zip(trains, known, strict=True)]
    few, pair, full = np.mean(ends, axis=0)
    first = history.loc[(history["seed"] == 0) & (history["participation"] == "full")]
    rows = []
    for case in local_steps:
        late, key = means["late train gap"], ("pair", case.name)
        server = np.asarray(first.loc[first["case"] == case.name, "b"])
        limit = [
            limit_bound(
                fs.theory.ProblemConstants(L=c.L, zeta=zeta), lr=problem.LR, local_steps=case.tau
            )
            for c in known
        ]
        whole = [bounds.bound(c.client_L, c.zeta, c.B, case.tau, case.rounds) for c in known]
        rows.append(
            {
                "model": name,
                "tau": case.tau,
                "pair, test": means["late test gap"].loc[key],
                "pair": late.loc[key],
            }
            | {"pair, few steps": few, "pair, many steps": pair}
            | {"full": late.loc["full", case.name], "full, many steps": full}
            | {"full, shadow": bounds.shadow_gap(trains[0], server, MODELS[name].start, case.tau)}
            | {"bound": np.mean(limit), "bound (1)": np.mean(whole)}
        )
    return pd.DataFrame(rows)


def figure(name: str, tables: Mapping[str, pd.DataFrame], cases: Cases) -> Any:
    """Figures 2, 3 and 5 of the report, and the gaps of full rounds; means over seeds.

    Args:
        tables: of all models, as :mod:`experiments.heterogeneity.perceptron` writes them.
    """
    drawn, axes = plt.subplots(2, 3, figsize=(12, 6.6), layout="constrained")
    of_model = {key: table.loc[table["model"] == name] for key, table in tables.items()}
    by = ["participation", "case"]
    runs = dict(iter(of_model[""].groupby(by)))
    ends = of_model["summary"].set_index(by)["final b"].to_dict()
    known = of_model["constants"].set_index("constant")["mean"].to_dict()
    gaps = of_model["gaps"]
    w, x = MODELS[name].slope, np.linspace(-1.0, 5.0, 2)
    for centre, text in ((0, "0"), (1, "1"), (4, "1, outlier")):
        axes[0, 0].annotate(text, (centre, centre), ha="center", va="center")
    for i, case in enumerate((*cases.local_steps, cases.iid)):
        color, run = f"C{i}", runs["pair", case.name]
        b = ends["pair", case.name]
        axes[0, 0].plot(x, (-b - w[0] * x) / w[1], color, label=case.name)
        axes[0, 1].semilogy(run["round"], run["test gap"].clip(lower=1e-8), color, label=case.name)
        axes[0, 2].plot(run["round"], run["heterogeneity"], color, label=case.name)
        run = runs["full", case.name]
        axes[1, 0].semilogy(run["round"], run["train gap"].clip(lower=1e-8), color, label=case.name)
    rounds = np.arange(1, 51)
    one_step = [bounds.bound(known["L"], known["zeta"], known["B"], 1, int(R)) for R in rounds]
    for axis in (axes[0, 1], axes[1, 0]):
        axis.semilogy(rounds, one_step, "k:", label=ONE_STEP)
    for i, case in enumerate(cases.proximal):
        for participation, style in (("pair", "-"), ("full", "--")):
            run, label = runs[participation, case.name], f"{case.name}, {participation}"
            axes[1, 1].plot(run["round"], run["test gap"], f"C{i}{style}", label=label)
    for column, style in (("bound", "ks-"), ("pair, test", "C0o-"), ("full", "C1o-")):
        axes[1, 2].loglog(gaps["tau"], gaps[column], style, label=column)
    for column, color in (("pair, many steps", "C0"), ("full, many steps", "C1")):
        axes[1, 2].axhline(gaps[column].iloc[0], color=color, ls=":", label=column)
    axes[0, 0].set(title="Separators after the last round, pair", xlim=(-1, 5), ylim=(-1, 5.5))
    axes[0, 1].set(title="Test loss above its minimum, pair", xlabel="round")
    axes[0, 2].set(title="|F_19' - F'| at client 19's last b, pair", xlabel="round")
    axes[1, 0].set(title="Train loss above its minimum, full", xlabel="round")
    axes[1, 1].set(title="Test loss above its minimum", xlabel="round")
    axes[1, 2].set(title="Gap and bound", xlabel="tau")
    legend_above(drawn, [*(case.name for case in (*cases.local_steps, cases.iid)), ONE_STEP], 6)
    legends(axes[1, 1:], fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return drawn


def constants_table(name: str, known: Sequence[Constants]) -> pd.DataFrame:
    """Means and standard deviations of the constants over seeds."""
    rows = [c._asdict() | {"optima": c.optima[:OUTLIER].mean()} for c in known]
    scalars = pd.DataFrame(rows).rename(columns={"optima": "mean optimum, clients 0 to 18"})
    table = pd.DataFrame({"model": name, "constant": scalars.columns})
    return table.assign(mean=np.asarray(scalars.mean()), std=np.asarray(scalars.std()))


def build(
    cases: Cases,
    published: Mapping[tuple[str, Case], Published],
    results: Mapping[str, pd.DataFrame],
    facts: Mapping[str, Any],
) -> tuple[Report, dict[str, Any]]:
    """Text and figures of the tables of :func:`experiments.heterogeneity.perceptron.measure`."""
    options = facts["options"]
    report = Report(
        "FedAvg with one client that differs",
        f"Points {facts['points']}; {options['seeds']} seeds of data and cohorts, ± their standard "
        "deviation.  The numbers beside ours are on the authors' points, one more draw of that "
        f"law.  Test gap: after the last round; late: mean from round {PLATEAU} on; heterogeneity: "
        f"mean from round {SETTLED} on.  Pair: its optimum is that of (F_normal + F_19) / 2, so "
        "part of its gap is sampling bias, not drift.  Exact: every visit returns the minimiser of "
        f"its local problem, to a gradient of {problem.TOLERANCE:g}.",
    )
    for name in options["models"]:
        of_model = {key: table.loc[table["model"] == name] for key, table in results.items()}
        model = MODELS[name]
        report.section(
            f"Model of the {name}: w = {model.slope}, start {model.start:g}",
            of_model["constants"].drop(columns="model").rename(columns={"std": "std over seeds"}),
            "Pair:",
            beside(results["summary"], name, "pair", cases, published),
            "Full:",
            beside(results["summary"], name, "full", cases, published),
            "Gaps of the train loss, late means (Figure 5); few steps: the sampling bias alone; "
            "many: every client at its own optimum; shadow: Equation 1's mean over all rounds and "
            "steps, which contains the first ones, first seed; bound: Equation 2 with zeta of tau "
            "1000 and L of F; bound (1): Equation 1 with both suprema.",
            of_model["gaps"].drop(columns="model"),
        )
    report.claims(
        claim
        for name in options["models"]
        for claim in claims(name, results, cases, options["seeds"])
    )
    figures = {f"perceptron_{name}": figure(name, results, cases) for name in options["models"]}
    return report, figures
