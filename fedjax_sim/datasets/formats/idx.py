"""The idx format of MNIST: big-endian arrays of any rank behind a header of sizes."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.datasets.dataset import DataError
from fedjax_sim.datasets.formats.files import stream

_LARGEST_RANK = 8
_LONGEST_HEADER = 4 + 4 * _LARGEST_RANK
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def parse_idx(data: bytes, where: object = "idx data") -> np.ndarray:
    """Returns the array of an uncompressed idx file, in native byte order."""
    header = _header(data, where)
    start, shape, dtype = header
    if len(data) != header.num_bytes:
        raise DataError(
            f"{where}: {len(data)} bytes; expected {header.num_bytes} for shape {shape} of {dtype}"
        )
    values = np.frombuffer(data, dtype, offset=start).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{where}: has values that are not finite; expected finite numbers")
    return values.astype(dtype.newbyteorder("="))


def read_idx(path: Path) -> np.ndarray:
    """Reads an idx file, plain or compressed, and no more bytes than its header announces."""
    data = bytearray()
    for block in stream(path):
        data += block
        if len(data) >= _LONGEST_HEADER and len(data) > (header := _header(data, path)).num_bytes:
            raise DataError(
                f"{path}: more bytes than {header.num_bytes}; expected as many for shape "
                f"{header.shape} of {header.dtype}"
            )
    return parse_idx(bytes(data), path)


class _Header(NamedTuple):
    start: int  # of the values
    shape: list[int]
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


def _header(data: bytes | bytearray, where: object) -> _Header:
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise DataError(
            f"{where}: begins with {data[:4].hex(' ') or 'nothing'}; expected the idx magic "
            f"00 00 TYPE RANK with TYPE one of {', '.join(f'{code:02x}' for code in _TYPES)}"
        )
    dtype, rank = np.dtype(_TYPES[data[2]]), data[3]
    start = 4 + 4 * rank
    if rank == 0 or rank > _LARGEST_RANK or len(data) < start:
        raise DataError(f"{where}: rank {rank} in {len(data)} bytes; expected 1 .. 8 sizes")
    shape = [int(size) for size in np.frombuffer(data, ">u4", rank, offset=4)]
    return _Header(start, shape, dtype)
