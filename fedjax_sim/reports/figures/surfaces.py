"""Figures of loss surfaces: contours and reliefs of several methods, on common scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize

from fedjax_sim.checks import check_one_number
from fedjax_sim.diagnostics import Surface
from fedjax_sim.reports.figures.style import (
    COLORS,
    INK,
    SHADES,
    Figure,
    bare,
    color_limits,
    literal_texts,
    panels,
    rows_and_columns,
    style_axes,
)

_STEPS = 16  # of colour, with a line between two


@literal_texts
def contours(
    surfaces: Mapping[str, Surface],
    *,
    dots: Mapping[str, Any] | None = None,
    high: float | None = None,
    log: bool = False,
    label: str = "loss",
    max_columns: int = 3,
) -> Figure:
    """Filled contours, a panel per method, with the same levels in all of them.

    Values above ``high`` have the darkest colour; where a value is not finite the panel is white.

    Args:
        surfaces: by method, as :func:`fedjax_sim.diagnostics.surfaces.surface` returns them, with
            one output each.
        dots: by method, coordinates ``[k, 2]``: a star for the first, the server's model, and
            circles for the others (``Plane.coordinates``).
        high: the upper end of the scale; by default the largest finite value.
        log: logarithmic levels, for positive values.
        label: name of the values.
        max_columns: largest number of panels side by side.

    Raises:
        ValueError: no surfaces, values that are not ``[P, Q]``, dots of an unknown method or not
            ``[k, 2]``, no finite values, one point per direction, ``high`` that is not finite or
            too low, ``log`` with values that are not positive.

    Example:
        >>> a = np.linspace(-1, 1, 5)
        >>> bowl = Surface(a, a, a[:, None] ** 2 + a**2)
        >>> figure = contours({"fedavg": bowl}, dots={"fedavg": [[0, 0], [0.5, 0.5]]})
        >>> figure.axes[0].get_title()
        'fedavg'
    """
    dots = {} if dots is None else {name: np.asarray(at, float) for name, at in dots.items()}
    values, low, high = _common_scale(surfaces, high, log)
    _check_dots(dots, surfaces)
    steps = (np.geomspace if log else np.linspace)(low, high, _STEPS + 1)
    rows, columns = rows_and_columns(len(surfaces), max_columns)
    size = (1.6 + 3.4 * columns, 0.5 + 3.2 * rows)
    figure, every = panels(size, rows, columns, len(surfaces))
    shared = (LogNorm if log else Normalize)(float(steps[0]), float(steps[-1]))
    for axes, (name, surface) in zip(every, surfaces.items(), strict=True):
        shown = np.ma.masked_invalid(values[name]).T  # rows are the vertical axis
        look = {"levels": steps, "norm": shared, "extend": "both"}
        axes.contourf(surface.a, surface.b, shown, cmap=SHADES, **look)
        axes.contour(surface.a, surface.b, shown, colors=INK, linewidths=0.4, **look)
        if name in dots:
            _draw_dots(axes, dots[name])
        axes.set(xlabel="first direction", ylabel="second direction")
        axes.set_title(name, fontsize="medium")
        style_axes(axes)
        axes.grid(False)
    bare(figure.colorbar(ScalarMappable(shared, SHADES), ax=every, label=label, pad=0.02))
    return figure


@literal_texts
def reliefs(
    surfaces: Mapping[str, Surface],
    *,
    high: float | None = None,
    label: str = "loss",
    max_columns: int = 3,
) -> Figure:
    """Surfaces in three dimensions, a panel per method, with the same height and colour scale.

    Values above ``high`` are cut off there; where a value is not finite there is a hole.

    Args:
        surfaces: as in :func:`contours`.
        high: the upper end of the scale; by default the largest finite value.
        label: name of the values.
        max_columns: largest number of panels side by side.

    Raises:
        ValueError: as :func:`contours`.

    Example:
        >>> a = np.linspace(-1, 1, 5)
        >>> figure = reliefs({"fedavg": Surface(a, a, a[:, None] ** 2 + a**2)})
        >>> tuple(float(z) for z in figure.axes[0].get_zlim())
        (0.0, 2.0)
    """
    values, low, high = _common_scale(surfaces, high, log=False)
    norm = Normalize(low, high)
    rows, columns = rows_and_columns(len(surfaces), max_columns)
    figure = Figure(figsize=(0.6 + 3.8 * columns, 0.3 + 3.5 * rows), layout="constrained")
    for number, (name, surface) in enumerate(surfaces.items(), 1):
        axes: Any = figure.add_subplot(rows, columns, number, projection="3d")
        heights = np.where(np.isfinite(values[name]), values[name], np.nan)
        axes.plot_surface(
            *np.meshgrid(surface.a, surface.b, indexing="ij"),
            np.minimum(heights, high),
            rcount=len(surface.a),
            ccount=len(surface.b),
            cmap=SHADES,
            norm=norm,
            lw=0.2,
            edgecolor="white",
        )
        axes.set(xlabel="first direction", ylabel="second direction", zlabel=label)
        axes.set_zlim(low, high, view_margin=0)
        axes.set_title(name, fontsize="medium")
        axes.tick_params(labelsize=8)
        axes.locator_params(nbins=5)
        axes.set_box_aspect(None, zoom=0.85)  # room for labels, which the layout does not count
    return figure


def _common_scale(
    surfaces: Mapping[str, Surface], high: float | None, log: bool
) -> tuple[dict[str, np.ndarray], float, float]:
    """Returns the values of all surfaces, and the ends of one scale for them."""
    if not surfaces:
        raise ValueError("surfaces is empty; expected at least one, by the method's name")
    values = {}
    for name, surface in surfaces.items():
        values[name] = np.asarray(surface.values, float)
        expected = (len(surface.a), len(surface.b))
        if min(expected) < 2:
            raise ValueError(
                f"surfaces[{name!r}] has {expected[0]} x {expected[1]} points; expected at least "
                "two per direction"
            )
        if values[name].shape != expected:
            raise ValueError(
                f"surfaces[{name!r}] has values of shape {values[name].shape}; expected {expected}"
            )
    check_one_number(high=high)
    finite = np.concatenate([v[np.isfinite(v)] for v in values.values()])
    if not finite.size:
        raise ValueError("surfaces has no finite value; expected some")
    low, top = float(finite.min()), float(finite.max() if high is None else high)
    if log and low <= 0:
        raise ValueError(f"log is True and the smallest value is {low:g}; expected > 0")
    if high is not None and not low < high < math.inf:  # also of NaN
        raise ValueError(
            f"high is {high}; expected more than the smallest value, {low:g}, and finite"
        )
    return values, *color_limits(np.array([low, top]), log)


def _check_dots(dots: Mapping[str, np.ndarray], surfaces: Mapping[str, Surface]) -> None:
    for name, at in dots.items():
        if name not in surfaces:
            raise ValueError(f"dots has {name!r}; expected some of {list(surfaces)}")
        if at.ndim != 2 or at.shape[1] != 2:
            raise ValueError(f"dots[{name!r}] has shape {at.shape}; expected [k, 2]")


def _draw_dots(axes: Axes, at: np.ndarray) -> None:
    edge: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.8, "zorder": 3}
    axes.scatter(*at[1:].T, s=26, color=COLORS[4], **edge)
    axes.scatter(*at[:1].T, s=150, marker="*", color=COLORS[1], **edge)
