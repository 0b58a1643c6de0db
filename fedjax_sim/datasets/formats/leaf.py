"""The json format of LEAF for images by writer."""

import json
from typing import Any

import numpy as np

from fedjax_sim.datasets.dataset import DataError, as_labels, same_length

NUM_CLASSES = 62

Users = dict[str, tuple[np.ndarray, np.ndarray]]


def parse_leaf(data: bytes, where: object = "LEAF json") -> Users:
    """Reads one json file of LEAF's FEMNIST.

    The file is ``{"users": [names], "num_samples": [n], "user_data": {name: {"x": [n, 784]
    floats, "y": [n] ints}}}``; pixels are multiples of 1/255 between 0 (ink) and 1 (background).

    Returns:
        Per writer, as ordered in ``users``: images uint8 ``[n, 28, 28, 1]``, labels int32 ``[n]``.

    Raises:
        DataError: not json, or unexpected entries, lengths, labels or pixels.

    Example:
        >>> one = {"x": [[1.0] * 784], "y": [61]}
        >>> file = {"users": ["ann"], "num_samples": [1], "user_data": {"ann": one}}
        >>> x, y = parse_leaf(json.dumps(file).encode())["ann"]
        >>> x.shape, x.max().item(), y.tolist()
        ((1, 28, 28, 1), 255, [61])
    """
    try:
        content = json.loads(data, parse_constant=_refuse, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}; expected LEAF json") from error
    parts = [_entry(content, key, where) for key in ("users", "num_samples", "user_data")]
    users, sizes, user_data = parts
    if not (isinstance(users, list) and isinstance(sizes, list) and isinstance(user_data, dict)):
        raise DataError(f"{where}: expected lists users and num_samples and an object user_data")
    same_length(where, users=users, num_samples=sizes, user_data=user_data)
    result: Users = {}
    for user, size in zip(users, sizes, strict=True):
        if not isinstance(user, str) or user != user.strip() or not user.isprintable() or not user:
            raise DataError(f"{where}: user {user!r}; expected a name in printable characters")
        samples = _entry(user_data, user, where)
        images = _images(_entry(samples, "x", where), f"{where}: {user}")
        labels = as_labels(_entry(samples, "y", where), NUM_CLASSES, f"{where}: {user}")
        same_length(f"{where}: {user}", x=images, y=labels)
        if len(labels) != size:
            raise DataError(f"{where}: {user} has {len(labels)} samples; expected {size}")
        result[user] = (images, labels)
    if len(result) != len(users):
        raise DataError(f"{where}: a writer occurs twice in users; expected once")
    return result


def _images(rows: Any, where: str) -> np.ndarray:
    try:
        pixels = np.asarray(rows)
    except (ValueError, OverflowError):
        raise DataError(f"{where}: images are ragged; expected lists of 784 numbers") from None
    if pixels.ndim != 2 or pixels.shape[1] != 784 or pixels.dtype.kind not in "fiu":
        raise DataError(
            f"{where}: images have shape {pixels.shape} and type {pixels.dtype}; "
            "expected lists of 784 numbers"
        )
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise DataError(f"{where}: pixels outside 0 .. 1; expected multiples of 1/255 within")
    levels = np.rint(pixels * 255)
    # A pixel printed with three decimals or more is this close to its level.
    if not (abs(pixels * 255 - levels) < 0.13).all():
        raise DataError(f"{where}: pixels between grey levels; expected multiples of 1/255")
    return levels.astype(np.uint8).reshape(-1, 28, 28, 1)


def _entry(content: Any, key: str, where: object) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise DataError(f"{where}: has no {key!r}; expected users, num_samples, user_data (x, y)")
    return content[key]


def _refuse(constant: str) -> None:
    raise ValueError(f"has {constant}, which is not a finite number")


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of a json file, for ``object_pairs_hook``.

    Raises:
        ValueError: a name twice, of which ``json`` would keep the last one.

    Example:
        >>> json.loads('{"ann": 1, "ann": 2}', object_pairs_hook=unique_names)
        Traceback (most recent call last):
        ...
        ValueError: has a name twice in one object
    """
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("has a name twice in one object")
    return result
