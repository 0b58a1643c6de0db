"""Ctrl-C at a moment that loses nothing."""

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within the context the first Ctrl-C only sets a flag; the second raises as usual.

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
    except ValueError:  # not the main thread: leave signals alone
        yield lambda: False
        return
    try:
        yield lambda: bool(flag)
    finally:
        signal.signal(signal.SIGINT, previous)
