"""Figures of clients: labels, sizes, examples, and distributions of a metric over clients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedjax_sim.checks import check_count
from fedjax_sim.data import FederatedData
from fedjax_sim.reports.figures.curves import draw_curve, lines_of
from fedjax_sim.reports.figures.style import (
    COLORS,
    GREY,
    SHADES,
    Figure,
    add_caption,
    bare,
    font_of,
    legend_above,
    line_look,
    literal_texts,
    panels,
    style_axes,
)
from fedjax_sim.reports.frames import check_columns, row_ids
from fedjax_sim.reports.labels import bounds_of, metric_label

_BINS = 20
_QUANTILES = (0.1, 0.5, 0.9)


@literal_texts
def client_label_map(
    counts: np.ndarray,
    class_names: Sequence[str] | None = None,
    *,
    max_clients: int = 100,
    held_out: int = 0,
) -> Figure:
    """Map of labels: a cell per client and class, darker with more examples, white without any.

    The colour scale is the square root of the count, so that small counts remain visible.  Bars
    above the map show the clients' sizes.

    Args:
        counts: [M, C] examples of each class at each client
            (:func:`fedjax_sim.data.summary.label_counts`).
        class_names: C names; numbers if None.
        max_clients: largest number of clients in the figure.
        held_out: number of clients, the last ones, that never train; they follow a line.

    Raises:
        ValueError: counts not two-dimensional or negative, a wrong number of names,
            max_clients < 1, held_out outside 0 .. M.

    Example:
        >>> figure = client_label_map(np.array([[10, 0], [5, 5]]), ["cat", "dog"])
        >>> [tick.get_text() for tick in figure.axes[1].get_yticklabels()]
        ['cat', 'dog']
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.size == 0 or counts.min() < 0:
        raise ValueError(f"counts has shape {counts.shape}; expected non-negative [M, C]")
    num_clients, num_classes = counts.shape
    if class_names is not None and len(class_names) != num_classes:
        raise ValueError(f"class_names has {len(class_names)} names; expected {num_classes}")
    check_count(1, max_clients=max_clients)
    if not 0 <= held_out <= num_clients:
        raise ValueError(f"held_out is {held_out}; expected 0 .. {num_clients}, the clients")
    # Of many clients, at most a fifth of the map is for those that never train.
    num_held = min(held_out, max_clients - min(num_clients - held_out, 4 * max_clients // 5))
    num_trained = min(num_clients - held_out, max_clients - num_held)
    trained, last = counts[: num_clients - held_out], counts[num_clients - held_out :]
    shown = np.concatenate([trained[:num_trained], last[:num_held]])
    width = float(np.clip(0.3 * len(shown), 3, 10))  # inches of the map
    height = float(np.clip(0.25 * num_classes, 1, 6))
    figure, (top, main) = panels(
        (width + 2, height + 1.6), 2, sharex=True, height_ratios=[0.7, height]
    )
    bars = top.bar(np.arange(len(shown)), shown.sum(axis=1), width=0.8, color=GREY)
    for bar in bars[num_trained:]:
        bar.set_color(COLORS[1])
    top.set_ylabel("examples")
    top.set_yticks([0, max(shown.sum(axis=1).max(), 1)])
    style_axes(top)

    x, y = np.arange(len(shown) + 1) - 0.5, np.arange(num_classes + 1) - 0.5
    gap = 0.6 if max(len(shown), num_classes) <= 100 else 0.0  # gaps would swallow tiny cells
    cells = main.pcolormesh(
        x,
        y,
        np.ma.masked_equal(shown.T, 0),
        cmap=SHADES,
        norm=PowerNorm(0.5, vmin=0, vmax=max(shown.max(), 1)),
        edgecolor="white",
        lw=gap,
    )
    main.invert_yaxis()
    total = num_clients - held_out
    label = "client" if num_trained == total else f"client (first {num_trained} of {total})"
    if num_held:
        count = f"{held_out}" if num_held == held_out else f"{num_held} of {held_out}"
        label += f"; right of the line: {count} that never train"
        for axes in (top, main):
            axes.axvline(num_trained - 0.5, color=COLORS[1], lw=1.4)
    main.set_xlabel(label)
    main.set_ylabel("class")
    main.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Clients that never train have the last numbers, also if not all others are shown.
    left_out = total - num_trained
    main.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: f"{at if at < num_trained else at + left_out:g}")
    )
    if class_names is not None:
        main.set_yticks(range(num_classes), class_names)
    elif num_classes <= 20:
        main.set_yticks(range(num_classes))
    style_axes(main)
    main.grid(False)
    bar = bare(figure.colorbar(cells, ax=main, label="examples", pad=0.02, aspect=7 * height))
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return figure


