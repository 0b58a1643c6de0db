"""Archives of NumPy arrays (``.npz``) from files that may be damaged."""

import math
import pathlib
import zipfile

import numpy as np


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an archive by name; runs no code and reads no pickles.

    The announced size of an array has to be that of its member, so that a damaged header cannot
    ask for more memory than the archive has.

    Raises:
        ValueError: naming the file, if it is no complete archive of arrays.
        OSError: the system cannot open the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "a.npz"
        ...     np.savez(path, x=np.arange(3))
        ...     read_npz(path)
        {'x': array([0, 1, 2])}
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    _check_size(archive, member)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except Exception as error:  # zipfile, zlib, tokenize and NumPy raise a dozen kinds
            reason = (str(error).splitlines() or [""])[0]
            raise ValueError(
                f"{path} cannot be read ({type(error).__name__}: {reason}); expected a complete "
                ".npz file of arrays"
            ) from error


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
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
