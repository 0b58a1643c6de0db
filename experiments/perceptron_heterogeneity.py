r"""FedAvg on clients of whom one is different.  Experiments 1 and 2 of the heterogeneity report.

    python -m experiments.perceptron_heterogeneity
    python -m experiments.perceptron_heterogeneity --data synthetic_data --seeds 5

Dhasade, Kremer and Renard, "An Insight into the impact of Data Heterogeneity on the performance of
the FedAvg algorithm", sections 3.1, 4.1 and 4.2.  20 clients separate Gaussian points around (0, 0)
from points around (1, 1), the last client from points around (4, 4); logits ``w'x + b``, only b is
trained, by full-batch gradient steps of rate 0.2.

Two things the report leaves open are options.  It names a variance of 1/4, its published data have
a standard deviation of 1/4 (``std``).  Its text has w = (1, 1) and starts at b = 1; its training
code has another slope and starts at 2 (``models``).  Its rounds have two clients, one at random and
always the last one ("pair"), so that FedAvg with few local steps minimises the mean of those two
objectives; its bound is about rounds of all clients ("full").
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro

from experiments import perceptron_problem as problem
from experiments.output import write
from experiments.perceptron_problem import MODELS, OUTLIER, Case, Constants, Participation, Points
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.theory.heterogeneity_report import limit_bound

SETTLED = 10  # heterogeneity is averaged from this round on
PLATEAU = 20  # and the gap of Figure 5 from this one

LOCAL_STEPS = tuple(Case(tau) for tau in (10, 50, 300, 1000))
PROXIMAL = (Case(3000, 20), Case(3000, 20, mu=0.1))
CASES = (*LOCAL_STEPS, Case(1000, iid=True), *PROXIMAL)


class Published(NamedTuple):
    """On the authors' data, two random clients: theirs (final b), and of exact full batches."""

    official: float
    final: float
    gap: float = np.nan  # of the test loss
    heterogeneity: float = np.nan
    late: float = np.nan  # gap of Figure 5


# The authors' notebooks, and a full-batch simulation on their published data.
REFERENCE = {
    ("text", Case(10)): Published(-1.5124, -1.5107, 0.0219, 0.196, 0.0220),
    ("text", Case(50)): Published(-1.6893, -1.6678, 0.0383, 0.266, 0.0402),
    ("text", Case(300)): Published(-2.2446, -2.2284, 0.1320, 0.379, 0.1355),
    ("text", Case(1000)): Published(-2.4677, -2.4563, 0.1847, 0.404, 0.1882),
    ("text", CASES[4]): Published(-1.0295, np.nan),
    ("text", PROXIMAL[0]): Published(np.nan, -2.5066, 0.1974),
    ("text", PROXIMAL[1]): Published(np.nan, -1.7478, 0.0484),
    ("code", Case(50)): Published(-2.2654, -2.2540, 0.0161, 0.161),
    ("code", Case(300)): Published(-2.8675, -2.7814, 0.0679, 0.289),
    ("code", Case(1000)): Published(-3.3914, -3.3080, 0.1554, 0.381),
    ("code", PROXIMAL[0]): Published(-3.8696, -3.8715, 0.2878, 0.432),  # theirs: 50 rounds
    ("code", PROXIMAL[1]): Published(np.nan, -2.3674, 0.0242, 0.159),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    seeds: int = 10  # of data and cohorts
    std: float = 0.25  # of the points around their centre
    models: tuple[str, ...] = tuple(MODELS)
    data: pathlib.Path | None = None  # the authors' synthetic_data, in place of generated points
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; expected at least 1")
        if not self.std > 0:
            raise ValueError(f"std is {self.std}; expected a positive number")
        if not self.models or not set(self.models) <= set(MODELS):
            raise ValueError(f"models is {self.models}; expected some of {', '.join(MODELS)}")
        if self.data is not None and not (self.data / "train" / "train.json").is_file():
            raise ValueError(f"data is {self.data}; expected a folder with train/train.json")


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
                b, own = server[seed], Points(given[seed].x[OUTLIER], given[seed].y[OUTLIER])
                drift = problem.slope(own, local[seed]) - problem.slope(train.pooled, local[seed])
                columns = {"model": name, "participation": participation, "case": case.name}
                columns |= {"tau": case.tau, "seed": seed, "round": np.arange(case.rounds) + 1}
                columns |= {"b": b, "heterogeneity": np.abs(drift)}
                columns["train gap"] = problem.gap(train.pooled, b, known[seed].optimum)
                columns["test gap"] = problem.gap(test.pooled, b, known[seed].test_optimum)
                rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)


