"""Ctrl-C and SIGTERM that wait for the end of a segment."""

import contextlib
import signal
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_last: list[signal.Signals] = []  # the signal that was deferred last


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defers the first Ctrl-C or SIGTERM within the context: it only sets a flag.

    The second one acts as it would have acted before the context.

    Example:
        >>> with deferred_interrupt() as interrupted:
        ...     interrupted()
        False
    """
    flag = []
    try:
        before = {number: signal.getsignal(number) for number in _SIGNALS}

        def restore() -> None:
            for number, handler in before.items():
                if handler is not None:  # None: one that was not set from Python
                    signal.signal(number, handler)

        def handle(number, frame):
            flag.append(True)
            _last[:] = [signal.Signals(number)]
            restore()

        for number in _SIGNALS:
            signal.signal(number, handle)
    except ValueError:  # signals can be handled in the main thread only
        yield lambda: False
        return
    try:
        yield lambda: bool(flag)
    finally:
        restore()


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Context in which SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""

    def handle(number, frame):
        _last[:] = [signal.Signals(number)]
        raise KeyboardInterrupt

    _last[:] = []
    try:
        before = signal.signal(signal.SIGTERM, handle)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def exit_code() -> int:
    """Returns the exit code of a process that a signal interrupted: 130, or 143 after SIGTERM.

    Example:
        >>> with raising():
        ...     exit_code()
        130
    """
    return 128 + (_last[0] if _last else signal.SIGINT)
