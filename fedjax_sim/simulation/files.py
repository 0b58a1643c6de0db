"""Files that are written whole or not at all, and digests of what they hold."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a path to write to; renames that file to ``path`` at the end.

    A kill or an exception leaves the file at ``path`` as it was.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "a.json"
        ...     with replacing(path) as partial:
        ...         _ = partial.write_text("{}")
        ...     path.read_text()
        '{}'
    """
    partial = path.with_suffix(".tmp")
    yield partial
    partial.replace(path)


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
