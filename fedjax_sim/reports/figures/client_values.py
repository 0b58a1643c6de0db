"""Distributions of a metric over clients, at the end and over the rounds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.ticker import MaxNLocator

from fedjax_sim.reports.figures.curves import line_labels, mark_failure
from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import (
    add_caption,
    font_points,
    legend_above,
    line_look,
    marker_look,
    style_axes,
)
from fedjax_sim.reports.frames import check_columns
from fedjax_sim.reports.labels import bounds_of, metric_label

_BINS = 20
_QUANTILES = (0.1, 0.5, 0.9)


def client_distribution(
    values: pd.DataFrame,
    metric: str,
    *,
    split: str | None = None,
    by: str | None = "algorithm",
    size: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Distribution of a metric over clients: the share of clients up to a value, and a histogram.

    The last round of the values counts, and clients of all seeds alike.  Values that are not finite
    are left out, and the legend says how many.

    Args:
        values: columns ``by``, ``seed``, ``round``, ``client``, ``split``, ``num_examples`` and the
            metrics, as ``clients.csv`` of a run has them.
        metric: column of the values.
        split: rows to draw ("train", "valid"); default: the first split.
        by: column with a line per value; None: one line.
        size: width and height in inches; default 9.2 and 3.6, of the bands 5.6 and 4.
        caption: text under the panels, before the one about clients.

    Raises:
        ValueError: missing columns, a split without rows.

    Example:
        >>> rows = [("fedavg", 0, 9, c, "train", 5, c / 4) for c in range(5)]
        >>> columns = ["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"]
        >>> share, counts = client_distribution(
        ...     pd.DataFrame(rows, columns=columns), "accuracy").axes
        >>> share.lines[0].get_label(), share.get_xlabel(), share.lines[0].get_ydata().tolist()
        ('FedAvg', 'accuracy', [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    split, part = _rows(values, metric, split, by)
    round = int(np.max(np.asarray(part["round"])))
    part = part.loc[part["round"] == round, :]
    every = np.asarray(part[metric], np.float64)
    finite = every[np.isfinite(every)]
    if not len(finite):
        raise ValueError(f"{metric} is not finite for any client in round {round}")
    bounds = bounds_of(metric, finite) or (finite.min(), finite.max())
    size = size or (9.2, 3.6)
    edges = np.linspace(*bounds, _BINS + 1) if bounds[0] < bounds[1] else _BINS
    notes: dict[str, str] = {}
    with rc_context({"font.size": font_points(size[0])}):
        figure = Figure(figsize=size, layout="constrained")
        share, counts = figure.subplots(1, 2)
        for i, (label, group) in enumerate(_groups(part, by).items()):
            single = np.asarray(group[metric], np.float64)
            kept = np.sort(single[np.isfinite(single)])
            notes[label] = _left_out(len(single) - len(kept), len(single))
            if not len(kept):
                share.plot([], [], **line_look(i), lw=1.8, label=label)
                continue
            at = np.concatenate([[kept[0]], kept])
            steps = np.arange(len(kept) + 1) / len(kept)
            share.step(at, steps, where="post", **line_look(i), lw=1.8, label=label)
            counts.hist(
                kept, bins=edges, weights=np.full(len(kept), 1 / len(kept)), histtype="step",
                lw=1.6, **line_look(i),
            )  # fmt: skip
        share.set(xlabel=metric_label(metric), ylabel="share of clients up to the value")
        counts.set(xlabel=metric_label(metric), ylabel="share of clients")
        share.set_ylim(-0.02, 1.02)
        for axes in (share, counts):
            style_axes(axes)
        if by is not None:
            legend_above(figure, list(notes), 5, notes=notes)
        add_caption(figure, caption)
        add_caption(figure, _clients(part, split, f"round {round}"))
    return figure


def client_bands(
    values: pd.DataFrame,
    metric: str,
    *,
    split: str | None = None,
    by: str | None = "algorithm",
    size: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Deciles of a metric over clients against rounds: the median, and a band from 10 % to 90 %.

    Quantiles are taken per seed and averaged over the seeds.  A line ends, with a cross, before the
    first round with a value that is not finite.

    Args:
        values, metric, split, by, size, caption: as for :func:`client_distribution`.

    Raises:
        ValueError: missing columns, a split without rows.

    Example:
        >>> rows = [("fedavg", 0, r, c, "train", 5, c / 4) for r in (5, 9) for c in range(5)]
        >>> columns = ["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"]
        >>> axes = client_bands(pd.DataFrame(rows, columns=columns), "accuracy").axes[0]
        >>> axes.lines[0].get_xydata().tolist()
        [[5.0, 0.5], [9.0, 0.5]]
    """
    split, part = _rows(values, metric, split, by)
    size = size or (5.6, 4.0)
    with rc_context({"font.size": font_points(size[0])}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        groups = _groups(part, by)
        for i, (label, group) in enumerate(groups.items()):
            rounds, lines = _quantiles(group, metric)
            look = line_look(i)
            marks = marker_look(i, len(rounds)) if np.isfinite(lines[1]).any() else {}
            axes.plot(rounds, lines[1], **look, **marks, lw=1.8, label=label)
            axes.fill_between(rounds, lines[0], lines[2], color=look["color"], alpha=0.18, lw=0)
            mark_failure(axes, rounds, lines[1], look["color"])
        axes.set(xlabel="round", ylabel=metric_label(metric))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.margins(x=0.02)
        style_axes(axes)
        if by is not None:
            legend_above(figure, list(groups), 4)
        add_caption(figure, caption)
        add_caption(figure, _clients(part, split, "lines: 50 %, bands: 10 % to 90 % of clients"))
    return figure


def _rows(
    values: pd.DataFrame, metric: str, split: str | None, by: str | None
) -> tuple[str, pd.DataFrame]:
    """Returns the split and its rows."""
    needed = [*([] if by is None else [by]), "seed", "round", "client", "split", metric]
    check_columns(values, needed, "values")
    known = values["split"].unique().tolist()
    if not known:
        raise ValueError("values has no rows; expected some")
    split = known[0] if split is None else split
    if split not in known:
        raise ValueError(f"split is {split!r}; expected one of {known}")
    return str(split), values.loc[values["split"] == split, :]


def _groups(part: pd.DataFrame, by: str | None) -> Mapping[str, pd.DataFrame]:
    """Returns the rows by the label of their line."""
    if by is None:
        return {"clients": part}
    labels = line_labels(part, by)
    return {label: part.loc[part[by] == name, :] for name, label in labels.items()}


def _quantiles(group: pd.DataFrame, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rounds and the quantiles ``[3, rounds]``, NaN from the first failure on."""
    per_seed = [
        [np.quantile(np.asarray(rows[metric], np.float64), _QUANTILES) for _, rows in seeds]
        for seeds in (part.groupby("seed") for _, part in group.groupby("round", sort=True))
    ]
    lines = np.array([np.mean(seeds, axis=0) for seeds in per_seed]).T
    failed = np.logical_or.accumulate(~np.isfinite(lines).all(axis=0))
    return np.unique(group["round"]), np.where(failed, np.nan, lines)


def _left_out(failed: int, count: int) -> str:
    return f"{failed} of {count} values not finite" if failed else ""


def _clients(part: pd.DataFrame, split: str, text: str) -> str:
    clients, seeds = len(set(part["client"])), len(set(part["seed"]))
    of = f" ({split} examples)" if split else ""
    every = "one seed" if seeds == 1 else f"{seeds} seeds"
    return f"{clients} clients{of}, {every}; {text}."
