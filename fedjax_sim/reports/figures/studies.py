"""Figures of studies: bounds over measured curves, local steps, forks, contributions of clients."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator, NullFormatter

from fedjax_sim.diagnostics import Overlay
from fedjax_sim.reports.figures.curves import (
    curves,
    divergence_notes,
    mark_failure,
    seed_curve,
    until_failure,
)
from fedjax_sim.reports.figures.style import (
    COLORS,
    GREY,
    INK,
    Figure,
    add_caption,
    font_of,
    legend_above,
    line_look,
    line_names,
    literal_texts,
    panels,
    style_axes,
)
from fedjax_sim.reports.frames import check_columns, finite_part
from fedjax_sim.reports.intervals import FEWEST, interval_note
from fedjax_sim.reports.labels import metric_label


@literal_texts
def bound_curves(
    history: pd.DataFrame,
    metric: str,
    overlay: Overlay,
    *,
    by: str = "algorithm",
    target: float | None = None,
) -> Figure:
    """Measured suboptimalities and their bounds against rounds, both axes logarithmic.

    Measured curves are means over seeds with their 95 % interval; bounds are thin and dashed.
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


@literal_texts
def gap_figure(
    frame: pd.DataFrame, metric: str, bounds: Overlay, target: float | None = None
) -> Figure:
    """Measured curves of prescribed and tuned settings, with the theorems' bounds over them.

    Args:
        frame: tidy, with columns ``run``, ``quantity``, ``seed``, ``round``, ``metric``, ``value``
            (:meth:`fedjax_sim.studies.advice.Gap.to_frame`).
        metric: metric of the frame.
        bounds: at the rounds of the frame.
        target: value of a horizontal line.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.figures.bound_curves`.

    Example:
        >>> columns = ["run", "quantity", "seed", "round", "metric", "value"]
        >>> rows = [("FedAvg", "model", 0, r, "F - F*", 1 / r) for r in (1, 2, 4)]
        >>> figure = gap_figure(pd.DataFrame(rows, columns=columns), "F - F*", Overlay([], {}), 0.5)
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['FedAvg', 'target']
    """
    part = frame.loc[frame["metric"] == metric, :]
    plain = part["quantity"] == "model"
    names = np.where(plain, part["run"], part["run"] + ": " + part["quantity"])
    part = part.assign(run=names)
    figure = bound_curves(part, metric, bounds, by="run", target=target)
    figure.set_figheight(3.2 + 0.22 * len(figure.axes[0].lines))  # the legend may be long
    return figure


@literal_texts
def local_steps_figure(frame: pd.DataFrame, rounds: int, local_steps: int) -> Figure:
    """Bounds at prescribed rates against the number of local steps, a line per theorem.

    Args:
        frame: columns ``theorem``, ``metric``, ``local_steps``, ``bound``.
        rounds: after which the bounds hold, for the caption.
        local_steps: number that a ring marks.

    Raises:
        ValueError: no finite bound.

    Example:
        >>> columns = ["theorem", "metric", "local_steps", "bound"]
        >>> rows = [("FedAvg", "F - F*", K, 1 / K) for K in (1, 2, 4)]
        >>> figure = local_steps_figure(pd.DataFrame(rows, columns=columns), 100, local_steps=2)
        >>> figure.axes[0].get_xlabel()
        'local steps'
    """
    finite = frame.loc[np.isfinite(np.asarray(frame["bound"], float)), :]
    if finite.empty:
        raise ValueError("frame has no finite bound; expected one: no theorem applies")
    metrics = list(finite["metric"].unique())
    figure, every = panels((6.4, 1.2 + 3.4 * len(metrics)), len(metrics))
    names = list(finite["theorem"].unique())
    for axes, metric in zip(every, metrics, strict=True):
        for i, name in enumerate(names):
            part = finite.loc[(finite["theorem"] == name) & (finite["metric"] == metric), :]
            if part.empty:
                continue
            x, y = part["local_steps"].to_numpy(), part["bound"].to_numpy()
            axes.plot(x, y, label=name, **line_look(i))
            here = x == local_steps
            axes.plot(x[here], y[here], "o", mfc="none", color=line_look(i)["color"])
        axes.set(xlabel="local steps", ylabel=f"bound of {metric}", xscale="log", yscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, high / 10), max(high, 10 * low))  # at least a decade
        style_axes(axes)
    legend_above(figure, names, 2)
    add_caption(figure, f"Bounds after {rounds} rounds, at the rates that the theorems prescribe.")
    return figure


@literal_texts
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
    figure, (left, right) = panels((9.6, 3.4), 1, 2)
    found = {name: seed_curve(part.loc[part["alternative"] == name], "round") for name in names}
    lines = {name: pd.Series(line.mean, index=line.at) for name, line in found.items()}
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


@literal_texts
def contributions(
    values: pd.DataFrame,
    *,
    label: str = "contribution",
    size: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Bars of the clients' values, a panel per method; error bars are two standard errors.

    Args:
        values: columns ``method``, ``client``, ``value`` and ``standard_error``, as
            ``Valuation.to_frame`` returns them; frames of several methods may be concatenated.
        label: of the vertical axes.
        size: width and height in inches; default 5.6 and 2.2 per method.
        caption: text under the panels.

    Raises:
        ValueError: missing columns, no rows.

    Example:
        >>> rows = [("exact", c, v, 0.0) for c, v in enumerate([0.5, -0.1])]
        >>> columns = ["method", "client", "value", "standard_error"]
        >>> axes = contributions(pd.DataFrame(rows, columns=columns)).axes[0]
        >>> [float(bar.get_height()) for bar in axes.patches], axes.get_title()
        ([0.5, -0.1], 'exact')
    """
    check_columns(values, ["method", "client", "value", "standard_error"], "values")
    methods = values["method"].unique().tolist()
    if not methods:
        raise ValueError("values has no rows; expected some")
    size = size or (5.6, 0.8 + 2.2 * len(methods))
    with font_of(size):
        figure, every = panels(size, len(methods), sharex=True)
        for axes, method in zip(every, methods, strict=True):
            part = values.loc[values["method"] == method, :]
            height = np.asarray(part["value"], np.float64)
            error = 2 * np.asarray(part["standard_error"], np.float64)
            colors = np.where(height < 0, COLORS[1], COLORS[0]).tolist()
            axes.bar(np.asarray(part["client"]), height, color=colors, width=0.8)
            if error.any():
                axes.errorbar(
                    np.asarray(part["client"]), height, error, fmt="none", ecolor=INK, capsize=2
                )
            axes.axhline(0, color=GREY, lw=0.8)
            axes.set(ylabel=label, title=method)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            style_axes(axes)
        every[-1].set_xlabel("client")
        add_caption(figure, caption)
    return figure
