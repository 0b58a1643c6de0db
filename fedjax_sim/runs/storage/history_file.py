"""``history.csv`` of a run: rows that survive a kill, and checksums that show changes.

A checkpoint records the length and the digest of the file.  Resuming verifies that beginning and
removes later rows; the same rounds, run again, write the same rows.  ``history.crc`` holds the
CRC-32 of every line; it finds the line where the digest shows that something changed.
"""

import csv
import hashlib
import io
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_sim.runs.history import COLUMNS
from fedjax_sim.runs.storage.files import FolderError, naming, own, replacing, sync, write_text

_CRC = np.dtype("<u4")


class Mark(NamedTuple):
    """Beginning of a history file, as a checkpoint records it."""

    length: int  # bytes
    sha256: str | None  # None in checkpoints of earlier versions


class HistoryFile:
    """A history file that is being written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = HistoryFile(pathlib.Path(folder) / "history.csv")
        ...     file.create()
        ...     mark = file.mark()
        ...     file.append([("0", 1, "loss", "0.5")])
        ...     rows = list(read(file.path))
        ...     file.resume(mark)
        ...     rows, list(read(file.path))
        ([('0', 1, 'loss', 0.5)], [])
    """

    def __init__(self, path: pathlib.Path, columns: Sequence[str] = COLUMNS):
        self.path = own(path)
        own(_checksums(path))
        self._columns = columns
        self._length = 0
        self._sha = hashlib.sha256()

    def create(self) -> None:
        """Writes a history without rows."""
        header = ",".join(self._columns) + "\n"
        write_text(self.path, header)
        self._begin(header.encode())

    def resume(self, mark: Mark) -> None:
        """Verifies the beginning that a checkpoint recorded, and removes later rows.

        Raises:
            FolderError: as :func:`verify`.
        """
        content = verify(self.path, mark)
        if self.path.stat().st_size > mark.length:
            os.truncate(self.path, mark.length)
            sync(self.path)
        self._begin(content)

    def append(self, new: Iterable[Sequence]) -> None:
        """Appends rows and forces them to the disk."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(new)
        data = text.getvalue().encode()
        with naming(self.path), self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with naming(_checksums(self.path)), _checksums(self.path).open("ab") as file:
            file.write(_crcs(data).tobytes())
        self._length += len(data)
        self._sha.update(data)

    def mark(self) -> Mark:
        return Mark(self._length, self._sha.hexdigest())

    def _begin(self, content: bytes) -> None:
        self._length, self._sha = len(content), hashlib.sha256(content)
        path, crcs = _checksums(self.path), _crcs(content).tobytes()
        if not path.exists() or path.read_bytes() != crcs:
            with replacing(path) as partial:
                partial.write_bytes(crcs)


def verify(path: pathlib.Path, mark: Mark) -> bytes:
    """Returns the beginning of a history file, if it is what a checkpoint recorded.

    Raises:
        FolderError: the file is missing, shorter or changed, with the number of the changed line.
    """
    content = b""
    if path.exists():
        with path.open("rb") as file:
            content = file.read(mark.length)
    whole = len(content) == mark.length
    if whole and mark.sha256 in (None, hashlib.sha256(content).hexdigest()):
        return content
    check_lines(path, content)
    advice = f"restore it from a copy, or delete {path.parent} to run again"
    if not whole:
        raise FolderError(
            f"{path} has {len(content)} bytes; expected at least the {mark.length} that its "
            f"checkpoint recorded: {advice}"
        )
    raise FolderError(f"{path} differs from the digest in its checkpoint; {advice}")


def check_lines(path: pathlib.Path, content: bytes) -> None:
    """Compares the beginning of a file with the checksums of its lines.

    Raises:
        FolderError: a line was changed, with its number.
    """
    written, now = _written_crcs(path), _crcs(content)
    shared = min(len(written), len(now))
    changed = np.flatnonzero(now[:shared] != written[:shared])
    if changed.size:
        line = content.split(b"\n")[changed[0]].decode(errors="replace")
        raise FolderError(
            f"{path}, line {changed[0] + 1}: {line!r} was changed after it was written; restore it "
            f"from a copy, or delete {path.parent} to run again"
        )


def read(path: pathlib.Path) -> Iterator[tuple[str, int, str, float]]:
    """Yields ``(replica, round, metric, value)`` of the whole lines; a torn last line is left out.

    Raises:
        FolderError: naming the file and the line that is no row.
    """
    for replica, done, metric, value in read_text(path):
        yield replica, int(done), metric, float(value)


def read_text(path: pathlib.Path) -> Iterator[tuple[str, str, str, str]]:
    """Yields the rows as :func:`read`, with the digits of the file."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                fields = next(csv.reader([line.decode()]), [])
                if number == 1:
                    if tuple(fields) != COLUMNS:
                        raise ValueError
                    continue
                replica, done, metric, value = fields
                _ = int(done), float(value)
            except (ValueError, csv.Error) as error:
                expected = ",".join(COLUMNS)
                raise FolderError(
                    f"{path}, line {number}: {line[:80]!r}; expected {expected}"
                ) from error
            yield replica, done, metric, value


def _checksums(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(".crc")


def _written_crcs(path: pathlib.Path) -> np.ndarray:
    data = _checksums(path).read_bytes() if _checksums(path).exists() else b""
    return np.frombuffer(data[: len(data) // _CRC.itemsize * _CRC.itemsize], _CRC)


def _crcs(content: bytes) -> np.ndarray:
    lines = content.split(b"\n")[:-1]
    return np.fromiter((zlib.crc32(line) for line in lines), _CRC, len(lines))
