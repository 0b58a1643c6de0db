"""Figure of a fork: "what if, from round t"."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from fedjax_sim.reports.divergence import finite_part
from fedjax_sim.reports.figures.curves import (
    by_seed,
    mark_failure,
    mean_of_seeds,
    on_one_grid,
    until_failure,
)
from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import add_caption, legend_above, line_look, style_axes
from fedjax_sim.reports.frames import check_columns
from fedjax_sim.reports.intervals import FEWEST, interval_note
from fedjax_sim.reports.labels import metric_label


def fork_curves(
    history: pd.DataFrame,
    differences: pd.DataFrame,
    metric: str,
    round: int,
    reference: str,
) -> Figure:
    """Curves of the alternatives after a fork, and their paired differences to the reference.

    The left panel has the means over seeds, the right one the mean differences with intervals, from
    three seeds on; a text under the panels says so.  Lines end, with a cross, at the last round
    before a seed diverged.

    Args:
        history: columns ``alternative``, ``seed``, ``round``, ``metric``, ``value``; with
            ``diverged_at``, values from that round on are left out.
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
    part = finite_part(history.loc[history["metric"] == metric])
    names, num_seeds = part["alternative"].unique(), len(set(part["seed"]))
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    lines = {name: _mean(part.loc[part["alternative"] == name]) for name in names}
    for i, (name, means) in enumerate(lines.items()):
        look = line_look(i)
        color = look["color"]
        left.plot(means.index, means.to_numpy(), **look, label=str(name))
        mark_failure(left, means.index.to_numpy(), means.to_numpy(), color)
        rows = differences.loc[differences["alternative"] == name].sort_values("round")
        if name == reference:
            right.axhline(0, **look, lw=1.5)
        elif len(rows):
            # A difference of fewer pairs would reward an alternative for diverging.
            both = means + lines[reference] if reference in lines else means
            failed = ~np.isfinite(both.reindex(rows["round"]).to_numpy())
            x, mean, low, high = (rows[c].to_numpy(float) for c in ("round", "mean", "low", "high"))
            mean = until_failure(np.where(failed, np.nan, mean))
            right.plot(x, mean, **look)
            mark_failure(right, x, mean, color)
            drawn = np.isfinite(mean) & np.isfinite(low) & np.isfinite(high)
            drawn &= num_seeds >= FEWEST
            right.fill_between(x[drawn], low[drawn], high[drawn], color=color, alpha=0.2, lw=0)
    left.set(xlabel="round", ylabel=metric_label(metric))
    right.set(xlabel="round", ylabel=f"difference to {reference}")
    for axes in (left, right):
        style_axes(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_above(figure, [str(name) for name in names], 4, f"What if, from round {round}")
    add_caption(figure, interval_note([int(num_seeds)], differences.attrs.get("level", 0.95)))
    return figure


def _mean(part: pd.DataFrame) -> pd.Series:
    """Returns the mean over seeds by round, NaN from the first round where a seed failed."""
    rounds, values = on_one_grid(by_seed(part, "round"), "round")
    return pd.Series(until_failure(mean_of_seeds(values)), index=rounds)
