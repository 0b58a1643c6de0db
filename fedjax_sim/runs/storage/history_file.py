"""Files that grow by rows, such as ``history.csv``, with digests of every row that a reader sees.

``history.digests`` has a line per write: a sealed JSON object with the length and the SHA-256 of
the file after it, the CRC-32 of every new line and the run.  It is written before the rows, so the
file ends where its last line says.  While rows are being written or removed, and after a kill in
between, it ends where the line before says, perhaps with a part of the rows.  A checkpoint records
the length and the digest, too.  Resuming verifies that beginning and removes later rows; the same
rounds, run again, write the same rows.
"""

import csv
import hashlib
import io
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fedjax_sim.runs.history import COLUMNS
from fedjax_sim.runs.storage.files import (
    FolderError,
    check_run_id,
    naming,
    own,
    sealed,
    sync,
    unsealed,
    write_text,
)


class Mark(NamedTuple):
    """Beginning of a file that grows."""

    length: int  # bytes
    digest: str  # SHA-256


class HistoryFile:
    """A file that grows, and is being written by the run of that identifier."""

    def __init__(self, path: pathlib.Path, run: str, columns: Sequence[str] = COLUMNS):
        self.path, self._digests = own(path), own(_digests(path))
        self._run, self._columns = run, columns
        self._length, self._sha = 0, hashlib.sha256()

    def create(self) -> None:
        """Writes a file without rows."""
        header = ",".join(self._columns) + "\n"
        self._length, self._sha = 0, hashlib.sha256()
        write_text(self._digests, self._after(header.encode()))
        write_text(self.path, header)

    def resume(self, mark: Mark) -> bytes:
        """Verifies the beginning that a checkpoint recorded, and removes later rows; returns it."""
        content = _start(self.path, mark, _written(self.path))
        self._length, self._sha = 0, hashlib.sha256()
        line = self._after(content)
        last = _written(self.path).splitlines(keepends=True)[-1:]
        known = _entry(last)
        if known is None or (known["run"], known["length"], known["digest"]) != (self._run, *mark):
            # The line before stays while later rows are removed, which it covers.
            write_text(self._digests, (last[0].decode() if known else "") + line)
        if self.path.stat().st_size > mark.length:
            os.truncate(self.path, mark.length)
            sync(self.path)
        return content

    def append(self, new: Iterable[Sequence]) -> None:
        """Appends rows and forces them to the disk."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(new)
        data = text.getvalue().encode()
        with naming(self._digests), self._digests.open("a") as file:
            file.write(self._after(data))
        with naming(self.path), self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def mark(self) -> Mark:
        """Returns the length and the digest of the file, once its digests are on the disk."""
        sync(self._digests)
        return Mark(self._length, self._sha.hexdigest())

    def _after(self, data: bytes) -> str:
        """Returns the line of digests for the file with new content at its end."""
        start = self._length
        self._length += len(data)
        self._sha.update(data)
        mark = Mark(self._length, self._sha.hexdigest())
        values = {"run": self._run, "start": start, "lines": _crcs(data)}
        return sealed(values | mark._asdict())


def read(path: pathlib.Path, run: str, confirmed: Mark | None = None) -> bytes:
    """Returns the whole rows of a run's file, also while they are being written.

    The beginning that a checkpoint confirmed has to be there.  Changes nothing.
    """
    written, content = None, b""
    while written != (written := _written(path)):  # until no rows are written between the two
        content = path.read_bytes() if path.exists() else b""
    assert written is not None
    lines = written.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):  # torn by a kill, before its rows
        lines.pop()
    advice = f"restore it from a copy, or delete {path.parent} to run again"
    if not path.exists() and len(_known_crcs(written)) < 2:  # without rows: a run has just begun
        return b"" if confirmed is None else _start(path, confirmed, b"")
    if not lines:
        raise FolderError(
            f"{_digests(path)} is missing, without which {path.name} is not verified; restore it "
            "from a copy, or make the same call or command again, which writes it again"
        )
    last, before = _entry(lines[-1:]), _entry(lines[-2:-1])
    if last is None or (before is None and len(lines) > 1):
        raise FolderError(
            f"{_digests(path)}, the digests of {path}, is damaged; restore it from a copy, or make "
            "the same call or command again, which writes it again"
        )
    check_run_id(path, last["run"], run, advice)
    removing = before is not None and before["length"] > last["length"]
    if len(content) > last["length"] and not removing:
        raise FolderError(
            f"{path} has {len(content)} bytes; expected the {last['length']} of its digests: make "
            "the same call or command again, which removes the others"
        )
    if before is not None and before["length"] <= len(content) < last["length"]:
        last = before
    whole = _start(path, Mark(last["length"], last["digest"]), written, content)
    if confirmed is not None:
        _start(path, confirmed, written, whole)
    return whole


def parsed(content: bytes) -> Iterator[tuple[str, str, str, str]]:
    """Yields the rows ``(replica, round, metric, value)`` of a history, with the file's digits."""
    rows = csv.reader(io.StringIO(content.decode()))
    next(rows, None)
    yield from ((replica, done, metric, value) for replica, done, metric, value in rows)


def _start(path: pathlib.Path, mark: Mark, written: bytes, content: bytes | None = None) -> bytes:
    """Returns the beginning of a file, if it is what a mark says."""
    if content is None:
        content = path.read_bytes() if path.exists() else b""
    content = content[: mark.length]
    if hashlib.sha256(content).hexdigest() == mark.digest:
        return content
    advice = f"restore it from a copy, or delete {path.parent} to run again"
    lines, crcs = content.split(b"\n"), _known_crcs(written)
    for number, (line, crc) in enumerate(zip(lines[:-1], crcs, strict=False), start=1):
        if _crc(line) != crc:
            text = line.decode(errors="replace")
            raise FolderError(
                f"{path}, line {number}: {text!r} was changed after it was written; {advice}"
            )
    if len(content) < mark.length:
        raise FolderError(
            f"{path} has {len(content)} bytes; expected at least the {mark.length} that were "
            f"recorded: {advice}"
        )
    raise FolderError(f"{path} differs from its recorded digest; {advice}")


def _digests(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(".digests")


def _written(path: pathlib.Path) -> bytes:
    return _digests(path).read_bytes() if _digests(path).exists() else b""


def _entry(lines: Sequence[bytes]) -> dict[str, Any] | None:
    """Returns the values of the last of some lines of digests; None without an intact one."""
    try:
        return unsealed(lines[-1]) if lines else None
    except ValueError:
        return None


def _known_crcs(written: bytes) -> list[str]:
    """Returns the checksums of a file's lines, as far as their digests are intact."""
    crcs: list[str] = []
    for line in written.splitlines(keepends=True):
        entry = _entry([line])
        if entry is None:
            break
        crcs = (crcs if entry["start"] else []) + entry["lines"].split()
    return crcs


def _crcs(data: bytes) -> str:
    return " ".join(_crc(line) for line in data.split(b"\n")[:-1])


def _crc(line: bytes) -> str:
    return f"{zlib.crc32(line):08x}"
