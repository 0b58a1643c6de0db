"""One process at a time in a folder of results.

The lock is one of the operating system on the file ``.lock``, which ends with its process, however
that ends.  File systems without such locks get a file that stands for the lock; one that a dead
process of this machine left is removed.  ``.lock.json`` says who holds the lock.
"""

import contextlib
import datetime
import os
import pathlib
import platform
import time
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from fedjax_sim.engine import distributed
from fedjax_sim.runs.storage.files import own, read_json, remove_partials, write_json


class FolderInUseError(RuntimeError):
    """Another process, or another thread, works in the folder."""


_BETWEEN = 1.0  # seconds between taking a lock and describing oneself, at most
# Folders that the callers of this function, in this thread, have locked.
_LOCKED: ContextVar[frozenset[pathlib.Path]] = ContextVar("_LOCKED", default=frozenset())


@contextlib.contextmanager
def locked(directory: pathlib.Path, *, wait: bool = False) -> Iterator[None]:
    """Context in which no other process works in a folder.

    The folder is created.  A function may lock a folder that its caller has locked.  Of several
    processes of one run, the first one locks for all.  A folder on a read-only disk is not locked.

    Raises:
        FolderInUseError: naming the host, the process and the time since when.
    """
    directory = directory.resolve()
    outer = _LOCKED.get()
    if directory in outer:
        yield
        return
    with contextlib.ExitStack() as stack:
        distributed.on_first(lambda: stack.enter_context(_locked(directory, wait)))
        token = _LOCKED.set(outer | {directory})
        try:
            yield
        finally:
            _LOCKED.reset(token)


@contextlib.contextmanager
def _locked(directory: pathlib.Path, wait: bool) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK):
        yield
        return
    lock, deadline = try_lock(directory / ".lock", wait=wait), time.monotonic() + _BETWEEN
    # Between taking the lock and describing itself, another process has no name yet.
    while lock is None and _holder(directory) is None and time.monotonic() < deadline:
        time.sleep(0.02)
        lock = try_lock(directory / ".lock")
    if lock is None:
        raise FolderInUseError(_in_use(directory))
    holder = directory / ".lock.json"
    try:
        remove_partials(directory)
        write_json(holder, _this_process())
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def try_lock(path: pathlib.Path, *, wait: bool = False) -> Any:
    """Returns the lock of a file, which ``release()`` gives back; None if another one has it."""
    import filelock  # only needed with files

    lock = filelock.FileLock(own(path))
    with warnings.catch_warnings():
        # On a file system without locks, filelock says that it creates a marker instead.
        warnings.filterwarnings("ignore", message="flock not supported")
        try:
            lock.acquire(blocking=wait)
        except filelock.Timeout:
            return None
    return lock


def _this_process() -> dict[str, Any]:
    now = datetime.datetime.now().astimezone()
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "since": now.isoformat(sep=" ", timespec="seconds"),
    }


def _holder(directory: pathlib.Path) -> str | None:
    """Returns a text on the process that works in a folder; None if it has not described itself."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        holder = read_json(directory / ".lock.json", "")
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    return None


def _in_use(directory: pathlib.Path) -> str:
    path, who = directory / ".lock", _holder(directory) or "another process"
    text = f"{directory} is in use by {who}; wait until it ends, or choose another directory"
    # Locks of the operating system end with their process; a marker, which has content, may stay.
    is_marker = path.exists() and path.stat().st_size > 0
    return f"{text}. If it does not exist any more, delete {path}" if is_marker else text
