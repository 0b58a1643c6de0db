"""Analysis of tidy histories: scores, best configurations, statistics over seeds, tables."""

from fedjax_sim.reports.folders import (
    FolderHistory,
    default_metrics,
    divergences,
    read_client_values,
    read_config,
    read_folder,
    read_folders,
    run_folders,
)
from fedjax_sim.reports.frames import (
    configuration_columns,
    divergence_text,
    finite_part,
    first_divergences,
    rows_with,
    score_values,
)
from fedjax_sim.reports.intervals import (
    Interval,
    interval_note,
    mean_interval,
    shown_interval,
)
from fedjax_sim.reports.labels import (
    PARTIAL,
    PARTIAL_NOTE,
    algorithm_labels,
    bounds_of,
    metric_label,
)
from fedjax_sim.reports.live import LiveCurves
from fedjax_sim.reports.page import LABELS, label_columns, report
from fedjax_sim.reports.results import Target, results
from fedjax_sim.reports.selection import Mode, best, rounds_to_target, scores
from fedjax_sim.reports.setting import setting_text
from fedjax_sim.reports.statistics import (
    PairedDifference,
    paired_difference,
    paired_differences,
    speed_up,
)
from fedjax_sim.reports.tables import Format, Mean, interval_text, render, results_table, table
from fedjax_sim.reports.views import runs_table

__all__ = [
    "FolderHistory",
    "Interval",
    "Mean",
    "Mode",
    "PairedDifference",
    "Target",
    "best",
    "divergence_text",
    "first_divergences",
    "mean_interval",
    "metric_label",
    "paired_difference",
    "paired_differences",
    "read_client_values",
    "read_folder",
    "read_folders",
    "render",
    "results",
    "results_table",
    "rounds_to_target",
    "rows_with",
    "scores",
    "shown_interval",
    "speed_up",
    "table",
]