@literal_texts
def client_examples(
    data: FederatedData, *, num_clients: int = 8, num_examples: int = 5, leaf: str = "x"
) -> Figure:
    """Images of the first clients, a column per client: their feature shift.

    Args:
        data: images ``[N, H, W]`` or ``[N, H, W, C]`` with 1 or 3 channels, uint8 or floating in
            [0, 1]; values outside are clipped.
        num_clients: largest number of columns.
        num_examples: largest number of images per client.
        leaf: key of the images.

    Raises:
        ValueError: no such key, another shape, or a number < 1.

    Example:
        >>> data = FederatedData({"x": np.zeros((5, 4, 4))}, np.array([0, 2, 5]))
        >>> len(client_examples(data).axes[0].images), len(client_examples(data).axes)
        (1, 6)
    """
    check_count(1, num_clients=num_clients, num_examples=num_examples)
    shape = np.shape(data.examples.get(leaf))
    if len(shape) not in (3, 4) or shape[3:] not in ((), (1,), (3,)):
        raise ValueError(
            f"leaf is {leaf!r} of shape {list(shape)}; expected images [N, H, W] or [N, H, W, C] "
            "with 1 or 3 channels"
        )
    images = np.asarray(data.examples[leaf])
    columns = min(num_clients, data.num_clients)
    rows = min(num_examples, max(int(np.max(data.sizes)), 1))
    figure, every = panels((1.0 * columns + 0.4, 1.0 * rows + 0.5), rows, columns)
    for client in range(columns):
        own = every[client::columns]
        own[0].set_title(f"client {client}", fontsize=8)
        start, stop = (int(row) for row in data.offsets[client : client + 2])
        for axes, row in itertools.zip_longest(own, range(start, min(stop, start + rows))):
            axes.set_axis_off()
            if row is not None:
                image = images[row] if images.dtype == np.uint8 else np.clip(images[row], 0, 1)
                limits = (0, 255) if images.dtype == np.uint8 else (0, 1)
                image = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
                axes.imshow(image, cmap="gray", vmin=limits[0], vmax=limits[1])
    return figure


@literal_texts
def size_histogram(data: FederatedData) -> Figure:
    """Histogram of the clients' numbers of examples, with the median marked.

    Example:
        >>> figure = size_histogram(FederatedData({"x": np.zeros(5)}, np.array([0, 2, 5])))
        >>> sum(int(bar.get_height()) for bar in figure.axes[0].patches)
        2
    """
    sizes = np.asarray(data.sizes)
    step = max(1, math.ceil((sizes.max() + 1) / 50))
    edges = np.arange(0, sizes.max() + step + 1, step) - 0.5  # no size lies on an edge
    figure, (axes,) = panels((5.2, 3.4))
    axes.hist(sizes, bins=edges.tolist(), color=COLORS[0], edgecolor="white", lw=0.6)
    median = float(np.median(sizes))
    axes.axvline(median, color=COLORS[1], lw=1.8, ls="--", label=f"median {median:.12g}")
    axes.set(xlabel="examples per client", ylabel="clients")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper right", frameon=False)
    style_axes(axes)
    return figure


@literal_texts
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

    The last round of every run counts, and clients of all seeds alike.  Values that are not finite
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
    # Runs that stopped early have a last round, too, as in tables.
    run = row_ids(part, ["seed"] if by is None else [by, "seed"])
    rounds = np.asarray(part["round"], int)
    last = np.zeros(run.max() + 1, int)
    np.maximum.at(last, run, rounds)
    part = part.loc[rounds == last[run], :]
    first, final = int(last.min()), int(last.max())
    when = f"round {final}" if first == final else f"rounds {first} to {final}, the last of a run"
    every = np.asarray(part[metric], np.float64)
    finite = every[np.isfinite(every)]
    if not len(finite):
        raise ValueError(f"{metric} is not finite for any client in {when}")
    bounds = bounds_of(metric, finite) or (finite.min(), finite.max())
    size = size or (9.2, 3.6)
    edges: Any = np.linspace(*bounds, _BINS + 1) if bounds[0] < bounds[1] else _BINS
    notes: dict[str, str] = {}
    with font_of(size):
        figure, (share, counts) = panels(size, 1, 2)
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
        add_caption(figure, _clients(part, split, when))
    return figure


@literal_texts
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

    Quantiles are taken per seed and averaged over the seeds, in rounds that all seeds of a line
    have.  A line ends, with a cross, before the first round with a value that is not finite.

    Args:
        values, metric, split, by, size, caption: as for :func:`client_distribution`.

    Raises:
        ValueError: missing columns, a split without rows, seeds without a common round.

    Example:
        >>> rows = [("fedavg", 0, r, c, "train", 5, c / 4) for r in (5, 9) for c in range(5)]
        >>> columns = ["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"]
        >>> axes = client_bands(pd.DataFrame(rows, columns=columns), "accuracy").axes[0]
        >>> axes.lines[0].get_xydata().tolist()
        [[5.0, 0.5], [9.0, 0.5]]
    """
    split, part = _rows(values, metric, split, by)
    size = size or (5.6, 4.0)
    with font_of(size):
        figure, (axes,) = panels(size)
        groups = _groups(part, by)
        for i, (label, group) in enumerate(groups.items()):
            rounds, (low, middle, high) = _quantiles(group, metric)
            draw_curve(axes, rounds, middle, i, (low, high), label=label)
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
    check_columns(values, [by, "seed", "round", "client", "split", metric], "values")
    known = values["split"].unique().tolist()
    if not known:
        raise ValueError("values has no rows; expected some")
    split = known[0] if split is None else split
    if split not in known:
        raise ValueError(f"split is {split!r}; expected one of {known}")
    return str(split), values.loc[values["split"] == split, :]


def _groups(part: pd.DataFrame, by: str | None) -> Mapping[str, pd.DataFrame]:
    """Returns the rows by the label of their line."""
    return {"clients": part} if by is None else dict(lines_of(part, by))


def _quantiles(group: pd.DataFrame, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rounds and the quantiles ``[3, rounds]``, NaN from the first failure on."""
    # A mean over the seeds that are left would change with their number.
    counts = group.groupby("round")["seed"].transform("nunique").to_numpy()
    common = counts == group["seed"].nunique()
    if not common.any():
        raise ValueError("values has seeds without a common round; expected one")
    group = group.loc[common, :]
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
