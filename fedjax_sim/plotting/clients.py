"""Figures of clients: labels per client, client sizes."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator

from fedjax_sim.data.federated import FederatedData
from fedjax_sim.plotting.figure import Figure
from fedjax_sim.plotting.style import COLORS, GREY, SHADES, bare, style_axes


def client_label_map(
    counts: np.ndarray, class_names: Sequence[str] | None = None, *, max_clients: int = 100
) -> Figure:
    """Map of labels: a cell per client and class, darker with more examples, white without any.

    The colour scale is the square root of the count, so that small counts remain visible.  Bars
    above the map show the clients' sizes.

    Args:
        counts: [M, C] examples of each class at each client
            (:func:`fedjax_sim.data.summary.label_counts`).
        class_names: C names; numbers if None.
        max_clients: largest number of clients in the figure.

    Raises:
        ValueError: counts not two-dimensional or negative, a wrong number of names,
            max_clients < 1.

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
    if max_clients < 1:
        raise ValueError(f"max_clients is {max_clients}; expected at least 1")
    shown = counts[:max_clients]
    width = float(np.clip(0.3 * len(shown), 3, 10))  # inches of the map
    height = float(np.clip(0.25 * num_classes, 1, 6))
    figure = Figure(figsize=(width + 2, height + 1.6), layout="constrained")
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[0.7, height])
    top.bar(np.arange(len(shown)), shown.sum(axis=1), width=0.8, color=GREY)
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
    main.set_xlabel(
        "client" if len(shown) == num_clients else f"client (first {len(shown)} of {num_clients})"
    )
    main.set_ylabel("class")
    main.xaxis.set_major_locator(MaxNLocator(integer=True))
    if class_names is not None:
        main.set_yticks(range(num_classes), class_names)
    elif num_classes <= 20:
        main.set_yticks(range(num_classes))
    style_axes(main)
    main.grid(False)
    bar = bare(figure.colorbar(cells, ax=main, label="examples", pad=0.02, aspect=7 * height))
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return figure


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
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.hist(sizes, bins=edges.tolist(), color=COLORS[0], edgecolor="white", lw=0.6)
    median = float(np.median(sizes))
    axes.axvline(median, color=COLORS[1], lw=1.8, ls="--", label=f"median {median:g}")
    axes.set(xlabel="examples per client", ylabel="clients")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper right", frameon=False)
    style_axes(axes)
    return figure
