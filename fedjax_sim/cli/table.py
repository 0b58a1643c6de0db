"""``fedjax-sim table``: tables of the results in folders of runs."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

import pandas as pd

from fedjax_sim.reports import (
    Format,
    Mode,
    Target,
    algorithm_labels,
    default_metrics,
    read_config,
    read_folders,
    results_table,
)
from fedjax_sim.reports.results import results

DESCRIPTION = """\
Prints a table of the results in FOLDER, which fedjax-sim run or sweep, or simulate, compare or
sweep in Python wrote: mean over seeds and 95 % confidence interval, the best in bold with those
that a paired t test over seeds (two-sided, Holm's correction) does not distinguish from it."""

_MOST_NAMED = 10  # methods whose rounds are listed
_FORMATS: dict[str, Format] = {
    ".md": "markdown", ".tex": "latex", ".html": "html", ".csv": "csv",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options of ``fedjax-sim table``."""

    metric: tuple[str, ...] = ()
    """Metrics, one column each; default: test accuracy, first that of personal models where they
    were evaluated, and training loss, else the first three."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Better values: larger (max) or smaller (min); auto: as a sweep in FOLDER was told, else as
    the metric's name says."""
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
    """Configurations of a sweep, of all grids that ran in FOLDER: the best of every algorithm,
    among those with the most seeds, by the first --metric with --mode and --last (default: as the
    sweep chose); or all."""
    output: pathlib.Path | None = None
    """File of the table; default: print it."""


def table(folders: Sequence[pathlib.Path], options: TableOptions) -> str:
    """Returns the table as text."""
    suffix = "" if options.output is None else options.output.suffix.lower()
    if _FORMATS.get(suffix, options.format) != options.format:
        raise ValueError(
            f"format is {options.format!r}; expected {_FORMATS[suffix]!r} for the file "
            f"{options.output}"
        )
    first = options.metric[0] if options.metric else None
    mode = None if options.mode == "auto" else options.mode
    content = read_folders(
        folders, configurations=options.configurations, metric=first, mode=mode, last=options.last
    )
    metrics = options.metric or default_metrics(content.history)
    if not metrics:
        raise ValueError(
            f"FOLDER is {', '.join(map(str, folders))!r}, which has no evaluation of a model yet; "
            "expected one, or --metric"
        )
    target = None if options.target is None else Target(metrics[0], options.target)
    frame = results(
        content.history,
        metrics,
        modes=_modes(folders) if mode is None else dict.fromkeys(metrics, mode),
        last=options.last,
        target=target,
        partial=content.partial,
        among=content.settings,
    )
    rounds = _last_rounds(content.history, metrics[0], _planned_rounds(folders))
    return results_table(
        frame,
        options.format,
        digits=options.digits,
        percent=options.percent,
        target=options.target,
        note=" ".join(filter(None, (content.setting, rounds))),
    )


def _modes(folders: Sequence[pathlib.Path]) -> dict[str, Mode]:
    """Returns the directions of metrics that sweeps were told."""
    configs = [read_config(folder) for folder in folders]
    told = [c for c in configs if c.get("metric") and c.get("mode") in ("max", "min")]
    return {c["metric"]: c["mode"] for c in told}


def _planned_rounds(folders: Sequence[pathlib.Path]) -> int | None:
    """Returns the number of rounds of runs in several folders, if it is one number."""
    configs = [read_config(folder) for folder in folders]
    counts = {config.get("rounds") for config in configs if config.get("time") != "clock"}
    sweeps = any((folder / "slices").is_dir() for folder in folders)
    return counts.pop() if len(counts) == 1 and not sweeps else None


def _last_rounds(history: pd.DataFrame, metric: str, planned: int | None = None) -> str:
    """Returns a sentence with the last evaluated rounds if those of the runs differ.

    They do if a run was extended, interrupted or stopped early, or has a clock of its own.  Also if
    all runs end before the ``planned`` number of rounds.
    """
    measured = history.loc[history["metric"] == metric, :]
    last = measured.groupby(["algorithm", "seed"], sort=False)["round"].max()
    early = planned is not None and last.min() < planned
    end = f" of {planned}." if early else "."
    if last.nunique() < 2:
        return f"Last evaluation: round {_range(last)}{end}" if early else ""
    labels = algorithm_labels(measured["algorithm"])
    if len(labels) > _MOST_NAMED:
        return f"Last evaluation: round {_range(last)}, by method{end}"
    texts = [f"{_range(last.loc[name])} ({label})" for name, label in labels.items()]
    return f"Last evaluation: round {', '.join(texts)}{end}"


def _range(numbers: pd.Series) -> str:
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"
