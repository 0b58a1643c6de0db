"""Files that are written whole or not at all, with digests that are verified before they are read.

The digest of a file is in the file, where other programs do not mind it: a JSON object has it as
its first member, an archive of arrays as its comment.  So file and digest are replaced together,
and a file keeps its digest wherever it is copied.
"""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedjax_sim.data import archives


class FolderError(ValueError):
    """A folder has damaged or changed files, or those of another run."""


class DamagedError(FolderError):
    """A file is not what was written, or the disk cannot read it."""


class RecoveryWarning(UserWarning):
    """A damaged file was found, and the work goes on without it."""


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a path to write to; renames that file to ``path`` at the end.

    A kill, an exception or a power cut leaves either the old file or the new one, whole: file and
    folder are forced to the disk.  Several processes may write the same file; the last one counts.
    A symbolic link is replaced, and the file that it names stays as it is.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with naming(path):
            yield partial
            sync(partial)
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def own(path: pathlib.Path) -> pathlib.Path:
    """Returns the path of a file or folder that is changed where it is, unless it is a link.

    Links above it, such as the folder of results itself, are the caller's.

    Raises:
        FolderError: a symbolic link, or a file with a second name (a hard link, as in a copy by
            ``cp -al``), through which files of others would be changed or deleted.
    """
    if path.is_symlink():
        raise FolderError(
            f"{path} is a symbolic link to {os.readlink(path)!r}; expected a file or folder of "
            "this directory, since files elsewhere are not changed: replace the link by a copy"
        )
    if path.is_file() and path.stat().st_nlink > 1:
        raise FolderError(
            f"{path} is a hard link, whose file has another name, too; expected a file of this "
            "directory, since files elsewhere are not changed: replace the link by a copy"
        )
    return path


def check_run_id(path: pathlib.Path, run: str, expected: str, advice: str) -> None:
    """Refuses a file that names another run."""
    if run != expected:
        raise FolderError(f"{path} is of run {run}; expected one of run {expected}: {advice}")


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
    """Context whose ``OSError`` has a file name; errors of writing, as on a full disk, lack it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text file by :func:`replacing`."""
    with replacing(path) as partial:
        partial.write_text(text)


def write_json(path: pathlib.Path, values: Mapping[str, Any], indent: int | None = 2) -> None:
    """Writes a JSON object with a digest of the file, which :func:`read_json` verifies."""
    write_text(path, sealed(values, indent))


def sealed(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Returns a JSON object as a line or lines, whose first member is a digest of the text.

    The digest is the SHA-256 of the text with zeros for its own digits, so it covers every byte.
    """
    text = json.dumps({_SEAL: _NO_DIGEST, **values}, indent=indent) + "\n"
    return text.replace(_NO_DIGEST, _sha256(text.encode()), 1)


def is_sealed(content: bytes) -> bool:
    """Returns True for a text whose first member is a digest, damaged or not."""
    return re.match(rb'\{\s*"sha256"', content) is not None


def unsealed(content: bytes, *, by_hand: bool = False) -> dict[str, Any]:
    """Returns the values in a text of :func:`sealed`, or ``by_hand`` in one without a digest."""
    found = _SEALED.match(content)
    if by_hand and not is_sealed(content):
        return json.loads(content)
    if found is None or not content.endswith(b"}\n"):
        raise ValueError("its digest or its end is missing")
    zeros = _NO_DIGEST.encode()
    if _sha256(content[: found.start(1)] + zeros + content[found.end(1) :]) != found[1].decode():
        raise ValueError("it is not what was written")
    values = json.loads(content)
    del values[_SEAL]
    return values


def read_json(path: pathlib.Path, advice: str, *, by_hand: bool = False) -> dict[str, Any]:
    """Returns the values in a file of :func:`write_json`, once its digest is verified.

    ``by_hand`` also reads a file without a digest, which a user may have written.  The error of a
    damaged file has the advice on what to do.
    """
    content = path.read_bytes()
    try:
        return unsealed(content, by_hand=by_hand)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error}); {advice}") from error


_SEAL, _NO_DIGEST = "sha256", 64 * "0"
_SEALED = re.compile(rb'\{\s*"sha256": "([0-9a-f]{64})"')


def write_npz(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an archive of arrays with a digest of the file, which :func:`read_npz` verifies."""
    with replacing(path) as partial, partial.open("w+b") as file:
        archives.write_npz(file, arrays)


def read_npz(path: pathlib.Path, advice: str) -> dict[str, np.ndarray]:
    """Returns the arrays in a file of :func:`write_npz`, once its digest is verified."""
    try:
        return archives.read_npz(path, sealed=True)
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        raise DamagedError(f"{path} is damaged ({error}); {advice}") from error


def sync(path: pathlib.Path) -> None:
    """Forces a file, or the entries of a folder, to the disk."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows has no such call for folders
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # some network file systems sync folders by themselves
    finally:
        os.close(descriptor)


def remove_partials(folder: pathlib.Path, name: str = "*") -> None:
    """Removes unfinished files of killed processes, while no other process writes them."""
    for path in folder.glob(f".{name}.*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name):  # a name of `replacing`
            path.unlink(missing_ok=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file_digest(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: Any) -> str:
    """Returns a hash of arrays and of JSON values, 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            sha.update(f"{part.shape}{part.dtype}".encode() + part.tobytes())
        else:
            sha.update(json.dumps(part, sort_keys=True).encode())
    return sha.hexdigest()[:16]
