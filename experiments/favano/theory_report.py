"""Reports on FAVANO's theory, built from their CSV and JSON files."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.favano.quadratics import DIM, FAST, NUM_CLIENTS, SLOW
from experiments.favano.theory_bounds import WORST
from experiments.favano.theory_units import EPSILONS
from experiments.harness import Report, bounds_hold, legends
from fedjax_sim.reports.figures import legend_above, line_look, style_axes

Tables = Mapping[str, pd.DataFrame]
Facts = Mapping[str, Any]


def theory(tables: Tables, facts: Facts) -> tuple[Report, dict[str, Figure]]:
    """Averages beside the bounds, and curves of some settings."""
    table, options = tables[""], facts["options"]
    known = ", ".join(f"{name} = {value:.4g}" for name, value in facts["constants"].items())
    loose, lemma = table["bound / mean"], table["kappa': bound / potential"]
    sums = table["sum of potentials: bound / sum"]
    steps = table["mean model's step: bound / step"]
    report = Report(
        "FAVANO beside its theory",
        f"Quadratics: d = {DIM}, n = {NUM_CLIENTS}, {known}; {options['server_steps']} server "
        f"steps, {options['repetitions']} repetitions; steps geometric on 1, 2, ..., {FAST:g} for "
        f"fast and {SLOW:g} for slow clients, at most K. A bound holds where the average is at "
        f"most {WORST:g} standard errors above it (our threshold), for the potential after every "
        "single server step, for gradients, sums and the mean model's steps over the whole time.",
        table,
        f"All bounds hold in {np.count_nonzero(table['holds'])} of {len(table)} settings. Theorem "
        f"1 is {loose.min():.3g} to {loose.max():.3g} times the average, the potential lemma with "
        f"kappa' {lemma.min():.3g} to {lemma.max():.3g} times, the sum of the potentials "
        f"(Equation 177) {sums.min():.3g} to {sums.max():.3g} times, the mean model's step "
        f"(Equation 178) {steps.min():.3g} to {steps.max():.3g} times.",
    )
    report.claims([bounds_hold("Theorem 1 and the lemmas behind it, corrected", table["holds"])])
    return report, {"theory": curves_figure(tables["curves"])}


def curves_figure(curves: pd.DataFrame) -> Figure:
    """Gradients and potentials over the server steps, with their bounds."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, (s, part) in enumerate(curves.groupby("s")):
        look = line_look(i)
        for axes, value, bound in (
            (left, "gradient", "theorem"), (right, "potential", "lemma")
        ):  # fmt: skip
            axes.loglog(part["server steps"], part[value], **look, label=f"s = {s}")
            axes.loglog(part["server steps"], part[bound], **look | {"ls": "--"})
    left.set(xlabel="server steps", title="mean ||grad f(mu)||^2; dashed: Theorem 1")
    right.set(xlabel="server steps", title="E Phi_t; dashed: Equation 6, iterated")
    for axes in (left, right):
        axes.title.set_fontsize("medium")
        style_axes(axes)
    legends([left])
    return figure


def units(tables: Tables, facts: Facts) -> tuple[Report, dict[str, Figure]]:
    """Table 1 of the paper."""
    del facts
    table = tables[""]
    report = Report(
        "Units of time to a mean squared gradient of epsilon (Table 1 of FAVANO)",
        "Orders, constants taken as 1, times the length of a server step: only their dependence "
        "on the constants matters, not their values. The quadratics of "
        "`experiments.favano.quadratics`; n = 100, s = 20, K = 20, buffer 10; delays and FedBuff's "
        "step from long schedules.",
        table,
    )
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (slow, part) in zip(panels, table.groupby("slow", sort=False), strict=True):
        for i, row in enumerate(part.to_dict("records")):
            times = [row[f"eps = {eps:g}"] for eps in EPSILONS]
            axes.loglog(EPSILONS, times, marker="o", **line_look(i), label=row["method"])
        axes.set(xlabel="epsilon", title=f"{slow} slow")
        style_axes(axes)
    panels[0].set_ylabel("units of time (orders)")
    legend_above(figure, table["method"].unique().tolist(), 5)
    return report, {"units": figure}


# By the name of the report's files.
REPORTS = {"theory": theory, "units": units}
