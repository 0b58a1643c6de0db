"""Errors of Orbax and TensorStore when a disk fails, as one ``OSError``."""

import contextlib
import errno
import gc
import logging
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

# Reasons that TensorStore gives as text only.
_REASONS = {
    os.strerror(number): number
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)
}
# Seconds after an error in which other threads finish their files and find no one waiting.
_LATE = 0.1


@contextlib.contextmanager
def one_error(folder: pathlib.Path) -> Iterator[None]:
    """Context of reading and writing; a failing disk raises one ``OSError`` that names the folder.

    Orbax's threads report the error as well, each with a traceback of its own.  Those are left out.

    Example:
        >>> with one_error(pathlib.Path("results")):
        ...     raise ValueError("RESOURCE_EXHAUSTED: Failed to write [os_error_code='28']")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device: 'results'
    """
    try:
        with _quiet_threads():
            try:
                yield
            except Exception:
                gc.collect()  # unretrieved exceptions of tasks report themselves when collected
                time.sleep(_LATE)
                raise
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(folder)) from error


def _number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    text = str(error)
    if code := re.search(r"os_error_code='(\d+)'", text):
        return int(code[1])
    return next((number for reason, number in _REASONS.items() if reason in text), None)


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    hook = sys.unraisablehook

    def ignore_closed_loops(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            hook(unraisable)

    sys.unraisablehook = ignore_closed_loops
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
