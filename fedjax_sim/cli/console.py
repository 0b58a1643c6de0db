"""Progress of ``fedjax-sim``: bars in a terminal, lines in a file."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedjax_sim.cli.report import LOSS, score_of
from fedjax_sim.cli.run import OnProgress
from fedjax_sim.runs.progress_bar import ProgressBar
from fedjax_sim.runs.sweeps.sweep import SweepProgress


@contextlib.contextmanager
def progress_bars(algorithms: Sequence[str], console: Console) -> Iterator[OnProgress]:
    """Context with a line per algorithm: rounds, test loss and score (mean over seeds), ETA.

    Without a terminal, as in the log of a job, :class:`~fedjax_sim.ProgressBar` prints lines.
    """
    if not console.is_terminal:
        yield _silent if console.quiet else ProgressBar(file=console.file)
        return
    width = max(map(len, algorithms))
    bars = Progress(
        TextColumn(f"{{task.description:<{width}}}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[position]}"),
        TextColumn("{task.fields[status]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
        console=console,
    )
    lines = {}

    def on_progress(name, progress) -> None:
        if progress is None:
            lines[name] = bars.add_task(name, total=None, status="compiling", position="round 0/?")
            return
        metrics = progress.metrics
        status = "finished before" if progress.fraction == 1 else "no evaluation yet"
        if metrics:
            score = score_of(metrics)
            label = score.removeprefix("test/")
            status = f"loss {metrics[LOSS]:.3f}  {label} {metrics[score]:.3f}"
        bars.update(
            lines[name],
            total=1,
            completed=progress.fraction,
            status=status,
            position=progress.position,
        )

    with bars:
        yield on_progress


@contextlib.contextmanager
def sweep_progress(console: Console) -> Iterator[Callable[[SweepProgress], None]]:
    """Context with a bar over all runs, or lines; prints every group's plan and memory."""
    bars = Progress(
        BarColumn(bar_width=30),
        TextColumn("{task.fields[status]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,  # until a program is ready: without one, nothing remains of the bar
    )
    line = bars.add_task("", total=None, status="preparing")
    announced: list[dict] = []
    in_log = None if console.is_terminal else ProgressBar(file=console.file)

    def on_progress(progress: SweepProgress) -> None:
        bars.live.transient = False
        if progress.static not in announced:
            announced.append(progress.static)
            console.print(plan_line(progress))
        if in_log is not None:
            in_log(progress)
            return
        completed = progress.fraction * progress.num_runs
        bars.update(line, total=progress.num_runs, completed=completed, status=progress.status)

    with bars if console.is_terminal else contextlib.nullcontext():
        yield on_progress


def _silent(*progress: Any) -> None:
    """Shows nothing, in a process that is not the first."""


def plan_line(progress: SweepProgress) -> str:
    """Returns a group's values, the division of its runs, and the memory per device.

    Example:
        >>> from fedjax_sim.runs.sweeps.grid import cut
        >>> plan_line(SweepProgress({"cohort_size": 5}, cut(4, 3, 2, 2, 1), 2 * 10**8, 10**9,
        ...                         0, 0, 10, 0, 12))
        'cohort_size=5: 3 slices on 2 devices, 2 configurations x 1 seeds each; 0.20 of 1.0 GB each'
    """
    values = " ".join(f"{name}={value}" for name, value in progress.static.items()) or "all"
    plan = progress.plan
    return (
        f"{values}: {len(plan.slices)} slices on {len(plan.slices[0])} devices, {plan.width} "
        f"configurations x {plan.seeds} seeds each; {progress.bytes_per_device / 1e9:.2f} of "
        f"{progress.budget / 1e9:.1f} GB each"
    )
