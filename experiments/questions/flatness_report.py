"""Report, figure and page on flatness and generalisation."""

from collections.abc import Iterator, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from scipy import stats

import fedjax_sim as fs
from experiments.harness import Estimate, Report
from experiments.questions.page import Answer, Page, Study

RADIUS = 0.05
MEASURES = ("top eigenvalue", "trace", "rise", "train loss")
TARGETS = ("gap", "test loss", "test error")
WITHIN, ACROSS = "seeds of a method and rate", "methods and rates of a seed"
COLOURS = {
    "FedAvg": "C0",
    "FedSAM": "C1",
    "FedSWA": "C2",
    "FedMoSWA": "C3",
    "SWA": "C4",
    "EMA": "C5",
}
RESAMPLES = 2000
Tables = Mapping[str, pd.DataFrame]


def matrices(runs: pd.DataFrame, name: str) -> np.ndarray:
    """A column's values, ``[cells of method and rate, seeds]``, without seeds that diverged."""
    table: Any = runs.pivot_table(index=["method", "lr"], columns="seed", values=name, dropna=False)
    return table.dropna(axis=1).to_numpy()


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rank correlations of the rows, ``[...]``; ties have mean ranks."""
    ranks = [stats.rankdata(values, axis=-1) for values in (x, y)]
    a, b = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    with np.errstate(invalid="ignore"):
        return (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))


def within(x: np.ndarray, y: np.ndarray, seed: int = 0) -> Estimate:
    """Mean over cells of the correlation over seeds; the bootstrap draws seeds for all cells."""
    draws = np.random.default_rng(seed).integers(0, x.shape[1], (RESAMPLES, x.shape[1]))
    drawn = spearman(x[:, draws], y[:, draws])  # [cells, RESAMPLES]
    # Draws of one seed only, which ten seeds hardly ever give, have no correlation.
    means = drawn[:, np.isfinite(drawn).all(axis=0)].mean(axis=0)
    return Estimate(spearman(x, y).mean(), *np.quantile(means, [0.025, 0.975]))


def across(x: np.ndarray, y: np.ndarray) -> Estimate:
    """Mean over seeds of the correlation over cells, with Student's interval."""
    return Estimate.of(spearman(x.T, y.T))


def at_equal(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Estimate:
    """As :func:`across`, the partial rank correlation of x and y given z; NaN if z fixes one."""
    xy, xz, yz = spearman(x.T, y.T), spearman(x.T, z.T), spearman(y.T, z.T)
    fixed = np.minimum(1 - xz**2, 1 - yz**2) < 1e-9  # the rounding of a correlation of +-1
    if fixed.any():
        return Estimate(np.nan, np.nan, np.nan)
    partial = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
    return Estimate.of(partial)


def correlations(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per kind, target and measure."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for target in TARGETS:
            y = matrices(runs, target)
            for measure in MEASURES:
                x = matrices(runs, measure)
                yield WITHIN, target, measure, *within(x, y)
                yield ACROSS, target, measure, *across(x, y)
            for measure in MEASURES[:-1]:
                given = at_equal(matrices(runs, measure), y, matrices(runs, "train loss"))
                yield ACROSS, target, f"{measure}, at equal train loss", *given

    return pd.DataFrame(
        rows(), columns=["over", "with", "measure", "correlation", "low", "high"]
    )  # fmt: skip


def flatter(runs: pd.DataFrame) -> pd.DataFrame:
    """Each method's measures over FedAvg's, paired by seed: geometric means with intervals."""
    rows = []
    for lr, own in runs.groupby("lr"):
        for measure in MEASURES:
            wide: Any = own.pivot(index="seed", columns="method", values=measure)
            logs = np.log(wide.dropna())
            for method in (name for name in COLOURS if name in logs and name != "FedAvg"):
                ratio = np.exp(fs.analysis.mean_interval(logs[method] - logs["FedAvg"]))
                rows.append((method, lr, measure, *ratio))
    return pd.DataFrame(rows, columns=["method", "lr", "measure", "over FedAvg", "low", "high"])


def of(table: pd.DataFrame, over: str, target: str, measure: str) -> Estimate:
    """One row of :func:`correlations`."""
    keys = (table["over"] == over) & (table["with"] == target) & (table["measure"] == measure)
    row = table[keys].iloc[0]
    return Estimate(row["correlation"], row["low"], row["high"])


def draw(runs: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draws all models, and the correlations with the gap with their intervals."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(1.15, 1)
    )
    rates = sorted(runs["lr"].unique())
    models: Any = runs.groupby(["method", "lr"], sort=False)
    for (method, lr), own in models:
        full = lr == rates[-1]
        left.scatter(
            own["top eigenvalue"], own["gap"], s=22, edgecolors=COLOURS[method],
            facecolors=COLOURS[method] if full else "none", label=method if full else None,
        )  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="largest eigenvalue of the Hessian")
    left.set_ylabel("test loss less training loss")
    for axis, ticks in ((left.xaxis, (0.4, 0.6, 1, 2, 4)), (left.yaxis, (0.1, 0.15, 0.2, 0.3))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())
    above: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "fontsize": "small"}
    left.legend(ncols=6, columnspacing=1, handletextpad=0.2, **above)
    names = [*MEASURES, *(f"{name}, at equal train loss" for name in MEASURES[:-1])]
    shapes = {WITHIN: ("o", 0.15), ACROSS: ("s", -0.15)}
    for over, (marker, offset) in shapes.items():
        kept: Any = table[(table["over"] == over) & (table["with"] == "gap")]
        own = kept.set_index("measure")
        own = own.loc[[name for name in names if name in own.index]]
        at = [-names.index(name) + offset for name in own.index]
        ends = [own["correlation"] - own["low"], own["high"] - own["correlation"]]
        right.errorbar(own["correlation"], at, xerr=ends, fmt=marker, ms=5, capsize=2, label=over)
    right.axvline(0, color="0.6", lw=0.8, zorder=0)
    right.set(xlim=(-1.05, 1.05), xlabel="rank correlation with the gap over each,\n95 % interval")
    right.set_yticks([-i for i in range(len(names))], names)
    right.legend(**above)
    return figure


