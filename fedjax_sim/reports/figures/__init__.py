"""Figures.

Every function returns a :class:`matplotlib.figure.Figure` and touches no global state: it uses no
pyplot and needs no display.
"""

from fedjax_sim.reports.figures.clients import (
    client_bands,
    client_distribution,
    client_examples,
    client_label_map,
    size_histogram,
)
from fedjax_sim.reports.figures.curves import curves, dashboard
from fedjax_sim.reports.figures.progress import progress_curves, with_progress
from fedjax_sim.reports.figures.results import plot, plot_folder, result_curves, sweep_figure
from fedjax_sim.reports.figures.studies import (
    bound_curves,
    contributions,
    fork_curves,
    gap_figure,
    local_steps_figure,
)
from fedjax_sim.reports.figures.style import (
    COLORS,
    INK,
    Figure,
    add_caption,
    figure_format,
    legend_above,
    line_look,
    save,
    style_axes,
)
from fedjax_sim.reports.figures.surfaces import contours, reliefs
from fedjax_sim.reports.figures.sweeps import heat_map, sensitivity, speed_up_figure
from fedjax_sim.reports.figures.timelines import visit_chart, visit_distributions

__all__ = [
    "bound_curves",
    "client_bands",
    "client_distribution",
    "client_examples",
    "client_label_map",
    "contours",
    "contributions",
    "curves",
    "dashboard",
    "fork_curves",
    "gap_figure",
    "heat_map",
    "local_steps_figure",
    "plot",
    "plot_folder",
    "progress_curves",
    "reliefs",
    "result_curves",
    "save",
    "sensitivity",
    "size_histogram",
    "speed_up_figure",
    "sweep_figure",
    "visit_chart",
    "visit_distributions",
    "with_progress",
]
