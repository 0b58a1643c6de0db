"""Data sets in LEAF's json format: numbers such as FedProx's synthetic ones, FEMNIST's images.

:mod:`fedjax_sim.datasets.shakespeare` reads text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedjax_sim.datasets.arrays import from_arrays
from fedjax_sim.datasets.dataset import DataError, Dataset, as_labels, number_groups, same_length
from fedjax_sim.datasets.division import report
from fedjax_sim.datasets.formats.files import find_one, read_bytes, read_tree

Examples = tuple[np.ndarray, np.ndarray]  # x, y
Users = dict[str, Examples | None]  # None: no samples

NUM_CLASSES = 62  # of FEMNIST
WANTED = "LEAF's folder data with train/*.json and test/*.json, or {}*.tar.xz holding it"
_WANTED = "a json file, or a folder with train/*.json and test/*.json, as LEAF writes them"


def read_leaf(path: str | Path, *, name: str | None = None) -> Dataset:
    """Reads a data set in LEAF's json format: vectors of numbers with a label each, by user.

    Each file is ``{"users": [names], "num_samples": [n], "user_data": {name: {"x": [n, ...]
    numbers, "y": [n] labels}}}``.  A folder has ``train/*.json`` and ``test/*.json``, in itself or
    in its folder ``data``.  In a single file, a fifth of each user's samples is for testing
    (:func:`~fedjax_sim.datasets.from_arrays`).  Examples become float32; labels are numbers or
    text.  Images of FEMNIST and text of Shakespeare: ``load("femnist")``, ``load("shakespeare")``.

    Source: Caldas et al., "LEAF: A benchmark for federated settings", 2018; the data of Li et al.,
    "Federated optimization in heterogeneous networks" (FedProx), 2020, have this form.

    Args:
        path: the file or folder.
        name: name of the data set; default: that of the file or folder.

    Raises:
        DataError: no such files, a malformed one, a user in two files of one part, examples that
            are no numbers or of several shapes, labels as :func:`~fedjax_sim.datasets.from_arrays`.

    Warns:
        UserWarning: users without samples.

    Example:
        >>> import json, tempfile
        >>> data = {"f_0": {"x": [[0.5, 1], [2, 3]], "y": [1.0, 1.0]},
        ...         "f_1": {"x": [[4, 5], [6, 7]], "y": [1.0, 1.0]}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "synthetic.json"
        ...     _ = file.write_text(json.dumps(
        ...         {"users": ["f_0", "f_1"], "num_samples": [2, 2], "user_data": data}))
        ...     dataset = read_leaf(file)
        >>> dataset.name, dataset.group_names, dataset.train["x"].shape, dataset.test["x"].shape
        ('synthetic', ('f_0', 'f_1'), (2, 2), (2, 2))
    """
    path = Path(path)
    name = path.stem if name is None else name
    if path.is_file():
        users = users_of(parse_json(read_bytes(path), path), path, _numbers)
        x, y, clients = divided(path, {"all": joined_users(path, "all", {path.name: users})})["all"]
        return from_arrays(
            x, _classes(y), clients=clients, scale="none", layout="as_given", name=name
        )._replace(source="files")
    location = find(path)
    if location is None:
        raise DataError(f"{path} has no data of LEAF; expected {_WANTED}")

    def parse(data: bytes, where: str, part: str) -> Users:
        del part
        return users_of(parse_json(data, where), where, _numbers)

    (x, y, clients), (x_test, y_test, test_clients) = read_parts(location, parse).values()
    return from_arrays(
        x, _classes(y), test=(x_test, _classes(y_test)), clients=clients,
        test_clients=test_clients, scale="none", layout="as_given", name=name,
    )._replace(source="files")  # fmt: skip


def _classes(y: np.ndarray) -> np.ndarray:
    """Returns whole numbers as integers; FedProx writes classes as floats."""
    is_whole = y.dtype.kind == "f" and (y == np.rint(y)).all() and np.abs(y).max() < 2**53
    return y.astype(np.int64) if is_whole else y


def _numbers(x: Any, y: Any, where: str) -> Examples:
    try:
        examples, labels = np.asarray(x), np.asarray(y)
    except (ValueError, OverflowError):
        raise DataError(f"{where}: x or y is ragged; expected examples of one shape") from None
    if examples.dtype.kind not in "biuf" or examples.ndim < 2:
        raise DataError(
            f"{where}: x has {examples.dtype}{list(examples.shape)}; expected vectors of numbers "
            '(windows of text: load("shakespeare"))'
        )
    if labels.ndim != 1 or len(labels) != len(examples):
        raise DataError(
            f"{where}: y has {list(labels.shape)} entries; expected {len(examples)}, one per sample"
        )
    if labels.dtype == object:  # others would become classes by their texts
        kinds = [np.asarray(label).dtype.kind for label in labels]
        row = next((i for i, kind in enumerate(kinds) if kind not in "biufU"), 0)
        raise DataError(
            f"{where}: y[{row}] is {labels[row]!r}; expected a number of 64 bits or text"
        )
    return examples.astype(np.float32), labels


def femnist(folder: Path) -> Dataset | None:
    """Reads FEMNIST (Caldas et al., 2018) from LEAF's folders or a tar archive of them, or None.

    Images have the polarity of LEAF: background 255, ink 0.  Labels are 0-9 digits, 10-35 A-Z,
    36-61 a-z.  Writers without train images stay in the test part as new clients.
    """
    location = find(folder, "femnist")
    if location is None:
        return None
    parts = read_parts(location, lambda data, where, part: parse_leaf(data, where))
    (x, y, writers), (x_test, y_test, writers_test) = parts.values()
    train, test = {"x": x, "y": y}, {"x": x_test, "y": y_test}
    groups = number_groups(writers, writers_test)
    return Dataset("femnist", train, test, NUM_CLASSES, *groups, source="files")


def parse_leaf(data: bytes, where: object = "LEAF json") -> Users:
    """Returns images uint8 ``[n, 28, 28, 1]`` and labels of each writer of one file of FEMNIST.

    Pixels in the file are multiples of 1/255 between 0 (ink) and 1 (background).
    """
    return users_of(parse_json(data, where), where, _writer)


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


def has_parts(folder: Path) -> bool:
    """Returns True for a folder with a part of LEAF's data."""
    return any((folder / part).is_dir() for part in ("train", "test"))


def find(
    folder: Path, stem: str | None = None, has_files: Callable[[Path], bool] = has_parts
) -> Path | None:
    """Returns where LEAF's files are: the folder ``data``, the folder, or an archive of a stem."""
    location = next((path for path in (folder / "data", folder) if has_files(path)), None)
    if location is not None or stem is None:
        return location
    return find_one(folder, tuple(f"{stem}*.tar{end}" for end in (".xz", ".gz", ".bz2", "")))


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
    """Returns :func:`divided` parts of a folder or archive; ``parse(contents, file, part)``."""
    files = read_tree(location, lambda name: part_of(name) is not None)
    _check_one_place(location, files)
    parts = {}
    for part in ("train", "test"):
        names = sorted((name for name in files if part_of(name) == part), key=order)
        read = {name: parse(files[name], f"{location}: {name}", part) for name in names}
        parts[part] = joined_users(location, part, read)
    return divided(location, parts)


def _check_one_place(location: Path, files: Iterable[str]) -> None:
    """Refuses files of several data sets, such as of a copy in a folder below."""
    # A role's pair of files of Shakespeare may be in a folder of its own.
    paths = [path for path in map(PurePosixPath, files) if path.parent.name in ("train", "test")]
    places = sorted({str(path.parent.parent) for path in paths})
    if len(places) > 1:
        raise DataError(
            f"{location}: {places[0]} and {places[1]} have folders train or test; expected one "
            "data set"
        )


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


def parse_json(data: bytes, where: object) -> Any:
    """Returns the contents of a json file without NaN, infinities and repeated names."""
    try:
        return json.loads(data, parse_constant=_refuse, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}; expected LEAF json") from error


def users_of(
    content: Any, where: object, read: Callable[[Any, Any, str], Examples], extra: int = 0
) -> Users:
    """Returns the examples of each user in ``users``, in their order; a user may have none."""
    # LEAF's script that divides the samples of users (data/utils/split_data.py of
    # https://github.com/TalwalkarLab/leaf) has written two forms. Until 2020, users of less than
    # two samples are in user_data only, with empty x and y; since then they are left out. Since
    # then, too, Shakespeare's test part lacks its first 79 windows, which overlap with the training
    # part, but num_samples still counts them: `extra` samples more than there are, for all users.
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