def per_seed(history: pd.DataFrame) -> pd.DataFrame:
    """What is printed of a run: a row per model, participation, case and seed."""
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


def beside(summary: pd.DataFrame, name: str, participation: Participation) -> pd.DataFrame:
    """Ours, mean and standard deviation over seeds, beside the numbers on the authors' data."""
    mine = summary.loc[(summary["model"] == name) & (summary["participation"] == participation)]
    rows = []
    for case in CASES:
        runs = mine.loc[mine["case"] == case.name]
        row: dict[str, Any] = {"case": case.name}
        for column in ("final b", "test gap", "late test gap", "heterogeneity"):
            spread = f" ± {runs[column].std():.1g}" if len(runs) > 1 else ""
            row[column] = f"{runs[column].mean():.4g}{spread}"
        if participation == "pair":
            theirs = REFERENCE.get((name, case), Published(np.nan, np.nan))
            row |= {"b, notebook": theirs.official, "b, their data": theirs.final}
            row |= {"gap, their data": theirs.gap, "late gap, their data": theirs.late}
            row["het., their data"] = theirs.heterogeneity
        rows.append(row)
    return pd.DataFrame(rows)


def limits(
    name: str,
    summary: pd.DataFrame,
    history: pd.DataFrame,
    trains: Sequence[Points],
    known: Sequence[Constants],
) -> pd.DataFrame:
    """Figure 5: measured gaps, where they end, and the bounds.

    Means over seeds, but for the shadow iterates' gap, which is the first seed's.  "bound" is the
    report's Equation 2 with its zeta and L, "bound (1)" Equation 1 with the suprema it asks for.
    """
    mine = summary.loc[summary["model"] == name].groupby(["participation", "case"])
    mine = mine.mean(numeric_only=True)
    zeta = float(mine["heterogeneity"].loc["pair", LOCAL_STEPS[-1].name])
    found = [problem.ends(train, c) for train, c in zip(trains, known, strict=True)]
    few, pair, full = np.mean(found, axis=0)
    first = history.loc[(history["model"] == name) & (history["participation"] == "full")]
    first = first.loc[first["seed"] == 0]
    rows = []
    for case in LOCAL_STEPS:
        late, of = mine["late train gap"], ("pair", case.name)
        server = np.asarray(first.loc[first["case"] == case.name, "b"])
        limit = [limit_bound(lr=problem.LR, L=c.L, zeta=zeta, K=case.tau) for c in known]
        whole = [problem.bound(c, c.client_L, case.tau, case.rounds) for c in known]
        rows.append(
            {"tau": case.tau, "pair, test": mine["late test gap"].loc[of], "pair": late.loc[of]}
            | {"pair, few steps": few, "pair, many steps": pair}
            | {"full": late.loc["full", case.name], "full, many steps": full}
            | {"full, shadow": problem.shadow_gap(trains[0], server, MODELS[name].start, case.tau)}
            | {"bound": np.mean(limit), "bound (1)": np.mean(whole)}
        )
    return pd.DataFrame(rows)