def build(tables: Tables, facts: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """The report and its figure."""
    runs = tables[""]
    table = correlations(runs)
    lost = np.count_nonzero(runs["diverged"])
    text = Report(
        "Flatness and generalisation",
        f"{facts['rounds']} rounds, {facts['seeds']} seeds, rates "
        f"{' and '.join(f'{lr:g}' for lr in facts['lrs'])}, {facts['parameters']:,} parameters; "
        f"{lost} of {len(runs)} runs diverged, and their seeds are left out of correlations.",
    )
    groups: Any = runs.drop(columns=["seed", "diverged"]).groupby(["method", "lr"], sort=False)
    text.section("Means over seeds", groups.mean().reset_index())
    text.section("Rank correlations, 95 % intervals", table)
    text.section("Measures over FedAvg's, paired by seed", flatter(runs))
    return text, {"flatness": draw(runs, table)}


def page(tables: Tables, facts: Mapping[str, Any]) -> Page:
    """Returns the page with the numbers of the tables."""
    runs = tables[""]
    table, ratios = correlations(runs), flatter(runs)
    seeds = {name: of(table, WITHIN, "gap", name) for name in MEASURES}
    gap = {name: of(table, ACROSS, "gap", name) for name in MEASURES}
    error = {name: of(table, ACROSS, "test error", name) for name in MEASURES}
    given = of(table, ACROSS, "gap", "top eigenvalue, at equal train loss")
    kept: Any = ratios[
        (ratios["measure"] == "rise") & ratios["method"].isin(["FedSAM", "SWA", "EMA"])
    ]
    averaged = kept.set_index(["method", "lr"])
    strongest = max(MEASURES[:-1], key=lambda name: abs(gap[name].mean))
    flat = {name: seeds[name] for name in MEASURES[:-1]}
    far = max(MEASURES[:-1], key=lambda name: abs(seeds[name].mean))

    answers = [
        Answer(
            "Over seeds of one method and rate no measure of flatness predicts the gap: within 0.3 "
            "of 0, intervals that contain 0.",
            "; ".join(f"{name} {value:.2f}" for name, value in flat.items()),
            not any(one.low > 0 or one.high < 0 for one in flat.values())
            and all(abs(one.mean) < 0.3 for one in flat.values()),
        ),
        Answer(
            "Across methods and rates the top eigenvalue goes against the gap: at most -0.3.",
            f"{gap['top eigenvalue']:.2f}",
            gap["top eigenvalue"].between(-np.inf, -0.3),
        ),
        Answer(
            "The training loss predicts the gap at least as well as any measure of flatness; at an "
            "equal training loss the top eigenvalue is within 0.3 of 0.",
            f"training loss {gap['train loss']:.2f}, {strongest} {gap[strongest]:.2f}; at equal "
            f"training loss {given:.2f}",
            given.between(-0.3, 0.3) and abs(gap["train loss"].mean) >= abs(gap[strongest].mean),
        ),
        Answer(
            "The rise of FedSAM, SWA and EMA is below FedAvg's at both rates.",
            "; ".join(
                f"{method} at {lr:g}: x {Estimate(*row[['over FedAvg', 'low', 'high']]):.2f}"
                for (method, lr), row in averaged.iterrows()
            ),
            (averaged["high"] < 1).all() or (False if (averaged["low"] > 1).any() else None),
        ),
        Answer(
            "With the test error, across methods, flatness predicts weakly: above 0, at most 0.5.",
            "; ".join(f"{name} {error[name]:.2f}" for name in MEASURES[:-1]),
            all(0 < error[name].mean <= 0.5 for name in MEASURES[:-1]),
        ),
    ]  # fmt: skip
    return Page(
        found=f"Flatter models have the {'larger' if gap[strongest].mean < 0 else 'smaller'} gaps: "
        f"the largest rank correlation of a measure of flatness with the gap is "
        f"{gap[strongest]:.2f} across methods and rates ({strongest}) and {seeds[far]:.2f} over "
        f"seeds of one method ({far}); the training loss alone has {gap['train loss']:.2f} and "
        f"{seeds['train loss']:.2f}.",
        refuted_by="A measure of flatness whose correlation with the gap at equal training loss is "
        "above 0.3 with an interval that excludes 0, over at least six methods and ten seeds, on "
        "any model that fits its training data.",
        caption=f"Left: one point per model, filled at the rate {max(facts['lrs']):g}. Right: rank "
        "correlations with the gap, over the seeds of a method and rate (bootstrap over seeds) and "
        "over methods and rates of a seed (Student's interval over seeds).",
        answers=answers,
        setting=f"600 digits on 20 clients, a perceptron of {facts['parameters']:,} parameters, "
        f"{facts['rounds']} rounds, {facts['seeds']} seeds, {len(facts['lrs'])} rates; one data "
        "set, one network, one radius.",
    )


STUDY = Study(
    "flatness",
    "Does flatness predict?",
    "Methods for federated learning are derived from flat minima. Does a flatter model generalise "
    "better, among the seeds of one method, and among methods?",
    build,
    page,
)
