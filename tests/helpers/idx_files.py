"""Writes idx files, independently of the reader."""

import gzip
import struct
from pathlib import Path

import numpy as np

CODES = {0x08: "u1", 0x09: "i1", 0x0B: "i2", 0x0C: "i4", 0x0D: "f4", 0x0E: "f8"}


def encode_idx(array: np.ndarray, code: int) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.astype(f">{CODES[code]}").tobytes()


def write_idx(path: Path, array: np.ndarray) -> None:
    """Compressed, as published; for the types of MNIST's and QMNIST's files."""
    code = {"uint8": 0x08, "int32": 0x0C}[array.dtype.name]
    path.write_bytes(gzip.compress(encode_idx(array, code)))
