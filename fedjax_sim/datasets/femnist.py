"""FEMNIST: handwritten characters by writer, from the json files of LEAF."""

import re
from pathlib import Path, PurePosixPath

import numpy as np

from fedjax_sim.datasets.dataset import DataError, Dataset, number_groups
from fedjax_sim.datasets.formats.files import find_one, read_tree
from fedjax_sim.datasets.formats.leaf import NUM_CLASSES, Users, parse_leaf

_ARCHIVES = tuple(f"femnist*.tar{suffix}" for suffix in (".xz", ".gz", ".bz2", ""))

WANTED = "LEAF's folder data with train/*.json and test/*.json, or femnist*.tar.xz holding it"


def from_folder(folder: Path) -> Dataset | None:
    """Reads FEMNIST (Caldas et al., 2018) from LEAF's folders or a tar archive of them, or None.

    The folders are ``train`` and ``test``, the archive is ``femnist*.tar.*``.  Images are uint8
    ``[N, 28, 28, 1]`` with the polarity of LEAF: background 255, ink 0.  Labels: 0-9 digits, 10-35
    A-Z, 36-61 a-z.  The natural client is the writer; rows are ordered by writer.  Writers without
    train images stay in the test part as new clients.

    Raises:
        DataError: a part is missing, a file malformed, or a writer in two files of one part.
    """
    candidates = (folder / "data", folder)
    location = next((path for path in candidates if _is_leaf(path)), None)
    location = location or find_one(folder, _ARCHIVES)
    if location is None:
        return None
    files = read_tree(location, lambda name: _split(name) is not None)
    splits = {}
    for split in ("train", "test"):
        users: Users = {}
        for name in sorted((n for n in files if _split(n) == split), key=_natural):
            where = f"{location}: {name}"
            for user, examples in parse_leaf(files[name], where).items():
                if user in users:
                    raise DataError(f"{where}: writer {user!r} is in an earlier file; expected one")
                users[user] = examples
        if not users:
            raise DataError(f"{location}: no {split}/*.json in it; expected {WANTED}")
        splits[split] = users
    train, test = (_concatenated(users) for users in splits.values())
    groups = number_groups(*(_writer_per_row(users) for users in splits.values()))
    return Dataset("femnist", train, test, NUM_CLASSES, *groups, source="files")


def _is_leaf(path: Path) -> bool:
    return any((path / split).is_dir() for split in ("train", "test"))


def _split(name: str) -> str | None:
    path = PurePosixPath(name)
    known = path.suffix == ".json" and path.parent.name in ("train", "test")
    return path.parent.name if known else None


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts all_data_2 before all_data_10, as LEAF numbers its files."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _concatenated(users: Users) -> dict[str, np.ndarray]:
    x, y = zip(*users.values(), strict=True)
    return {"x": np.concatenate(x), "y": np.concatenate(y)}


def _writer_per_row(users: Users) -> list[str]:
    return [user for user, (_, labels) in users.items() for _ in range(len(labels))]
