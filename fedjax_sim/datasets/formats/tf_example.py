"""The protocol buffer ``tf.train.Example``, read without TensorFlow.

Messages and fields: tensorflow/core/example/example.proto and feature.proto of
https://github.com/tensorflow/tensorflow; encoding: https://protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedjax_sim.datasets.dataset import DataError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LISTS = {1: "bytes", 2: "float", 3: "int64"}  # fields of Feature


def parse_example(data: bytes, where: object = "tf.train.Example") -> dict[str, Any]:
    """Returns the features: float32 or int64 ``[n]``, or a list of bytes.

    Raises:
        DataError: another message, or one that is cut short.

    Example:
        >>> feature = b"\\x1a\\x03\\x0a\\x01\\x07"  # Int64List of 7
        >>> entry = b"\\x0a\\x05label\\x12" + bytes([len(feature)]) + feature
        >>> features = b"\\x0a" + bytes([len(entry)]) + entry
        >>> parse_example(b"\\x0a" + bytes([len(features)]) + features)
        {'label': array([7])}
    """
    result: dict[str, Any] = {}
    try:
        for features in _of(data, 1):
            for entry in _of(features, 1):
                parts = {number: value for number, _, value in _fields(entry)}
                result[parts[1].decode()] = _feature(parts[2])
    except (IndexError, KeyError, ValueError, AttributeError, TypeError, struct.error) as error:
        raise DataError(f"{where}: {error}; expected the message tf.train.Example") from error
    return result


def _of(message: bytes, wanted: int) -> Iterator[bytes]:
    for number, kind, value in _fields(message):
        if number == wanted and kind == _BYTES:
            yield value


def _feature(message: bytes) -> Any:
    for number, _, content in _fields(message):
        kind = _LISTS[number]
        pieces = [(wire, value) for field, wire, value in _fields(content) if field == 1]
        if kind == "bytes":
            return [value for _, value in pieces]
        if kind == "float":
            packed = b"".join(value for _, value in pieces)  # packed or one by one
            return np.frombuffer(packed, "<f4").astype(np.float32)
        return np.concatenate(
            [np.empty(0, np.int64)]
            + [_varints(v) if wire == _BYTES else np.array([v], np.uint64) for wire, v in pieces],
            dtype=np.int64,
            casting="unsafe",
        )
    return []


def _varints(packed: bytes) -> np.ndarray:
    """Decodes packed varints, seven bits per byte, the lowest first; a byte below 128 is a last."""
    values = np.frombuffer(packed, np.uint8)
    last = np.flatnonzero(values < 128)
    if len(values) and (not len(last) or last[-1] != len(values) - 1):
        raise ValueError("a number is cut short")
    starts = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    sizes = last - starts + 1
    if len(sizes) and sizes.max() > 10:
        raise ValueError("a number has more than 10 bytes")
    place = np.arange(len(values)) - np.repeat(starts, sizes)
    bits = (values & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.add.reduceat(bits, starts) if len(last) else np.empty(0, np.uint64)


def _fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yields the number, the wire type and the value of each field."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
        elif kind in (_BYTES, _FIXED32, _FIXED64):
            size = {_FIXED32: 4, _FIXED64: 8}.get(kind)
            if size is None:
                size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError("a field is cut short")
        else:
            raise ValueError(f"wire type {kind}")
        yield number, kind, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
    raise ValueError("a number has more than 10 bytes")
