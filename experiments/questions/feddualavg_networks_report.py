"""Report, figure and page on FedDualAvg for networks in l1 balls."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.harness import Estimate, Report, counted
from experiments.questions.feddualavg_networks_answers import answers
from experiments.questions.feddualavg_networks_tables import (
    TITLES,
    compared,
    inside,
    means,
    over,
    points,
    rates,
    scores,
    starts,
)
from experiments.questions.page import Page, Study

Tables = Mapping[str, pd.DataFrame]
NAMES = {"softmax": "softmax regression (convex)", "network": "one hidden layer"}
SHOWN = {"train loss": "training loss, FedDualAvg / FedMiD", "density": "density, same ratio"}


def draw(table: pd.DataFrame) -> Figure:
    """Loss and density of FedDualAvg over FedMiD's, against local steps, per model."""
    models = list(dict.fromkeys(table["model"]))
    radii, alphas = (sorted(table[name].unique()) for name in ("radius", "alpha"))
    figure, grid = plt.subplots(
        2, len(models), figsize=(8.2, 6.2), layout="constrained",
        sharex=True, sharey="row", squeeze=False,
    )  # fmt: skip
    for row, (metric, label) in zip(grid, SHOWN.items(), strict=True):
        row[0].set(ylabel=label, yscale="log" if metric == "density" else "linear")
        for axes, model in zip(row, models, strict=True):
            for alpha in alphas:
                for i, radius in enumerate(radii):
                    _line(axes, table, metric, i, skewed=alpha == alphas[0],
                          model=model, radius=radius, alpha=alpha)  # fmt: skip
            axes.axhline(1, color="0.6", lw=0.8, zorder=0)
    steps = sorted(table["num_steps"].unique())
    for axes, model in zip(grid[0], models, strict=True):
        axes.set(xscale="log", title=NAMES[model])
    for axes in grid[1]:
        axes.set_xticks(steps, [str(k) for k in steps])
        axes.minorticks_off()
        axes.set(xlabel="local steps K")
    keys = [Line2D([], [], color=f"C{i}", label=f"radius {r:g}") for i, r in enumerate(radii)]
    for alpha in alphas:
        name = f"Dirichlet {alpha:g}" if np.isfinite(alpha) else "IID"
        look = _look(alpha == alphas[0])
        keys.append(Line2D([], [], color="0.4", label=name, marker="o", ms=5, **look))
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys), frameon=False)
    return figure


def _look(skewed: bool) -> dict[str, Any]:
    return {"ls": "-"} if skewed else {"ls": "--", "mfc": "white"}


def _line(axes: Any, table: Any, metric: str, i: int, *, skewed: bool, **only: Any) -> None:
    cells = points(table, **only)
    cells.sort(key=lambda cell: cell["num_steps"])
    found = np.array([over(table, metric, "FedDualAvg", "FedMiD", **cell) for cell in cells])
    # Beside each other, so that intervals at the same K can be told apart.
    at = np.array([cell["num_steps"] for cell in cells]) * 1.07 ** (2 * i - 2 + 0.7 * skewed)
    ends = np.abs(found[:, 1:] - found[:, :1]).T
    axes.errorbar(
        at, found[:, 0], ends, color=f"C{i}", marker="o", ms=5, capsize=2, **_look(skewed)
    )


def build(tables: Tables, facts: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """The report and its figure."""
    table = tables[""]
    text = Report(
        "FedDualAvg for networks in l1 balls",
        f"{facts['rounds']} rounds, {counted(facts['seeds'], 'seed')}; rates chosen per cell and "
        "method by the loss on digits for validation. alpha is Dirichlet's, inf for IID clients. "
        "Size is the mean l1 norm of the kernels over the radius. Ratios have 95 % intervals over "
        "paired seeds.",
    )
    text.section("FedDualAvg over FedMiD", compared(table))
    for metric, title in TITLES.items():
        text.section(title, means(table, metric))
    text.section("What the server averages, means over seeds", inside(table))
    text.section("Starts over the projected one", starts(table))
    text.section("Chosen rates", rates(table))
    return text, {"feddualavg_networks": draw(table)}


def page(tables: Tables, facts: Mapping[str, Any]) -> Page:
    """Returns the page with the numbers of the tables."""
    table = tables[""]
    smallest, skewed = table["radius"].min(), table["alpha"].min()
    most, least = table["num_steps"].max(), table["num_steps"].min()
    corner = {"radius": smallest, "alpha": skewed}

    def loss(model: str, steps: Any) -> Estimate:
        at = {"model": model, "num_steps": steps, **corner}
        return over(table, "train loss", "FedDualAvg", "FedMiD", **at)

    def dense(model: str) -> Estimate:
        at = {"model": model, "num_steps": most, **corner}
        return over(table, "density", "FedDualAvg", "FedMiD", **at)

    accuracies = [
        100 * scores(table, "test accuracy", method=name, model="network", num_steps=most, **corner)
        for name in ("FedDualAvg", "FedMiD")
    ]
    more = Estimate.of(accuracies[0] - accuracies[1])
    return Page(
        found=f"Radius {smallest:g}, Dirichlet {skewed:g}: FedDualAvg has {loss('network', least)} "
        f"(K = {least}) and {loss('network', most)} (K = {most}) times FedMiD's training loss in "
        f"the network, {loss('softmax', least)} and {loss('softmax', most)} in softmax regression; "
        f"{dense('network'):.2g} times its density in the network at K = {most}, with {more:.1f} "
        "points of accuracy more.",
        refuted_by="A network and a ball that binds where, at rates tuned for both, FedDualAvg's "
        "paired ratios of loss and density to FedMiD's have the other side of 1.",
        caption="Ratios of the last models, means and 95 % intervals over paired seeds, each "
        "method at its own tuned rates. Below 1: FedDualAvg has the lower loss, the sparser model.",
        answers=answers(table),
        setting=f"800 digits on 20 clients, {facts['rounds']} rounds of all clients, "
        f"{counted(facts['seeds'], 'seed')}; softmax regression and a perceptron with 16 hidden "
        "units, equal radii for both kernels; one data set.",
    )


STUDY = Study(
    "feddualavg_networks",
    "FedDualAvg for networks in l1 balls",
    "FedDualAvg's theory is for convex functions. Does it keep its advantage over mirror descent "
    "in a network whose kernels are each in an l1 ball, as the thesis conjectures?",
    build,
    page,
)
