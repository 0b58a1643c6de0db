"""Archives of NumPy arrays (``.npz``) from files that may be damaged."""

import hashlib
import io
import math
import pathlib
import re
import zipfile
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

_DIGITS = 64  # of a SHA-256


def write_npz(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an archive that has the SHA-256 of all bytes before it as the archive's comment."""
    np.savez(file, allow_pickle=False, **arrays)
    file.seek(-2, io.SEEK_END)
    file.write(_DIGITS.to_bytes(2, "little"))  # length of the comment
    file.write(_sha256(file, file.tell()))


def read_npz(path: pathlib.Path, *, sealed: bool = False) -> dict[str, np.ndarray]:
    """Returns the arrays of an archive by name; runs no code and reads no pickles.

    A digest as :func:`write_npz` adds it is verified first.  The announced size of an array has to
    be that of its member, so that a damaged header cannot ask for more memory than the archive has.

    Args:
        path: the file.
        sealed: refuse an archive without a digest.

    Raises:
        ValueError: naming the file, if it is no complete archive of arrays.
        OSError: the system cannot open the file.
    """
    with path.open("rb") as file:
        try:
            _verify(file, sealed)
            with zipfile.ZipFile(file) as archive:
                return {
                    member.filename.removesuffix(".npy"): _read(archive, member)
                    for member in archive.infolist()
                }
        except Exception as error:  # zipfile, zlib, tokenize and NumPy raise a dozen kinds
            reason = (str(error).splitlines() or [""])[0]
            raise ValueError(
                f"{path} cannot be read ({type(error).__name__}: {reason}); expected a complete "
                ".npz file of arrays"
            ) from error


def _verify(file: BinaryIO, sealed: bool) -> None:
    """Compares an archive with the digest in its comment."""
    length = max(file.seek(0, io.SEEK_END) - _DIGITS, 0)
    file.seek(length)
    digest = file.read()
    has_digest = re.fullmatch(rb"[0-9a-f]{64}", digest) is not None
    if (sealed or has_digest) and _sha256(file, length) != digest:
        raise ValueError("it is not what was written")


def _sha256(file: BinaryIO, length: int) -> bytes:
    """Returns the digits of the digest of a file's beginning, and stays at its end."""
    file.seek(0)
    sha = hashlib.sha256()
    while part := file.read(min(length - file.tell(), 1 << 20)):
        sha.update(part)
    return sha.hexdigest().encode()


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read_header(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or size != member.file_size - file.tell():
            raise ValueError(
                f"{member.filename} has {member.file_size} bytes for shape {shape} and dtype "
                f"{dtype}"
            )
        file.seek(0)
        array = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # compares the checksum of the member at its end
    return array
