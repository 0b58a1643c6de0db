"""Figures."""

from fedjax_sim.plotting.bounds import bound_curves
from fedjax_sim.plotting.curves import (
    client_label_map,
    curves,
    legend_above,
    line_look,
    size_histogram,
    style_axes,
)
from fedjax_sim.plotting.heat_maps import heat_map
from fedjax_sim.plotting.progress import progress_curves, with_progress
from fedjax_sim.plotting.surfaces import contours, reliefs
from fedjax_sim.plotting.sweeps import (
    grid_title,
    index_of,
    sensitivity,
    short,
    speed_up_figure,
    words,
)
from fedjax_sim.plotting.timelines import visit_chart, visit_distributions

__all__ = [
    "bound_curves",
    "client_label_map",
    "contours",
    "curves",
    "grid_title",
    "heat_map",
    "index_of",
    "legend_above",
    "line_look",
    "progress_curves",
    "reliefs",
    "sensitivity",
    "short",
    "size_histogram",
    "speed_up_figure",
    "style_axes",
    "visit_chart",
    "visit_distributions",
    "with_progress",
    "words",
]
