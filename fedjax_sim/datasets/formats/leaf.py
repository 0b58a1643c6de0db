"""The json format of LEAF: samples by user, such as images by writer."""

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedjax_sim.datasets.dataset import DataError, as_labels, same_length
from fedjax_sim.datasets.division import report
from fedjax_sim.datasets.formats.files import read_tree

NUM_CLASSES = 62

Examples = tuple[np.ndarray, np.ndarray]  # x, y
Users = dict[str, Examples | None]  # None: no samples


def parse_leaf(data: bytes, where: object = "LEAF json") -> Users:
    """Returns images uint8 ``[n, 28, 28, 1]`` and labels of each writer of one file of FEMNIST.

    Pixels in the file are multiples of 1/255 between 0 (ink) and 1 (background).
    """
    return users_of(parse_json(data, where), where, _writer)


def parse_json(data: bytes, where: object) -> Any:
    """Returns the contents of a json file without NaN, infinities and repeated names."""
    try:
        return json.loads(data, parse_constant=_refuse, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}; expected LEAF json") from error


def users_of(
    content: Any, where: object, read: Callable[[Any, Any, str], Examples], extra: int = 0
) -> Users:
    """Returns the examples of each user in ``users``, in their order; a user may have none.

    LEAF's script that divides the samples of users (data/utils/split_data.py of
    https://github.com/TalwalkarLab/leaf) has written two forms.  Until 2020, users of less than two
    samples are in ``user_data`` only, with empty ``x`` and ``y``.  Since then they are left out.
    Since then, too, Shakespeare's test part lacks its first 79 windows, which overlap with the
    training part, but ``num_samples`` still counts them.

    Args:
        content: of a file.
        where: its name.
        read: examples from a user's ``x`` and ``y``, neither of them empty, and the user's place.
        extra: ``num_samples`` may also count so many samples more than there are, for all users.
    """
    parts = [_entry(content, key, where) for key in ("users", "num_samples", "user_data")]
    users, counts, user_data = parts
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(user_data, dict)):
        raise DataError(f"{where}: expected lists users and num_samples and an object user_data")
    if len(users) != len(counts):
        raise DataError(
            f"{where}: users and num_samples have lengths {len(users)} and {len(counts)}; expected "
            "equal lengths"
        )
    result: Users = {}
    for user in users:
        if not isinstance(user, str) or user != user.strip() or not user.isprintable() or not user:
            raise DataError(f"{where}: user {user!r}; expected a name in printable characters")
        samples, place = _entry(user_data, user, where), f"{where}: {user}"
        x, y = _entry(samples, "x", place), _entry(samples, "y", place)
        result[user] = None if x == y == [] else read(x, y, place)
    if len(result) != len(users):
        raise DataError(f"{where}: a user occurs twice in users; expected once")
    for user in user_data.keys() - result.keys():
        samples = user_data[user]
        if any(_entry(samples, key, f"{where}: {user}") != [] for key in "xy"):
            raise DataError(f"{where}: {user!r} has samples and is not in users; expected it there")
    sizes = [0 if own is None else len(own[1]) for own in result.values()]
    if counts not in (sizes, [size + extra for size in sizes]):
        different = next(i for i, size in enumerate(sizes) if size != counts[i])
        raise DataError(
            f"{where}: {users[different]} has {sizes[different]} samples; num_samples says "
            f"{counts[different]}"
        )
    return result


def joined_users(location: object, part: str, files: dict[str, Users]) -> Users:
    """Returns the users of all files of a part."""
    result: Users = {}
    for name, users in files.items():
        for user, examples in users.items():
            if user in result:
                raise DataError(
                    f"{location}: {name}: {user!r} is in an earlier file; expected it in one"
                )
            result[user] = examples
    if not any(examples is not None for examples in result.values()):
        raise DataError(f"{location}: no samples in {part}/*.json; expected some")
    return result


def divided(
    location: object, parts: dict[str, Users]
) -> dict[str, tuple[np.ndarray, np.ndarray, list[str]]]:
    """Returns examples, labels and the user of each, by part; warns of users without samples."""
    result, present = {}, set()
    for part, users in parts.items():
        own = {user: examples for user, examples in users.items() if examples is not None}
        rows = [user for user, (_, labels) in own.items() for _ in range(len(labels))]
        try:
            x, y = map(np.concatenate, zip(*own.values(), strict=True))
        except ValueError as error:
            raise DataError(f"{location}: {part}: users have samples of several shapes") from error
        result[part] = (x, y, rows)
        present |= own.keys()
    listed = dict.fromkeys(user for users in parts.values() for user in users)
    lost = [user for user in listed if user not in present]
    report(str(location), f"of {len(listed)} users have no samples", lost)
    return result


def has_parts(folder: Path) -> bool:
    """Returns True for a folder with a part of LEAF's data."""
    return any((folder / part).is_dir() for part in ("train", "test"))


def part_of(name: str) -> str | None:
    """Returns "train" or "test" for the path of a file of that part, else None."""
    path = PurePosixPath(name)
    known = path.suffix == ".json" and path.parent.name in ("train", "test")
    return path.parent.name if known else None


def natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts all_data_2 before all_data_10, as LEAF numbers its files."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def read_parts(
    location: Path,
    parse: Callable[[bytes, str, str], Users],
    part_of: Callable[[str], str | None] = part_of,
    order: Callable[[str], Any] = natural,
) -> dict[str, tuple[np.ndarray, np.ndarray, list[str]]]:
    """Returns :func:`divided` train and test parts of a folder or archive.

    Args:
        location: the folder or archive.
        parse: ``(contents, file, part) -> users``.
        part_of: part of a file by its name, or None.
        order: sort key of the files' names.
    """
    files = read_tree(location, lambda name: part_of(name) is not None)
    parts = {}
    for part in ("train", "test"):
        names = sorted((name for name in files if part_of(name) == part), key=order)
        read = {name: parse(files[name], f"{location}: {name}", part) for name in names}
        parts[part] = joined_users(location, part, read)
    return divided(location, parts)


def _writer(x: Any, y: Any, where: str) -> Examples:
    images, labels = _images(x, where), as_labels(y, NUM_CLASSES, where)
    same_length(where, x=images, y=labels)
    return images, labels


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
    """Returns an object of a json file; refuses a name that occurs twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("has a name twice in one object")
    return result
