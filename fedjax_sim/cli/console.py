"""Progress of ``fedjax-sim``: bars in a terminal, lines in a file."""

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedjax_sim.cli.report import LOSS, score_of
from fedjax_sim.runs import Callback, ProgressBar, SweepProgress, Tried
from fedjax_sim.runs import Progress as RunProgress
from fedjax_sim.types import counted


@contextlib.contextmanager
def progress_bars(algorithms: Sequence[str], console: Console) -> Iterator[list[Callback]]:
    """Context with a line per algorithm: rounds, test loss and score (mean over seeds), ETA.

    Without a terminal, as in the log of a job, :class:`~fedjax_sim.ProgressBar` prints lines; a
    process that is not the first shows nothing.
    """
    if not console.is_terminal:
        yield [] if console.quiet else [ProgressBar(file=console.file)]
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
    with bars:
        yield [_Lines(bars)]


class _Lines:
    """Callback that shows a line per algorithm."""

    def __init__(self, bars: Progress):
        self._bars = bars
        self._lines: dict[str, TaskID] = {}

    def begin(self, name: str) -> None:
        self._lines[name] = self._bars.add_task(
            name, total=None, status="compiling", position="round 0/?"
        )

    def progress(self, progress: RunProgress) -> None:
        metrics = progress.metrics
        status = "finished before" if progress.fraction == 1 else "no evaluation yet"
        if metrics:
            shown = dict.fromkeys([LOSS, score_of(metrics) or LOSS])
            values = {x.removeprefix("test/"): metrics[x] for x in shown if x in metrics}
            status = "  ".join(f"{label} {value:.3f}" for label, value in values.items())
        self._bars.update(
            self._lines[progress.name],
            total=1,
            completed=progress.fraction,
            status=status,
            position=progress.position,
        )


@contextlib.contextmanager
def _one_bar(console: Console) -> Iterator[Progress]:
    """Context with a bar, which is drawn in a terminal only."""
    bars = Progress(
        BarColumn(bar_width=30),
        TextColumn("{task.fields[status]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,  # until a program is ready: without one, nothing remains of the bar
    )
    with bars if console.is_terminal else contextlib.nullcontext():
        yield bars


@contextlib.contextmanager
def sweep_progress(console: Console) -> Iterator["SweepBar"]:
    """Context with a bar over all runs, or lines; prints every group's plan and memory."""
    with _one_bar(console) as bars:
        yield SweepBar(console, bars)


class SweepBar:
    """Callback that shows a sweep's progress."""

    def __init__(self, console: Console, bars: Progress):
        self._console, self._bars = console, bars
        self._line = bars.add_task("", total=None, status="preparing")
        self._announced: list[dict] = []
        self._in_log = None if console.is_terminal else ProgressBar(file=console.file)

    @property
    def began(self) -> bool:
        """True once the first program was ready."""
        return bool(self._announced)

    def progress(self, progress: SweepProgress) -> None:
        self._bars.live.transient = False
        if progress.static not in self._announced:
            self._announced.append(progress.static)
            self._console.print(plan_line(progress))
        if self._in_log is not None:
            self._in_log.progress(progress)
            return
        completed = progress.fraction * progress.num_runs
        self._bars.update(
            self._line, total=progress.num_runs, completed=completed, status=progress.status
        )


@contextlib.contextmanager
def tuning_progress(
    console: Console, trials: int, batch: int, metric: str
) -> Iterator["TuningBar"]:
    """Context with a bar over all trials; prints a line per batch."""
    with _one_bar(console) as bars:
        yield TuningBar(console, bars, trials, batch, metric)


class TuningBar:
    """Callback that shows a tuning's progress."""

    def __init__(self, console: Console, bars: Progress, trials: int, batch: int, metric: str):
        self._console, self._bars, self._metric = console, bars, metric
        self._trials, self._batch = trials, batch
        self._line = bars.add_task("", total=trials, status="preparing")
        self._tried: list[Tried] = []
        self.training = False  # the programs of a batch are ready, and it has no scores yet

    def progress(self, progress: SweepProgress) -> None:
        self.training = True
        done = len(self._tried)
        completed = done + progress.fraction * min(self._batch, self._trials - done)
        status = f"trial {done + 1}  {progress.status}"
        self._bars.update(self._line, completed=completed, status=status)

    def tried(self, tried: Tried) -> None:
        self.training = False
        self._tried.append(tried)
        number = len(self._tried)
        if number % self._batch and number < self._trials:
            return
        first = (number - 1) // self._batch * self._batch
        scores = [one.score for one in self._tried[first:] if one.complete]
        # Of configurations that a rung has cut in an earlier batch, none does all rounds.
        text = f"{min(scores):.4g} to {max(scores):.4g}" if scores else "none did all rounds"
        self._console.print(
            f"trials {first + 1} to {number} of {self._trials}: {self._metric} {text}"
        )


def plan_line(progress: SweepProgress) -> str:
    """Returns a group's values, the division of its runs, and the memory per device."""
    values = " ".join(f"{name}={value}" for name, value in progress.static.items()) or "all"
    plan = progress.plan
    return (
        f"{values}: {counted(len(plan.slices), 'slice')} on "
        f"{counted(len(plan.slices[0]), 'device')}, "
        f"{counted(plan.width, 'configuration')} x {counted(plan.seeds, 'seed')} each; "
        f"{progress.bytes_per_device / 1e9:.2f} of "
        f"{progress.budget / 1e9:.1f} GB each"
    )
