"""What ``fedjax-sim`` shows in a terminal: progress bars and tables."""

import contextlib
import math
from collections.abc import Iterator

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedjax_sim import choices, datasets
from fedjax_sim.compare import OnProgress
from fedjax_sim.config import CompareConfig
from fedjax_sim.report import ACCURACY, LOSS


@contextlib.contextmanager
def progress_bars(config: CompareConfig, console: Console) -> Iterator[OnProgress]:
    """A line per algorithm: rounds done, test loss and accuracy (mean over seeds), time left."""
    width = max(map(len, config.algorithms))
    bars = Progress(
        TextColumn(f"{{task.description:<{width}}}"),
        BarColumn(bar_width=20),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("{task.fields[status]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
        console=console,
    )
    lines = {}

    def on_progress(name, progress) -> None:
        if progress is None:
            lines[name] = bars.add_task(name, total=config.rounds, status="compiling")
            return
        metrics = progress.metrics
        status = "finished before"
        if metrics:
            status = f"loss {metrics[LOSS]:.3f}  accuracy {metrics[ACCURACY]:.3f}"
        bars.update(lines[name], completed=progress.round, status=status)

    with bars:
        yield on_progress


def summary_table(summary: pd.DataFrame, target: float) -> Table:
    """The comparison's results, a row per algorithm.

    Example:
        >>> row = {"accuracy_mean": 0.9, "accuracy_std": 0.01, "rounds_to_target": 6.0,
        ...        "reached": 1, "seeds": 2, "diverged": 0, "rounds": 9, "finished": True,
        ...        "run_seconds": 1.5, "compile_seconds": 2.0, "local_steps_per_second": 1e4}
        >>> table = summary_table(pd.DataFrame([row], index=["fedavg"]), target=0.8)
        >>> [next(iter(column.cells)) for column in table.columns]
        ['fedavg', '0.900 ± 0.010', '6 (1 of 2 seeds)', '1.5', '2.0', '10,000']
    """
    table = Table()
    table.add_column("algorithm", no_wrap=True)
    for name in (
        "test accuracy",
        f"rounds to {target:.0%}",
        "seconds",
        "compile seconds",
        "local steps/s",
    ):
        table.add_column(name, justify="right", no_wrap=name == "test accuracy")
    for name, row in summary.to_dict(orient="index").items():
        to_target = (
            "never" if math.isnan(row["rounds_to_target"]) else f"{row['rounds_to_target']:g}"
        )
        if 0 < row["reached"] < row["seeds"]:
            to_target += f" ({row['reached']} of {row['seeds']} seeds)"
        accuracy = f"{row['accuracy_mean']:.3f} ± {row['accuracy_std']:.3f}"
        if row["diverged"]:
            accuracy += f"\n{row['diverged']} of {row['seeds']} seeds diverged"
        if not row["finished"]:
            accuracy += f"\nafter round {row['rounds']}"
        table.add_row(
            str(name),
            accuracy,
            to_target,
            f"{row['run_seconds']:.1f}",
            f"{row['compile_seconds']:.1f}",
            f"{row['local_steps_per_second']:,.0f}",
        )
    return table


def choice_tables() -> Iterator[Table]:
    """What the options of a comparison can name: algorithms, data sets, models, partitions."""
    table = Table("algorithm", "hyper-parameters and defaults", "paper")
    for name, choice in choices.ALGORITHMS.items():
        settings = [f"{key}={value}" for key, value in choices.hyper_defaults(name).items()]
        table.add_row(name, " ".join(settings), choice.paper)
    yield table
    table = Table("data set", "where from")
    for name in datasets.NAMES:
        table.add_row(name, "scikit-learn" if name == "digits" else "--data-dir or FEDJAX_SIM_DATA")
    yield table
    table = Table("model", "takes examples of shape")
    for name, (shape, _) in choices.MODELS.items():
        table.add_row(name, "any" if shape is None else " x ".join(map(str, shape)))
    yield table
    table = Table("partition", "what it is")
    for name, (meaning, _) in choices.PARTITIONS.items():
        table.add_row(name, meaning)
    yield table
