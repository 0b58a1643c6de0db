"""Measured suboptimalities with the bounds of theory over them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter

from fedjax_sim.diagnostics import Overlay
from fedjax_sim.reports.divergence import finite_part
from fedjax_sim.reports.figures.curves import curves, divergence_notes
from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import INK, add_caption, legend_above, line_look, line_names


def bound_curves(
    history: pd.DataFrame,
    metric: str,
    overlay: Overlay,
    *,
    by: str = "algorithm",
    target: float | None = None,
) -> Figure:
    """Measured suboptimalities and their bounds against rounds, both axes logarithmic.

    Measured curves are means over seeds with the band of all seeds; bounds are thin and dashed.
    Bounds without a valid value are left out, and the caption says why.

    Args:
        history: tidy frame as for :func:`fedjax_sim.reports.figures.curves`.  Round 0, and rounds
            where the mean over seeds is not positive, have no place on logarithmic axes and are
            left out.
        metric: metric of the history.
        overlay: bounds at the same rounds.
        by: column with a measured curve per value.
        target: value of a horizontal line.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.figures.curves`; nothing positive to draw.

    Example:
        >>> from fedjax_sim.diagnostics.overlays import Row
        >>> columns = ["algorithm", "seed", "round", "metric", "value"]
        >>> rows = [("fedavg", 0, r, "suboptimality", 0.1 / r) for r in (1, 2, 4)]
        >>> overlay = Overlay([Row(r, "convex", 1 / r, True) for r in (1, 2, 4)], {})
        >>> figure = bound_curves(pd.DataFrame(rows, columns=columns), "suboptimality", overlay)
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['FedAvg', 'bound: convex']
    """
    later = finite_part(history.loc[(history["round"] > 0) & (history["metric"] == metric), :])
    groups = later.groupby([by, "round"])["value"]
    means = np.asarray(groups.transform(lambda v: v.to_numpy(float).mean()), float)
    # All seeds of a line lose the same rounds.  Means that are not finite end a line with a cross.
    drawn = later.loc[(means > 0) | ~np.isfinite(means), :]
    if not (drawn["value"] > 0).any():
        raise ValueError(f"history has no positive {metric!r} after round 0; expected some")
    figure = curves(drawn, metric, by=by, xscale="log", yscale="log", size=(6.4, 4.6))
    axes = figure.axes[0]
    axes.xaxis.set_minor_formatter(NullFormatter())
    valid = [row for row in overlay.rows if row.valid]
    names = list(dict.fromkeys(row.bound for row in valid))
    measured = len(axes.lines)
    for i, name in enumerate(names):
        rounds, values = np.array([row[:3:2] for row in valid if row.bound == name], float).T
        color = line_look(measured + i)["color"]
        axes.plot(rounds, values, color=color, ls="--", lw=1.2, label=f"bound: {name}")
    if target is not None:
        axes.axhline(target, color=INK, lw=0.8, ls=":", label="target")
    figure.legends[0].remove()
    legend_above(figure, line_names(axes), 2, notes=divergence_notes(later, by))
    if overlay.skipped:
        reasons = [f"No bound “{name}”: {reason}" for name, reason in overlay.skipped.items()]
        add_caption(figure, "\n".join(reasons))
    return figure
