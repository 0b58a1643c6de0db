"""Draws the pictures of README.md from committed results, and measures what is not there.

`make pictures` runs it, then docs/outputs.py and the page of algorithms.  A file of
experiments/results/pictures that is removed is measured again.  Times are those of
benchmarks/results.
"""

import itertools
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pandas as pd
from flax import nnx
from scipy import stats

import fedjax_sim as fs
from fedjax_sim.reports.figures.style import COLORS, GREY, line_look, panels, style_axes
from fedjax_sim.reports.labels import algorithm_label

HERE = pathlib.Path(__file__).parent
RESULTS, IMAGES = HERE.parent / "experiments" / "results" / "pictures", HERE / "images"
WIDTH = 9.2  # inches
DPI = 100
RATES = {
    "lr": [0.025, 0.05, 0.1, 0.2, 0.4, 0.8],
    "server_lr": [0.1, 0.2, 0.4, 0.8, 1.6, 3.2],
}
CASES = {"W1": "softmax\nregression", "W4": "logistic\nregression"}  # of benchmarks/results


def comparison() -> pd.DataFrame:
    """Histories of the quickstart: five algorithms, ten seeds."""
    setup = fs.presets.quickstart(seeds=10)
    algorithms = {
        "fedavg": fs.fedavg(0.2),
        "fedprox": fs.fedprox(0.2, mu=0.1),
        "fedadam": fs.fedadam(0.2, server_lr=0.03),
        "scaffold": fs.scaffold(0.2),
    }
    frame = fs.compare(algorithms, setup, fs.presets.keys(10)).to_frame()
    return frame[frame["metric"] == "test/accuracy"][["algorithm", "seed", "round", "value"]]


def grid() -> pd.DataFrame:
    """Final accuracies of 108 runs of FedAvgM as one program."""
    setup, keys = fs.presets.quickstart(seeds=3), fs.presets.keys(3)
    result = fs.sweep(fs.fedavgm, setup, RATES, keys)
    scores = fs.analysis.scores(result.to_frame(), "test/accuracy")
    return scores[["lr", "server_lr", "seed", "score"]]


def clients() -> pd.DataFrame:
    """Scores of a sweep of the number of clients per round, with six rates for each."""

    def make_setup(cohort_size: int) -> fs.Setup:
        options = {"model": "softmax_regression", "local_epochs": 1, "rounds": 100, "seeds": 5}
        return fs.presets.quickstart(cohort_size=cohort_size, **options)

    each = {"cohort_size": [1, 2, 5, 10, 20, 50, 100], "lr": [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]}
    factories = {"fedavg": fs.fedavg, "scaffold": fs.scaffold}
    result = fs.sweep(factories, make_setup, dict.fromkeys(factories, each), fs.presets.keys(5))
    scores = fs.analysis.scores(result.to_frame(), "train/loss")
    return scores[["algorithm", "cohort_size", "lr", "seed", "score"]]


def batch_norm() -> pd.DataFrame:
    """Test accuracies of a network of four layers with batch normalisation, by momentum."""
    digits = fs.datasets.load("digits")
    rows = fs.data.partition.dirichlet(digits.train["y"], 20, alpha=1.0, seed=0, disjoint=True)
    data = fs.from_assignment(digits.train, rows)
    keys = jax.random.split(jax.random.key(0), 3)
    frames = []
    for momentum in (0.99, 0.9):

        def network(rngs: nnx.Rngs, momentum: float = momentum) -> nnx.Module:
            sizes, layers = (64, 32, 32, 32), []
            for inputs, outputs in itertools.pairwise(sizes):
                layers += [
                    nnx.Linear(inputs, outputs, rngs=rngs),
                    nnx.BatchNorm(outputs, momentum=momentum, rngs=rngs),
                    nnx.relu,
                ]
            flat = lambda x: x.reshape(len(x), -1)  # noqa: E731
            return nnx.Sequential(flat, *layers, nnx.Linear(32, 10, rngs=rngs))

        model = fs.models.from_nnx(network)
        task = fs.empirical_task(
            fs.objectives.cross_entropy(model), data, fs.shuffled_repeats(1, 16, max_steps=1)
        )
        test = fs.evaluation.evaluator(fs.objectives.classification_metrics(model), digits.test)
        timeline = fs.timelines.uniform(jax.random.key(1), 300, 20, 10, task.num_steps)
        setup = fs.Setup(task, timeline, jax.vmap(model.init)(keys), test, eval_every=10)
        algorithm = fs.running_statistics(fs.fedavg(0.1), model.statistics)
        frame = fs.simulate(algorithm, setup, keys).to_frame()
        frames.append(frame[frame["metric"] == "accuracy"].assign(momentum=momentum))
    return pd.concat(frames)[["momentum", "seed", "round", "value"]]


