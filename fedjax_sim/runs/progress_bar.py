"""A progress display for notebooks, terminals and the logs of jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import IO, Any, NamedTuple

_LOG_SECONDS = 60  # between two lines in a file


class _Line(NamedTuple):
    name: str
    started: float  # seconds, of a monotonic clock
    updated: float = 0.0
    fraction: float = 0.0
    status: str = "compiling"
    compiled: tuple[float, float] | None = None  # time and fraction at the first progress


class ProgressBar:
    """Progress of ``simulate``, ``compare`` or ``sweep``, updated in place.

    Pass an object among the ``callbacks``; each call needs its own.  In Jupyter it is a table with
    a bar per algorithm, in a terminal a line.  In a file, as the log of a job, every algorithm has
    a line at its start, at its first progress and at its end, and there is one line per minute
    between.

    Args:
        clock: function that returns seconds.
        file: stream of the lines; default stderr.

    Example:
        >>> import fedjax_sim as fs
        >>> bar = fs.ProgressBar()
        >>> setup = fs.presets.quickstart(seeds=1, rounds=2, model="softmax_regression")
        >>> result = fs.compare(
        ...     {"FedAvg": fs.fedavg(0.2)}, setup, fs.presets.keys(1), callbacks=[bar]
        ... )
        >>> print(bar)  # doctest: +ELLIPSIS
        FedAvg 100 %, ... s, round 2/2, ...
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, file: IO[str] | None = None):
        self._clock, self._file, self._printed = clock, file, 0.0
        self._start = clock()
        self._lines: dict[str, _Line] = {}
        self._handle: Any = None
        self._in_jupyter = in_jupyter()

    def begin(self, name: str) -> None:
        """Shows that an algorithm of a comparison begins; a call without names has begun before."""
        if name:
            self._show_progress(name, None)

    def progress(self, progress: Any) -> None:
        """Shows a :class:`~fedjax_sim.runs.result.Progress` or a sweep's."""
        self._show_progress(progress.name, progress)

    def _show_progress(self, name: str, progress: Any) -> None:
        now = self._clock()
        line = self._lines.get(name) or _Line(name, now if name else self._start)
        new = line.compiled is None  # announced, or its first progress
        if progress is not None:
            compiled = line.compiled or (now, progress.fraction)
            # The first progress is the end, without an evaluation: nothing was run.
            before = new and progress.fraction >= 1 and not getattr(progress, "metrics", True)
            status = "finished before" if before else progress.status
            line = line._replace(fraction=progress.fraction, status=status, compiled=compiled)
        self._lines[name] = line._replace(updated=now)
        file = self._file or sys.stderr
        finished = line.fraction >= 1
        if self._in_jupyter:
            self._show()
        elif file.isatty():
            end = "\n" if finished else ""
            print(f"\r\x1b[K{_text(self._lines[name])}", end=end, file=file, flush=True)
        elif new or finished or now - self._printed >= _LOG_SECONDS:
            self._printed = now
            print(_text(self._lines[name]), file=file, flush=True)

    def _show(self) -> None:
        from IPython.display import display  # exists where Jupyter does

        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return "\n".join(map(_text, self._lines.values()))

    def _repr_html_(self) -> str:
        rows = [
            f"<tr><th>{escape(line.name)}</th>"
            f'<td><progress value="{line.fraction:.4f}" max="1"></progress></td>'
            f"<td>{_seconds(line)}</td><td>{escape(line.status)}</td></tr>"
            for line in self._lines.values()
        ]
        return "\n".join(["<table>", *rows, "</table>"])


def _text(line: _Line) -> str:
    name = f"{line.name} " if line.name else ""
    return f"{name}{100 * line.fraction:.0f} %, {_seconds(line)}, {line.status}"


def _seconds(line: _Line) -> str:
    """Returns the time so far, and an estimate of the rest at the speed since the compilation."""
    passed = f"{line.updated - line.started:.0f} s"
    if line.compiled is None or not line.compiled[1] < line.fraction < 1:
        return passed
    time, fraction = line.compiled
    left = (line.updated - time) * (1 - line.fraction) / (line.fraction - fraction)
    return f"{passed}, {left:.0f} s left"


def in_jupyter() -> bool:
    """Returns True in a notebook's kernel, which can replace what it has displayed."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
