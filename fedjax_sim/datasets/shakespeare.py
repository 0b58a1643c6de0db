"""Shakespeare's plays by role: the next character after 80, from the json files of LEAF.

:mod:`fedjax_sim.datasets.shakespeare_tff` has the other task, the next character at every position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from fedjax_sim.datasets.dataset import (
    DataError,
    Dataset,
    number_groups,
    rows_by_group,
    same_length,
)
from fedjax_sim.datasets.leaf import Users, find, parse_json, read_parts, users_of

WINDOW = 80  # characters of one example
PAD, BEGIN, END, UNKNOWN, VOCABULARY_SIZE = 0, 87, 88, 89, 90
# Characters 1 .. 86 of the vocabulary of TensorFlow Federated, which FedML and FLUTE use too:
# https://www.tensorflow.org/federated/tutorials/federated_learning_for_text_generation
CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
_TABLE = np.full(128, UNKNOWN, np.uint16)  # of ASCII characters
_TABLE[[ord(character) for character in CHARACTERS]] = np.arange(1, 1 + len(CHARACTERS))
_NAMES = ("<pad>", *CHARACTERS, "<bos>", "<eos>", "<unknown>")
# Characters 0 .. 79 of LEAF, which FedProx uses too:
# https://github.com/TalwalkarLab/leaf (models/utils/language_utils.py)
LEAF_CHARACTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
_LEAF_TABLE = np.full(129, len(LEAF_CHARACTERS), np.uint16)
_LEAF_TABLE[[ord(character) for character in LEAF_CHARACTERS]] = np.arange(len(LEAF_CHARACTERS))


def from_folder(folder: Path, *, leaf: bool = False) -> Dataset | None:
    """Reads Shakespeare's plays (Caldas et al., 2018) from LEAF's folders or an archive, or None.

    Files are ``train/*.json`` and ``test/*.json``, or one pair ``*_train.json``, ``*_test.json``
    per role.  The ids are those of :func:`encode`, or with ``leaf`` those of :func:`encode_leaf`.
    """
    location = find(folder, "shakespeare", _has_files)
    if location is None:
        return None

    def parse(data: bytes, where: str, part: str) -> Users:
        return parse_roles(data, where, encode_leaf if leaf else encode, part)

    parts = read_parts(location, parse, _split, order=str)
    (x, y, roles), (x_test, y_test, roles_test) = parts.values()
    train, test = {"x": x, "y": y}, {"x": x_test, "y": y_test}
    groups = number_groups(roles, roles_test)
    if leaf:
        names = tuple(LEAF_CHARACTERS)
        size = len(names)
        return Dataset("shakespeare_leaf", train, test, size, *groups, "files", names)
    return Dataset(
        "shakespeare", train, test, VOCABULARY_SIZE, *groups, source="files", class_names=_NAMES
    )


def encode(text: str) -> np.ndarray:
    """Returns the token ids of a text, uint16: 1 .. 86 are characters, 89 all others."""
    # Ids 0, 87 and 88 are padding, begin and end of a sequence.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _TABLE[np.minimum(codes, len(_TABLE) - 1)]


def encode_leaf(text: str) -> np.ndarray:
    """Returns LEAF's ids of a text, uint16: 0 .. 79, without padding or unknown characters."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    ids = _LEAF_TABLE[np.minimum(codes, len(_LEAF_TABLE) - 1)]
    if (ids == len(LEAF_CHARACTERS)).any():
        wrong = text[int(np.argmax(ids == len(LEAF_CHARACTERS)))]
        raise DataError(f"character {wrong!r}; expected one of LEAF's {len(LEAF_CHARACTERS)}")
    return ids


def decode(tokens: Iterable[int]) -> str:
    """Returns the text of token ids."""
    return "".join(_NAMES[token] for token in tokens)


def role_texts(dataset: Dataset, part: Literal["train", "test"] = "train") -> dict[str, str]:
    """Returns the text of every role behind LEAF's windows, with passages on lines of their own.

    For models that predict the character after every position:
    ``from_texts(role_texts(load("shakespeare")))``.

    Args:
        dataset: ``load("shakespeare")``.
        part: "train" or "test", later lines of the same roles.

    Example:
        >>> text = "to be, or not to be " * 5
        >>> windows = [text[i : i + 80] for i in range(len(text) - 80)]
        >>> one = {"character": "HAMLET", "x": windows, "y": list(text[80:])}
        >>> import json
        >>> x, y = parse_roles(json.dumps(one).encode())["HAMLET"]
        >>> data = Dataset("shakespeare", {"x": x, "y": y}, {}, VOCABULARY_SIZE,
        ...                np.zeros(len(y), np.int32), None, ("HAMLET",), "files")
        >>> role_texts(data)["HAMLET"] == text
        True
    """
    examples = dataset.train if part == "train" else dataset.test
    groups = dataset.train_groups if part == "train" else dataset.test_groups
    assert groups is not None
    assert dataset.group_names is not None
    texts = {}
    for group, rows in rows_by_group(groups).items():
        x, y = (examples[key][rows] for key in ("x", "y"))
        texts[dataset.group_names[group]] = "\n".join(map(decode, joined(x, y)))
    return texts


def joined(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Returns the passages behind windows ``x [n, L]``, of which each is one character later."""
    y = np.asarray(y)
    follows = (x[1:, :-1] == x[:-1, 1:]).all(axis=1) & (x[1:, -1] == y[:-1])
    starts = [0, *(1 + np.flatnonzero(~follows))]
    return [
        np.concatenate([x[start], y[start:stop]])
        for start, stop in zip(starts, [*starts[1:], len(y)], strict=True)
    ]


def parse_roles(
    data: bytes,
    where: object = "LEAF json",
    encode: Callable[[str], np.ndarray] = encode,
    split: str = "train",
) -> Users:
    """Returns the examples of each role in a file, which may lack ``users`` or ``num_samples``."""
    content = parse_json(data, where)
    if isinstance(content, dict) and isinstance(role := content.get("character"), str):
        counts = {"num_samples": [content["num_samples"]]} if "num_samples" in content else {}
        content = {"user_data": {role: content}, **counts}
    roles = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(roles, dict) or not all(isinstance(own, dict) for own in roles.values()):
        raise DataError(f"{where}: expected an object user_data, or character, x and y")
    content = {"users": list(roles), **content}
    users = content["users"]
    if "num_samples" not in content and isinstance(users, list):
        labels = [roles.get(str(user), {}).get("y") for user in users]
        content["num_samples"] = [len(own) if isinstance(own, list) else 0 for own in labels]
    return users_of(
        content, where, partial(_examples, encode), WINDOW - 1 if split == "test" else 0
    )


def _examples(
    encode: Callable[[str], np.ndarray], x: Any, y: Any, where: str
) -> tuple[np.ndarray, np.ndarray]:
    columns = []
    for key, texts, length in (("x", x, WINDOW), ("y", y, 1)):
        if not isinstance(texts, list) or not all(
            isinstance(text, str) and len(text) == length for text in texts
        ):
            raise DataError(f"{where}: {key} is no list of texts of length {length}")
        try:
            columns.append(encode("".join(texts)).reshape(-1, length))
        except DataError as error:
            raise DataError(f"{where}: {key} has {error}") from error
    same_length(where, x=columns[0], y=columns[1])
    return columns[0], columns[1][:, 0].astype(np.int32)


def _has_files(path: Path) -> bool:
    return any(
        (path / split).is_dir() or any(path.glob(f"*_{split}.json")) for split in ("train", "test")
    )


def _split(name: str) -> str | None:
    path = PurePosixPath(name)
    if path.suffix != ".json":
        return None
    splits = (split for split in ("train", "test") if path.stem.endswith(f"_{split}"))
    return path.parent.name if path.parent.name in ("train", "test") else next(splits, None)