def draw_comparison(history: pd.DataFrame) -> Any:
    """Curves, and differences from FedAvg with paired and unpaired intervals."""
    figure, (curves, differences) = panels((WIDTH, 3.3), 1, 2)
    names = history["algorithm"].unique().tolist()
    for i, name in enumerate(names):
        mean = history[history["algorithm"] == name].groupby("round")["value"].mean()
        curves.plot(mean.index, mean, label=algorithm_label(name), **line_look(i))
    curves.set(xlabel="round", ylabel="test accuracy, mean of 10 seeds", ylim=(0.5, 1))
    curves.legend(frameon=False, loc="lower right")
    last = history[history["round"] == history["round"].max()]
    scores = last.rename(columns={"value": "score"})[["algorithm", "seed", "score"]]
    base = scores[scores["algorithm"] == names[0]]["score"]
    for i, name in enumerate(names[1:], 1):
        pair = fs.analysis.paired_difference(scores, "algorithm", name, names[0], mode="max")
        welch = stats.ttest_ind(
            scores[scores["algorithm"] == name]["score"], base, equal_var=False
        ).confidence_interval()
        look = {"capsize": 3, "fmt": "o"}
        for shift, ends, color in (
            (-0.14, pair[2:4], line_look(i)["color"]),
            (0.14, (welch.low, welch.high), GREY),
        ):
            mean, low, high = (100 * float(x) for x in (pair.mean, *ends))
            errors = [[mean - low], [high - mean]]
            differences.errorbar([mean], [i + shift], xerr=errors, color=color, **look)
    differences.axvline(0, color=GREY, lw=1)
    differences.set_yticks(range(1, len(names)), [algorithm_label(x) for x in names[1:]])
    differences.set_ylim(len(names) - 0.5, 0.5)
    differences.set_xlabel(
        "accuracy minus FedAvg's, percentage points\ncolour: paired intervals, grey: unpaired"
    )
    for axes in (curves, differences):
        style_axes(axes)
    return figure


def draw_grid(runs: pd.DataFrame) -> Any:
    """Heat map of the accuracies, and seconds of sweeps beside loops."""
    figure, (cells, bars) = panels((WIDTH, 3.3), 1, 2, width_ratios=[1.8, 1])
    table = runs.groupby(["server_lr", "lr"])["score"].mean().unstack()
    image = cells.imshow(table, origin="lower", aspect="auto", cmap="Blues", vmin=0.5)
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        color = "white" if value > 0.8 else "black"
        cells.text(column, row, f"{value:.3f}", ha="center", va="center", color=color, fontsize=8)
    cells.set_xticks(range(len(table.columns)), [f"{x:g}" for x in table.columns])
    cells.set_yticks(range(len(table)), [f"{x:g}" for x in table.index])
    cells.set(xlabel="client learning rate", ylabel="server learning rate")
    cells.set_title(f"test accuracy of {len(runs)} runs, means of 3 seeds", fontsize="medium")
    figure.colorbar(image, ax=cells)
    names = {"sweep": "one program", "loop": "loop of runs"}
    for i, (name, label) in enumerate(names.items()):
        seconds = [candidates()[case][name]["seconds"] for case in CASES]
        at = np.arange(len(CASES)) + 0.4 * i - 0.2
        bars.bar(at, seconds, color=(COLORS[0], GREY)[i], width=0.38, label=label)
        for x, value in zip(at, seconds, strict=True):
            bars.text(x, value, f"{value:.1f} s", ha="center", va="bottom", fontsize=9)
    bars.set_xticks(range(len(CASES)), list(CASES.values()))
    bars.set_title("147 runs, without compilation", fontsize="medium")
    bars.set(ylabel="seconds", ylim=(0, 9))
    bars.legend(frameon=False)
    style_axes(bars)
    return figure


def candidates() -> dict[str, Any]:
    """Returns the measurements of two sweeps of 49 pairs of rates and 3 seeds, by case."""
    cases = json.loads((HERE.parent / "benchmarks" / "results" / "sweep.json").read_text())["cases"]
    return {name: case["candidates"] for name, case in cases.items()}


def draw_clients(scores: pd.DataFrame) -> Any:
    """Loss and speed-up against the number of clients per round."""
    frame = fs.analysis.speed_up(scores, "cohort_size", per="algorithm")
    return fs.plotting.speed_up_figure(frame, "cohort_size", by="algorithm", label="training loss")


def draw_batch_norm(history: pd.DataFrame) -> Any:
    """Test accuracy of every seed, by momentum."""
    figure, (axes,) = panels((5.2, 3.0))
    for i, (momentum, part) in enumerate(history.groupby("momentum", sort=False)):
        for seed, line in part.groupby("seed"):
            label = f"momentum {momentum:g}" if seed == 0 else None
            axes.plot(line["round"], line["value"], label=label, **line_look(i))
    axes.axhline(0.1, color=GREY, lw=1, label="chance")
    axes.set(xlabel="round, one local step each", ylabel="test accuracy", ylim=(0, 1))
    axes.legend(frameon=False, loc=(0.5, 0.2))
    style_axes(axes)
    return figure


def main() -> None:
    """Measures what is absent, and draws."""
    parts = {
        "comparison": (comparison, draw_comparison),
        "grid": (grid, draw_grid),
        "clients": (clients, draw_clients),
        "batch_norm": (batch_norm, draw_batch_norm),
    }
    for name, (measure, draw) in parts.items():
        path = RESULTS / f"{name}.csv"
        if not path.exists():
            measure().to_csv(path, index=False, float_format="%.6g")
        draw(pd.read_csv(path)).savefig(IMAGES / f"{name}.png", dpi=DPI)
        print(f"docs/images/{name}.png", flush=True)


if __name__ == "__main__":
    main()
