"""Figures of timelines: computing and waiting per client, and their distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedjax_sim.checks import check_choice, check_count
from fedjax_sim.reports.figures.style import (
    COLORS,
    INK,
    Figure,
    add_legend,
    bare,
    literal_texts,
    panels,
    style_axes,
)
from fedjax_sim.timelines import Spans

WAITING = "#DFE2E5"
AGES = LinearSegmentedColormap.from_list("ages", [COLORS[5], COLORS[0], "#00304D"])
_BINS = 30  # of a histogram, at most
_HATCHES = ("", "////", "....", "xxxx")


@literal_texts
def visit_chart(
    spans: Spans,
    *,
    clients: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    numbers: Literal["num_steps", "staleness"] | None = None,
    max_clients: int = 30,
) -> Figure:
    """Chart with a row per client: bars of computing, darker the staler the report, and of waiting.

    Pale bars are waiting; vertical lines are the server's updates.

    Args:
        spans: as :func:`fedjax_sim.timelines.spans` returns them.
        clients: the rows, from top to bottom; default: the first ``max_clients`` that work in the
            window.
        window: simulated times; default: all.
        numbers: field that is written into the computing bars, where it fits.
        max_clients: largest number of rows if no clients are named.

    Raises:
        ValueError: an empty window, a window in which the clients do no work, a repeated client,
            another ``numbers``, max_clients < 1.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.cyclic(4, 2, 1, num_steps=3)
        >>> figure = visit_chart(fs.timelines.spans(timeline))
        >>> [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
        ['0', '1']
    """
    check_choice(("num_steps", "staleness", None), numbers=numbers)
    check_count(1, max_clients=max_clients)
    low, high = window or (0.0, float(spans.time.max(initial=0.0)))
    if not low < high:
        raise ValueError(f"window is {(low, high)}; expected two times, the first one smaller")
    inside = (spans.start < high) & (spans.report > low)
    rows = np.unique(spans.client[inside])[:max_clients] if clients is None else np.array(clients)
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"clients is {rows.tolist()}; expected distinct ones")
    chosen = np.flatnonzero(inside & np.isin(spans.client, rows))
    if not chosen.size:
        raise ValueError(
            f"window is {(low, high)} and clients {rows.tolist()}, which do nothing then; "
            "expected some work"
        )
    shown = Spans(spans.time, *(values[chosen] for values in spans[1:]))
    row = {int(client): i for i, client in enumerate(rows)}
    at = np.array([row[client] for client in shown.client.tolist()])

    figure, (axes,) = panels((9.6, 1.5 + 0.24 * len(rows)))
    shade = Normalize(0, max(int(shown.staleness.max()), 1))
    colors = AGES(shade(shown.staleness))
    axes.barh(at, shown.done - shown.start, 0.78, shown.start, color=colors, label="computing")
    waits = shown.report > shown.done
    if waits.any():
        begun, length = shown.done[waits], (shown.report - shown.done)[waits]
        axes.barh(at[waits], length, 0.78, begun, color=WAITING, label="waiting")
    updates = np.unique(spans.time[(spans.time >= low) & (spans.time <= high)])
    axes.vlines(updates, 0, 1, COLORS[1], lw=0.7, transform=axes.get_xaxis_transform())
    if numbers is not None:
        _write(axes, shown, at, getattr(shown, numbers), shade, (low, high))
    axes.set(xlim=(low, high), ylim=(len(rows) - 0.5, -0.5), xlabel="simulated time")
    axes.set_yticks(range(len(rows)), [str(client) for client in rows])
    axes.set_ylabel("client")
    style_axes(axes)
    axes.grid(False)
    handles = [Patch(color=AGES(0.0)), Patch(color=WAITING), Line2D([], [], color=COLORS[1])]
    names = ["computing", "waiting with a report", "server update"]
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    if shown.staleness.any():
        scale = ScalarMappable(shade, AGES)
        bar = bare(figure.colorbar(scale, ax=axes, label="staleness", pad=0.01))
        bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return figure


@literal_texts
def visit_distributions(spans: Spans, groups: Mapping[str, ArrayLike]) -> Figure:
    """Histograms of staleness, steps per visit, visits per client, and shares of waiting time.

    Each histogram shows shares within a group: shares of its visits in the first two, of its
    clients in the others.  The waiting share of a client is waiting time over the time from the
    beginning of its visits to their reports, all visits together; a client that never reported has
    none.

    Args:
        spans: as :func:`fedjax_sim.timelines.spans` returns them.
        groups: clients by name, including those that never report, e.g.
            ``{"fast": np.flatnonzero(success == 1 / 2), ...}``.

    Raises:
        ValueError: no groups, one without clients, no visits of any of them.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.cyclic(4, 3, 1, num_steps=3)
        >>> figure = visit_distributions(fs.timelines.spans(timeline), {"all": range(3)})
        >>> [axes.get_xlabel() for axes in figure.axes[2:]]
        ['visits per client', 'share of time waiting']
    """
    members = {name: np.unique(np.asarray(clients, int)) for name, clients in groups.items()}
    if not members or not all(each.size for each in members.values()):
        sizes = {name: each.size for name, each in members.items()}
        raise ValueError(f"groups have the sizes {sizes}; expected at least one client in each")
    own = {name: np.isin(spans.client, each) for name, each in members.items()}
    if not any(each.any() for each in own.values()):
        raise ValueError(f"groups {list(groups)} have no visits; expected some")
    count, waited, lasted = (
        np.bincount(spans.client, weights, max(each.max() for each in members.values()) + 1)
        for weights in (None, spans.report - spans.done, spans.report - spans.start)
    )
    share = np.divide(waited, lasted, out=np.full(len(lasted), np.nan), where=lasted > 0)
    shown = {
        "staleness": {name: spans.staleness[visits] for name, visits in own.items()},
        "steps per visit": {name: spans.num_steps[visits] for name, visits in own.items()},
        "visits per client": {name: count[each] for name, each in members.items()},
        "share of time waiting": {
            name: share[each][~np.isnan(share[each])] for name, each in members.items()
        },
    }
    figure, every = panels((9.6, 5.6), 2, 2)
    for i, (axes, (what, values)) in enumerate(zip(every, shown.items(), strict=True)):
        whole = what != "share of time waiting"
        edges = _whole_bins(values) if whole else np.linspace(0, 1, 21)
        _histograms(axes, values, edges)
        axes.set(xlabel=what, ylabel="share of visits" if i < 2 else "share of clients")
        if whole:  # room for two ticks, also beside a single bar
            axes.set_xlim(edges[0] - 0.6, edges[-1] + 0.6)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style_axes(axes)
    patches = [Patch(**_bar_look(i)) for i in range(len(members))]
    add_legend(figure, patches, list(members), len(members))
    return figure


def _write(
    axes: Axes,
    shown: Spans,
    at: np.ndarray,
    values: np.ndarray,
    shade: Normalize,
    window: tuple[float, float],
) -> None:
    """Writes a number into the visible part of each computing bar that has room for it."""
    low, high = np.maximum(shown.start, window[0]), np.minimum(shown.done, window[1])
    for v in np.flatnonzero(high - low > 0.012 * (window[1] - window[0])):
        dark = shade(shown.staleness[v]) > 0.3
        axes.text(
            (low[v] + high[v]) / 2, at[v], str(int(values[v])), fontsize=7, ha="center",
            va="center", color="white" if dark else INK, clip_on=True,
        )  # fmt: skip


def _whole_bins(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns edges between whole numbers, for all groups."""
    every = np.concatenate(list(values.values()))
    low, high = int(every.min()), int(every.max())
    step = -(-(high - low + 1) // _BINS)
    return np.arange(low, high + step + 1, step) - 0.5


def _histograms(axes: Axes, values: Mapping[str, np.ndarray], edges: np.ndarray) -> None:
    """Draws each group's shares, side by side."""
    width = 0.9 * (edges[1] - edges[0]) / len(values)
    for i, each in enumerate(values.values()):
        shares = np.histogram(each, edges)[0] / max(len(each), 1)
        left = edges[:-1] + 0.05 * (edges[1] - edges[0]) + i * width
        axes.bar(left, shares, width, align="edge", **_bar_look(i))


def _bar_look(i: int) -> dict[str, Any]:
    """Returns colour and hatch of the i-th group's bars; colours repeat with another hatch."""
    hatch = _HATCHES[i // len(COLORS) % len(_HATCHES)]
    return {"facecolor": COLORS[i % len(COLORS)], "hatch": hatch, "edgecolor": "white", "lw": 0}
