"""Files that are written whole or not at all, and digests of their contents."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np


class FolderError(ValueError):
    """A folder has damaged or changed files, or those of another run."""


class RecoveryWarning(UserWarning):
    """A damaged file was found, and the work goes on without it."""


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a path to write to; renames that file to ``path`` at the end.

    A kill, an exception or a power cut leaves either the old file or the new one, whole: file and
    folder are forced to the disk.  Several processes may write the same file; the last one counts.
    A symbolic link is replaced, and the file that it names stays as it is.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "a.json"
        ...     with replacing(path) as partial:
        ...         _ = partial.write_text("{}")
        ...     path.read_text()
        '{}'
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


def read_json(path: pathlib.Path, advice: str, kind: type = dict) -> Any:
    """Returns the object, or the list, in a JSON file.

    Raises:
        FolderError: no JSON, another kind of value, or a name twice in an object; naming the file,
            with the advice on what to do.
        OSError: the system cannot open the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "a.json"
        ...     write_text(path, '{"a": 1, "a": 2}')
        ...     read_json(path, "delete it")
        Traceback (most recent call last):
        fedjax_sim.runs.storage.files.FolderError: ... is damaged (it has 'a' twice); delete it
    """
    try:
        value = json.loads(path.read_bytes(), object_pairs_hook=_distinct)
        if not isinstance(value, kind):
            raise ValueError(f"it holds a {type(value).__name__}, not a {kind.__name__}")
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} is damaged ({error}); {advice}") from error
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice!r} twice")
    return values


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


def file_digest(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: Any) -> str:
    """Returns a hash of arrays and of JSON values, 16 hexadecimal digits.

    Example:
        >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(1)
        (True, False)
    """
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            sha.update(f"{part.shape}{part.dtype}".encode() + part.tobytes())
        else:
            sha.update(json.dumps(part, sort_keys=True).encode())
    return sha.hexdigest()[:16]
