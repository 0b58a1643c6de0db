"""Figures.

Every function returns a :class:`matplotlib.figure.Figure` and touches no global state: it uses no
pyplot and needs no display.
"""

from fedjax_sim.reports.figures.advice import gap_figure, local_steps_figure
from fedjax_sim.reports.figures.bounds import bound_curves
from fedjax_sim.reports.figures.client_values import client_bands, client_distribution
from fedjax_sim.reports.figures.clients import client_examples, client_label_map, size_histogram
from fedjax_sim.reports.figures.contributions import contributions
from fedjax_sim.reports.figures.curves import curves
from fedjax_sim.reports.figures.dashboard import dashboard
from fedjax_sim.reports.figures.folders import plot_folder
from fedjax_sim.reports.figures.forks import fork_curves
from fedjax_sim.reports.figures.heat_maps import heat_map
from fedjax_sim.reports.figures.progress import progress_curves, with_progress
from fedjax_sim.reports.figures.results import plot, result_curves, sweep_figure
from fedjax_sim.reports.figures.style import save
from fedjax_sim.reports.figures.surfaces import contours, reliefs
from fedjax_sim.reports.figures.sweeps import sensitivity, speed_up_figure
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
