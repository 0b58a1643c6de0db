"""Heat maps of sweeps over two hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Rectangle

from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import (
    COLORS,
    INK,
    LETTER,
    SHADES,
    bare,
    color_limits,
    index_of,
    style_axes,
)
from fedjax_sim.reports.figures.sweeps import grid_title, value_labels
from fedjax_sim.reports.frames import grid_values
from fedjax_sim.reports.labels import setting_label
from fedjax_sim.reports.selection import Mode, best, sign_of

_FAR = "#E7E3DD"  # of means far worse than the others
_MOST_SPREADS = 3


def heat_map(
    scores: pd.DataFrame,
    x: str,
    y: str,
    *,
    mode: Mode = "min",
    log: bool = False,
    label: str = "score",
) -> Figure:
    """Mean score over seeds for every pair of values of two hyper-parameters.

    The best cell is outlined.  Cells with a failed seed are hatched and show how many failed; a
    combination that was not run is white.  The means are printed where there is room, always up to
    8 x 8.  Means far worse than those of the better half, such as 1e30 shortly before a divergence,
    do not set the colours: they are pale grey, and the colour bar ends with an arrow.

    Args:
        scores: as :func:`fedjax_sim.reports.selection.scores` returns them.
        log: logarithmic colours, for scores that differ by orders of magnitude.
        label: name of the score, for the colour bar.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.selection.best`; ``x`` equal to ``y``; ``log``
            and a mean that is not positive.

    Example:
        >>> rows = [(a, b, 0, a * b) for a in (0.1, 1.0) for b in (1, 2, 4)]
        >>> frame = pd.DataFrame(rows, columns=["lr", "local_steps", "seed", "score"])
        >>> axes = heat_map(frame, "lr", "local_steps").axes[0]
        >>> [text.get_text() for text in axes.texts]
        ['0.100', '1.00', '0.200', '2.00', '0.400', '4.00']
    """
    if x == y:
        raise ValueError(f"x and y are both {x!r}; expected two columns")
    cells = best(scores, per=[y, x], mode=mode)
    xs, ys = grid_values(cells, x), grid_values(cells, y)
    mean = np.asarray(cells["mean"], np.float64)
    finite = np.isfinite(mean)
    if log and (mean[finite] <= 0).any():
        raise ValueError(f"log is True and a mean score is {mean[finite].min():g}; expected > 0")
    at = np.array(
        [(index_of(ys, b), index_of(xs, a)) for b, a in zip(cells[y], cells[x], strict=True)]
    )
    values = np.full((len(ys), len(xs)), math.nan)
    values[tuple(at[finite].T)] = mean[finite]

    width = float(np.clip(0.62 * len(xs), 2.5, 9))  # inches of the map
    height = float(np.clip(0.36 * len(ys), 1.4, 7))
    figure = Figure(figsize=(width + 2.2, height + 1.2), layout="constrained")
    axes = figure.subplots()
    shown, end = _without_outliers(mean[finite], mode, log)
    norm = (LogNorm if log else Normalize)(*color_limits(shown, log))
    shades = SHADES.with_extremes(under=_FAR, over=_FAR)
    colors = axes.pcolormesh(
        np.arange(len(xs) + 1) - 0.5,
        np.arange(len(ys) + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=shades,
        norm=norm,
        edgecolor="white",
        lw=0.6,
    )
    room = width / len(xs) >= 0.55 and height / len(ys) >= 0.2
    numbers = zip(at, mean, cells["num_failed"], cells["num_seeds"], strict=True)
    for (row, column), value, failed, seeds in numbers:
        if not np.isfinite(value):
            hatch = "////" if failed else None
            axes.add_patch(_box(row, column, facecolor="#F4F4F4", edgecolor="#C9CDD1", hatch=hatch))
        if room:
            text = f"✗ {failed}/{seeds}" if failed else f"{value:#.3g}".rstrip(".")
            color = _readable(shades(norm(value))) if np.isfinite(value) else INK
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
        elif failed:
            axes.text(column, row, "✗", ha="center", va="center", fontsize=8, color=INK)
    if finite.any():
        winner = at[np.argmin(np.where(finite, mean if mode == "min" else -mean, math.inf))]
        axes.add_patch(_box(*winner, facecolor="none", edgecolor=COLORS[1], lw=2.5, clip_on=False))
    labels = value_labels(x, xs)
    axes.set_xticks(range(len(xs)), labels)
    if max(map(len, labels)) * LETTER > width / len(xs):
        axes.tick_params("x", labelrotation=90)
    axes.set_yticks(range(len(ys)), value_labels(y, ys))
    axes.set(xlabel=setting_label(x), ylabel=setting_label(y))
    axes.set_title(grid_title(scores, cells, [x, y]), fontsize="medium")
    style_axes(axes)
    axes.grid(False)
    bar = figure.colorbar(colors, ax=axes, label=label, pad=0.02, aspect=7 * height, extend=end)
    bare(bar)
    return figure


def _without_outliers(
    means: np.ndarray, mode: Mode, log: bool
) -> tuple[np.ndarray, Literal["neither", "min", "max"]]:
    """Returns the means that set the colours, and the end of the colour bar that has an arrow.

    A mean is left out if it is worse than the worst of the better half by more than three times the
    range of that half, on the scale of the colours.
    """
    sign = sign_of(mode)
    scaled = sign * (np.log(means) if log else means)
    better_half = np.sort(scaled)[: (len(scaled) + 1) // 2]
    if not len(better_half) or not (spread := np.ptp(better_half)):
        return means, "neither"
    kept = scaled <= better_half[-1] + _MOST_SPREADS * spread
    return means[kept], "neither" if kept.all() else "max" if sign > 0 else "min"


def _readable(background: Sequence[float]) -> str:
    """Returns black or white, whichever contrasts more by the definition of WCAG 2."""
    rgb = np.array(background[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    return "white" if (luminance + 0.05) ** 2 < 0.05 * 1.05 else "black"


def _box(row: int, column: int, **look: Any) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, **look)
