"""a9a and epsilon: two-class data sets for linear models, from LIBSVM files."""

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import DataError, Dataset, same_length
from fedjax_sim.datasets.formats.files import find_one, require, stream

_BLOCK = 1 << 24  # bytes of text parsed at a time; bounds temporary memory
_LONGEST = 40  # characters of one number
_FOREIGN = re.compile(rb"[^0-9+\-.eE: \r\n]|\r(?!\n)")


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
    """Reads a9a or epsilon from a folder with LIBSVM's files; None if it has neither part."""
    # Samples of n rows are files <file>.<n>rows or <file>.<n>rows.bz2.
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


def parse_libsvm(
    blocks: Iterable[bytes],
    num_features: int,
    where: object = "LIBSVM data",
    max_rows: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns dense features float32 ``[N, F]`` and labels int32 ``[N]``, 0 for -1 and 1 for +1."""
    # The last of the F features may be zero in every row. More than `max_rows` rows are refused
    # before memory for them is allocated.
    xs, ys, num_rows = [np.zeros((0, num_features), np.float32)], [np.zeros(0, np.int32)], 0
    for text in _whole_lines(blocks, where, longest=(num_features + 1) * (2 * _LONGEST + 2)):
        if max_rows is not None and num_rows + text.count(b"\n") > max_rows:
            raise DataError(f"{where}: more than {max_rows} rows; expected at most {max_rows}")
        x, y = _parse_lines(text, num_features, f"{where}, line {num_rows + 1} or later")
        num_rows += len(y)
        xs.append(x)
        ys.append(y)
    features, labels = np.concatenate(xs), np.concatenate(ys)
    same_length(where, features=features, labels=labels)
    return features, labels


def _whole_lines(blocks: Iterable[bytes], where: object, longest: int) -> Iterator[bytes]:
    pending, size = [], 0
    for block in blocks:
        pending.append(block)
        size += len(block)
        if size >= _BLOCK and b"\n" in block:
            text, _, rest = b"".join(pending).rpartition(b"\n")
            pending, size = [rest], len(rest)
            yield text + b"\n"
        elif size >= _BLOCK + longest:
            raise DataError(f"{where}: has a line of {size} bytes; expected at most {longest}")
    text = b"".join(pending)
    if text and not text.endswith(b"\n"):
        raise DataError(f"{where}: the last line does not end; expected a complete file")
    if text:
        yield text


def _parse_lines(text: bytes, num_features: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    # Beyond the format: scikit-learn skips comments and reads nan, qid and 1_0.
    if foreign := _FOREIGN.search(text):
        raise DataError(f"{where}: has {foreign[0]!r}; expected finite numbers, spaces and colons")
    form = f"lines of the form: label index:value ..., with ascending indices, 1 .. {num_features}"
    load = import_extra("sklearn.datasets", "datasets").load_svmlight_file
    try:
        x, labels = load(
            io.BytesIO(text), n_features=num_features, dtype=np.float64, zero_based=False
        )
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where}: {error}; expected {form}") from error
    if len(labels) != text.count(b"\n"):  # scikit-learn skips empty lines
        raise DataError(f"{where}: has an empty line; expected {form}")
    if not np.isin(labels, (-1.0, 1.0)).all():
        raise DataError(f"{where}: has label {labels[abs(labels) != 1][0]}; expected -1 or +1")
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    if not np.isfinite(x.data).all():
        raise DataError(f"{where}: has a value beyond float32; expected finite values")
    return x.toarray(), (labels > 0).astype(np.int32)
