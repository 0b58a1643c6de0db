"""``TimeLimit``: interrupts the work after some time; a later call continues."""

from __future__ import annotations

import time

from fedjax_sim.checks import check_positive
from fedjax_sim.runs.events import Action, Event


class TimeLimit:
    """Interrupts a run or a comparison after the segment in which the time ends.

    Everything so far is kept, as after Ctrl-C.  The time begins when the object is made, and
    compilation counts.

    Args:
        seconds: the limit.

    Raises:
        ValueError: ``seconds`` is not positive.

    Example:
        >>> limit = TimeLimit(3600)
        >>> limit(Event("", ["0"], 1, 9, {}, None, False, None)) is None
        True
    """

    def __init__(self, seconds: float) -> None:
        check_positive(seconds=seconds)
        self._end = time.monotonic() + seconds

    def __call__(self, event: Event) -> Action:
        return None if event.replayed else self.poll()

    def poll(self) -> Action:
        """Returns "interrupt" once the time is over; asked after every segment.

        Example:
            >>> TimeLimit(3600).poll() is None
            True
        """
        return "interrupt" if time.monotonic() >= self._end else None
