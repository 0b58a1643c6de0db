"""Report, figure and page on FedDualAvg for networks in l1 balls."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.harness import Estimate, Report, counted, select
from experiments.questions.feddualavg_networks_answers import answers
from experiments.questions.feddualavg_networks_tables import (
    PROJECTED,
    TITLES,
    compared,
    inside,
    means,
    over,
    overall,
    points,
    product,
    rates,
    starts,
)
from experiments.questions.page import Page, Study

Tables = Mapping[str, pd.DataFrame]
NAMES = {"softmax": "softmax regression (convex)", "network": "one hidden layer"}
SHOWN = {
    "train loss": "training loss, FedDualAvg / FedMiD",
    "density": "density, FedDualAvg / FedMiD",
}
OVER = ("num_steps", "alpha")


def draw(table: pd.DataFrame) -> Figure:
    """Loss and density of FedDualAvg over FedMiD's, against the radius, per model."""
    models = list(dict.fromkeys(table["model"]))
    radii, steps, alphas = (sorted(table[name].unique()) for name in ("radius", *OVER))
    figure, grid = plt.subplots(
        2, len(models), figsize=(8.2, 6.2), layout="constrained",
        sharex=True, sharey="row", squeeze=False,
    )  # fmt: skip
    for row, (metric, label) in zip(grid, SHOWN.items(), strict=True):
        row[0].set(ylabel=label)
        for axes, model in zip(row, models, strict=True):
            for alpha in alphas:
                for i, count in enumerate(steps):
                    only = {"model": model, "num_steps": count, "alpha": alpha}
                    _line(axes, table, metric, i, skewed=alpha == alphas[0], **only)
            axes.axhline(1, color="0.6", lw=0.8, zorder=0)
        row[0].set_ylim(bottom=0)  # after all lines, whose intervals set the other end
    for axes, model in zip(grid[0], models, strict=True):
        axes.set(xscale="log", title=NAMES[model])
    for axes in grid[1]:
        axes.set_xticks(radii, [f"{radius:g}" for radius in radii])
        axes.minorticks_off()
        axes.set(xlabel="radius of every kernel's ball")
    keys = [Line2D([], [], color=f"C{i}", label=f"K = {k}") for i, k in enumerate(steps)]
    for alpha in alphas:
        name = f"Dirichlet {alpha:g}" if np.isfinite(alpha) else "IID"
        look = _look(alpha == alphas[0])
        keys.append(Line2D([], [], color="0.4", label=name, marker="o", ms=5, **look))
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys), frameon=False)
    return figure


def _look(skewed: bool) -> dict[str, Any]:
    return {"ls": "-"} if skewed else {"ls": "--", "mfc": "white"}


def _line(axes: Any, table: Any, metric: str, i: int, *, skewed: bool, **only: Any) -> None:
    cells = sorted(points(table, **only), key=lambda cell: cell["radius"])
    found = np.array([over(table, metric, "FedDualAvg", "FedMiD", **cell) for cell in cells])
    # Beside each other, so that intervals at the same radius can be told apart.
    at = np.array([cell["radius"] for cell in cells]) * 1.04 ** (2 * i - 2 + skewed)
    ends = np.abs(found[:, 1:] - found[:, :1]).T
    look = {"color": f"C{i}", "marker": "o", "ms": 5, "capsize": 2} | _look(skewed)
    axes.errorbar(at, found[:, 0], ends, **look)


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

    def of(metric: str, other: str = "FedMiD", **only: Any) -> Estimate:
        return overall(table, metric, "FedDualAvg", other, **only)

    loss, dense = (
        [of(metric, model=name) for name in ("network", "softmax")]
        for metric in ("train loss", "density")
    )
    ends = [(k, {"model": "network", "num_steps": k}) for k in sorted(set(table["num_steps"]))]
    osp = [f"{of('train loss', 'FedMiD-OSP', **only)} (K = {k})" for k, only in (ends[0], ends[-1])]
    size = {
        name: product(select(table, start=PROJECTED, method=name, model="network"))
        for name in ("FedDualAvg", "FedMiD")
    }
    return Page(
        found=f"Over all cells of the network FedDualAvg has {loss[0]} times FedMiD's training "
        f"loss and {dense[0]:.2g} times its density; in softmax regression {loss[1]} and "
        f"{dense[1]:.2g}: without convexity its lead is {_lead(*loss)} in loss, "
        f"{_lead(*dense)} in density. Loss over FedMiD-OSP's: {', '.join(osp)}. Its lr times "
        f"server_lr is {size['FedDualAvg'] / size['FedMiD']:.1f} times FedMiD's.",
        refuted_by="A network and a ball that binds where, with rates tuned for both, FedDualAvg "
        "has the higher training loss or the denser model, with a paired interval above 1.",
        caption="Ratios of the last models, means and 95 % intervals over paired seeds, each "
        "method at its own tuned rates. Below 1: FedDualAvg has the lower loss, the sparser model.",
        answers=answers(table),
        setting=f"800 digits on 20 clients, {facts['rounds']} rounds of all clients, "
        f"{counted(facts['seeds'], 'seed')}; softmax regression and a perceptron with 16 hidden "
        "units, equal radii for both kernels; one data set, one width, one number of rounds. The "
        f"chosen client rate is at its grid's edge in {np.count_nonzero(table['at edge'])} of "
        f"{len(table)} cases.",
    )


def _lead(one: Estimate, other: Estimate) -> str:
    """Returns "larger", "smaller" or "as large": the lead by one ratio of losses beside another."""
    return "larger" if one.high < other.low else "smaller" if one.low > other.high else "as large"


STUDY = Study(
    "feddualavg_networks",
    "FedDualAvg for networks in l1 balls",
    "FedDualAvg's theory is for convex functions. Does it keep its advantage over mirror descent "
    "in a network whose kernels are each in an l1 ball, as the thesis conjectures?",
    build,
    page,
)
