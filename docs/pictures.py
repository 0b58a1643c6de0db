"""Draws the pictures of README.md from docs/results, and measures what is not there.

`make pictures` runs it, then docs/outputs.py and the page of algorithms.  A file of results that is
removed is measured anew, with two host devices; the machine should be idle then.
"""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pandas as pd
from scipy import stats

import fedjax_sim as fs
from fedjax_sim.reports.figures.style import COLORS, GREY, line_look, panels, style_axes
from fedjax_sim.reports.labels import algorithm_label

HERE = pathlib.Path(__file__).parent
RESULTS, IMAGES = HERE / "results", HERE / "images"
WIDTH = 9.2  # inches
DPI = 100
RATES = {
    "lr": [0.025, 0.05, 0.1, 0.2, 0.4, 0.8],
    "server_lr": [0.1, 0.2, 0.4, 0.8, 1.6, 3.2],
}
TURNS = 3  # of the sweep and of the loop, alternating; the best time of each counts


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


def grid() -> dict[str, Any]:
    """Final accuracies of 108 runs of FedAvgM, and seconds as one program and in a loop."""
    setup, keys = fs.presets.quickstart(seeds=3), fs.presets.keys(3)
    fs.sweep(fs.fedavgm, setup, RATES, keys)  # compiles

    @jax.jit
    def one(lr: Any, server_lr: Any, setup: fs.Setup, key: jax.Array) -> jax.Array:
        return fs.run(fs.fedavgm(lr, server_lr), setup, key)[1].metrics["test/accuracy"][-1]

    seeds = [_one_seed(setup, i) for i in range(3)]

    def loop() -> list[float]:
        return [
            float(one(lr, server_lr, seeds[i], keys[i]))
            for lr in RATES["lr"]
            for server_lr in RATES["server_lr"]
            for i in range(3)
        ]

    float(one(0.1, 1.0, seeds[0], keys[0]))  # compiles
    seconds: dict[str, list[float]] = {"sweep": [], "loop": []}
    for _ in range(TURNS):
        result = _timed(seconds["sweep"], lambda: fs.sweep(fs.fedavgm, setup, RATES, keys))
        accuracies = _timed(seconds["loop"], loop)
    scores = fs.analysis.scores(result.to_frame(), "test/accuracy")
    runs = scores[["lr", "server_lr", "seed", "score"]]
    difference = np.abs(np.sort(runs["score"]) - np.sort(accuracies)).max()
    return {
        "seconds": seconds,
        "largest_difference_of_sorted_accuracies": float(difference),
        "machine": f"{jax.device_count()} host devices, jax {jax.__version__}",
        "runs": runs.values.round(5).tolist(),
    }


def _one_seed(setup: fs.Setup, seed: int) -> fs.Setup:
    params, timeline = jax.tree.map(lambda x: x[seed], (setup.params, setup.timeline))
    return fs.Setup(setup.task, timeline, params, setup.eval_fn, setup.eval_every)


def _timed(seconds: list[float], function: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = function()
    seconds.append(round(time.perf_counter() - began, 3))
    return result


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


def draw_grid(results: dict[str, Any]) -> Any:
    """Heat map of the accuracies, and seconds of the sweep beside the loop."""
    figure, (cells, bars) = panels((WIDTH, 3.3), 1, 2, width_ratios=[2, 1])
    runs = pd.DataFrame(results["runs"], columns=["lr", "server_lr", "seed", "score"])
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
    seconds = best_seconds(results)
    names = {"sweep": "one program", "loop": "loop of runs,\ncompiled once"}
    for i, name in enumerate(names):
        bars.bar(i, seconds[name], color=(COLORS[0], GREY)[i], width=0.6)
        bars.text(i, seconds[name], f"{seconds[name]:.1f} s", ha="center", va="bottom")
    bars.set_xticks(range(2), list(names.values()))
    bars.set(ylabel="seconds without compilation", ylim=(0, 1.15 * max(seconds.values())))
    style_axes(bars)
    return figure


def best_seconds(results: dict[str, Any]) -> dict[str, float]:
    """Returns the best time of the turns."""
    return {name: min(turns) for name, turns in results["seconds"].items()}


def draw_clients(scores: pd.DataFrame) -> Any:
    """Loss and speed-up against the number of clients per round."""
    frame = fs.analysis.speed_up(scores, "cohort_size", per="algorithm")
    return fs.plotting.speed_up_figure(frame, "cohort_size", by="algorithm", label="training loss")


def main() -> None:
    """Measures what is absent, and draws."""
    parts = {
        "comparison": (comparison, draw_comparison),
        "grid": (grid, draw_grid),
        "clients": (clients, draw_clients),
    }
    for name, (measure, draw) in parts.items():
        kind = "json" if measure is grid else "csv"
        path = RESULTS / f"{name}.{kind}"
        if not path.exists():
            fs.execution.use_all_cores()
            result = measure()
            if isinstance(result, pd.DataFrame):
                result.to_csv(path, index=False, float_format="%.6g")
            else:
                path.write_text(json.dumps(result) + "\n")
        results = json.loads(path.read_text()) if kind == "json" else pd.read_csv(path)
        draw(results).savefig(IMAGES / f"{name}.png", dpi=DPI)
        print(f"docs/images/{name}.png", flush=True)


if __name__ == "__main__":
    main()
