"""Figure of a fork: "what if, from round t"."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedjax_sim.analysis.frames import check_columns
from fedjax_sim.analysis.labels import metric_label
from fedjax_sim.plotting.figure import Figure
from fedjax_sim.plotting.style import COLORS, INK, style_axes

if TYPE_CHECKING:
    import pandas as pd


def fork_curves(
    history: "pd.DataFrame",
    differences: "pd.DataFrame",
    metric: str,
    round: int,
    reference: str,
) -> Figure:
    """Curves of the alternatives after a fork, and their paired differences to the reference.

    The left panel has the means over seeds, the right one the mean differences with intervals.

    Args:
        history: columns ``alternative``, ``seed``, ``round``, ``metric``, ``value``.
        differences: columns ``alternative``, ``round``, ``mean``, ``low``, ``high``.
        metric: metric of both.
        round: round of the fork.
        reference: alternative whose differences are 0.

    Raises:
        ValueError: missing columns.

    Example:
        >>> import pandas as pd
        >>> rows = [(name, 0, r, "loss", r * x) for name, x in (("a", 1), ("b", 2)) for r in (5, 6)]
        >>> columns = ["alternative", "seed", "round", "metric", "value"]
        >>> pairs = pd.DataFrame({"alternative": "b", "round": [5, 6], "mean": [5.0, 6.0],
        ...                       "low": [4.0, 5.0], "high": [6.0, 7.0]})
        >>> figure = fork_curves(pd.DataFrame(rows, columns=columns), pairs, "loss", 5, "a")
        >>> figure.axes[1].get_ylabel()
        'difference to a'
    """
    check_columns(history, ["alternative", "seed", "round", "metric", "value"], "history")
    check_columns(differences, ["alternative", "round", "mean", "low", "high"], "differences")
    part = history.loc[history["metric"] == metric]
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, name in enumerate(part["alternative"].unique()):
        color = COLORS[i % len(COLORS)]
        means = part.loc[part["alternative"] == name].groupby("round")["value"].mean()
        left.plot(means.index, means.to_numpy(), color=color, label=name)
        rows = differences.loc[differences["alternative"] == name].sort_values("round")
        if name == reference:
            right.axhline(0, color=color, lw=1.5)
        elif len(rows):
            x, low, high = (rows[column].to_numpy() for column in ("round", "low", "high"))
            right.plot(x, rows["mean"].to_numpy(), color=color)
            drawn = np.isfinite(low) & np.isfinite(high)
            right.fill_between(x[drawn], low[drawn], high[drawn], color=color, alpha=0.2, lw=0)
    left.set(xlabel="round", ylabel=metric_label(metric))
    right.set(xlabel="round", ylabel=f"difference to {reference}")
    left.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        style_axes(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(f"What if, from round {round}", fontsize=10, color=INK)
    return figure
