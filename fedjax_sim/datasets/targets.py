"""Targets: classes, numbered 0..C-1, or real numbers, for regression."""

import re
from typing import Any, Literal, get_args

import numpy as np

from fedjax_sim.datasets.dataset import DataError, group_text

Target = Literal["classes", "numbers"]
_MOST_LABEL = 2**53  # float64 has all integers below it
_FRACTION = re.compile(r"\s*[-+]?\d*[.,]\d+(?:[eE][-+]?\d+)?\s*")


def check_target(target: Any) -> None:
    """Refuses another name."""
    if target not in (None, *get_args(Target)):
        raise DataError(f"target is {target!r}; expected one of {', '.join(get_args(Target))}")


def kind_of(where: str, y: np.ndarray, target: Target | None) -> Target:
    """Returns the kind of targets ``[N]``: the given one, else by their type."""
    # Text, booleans and integers are classes; floats are numbers, if one of them is not whole.
    kind = y.dtype.kind
    if y.ndim != 1 or kind not in "biuUSf":
        raise DataError(
            f"{where} labels are {y.dtype}{list(y.shape)}; expected a list of integers or text, "
            "the classes, or of real numbers, for regression"
        )
    if kind == "f" and not np.isfinite(y).all():
        row = int(np.argmin(np.isfinite(y)))
        raise DataError(f"{where} labels have {y[row]} at [{row}]; expected finite numbers")
    whole = kind != "f" or bool((y == np.rint(y)).all())
    if target is None:
        if kind == "f" and whole:
            raise DataError(
                f"{where} labels are whole floats such as {y[0]}; expected target='classes' or "
                "target='numbers', for regression (in a file: integers such as "
                f"{group_text(y[0])} are classes)"
            )
        if kind in "US":
            _refuse_fractions(where, y)
        return "numbers" if kind == "f" else "classes"
    if target == "numbers" and kind in "US":
        row, text = _first_text(y)
        raise DataError(
            f"{where} labels have {text!r} at [{row}]; expected numbers, since target='numbers'"
        )
    if target == "classes" and not whole:
        fraction = y[np.argmax(y != np.rint(y))]
        raise DataError(f"{where} labels have {fraction}; expected integers or text, the classes")
    return target


def _refuse_fractions(where: str, y: np.ndarray) -> None:
    """Refuses text with fractions, such as prices among which one is "?"."""
    fraction = next((text for text in map(group_text, y) if _FRACTION.fullmatch(text)), None)
    if fraction is None:
        return
    row, text = _first_text(y)
    other = "" if _reads(text) else f", with {text!r} at [{row}]"
    raise DataError(
        f"{where} labels are text such as {fraction!r}{other}; expected numbers, for regression "
        "(decimal=',' of read_table reads decimal commas), or target='classes'"
    )


def _first_text(y: np.ndarray) -> tuple[int, str]:
    """Returns the first label that is no number, or else the first, and its position."""
    texts = list(map(group_text, y))
    return next(((i, text) for i, text in enumerate(texts) if not _reads(text)), (0, texts[0]))


def _reads(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_targets(where: str, y: np.ndarray, kind: Target) -> np.ndarray:
    """Returns targets of one type: float32 numbers; of classes int64 numbers or text."""
    if kind == "numbers":
        with np.errstate(over="ignore"):  # checked here
            numbers = y.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise DataError(f"{where} labels have {np.abs(y).max()}; expected numbers of float32")
        return numbers
    if y.dtype.kind in "uf" and len(y):  # one type, so that all parts have integers as names
        if float(np.abs(y).max()) >= _MOST_LABEL:
            raise DataError(f"{where} labels have {y[np.abs(y).argmax()]}; expected below 2^53")
        return y.astype(np.int64)
    return np.array([group_text(label) for label in y]) if y.dtype.kind == "S" else y
