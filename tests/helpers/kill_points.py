"""Copies of a folder before each of its writes: exactly what a kill at that moment leaves."""

import contextlib
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Iterator

_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _Recorder:
    """Python calls its audit hook before every opening, renaming and removing of a file."""

    def __init__(self):
        self.folder = self.copies = None
        self.number = 0
        self.lock = threading.Lock()  # Orbax writes in threads
        self.busy = threading.local()

    def __call__(self, event: str, arguments: tuple) -> None:
        if self.folder is None or event not in _EVENTS or getattr(self.busy, "copying", False):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
            return
        if not str(arguments[0]).startswith(self.folder):
            return
        self.busy.copying = True
        try:
            with self.lock:
                self._copy(f"{self.copies}/{self.number}")
        finally:
            self.busy.copying = False

    def _copy(self, copy: str) -> None:
        try:
            shutil.copytree(self.folder, copy, symlinks=True)
            self.number += 1
        except (FileNotFoundError, shutil.Error):
            # A file that another thread moves meanwhile spoils the copy, which does not count.
            shutil.rmtree(copy)


_recorder = _Recorder()
_installed: list[bool] = []


@contextlib.contextmanager
def recorded(folder: pathlib.Path, copies: pathlib.Path) -> Iterator[None]:
    """Context that copies ``folder`` to ``copies/0``, ``copies/1``, ... before each write in it."""
    if not _installed:
        sys.addaudithook(_recorder)  # hooks cannot be removed
        _installed.append(True)
    folder.mkdir(parents=True, exist_ok=True)
    copies.mkdir(parents=True)
    _recorder.copies, _recorder.number, _recorder.folder = str(copies), 0, str(folder)
    try:
        yield
    finally:
        _recorder.folder = None
