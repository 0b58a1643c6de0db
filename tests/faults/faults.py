"""Faults of files, and the outcome of a trial."""

import enum
import json
import pathlib
import re
import warnings
from collections.abc import Callable

import numpy as np

from fedjax_sim.runs.storage.files import RecoveryWarning


class Outcome(enum.Enum):
    """Result of a trial; the last two are defects."""

    SAME = "same bits"
    REFUSED = "refused"
    LOST = "lost"
    UNDOCUMENTED = "undocumented"


Trial = Callable[[np.random.Generator, pathlib.Path], "Result"]


class Result(tuple):
    """``(outcome, description)`` of a trial."""

    def __new__(cls, outcome: Outcome, description: str = "") -> "Result":
        return super().__new__(cls, (outcome, description))


def compared(again: Callable[[], list[bytes]], expected: list[bytes], where: str) -> Result:
    """Runs something on a folder with a fault and compares its bits.

    One line that names the folder is a documented refusal, and a warning about a damaged file may
    precede the expected result.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecoveryWarning)
            bits = again()
    except (ValueError, OSError) as error:
        documented = where in str(error) and "\n" not in str(error)
        return Result(Outcome.REFUSED if documented else Outcome.UNDOCUMENTED, repr(error))
    except Exception as error:
        return Result(Outcome.UNDOCUMENTED, repr(error))
    return Result(Outcome.SAME) if bits == expected else Result(Outcome.LOST, "other bits")


def files_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of a folder that have content."""
    paths = sorted(folder.rglob("*"))
    return [path for path in paths if path.is_file() and path.stat().st_size]


def flip(rng: np.random.Generator, path: pathlib.Path) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    bit = int(rng.integers(8 * len(data)))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_header(rng: np.random.Generator, path: pathlib.Path) -> None:
    """Flips a bit where a file says how the rest is read, or a digit of a number or a digest."""
    data = bytearray(path.read_bytes())
    if places := _headers(bytes(data)):
        data[places[rng.integers(len(places))]] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)


def _headers(content: bytes) -> list[int]:
    """Returns the positions of an archive's and its arrays' headers, or of the digits of a text.

    Of other files, the first and the last 64 bytes.
    """
    if content.startswith(b"PK"):
        starts = [found.start() for found in re.finditer(rb"PK[\1\3\5]|\x93NUMPY", content)]
        return [i for start in starts for i in range(start, min(start + 120, len(content)))]
    if content.isascii():
        return [found.start() for found in re.finditer(rb"[0-9]", content)]
    return [*range(min(64, len(content))), *range(max(0, len(content) - 64), len(content))]


def cut(rng: np.random.Generator, path: pathlib.Path) -> None:
    """Cuts a file short."""
    data = path.read_bytes()
    path.write_bytes(data[: int(rng.integers(len(data)))])


def delete(rng: np.random.Generator, path: pathlib.Path) -> None:
    """Deletes a file."""
    path.unlink()


def retype(rng: np.random.Generator, path: pathlib.Path) -> None:
    """Gives a value of a JSON file another kind, or removes it; scrambles other files."""
    try:
        tree = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return scramble(rng, path)
    places = [(tree, key) for key in _keys(tree)]
    for holder, key in places:  # grows while it is read
        places += [(holder[key], inner) for inner in _keys(holder[key])]
    if places:
        holder, key = places[rng.integers(len(places))]
        kinds = [None, True, -1, 2.5, 10**30, "x", [], {}, [[1]], {"a": []}]
        if rng.integers(4):
            holder[key] = kinds[rng.integers(len(kinds))]
        else:
            del holder[key]
    path.write_text(json.dumps(tree))


def _keys(value: object) -> list:
    """Returns the keys of an object, or the positions of a list."""
    if isinstance(value, list):
        return list(range(len(value)))
    return list(value) if isinstance(value, dict) else []


def scramble(rng: np.random.Generator, path: pathlib.Path) -> None:
    """Overwrites, inserts, removes or repeats a piece."""
    data = bytearray(path.read_bytes())
    where = int(rng.integers(len(data) + 1))
    piece = rng.bytes(int(rng.integers(1, 9)))
    match rng.integers(6):
        case 0:
            data[where : where + len(piece)] = piece
        case 1:
            data[where:where] = piece
        case 2:
            del data[where : where + len(piece)]
        case 3:
            data[where:where] = data[where : where + 64]
        case 4:  # brackets nested deeper than a parser's stack
            data[where:where] = b"[" * 20_000
        case _:
            data = bytearray(rng.bytes(int(rng.integers(200))))
    path.write_bytes(data)
