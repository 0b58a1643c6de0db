"""A disk on which only small files fit."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Context in which no file can grow beyond a size: writing raises EFBIG, not ENOSPC.

    Python ignores the signal that the system sends as well.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
