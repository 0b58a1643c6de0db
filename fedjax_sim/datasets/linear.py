"""a9a and epsilon: two-class data sets for linear models, from LIBSVM files."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.datasets.dataset import DataError, Dataset
from fedjax_sim.datasets.formats.files import find_one, require, stream
from fedjax_sim.datasets.formats.libsvm import parse_libsvm


class _Source(NamedTuple):
    train: str
    test: str
    num_features: int
    num_rows: tuple[int, int]  # of the official train and test files
    complete: bool  # refuse fewer rows


# Epsilon's dense rows take 3.2 GB in float32, so that a part of them is useful.
_SOURCES = {
    "a9a": _Source("a9a", "a9a.t", 123, (32_561, 16_281), complete=True),
    "epsilon": _Source(
        "epsilon_normalized", "epsilon_normalized.t", 2000, (400_000, 100_000), complete=False
    ),
}
_SAMPLE = re.compile(r"\.(\d+)rows")
WANTED = {name: f"{s.train} and {s.test}, plain or .bz2" for name, s in _SOURCES.items()}


def from_folder(name: str, folder: Path) -> Dataset | None:
    """Reads a9a or epsilon from a folder with LIBSVM's files; None if it has neither part.

    Samples of n rows are read from ``<file>.<n>rows`` or ``<file>.<n>rows.bz2``.
    """
    source = _SOURCES[name]
    patterns = [_variants(stem) for stem in (source.train, source.test)]
    paths = [find_one(folder, variants) for variants in patterns]
    if paths == [None, None]:
        return None
    splits: list[dict[str, np.ndarray]] = []
    for part, (path, variants) in enumerate(zip(paths, patterns, strict=True)):
        path = require(path, folder, variants)
        sample = _SAMPLE.search(path.name)
        most = int(sample[1]) if sample else source.num_rows[part]
        x, y = parse_libsvm(stream(path), source.num_features, path, max_rows=most)
        if source.complete and not sample and len(y) != most:
            raise DataError(f"{path}: {len(y)} rows; expected {most}")
        splits.append({"x": x, "y": y})
    train, test = splits
    return Dataset(name, train, test, 2, None, None, None, source="files")


def _variants(stem: str) -> tuple[str, ...]:
    return (stem, f"{stem}.bz2", f"{stem}.[0-9]*rows", f"{stem}.[0-9]*rows.bz2")
