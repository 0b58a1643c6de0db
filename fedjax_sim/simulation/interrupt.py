"""Ctrl-C that waits for the end of a segment."""

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defers the first Ctrl-C within the context: it only sets a flag. The second one raises.

    Example:
        >>> with deferred_interrupt() as interrupted:
        ...     interrupted()
        False
    """
    flag = []
    try:
        previous = signal.getsignal(signal.SIGINT)

        def handle(number, frame):
            flag.append(True)
            signal.signal(signal.SIGINT, previous)

        signal.signal(signal.SIGINT, handle)
    except ValueError:  # signals can be handled in the main thread only
        yield lambda: False
        return
    try:
        yield lambda: bool(flag)
    finally:
        signal.signal(signal.SIGINT, previous)
