"""A progress display for notebooks and terminals."""

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple


class _Line(NamedTuple):
    name: str
    fraction: float
    status: str
    started: float  # seconds, of a monotonic clock
    updated: float


class ProgressBar:
    """Progress of ``simulate``, ``compare`` or ``sweep``, updated in place.

    Pass an object as ``on_progress``; each call needs its own.  In Jupyter it is a table with a bar
    per algorithm; elsewhere it is a line on stderr.

    Args:
        clock: function that returns seconds.

    Example:
        >>> import fedjax_sim as fs
        >>> bar = fs.ProgressBar()
        >>> setup = fs.presets.quickstart(seeds=1, rounds=2, model="softmax_regression")
        >>> result = fs.compare(
        ...     {"FedAvg": fs.fedavg(0.2)}, setup, fs.presets.keys(1), on_progress=bar
        ... )
        >>> print(bar)  # doctest: +ELLIPSIS
        FedAvg 100 %, ... s, round 2/2, ...
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._start = clock()
        self._lines: dict[str, _Line] = {}
        self._handle: Any = None
        self._in_jupyter = _in_jupyter()

    def __call__(self, *arguments: Any) -> None:
        """Shows the arguments ``progress`` (simulate, sweep) or ``name, progress`` (compare)."""
        *names, progress = arguments
        name, now = str(names[0]) if names else "", self._clock()
        started = (
            self._lines[name].started if name in self._lines else now if names else self._start
        )
        if progress is None:
            self._lines[name] = _Line(name, 0.0, "compiling", started, now)
        else:
            self._lines[name] = _Line(name, progress.fraction, progress.status, started, now)
        if self._in_jupyter:
            self._show()
        else:
            end = "\n" if self._lines[name].fraction >= 1 else ""
            print(f"\r\x1b[K{_text(self._lines[name])}", end=end, file=sys.stderr, flush=True)

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
    """Returns the time so far, and an estimate of the rest.

    Example:
        >>> _seconds(_Line("", 0.25, "", 0.0, 3.0)), _seconds(_Line("", 1.0, "", 0.0, 9.6))
        ('3 s, 9 s left', '10 s')
    """
    passed = line.updated - line.started
    if not 0 < line.fraction < 1:
        return f"{passed:.0f} s"
    return f"{passed:.0f} s, {passed * (1 / line.fraction - 1):.0f} s left"


def _in_jupyter() -> bool:
    """Returns True in a notebook's kernel, which can replace what it has displayed."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
