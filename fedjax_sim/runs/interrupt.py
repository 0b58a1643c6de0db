"""Ctrl-C and SIGTERM that wait for the end of a segment."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_last: list[signal.Signals] = []  # the signal that was deferred last
_raised: list[signal.Signals] = []  # the signal that raised KeyboardInterrupt in `raising`


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defers the first Ctrl-C or SIGTERM within the context: it only sets a flag.

    The second one acts as it would have acted before the context.  The flag is set from the start
    if a signal in :func:`raising` did not end the work.
    """
    flag = [True] if _raised else []
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
        yield lambda: bool(flag)
        return
    try:
        yield lambda: bool(flag)
    finally:
        restore()


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Context in which SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    Python drops an exception that is raised while it finalises an object, and prints a traceback.
    Here nothing is printed, and the next :func:`deferred_interrupt` knows of the signal.
    """

    def handle(number, frame):
        _last[:] = _raised[:] = [signal.Signals(number)]
        raise KeyboardInterrupt

    def report(unraisable) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            hook(unraisable)

    _last[:] = _raised[:] = []
    hook, before = sys.unraisablehook, {}
    try:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, handle)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread
        yield
        return
    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = hook
        _raised[:] = []
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def exit_code() -> int:
    """Returns the exit code of a process that a signal interrupted: 130, or 143 after SIGTERM."""
    return 128 + (_last[0] if _last else signal.SIGINT)
