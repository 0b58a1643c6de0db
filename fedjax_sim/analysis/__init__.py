"""Analysis of tidy histories: scores, best configurations, statistics over seeds, tables."""

from fedjax_sim.analysis.divergence import divergence_text, finite_part, first_divergences
from fedjax_sim.analysis.folders import FolderHistory, read_client_values, read_folder
from fedjax_sim.analysis.frames import grid_values, rows_with
from fedjax_sim.analysis.intervals import Interval, mean_interval
from fedjax_sim.analysis.labels import algorithm_label, metric_label
from fedjax_sim.analysis.methods import read_folders
from fedjax_sim.analysis.rendering import results_table
from fedjax_sim.analysis.results import Target, results
from fedjax_sim.analysis.selection import Mode, best, rounds_to_target, scores
from fedjax_sim.analysis.statistics import (
    PairedDifference,
    paired_difference,
    paired_differences,
    speed_up,
)
from fedjax_sim.analysis.tables import markdown, table

__all__ = [
    "FolderHistory",
    "Interval",
    "Mode",
    "PairedDifference",
    "Target",
    "algorithm_label",
    "best",
    "divergence_text",
    "finite_part",
    "first_divergences",
    "grid_values",
    "markdown",
    "mean_interval",
    "metric_label",
    "paired_difference",
    "paired_differences",
    "read_client_values",
    "read_folder",
    "read_folders",
    "results",
    "results_table",
    "rounds_to_target",
    "rows_with",
    "scores",
    "speed_up",
    "table",
]
