"""Accuracies, tuning and figures that the FAVANO experiments have in common."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from experiments.favano import methods
from experiments.favano.methods import Method
from experiments.harness import at_edge
from fedjax_sim.reports.figures import legend_above, line_look, style_axes


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last row of every seed; a run that diverged has chance's accuracy."""
    return frame.sort_values("round").groupby("seed").tail(1)


def by_seed(history: pd.DataFrame) -> pd.DataFrame:
    """The last accuracy in percent by ``setting``, ``algorithm`` and ``seed``."""
    last = history.sort_values("time").groupby(["setting", "algorithm", "seed"], sort=False).tail(1)
    return last.assign(accuracy=100 * last["accuracy"]).sort_index()


def accuracy(frame: pd.DataFrame) -> tuple[float, float]:
    """Mean and standard deviation over the seeds, percent."""
    values = 100 * final(frame)["accuracy"].to_numpy(dtype=float)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def tuned(
    runs: Callable[..., pd.DataFrame],
    setting: str,
    server_lrs: Sequence[float],
    *,
    scaled: bool = True,
) -> tuple[Method, pd.DataFrame]:
    """FedBuff with the server rate that is best on one seed beside the table's, and all rates."""
    rows = []
    for server_lr in server_lrs:
        method = methods.fedbuff(server_lr, scaled=scaled)
        frame = runs(method, setting, range(100, 101))
        rows.append({"setting": setting, "server rate": server_lr, "accuracy": accuracy(frame)[0]})
    table = pd.DataFrame(rows)
    best = int(table["accuracy"].argmax())
    marks = [""] * len(rows)
    marks[best] = at_edge(server_lrs[best], server_lrs) or "best"
    return methods.fedbuff(server_lrs[best], scaled=scaled), table.assign(best=marks)


def panels(history: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> Figure:
    """Metrics against columns: a row of panels per pair, a column of panels per setting.

    Lines are means over the seeds' evaluations of the same number, bands one deviation.  Schedules
    of different seeds differ a little, so the horizontal axis has means, too.
    """
    settings, names = list(history["setting"].unique()), list(history["algorithm"].unique())
    shape = (len(pairs), len(settings)) if len(settings) > 1 else (1, len(pairs))
    size = (1.0 + 3.5 * max(2, shape[1]), 0.8 + 2.4 * shape[0])
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(*shape, squeeze=False).ravel()
    for panel, ((metric, x), setting) in zip(axes, itertools.product(pairs, settings), strict=True):
        known = history.loc[history["setting"] == setting, :].dropna(subset=[metric])
        for i, name in enumerate(names):
            frame: Any = known[known["algorithm"] == name]
            numbered = frame.assign(number=frame.groupby("seed").cumcount()).groupby("number")
            everyone = numbered["seed"].count() == frame["seed"].nunique()
            at, mean = numbered[x].mean()[everyone], numbered[metric].mean()[everyone]
            deviation = numbered[metric].std()[everyone].fillna(0)
            # On a logarithmic axis a band ends at a tenth of its line.
            low, look = np.maximum(mean - deviation, mean / 10), line_look(i)
            if len(mean):
                panel.plot(at, mean, **look, lw=1.5, label=name)
                panel.fill_between(at, low, mean + deviation, color=look["color"], alpha=0.18, lw=0)
        panel.set_title(setting if (metric, x) == pairs[0] else "", fontsize="medium")
        panel.set(xlabel=x.replace("_", " "), ylabel=metric if setting == settings[0] else "")
        panel.xaxis.set_major_locator(MaxNLocator(5))
        if metric == "variance":
            panel.set_yscale("log")
            panel.yaxis.set_minor_formatter(NullFormatter())
        style_axes(panel)
    legend_above(figure, names, 4 if len(" ".join(names)) < 60 else 3)
    return figure


def late(frame: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of the last fifth of the time."""
    return frame.loc[frame["time"] >= 0.8 * frame["time"].max(), :]