def figure(
    name: str, history: pd.DataFrame, gaps: pd.DataFrame, points: Points, c: Constants
) -> Any:
    """Figures 2, 3 and 5 of the report, lines of the first seed, and the gaps of full rounds."""
    drawn, axes = plt.subplots(2, 3, figsize=(14, 8), layout="constrained")
    first = history.loc[(history["model"] == name) & (history["seed"] == 0)]
    runs: dict[tuple[str, str], pd.DataFrame] = {
        (str(p), str(case)): run for (p, case), run in first.groupby(["participation", "case"])
    }
    w, x = MODELS[name].slope, np.linspace(-1.0, 5.0, 2)
    axes[0, 0].scatter(*points.pooled.x.T, c=points.pooled.y, s=2, cmap="coolwarm")
    for i, case in enumerate(CASES[:5]):
        color, run = f"C{i}", runs["pair", case.name]
        b = run["b"].iloc[-1]
        axes[0, 0].plot(x, (-b - w[0] * x) / w[1], color, label=case.name)
        axes[0, 1].semilogy(run["round"], run["test gap"].clip(lower=1e-8), color, label=case.name)
        axes[0, 2].plot(run["round"], run["heterogeneity"], color, label=case.name)
        run = runs["full", case.name]
        axes[1, 0].semilogy(run["round"], run["train gap"].clip(lower=1e-8), color, label=case.name)
    rounds = np.arange(1, 51)
    one_step = [problem.bound(c, c.L, 1, int(R)) for R in rounds]
    for axis in (axes[0, 1], axes[1, 0]):
        axis.semilogy(rounds, one_step, "k:", label="bound, tau 1")
    for i, case in enumerate(PROXIMAL):
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


def section(
    name: str, summary: pd.DataFrame, gaps: pd.DataFrame, known: Sequence[Constants]
) -> str:
    """The text about one model."""
    rows = [c._asdict() | {"optima": c.optima[:OUTLIER].mean()} for c in known]
    scalars = pd.DataFrame(rows).rename(columns={"optima": "mean optimum, clients 0 to 18"})
    table = pd.DataFrame({"constant": scalars.columns, "mean": np.asarray(scalars.mean())})
    table["std over seeds"] = np.asarray(scalars.std())
    model = MODELS[name]
    return (
        f"## Model of the {name}: w = {model.slope}, start {model.start:g}\n\n{markdown(table)}\n\n"
        f"Pair:\n\n{markdown(beside(summary, name, 'pair'))}\n\n"
        f"Full:\n\n{markdown(beside(summary, name, 'full'))}\n\n"
        "Gaps of the train loss, late means (Figure 5); few steps: the sampling bias alone, many: "
        "every client at its own optimum; shadow: Equation 1's mean over all rounds and steps, the "
        "way from the start in it, first seed; bound: Equation 2 with zeta of tau 1000 and F's L; "
        f"bound (1): Equation 1 with both suprema.\n\n{markdown(gaps)}"
    )


def main(options: Options) -> None:
    """Runs, measures, writes and draws."""
    seeds = range(options.seeds)
    read = None if options.data is None else problem.authors(options.data)
    data = [read or problem.generated(seed, options.std) for seed in seeds]
    folder = options.output / "perceptron_heterogeneity"
    folder.mkdir(parents=True, exist_ok=True)
    source = f"generated, standard deviation {options.std:g}" if read is None else "the authors'"
    text = [
        "# FedAvg with one client that differs",
        f"Points {source}; {options.seeds} seeds of data and cohorts, ± their standard deviation.  "
        "Numbers beside ours were made with the authors' points, one more draw of that law.  Test "
        f"gap: after the last round; late: mean from round {PLATEAU} on; heterogeneity: mean from "
        f"round {SETTLED} on.  Pair: its optimum is that of (F_normal + F_19) / 2, so part of its "
        "gap is sampling bias, no drift.",
    ]
    histories = []
    for name in options.models:
        model = MODELS[name]
        seen = [
            (problem.projected(train, model), problem.projected(test, model))
            for train, test in data
        ]
        known = [problem.constants(train, test, model.start) for train, test in seen]
        history = measured(name, CASES, seen, known)
        summary = per_seed(history)
        gaps = limits(name, summary, history, [train for train, _ in seen], known)
        text.append(section(name, summary, gaps, known))
        drawn = figure(name, history, gaps, data[0][0], known[0])
        drawn.savefig(folder / f"perceptron_heterogeneity_{name}.png", dpi=90)
        plt.close(drawn)
        columns = ["model", "participation", "case", "tau", "round"]
        grouped = history.drop(columns="seed").groupby(columns, sort=False)
        histories.append(grouped.agg(["mean", "std"]))
    print("\n\n".join(text), flush=True)
    table = pd.concat(histories)
    table.columns = [f"{name}, {statistic}" for name, statistic in table.columns]
    write(
        folder,
        "perceptron_heterogeneity",
        table.reset_index(),
        "\n\n".join(text),
        options=dataclasses.asdict(options),
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
