"""``fedjax-sim table``: tables of the results in folders of runs."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

import pandas as pd

from fedjax_sim.analysis.folders import default_metrics
from fedjax_sim.analysis.labels import algorithm_labels
from fedjax_sim.analysis.methods import read_folders
from fedjax_sim.analysis.rendering import Format, results_table
from fedjax_sim.analysis.results import Target, results

DESCRIPTION = """\
Prints a table of the results in FOLDER, which fedjax-sim run or sweep, or simulate, compare or
sweep in Python wrote: mean over seeds and 95 % confidence interval, the best in bold with those
that a paired t test over seeds (two-sided, Holm's correction) does not distinguish from it."""

_MOST_NAMED = 10  # methods whose rounds are listed


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options of ``fedjax-sim table``."""

    metric: tuple[str, ...] = ()
    """Metrics, one column each; default: test accuracy and training loss, else the first three."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Better values: larger (max) or smaller (min); auto: as the metric's name says."""
    last: int = 1
    """Number of evaluations at the end of a run over which a metric is averaged."""
    target: float | None = None
    """Value of the first metric; adds the rounds until runs reach it, the median over seeds."""
    format: Format = "markdown"
    """Format of the table; latex needs the package booktabs, csv has all numbers in full."""
    digits: int = 3
    """Decimals of means and intervals."""
    percent: bool = False
    """Write accuracies in percent."""
    configurations: Literal["best", "all"] = "best"
    """Configurations of a sweep, of all grids that ran in FOLDER: the best of every algorithm by
    the first metric, among those with the most seeds; or all."""
    output: pathlib.Path | None = None
    """File of the table; default: print it."""


def table(folders: Sequence[pathlib.Path], options: TableOptions) -> str:
    """Returns the table as text.

    Raises:
        ValueError: as :func:`fedjax_sim.analysis.read_folders` and
            :func:`fedjax_sim.analysis.results`.
    """
    first = options.metric[0] if options.metric else None
    content = read_folders(folders, configurations=options.configurations, metric=first)
    metrics = options.metric or default_metrics(content.history)
    target = None if options.target is None else Target(metrics[0], options.target)
    mode = options.mode
    frame = results(
        content.history,
        metrics,
        modes=None if mode == "auto" else dict.fromkeys(metrics, mode),
        last=options.last,
        target=target,
    )
    return results_table(
        frame,
        options.format,
        digits=options.digits,
        percent=options.percent,
        target=options.target,
        note=" ".join(filter(None, (content.setting, _last_rounds(content.history, metrics[0])))),
    )


def _last_rounds(history: pd.DataFrame, metric: str) -> str:
    """Returns a sentence with the last evaluated rounds if those of the runs differ.

    They do if a run was extended, interrupted or stopped early, or has a clock of its own.

    Example:
        >>> columns = ["algorithm", "seed", "round", "metric", "value"]
        >>> rows = [("fedavg", 0, 5, "loss", 0.1), ("scaffold", 0, 3, "loss", 0.2)]
        >>> _last_rounds(pd.DataFrame(rows, columns=columns), "loss")
        'Last evaluation: round 5 (FedAvg), 3 (SCAFFOLD).'
    """
    measured = history.loc[history["metric"] == metric, :]
    last = measured.groupby(["algorithm", "seed"], sort=False)["round"].max()
    if last.nunique() < 2:
        return ""
    labels = algorithm_labels(measured["algorithm"])
    if len(labels) > _MOST_NAMED:
        return f"Last evaluation: round {_range(last)}, by method."
    texts = [f"{_range(last.loc[name])} ({label})" for name, label in labels.items()]
    return f"Last evaluation: round {', '.join(texts)}."


def _range(numbers: pd.Series) -> str:
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"
