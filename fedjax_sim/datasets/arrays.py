"""Data sets from arrays and lists: labels and clients may be text, images of any layout."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.data.inspection import missing, with_nan
from fedjax_sim.datasets.dataset import DataError, Dataset, group_text, number_groups
from fedjax_sim.datasets.division import TEST_SHARE, rows_for_testing
from fedjax_sim.datasets.labels import one_per_example
from fedjax_sim.datasets.layouts import to_channels_last

_MOST_LABEL = 2**53  # float64 has all integers below it


def from_arrays(
    x: Any,
    y: Any,
    *,
    test: tuple[Any, Any] | None = None,
    clients: Sequence[Any] | np.ndarray | None = None,
    test_clients: Sequence[Any] | np.ndarray | None = None,
    name: str = "own",
) -> Dataset:
    """Returns a data set of arrays or lists.

    Labels are numbered 0..C-1 in sorted order, numbers or text; ``class_names`` remembers them.
    Clients are numbered in order of appearance; ``group_names`` remembers them.  uint8 images get
    the layout ``[N, H, W, C]``, and so do floating images with a first axis of 1, 3 or 4 channels.

    Args:
        x: examples ``[N, ...]``.
        y: labels ``[N]`` or ``[N, 1]``.
        test: examples and labels for testing; default: a fifth of each class, or with ``clients`` a
            fifth of the rows of each client (:mod:`fedjax_sim.datasets.division`), always the same.
        clients: client of each example ``[N]``, for the natural partition.
        test_clients: client of each test example, with ``test`` and ``clients``.
        name: name of the data set.

    Raises:
        DataError: lengths that differ, labels that are no list of integers or text, missing labels
            or clients, examples that are no numbers or too large for float32, test examples of
            another shape, or uint8 in one part only, a single example, or clients of one row each,
            without ``test``, or ``test_clients`` without ``test`` or without ``clients``.

    Warns:
        UserWarning: clients without test examples, by number and name.

    Example:
        >>> data = from_arrays([[0.0], [1.0], [2.0]], ["cat", "dog", "cat"],
        ...                    test=([[1.5]], ["dog"]), clients=["ann", "bob", "ann"])
        >>> data.train["y"].tolist(), data.class_names, data.train_groups.tolist()
        ([0, 1, 0], ('cat', 'dog'), [0, 1, 0])
    """
    for option, value in (("test", test), ("clients", clients)):
        if test_clients is not None and value is None:
            raise DataError(
                f"{name}: test_clients has {len(test_clients)} entries; expected {option} with them"
            )
    parts = {"train": (x, y, clients)}
    if test is not None:
        parts["test"] = (*test, test_clients)
    read = {key: _part(f"{name}: {key}", *part) for key, part in parts.items()}
    if "test" in read:
        _check_alike(name, read["train"].x, read["test"].x)
    elif len(read["train"].y) < 2:
        raise DataError(f"{name} has 1 example; expected at least 2, one of them for testing")
    values = np.concatenate([part.y for part in read.values()])
    classes, numbers = np.unique(values, return_inverse=True)
    labels = dict(
        zip(read, np.split(numbers.astype(np.int32), [len(read["train"].y)]), strict=False)
    )
    arrays = {key: {"x": part.x, "y": labels[key]} for key, part in read.items()}
    own = [None if part.clients is None else list(part.clients) for part in read.values()]
    groups = (None, None, None) if own[0] is None else number_groups(own[0], *own[1:])
    if test is None:
        whole, (numbers, _, names) = arrays["train"], groups
        is_test = (
            _is_test(labels["train"])
            if numbers is None or names is None
            else rows_for_testing(name, read["train"].y, numbers, names)
        )
        arrays = {
            key: {leaf: column[rows] for leaf, column in whole.items()}
            for key, rows in (("train", ~is_test), ("test", is_test))
        }
        if numbers is not None:
            groups = (numbers[~is_test], numbers[is_test], names)
    class_names = tuple(str(label) for label in classes)
    return Dataset(
        name, arrays["train"], arrays["test"], len(classes), *groups, source="arrays",
        class_names=class_names,
    )  # fmt: skip


def check_dataset(dataset: Dataset) -> Dataset:
    """Returns a data set that a user has built, if it can be trained on.

    Raises:
        DataError: examples or labels of another form, with the expected one.

    Example:
        >>> part = {"x": np.zeros((2, 3), np.float32), "y": np.array([1, 2])}
        >>> check_dataset(Dataset("mine", part, part, 2, None, None, None, "own"))
        Traceback (most recent call last):
        fedjax_sim.datasets.dataset.DataError: mine: train labels are in 1 .. 2; expected 0 .. 1...
    """
    for key, part in (("train", dataset.train), ("test", dataset.test)):
        where = f"{dataset.name}: {key}"
        if not isinstance(part, dict) or not {"x", "y"} <= set(part):
            raise DataError(f"{where} is {type(part).__name__}; expected {{'x': ..., 'y': ...}}")
        x, y = np.asarray(part["x"]), np.asarray(part["y"])
        if not len(y) or x.ndim < 1 or len(x) != len(y):
            raise DataError(
                f"{where} has x {list(x.shape)} and y {list(y.shape)}; expected [N, ...]"
            )
        _check_numbers(where, x)
        if y.ndim not in (1, 2) or y.dtype.kind not in "iu":
            raise DataError(
                f"{where} labels are {y.dtype}{list(y.shape)}; expected integers [N] (from_arrays "
                "numbers text)"
            )
        lowest = 0 if y.ndim == 1 else -1  # of padding, in sequences with a label per position
        if y.min() < lowest or y.max() >= dataset.num_classes:
            raise DataError(
                f"{where} labels are in {y.min()} .. {y.max()}; expected 0 .. "
                f"{dataset.num_classes - 1} (from_arrays numbers labels)"
            )
    _check_alike(dataset.name, np.asarray(dataset.train["x"]), np.asarray(dataset.test["x"]))
    groups = dataset.train_groups
    if groups is not None and (len(groups) != len(dataset.train["y"]) or not dataset.group_names):
        raise DataError(
            f"{dataset.name}: train_groups has {len(groups)} entries; expected one per train "
            "example, and group_names"
        )
    return dataset


def _check_alike(name: str, train: np.ndarray, test: np.ndarray) -> None:
    """Refuses test examples of another shape or scale; models divide uint8 pixels by 255."""
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{name}: test examples have shape {list(test.shape[1:])}; expected "
            f"{list(train.shape[1:])}, as in training"
        )
    if (train.dtype == np.uint8) != (test.dtype == np.uint8):
        raise DataError(
            f"{name}: test examples have dtype {test.dtype} and training examples {train.dtype}; "
            "expected uint8 in both or in neither, since models scale uint8 to [0, 1]"
        )


class _Part(NamedTuple):
    x: np.ndarray
    y: np.ndarray  # as given
    clients: np.ndarray | None


def _part(where: str, x: Any, y: Any, clients: Any) -> _Part:
    y = one_per_example(where, y)
    _check_present(where, "labels", y)
    if clients is not None:
        _check_present(where, "clients", clients)
    try:
        x, y = with_nan(x), np.asarray(y)
    except ValueError as error:
        raise DataError(f"{where} examples or labels are ragged; expected equal shapes") from error
    _check_numbers(where, x)
    if (
        y.ndim != 1
        or y.dtype.kind not in "biuUSf"
        or (y.dtype.kind == "f" and not (y == np.rint(y)).all())
    ):
        raise DataError(
            f"{where} labels are {y.dtype}{list(y.shape)}; expected a list of integers or text, "
            "the classes (real numbers, for regression: fs.from_assignment({'x': x, 'y': y}, rows) "
            "with rows, names = fs.data.partition.by_group(clients))"
        )
    if len(x) != len(y) or not len(y):
        raise DataError(f"{where} has {len(x)} examples and {len(y)} labels; expected one each")
    if clients is not None and len(clients) != len(y):
        raise DataError(f"{where} has {len(clients)} clients; expected {len(y)}, one per example")
    if y.dtype.kind in "uf":  # one type, so that the class names of both parts are integers
        if float(np.abs(y).max()) >= _MOST_LABEL:
            raise DataError(f"{where} labels have {y[np.abs(y).argmax()]}; expected below 2^53")
        y = y.astype(np.int64)
    own = None if clients is None else np.asarray(clients)
    if own is not None and own.ndim != 1:
        raise DataError(f"{where} clients have shape {list(own.shape)}; expected one per example")
    if y.dtype.kind == "S":
        y = np.array([group_text(label) for label in y])
    with np.errstate(over="ignore"):  # checked here
        x = _layout(x)
    _check_numbers(where, x)
    return _Part(x, y, own)


def _check_present(where: str, column: str, values: Any) -> None:
    if np.ndim(values) == 1 and (is_missing := missing(values)).any():
        row = int(is_missing.argmax())
        raise DataError(f"{where} {column}[{row}] has no value; expected one")


def _layout(x: np.ndarray) -> np.ndarray:
    """Images with channels last; floats and integers in the types of models."""
    first_is_channel = x.ndim == 4 and x.shape[1] in (1, 3, 4) and x.shape[3] not in (1, 3, 4)
    if (x.dtype == np.uint8 and x.ndim in (3, 4)) or first_is_channel:
        x = to_channels_last(x)
    return x.astype(np.float32 if x.dtype.kind in "fb" else x.dtype.newbyteorder("="), copy=False)


def _check_numbers(where: str, x: np.ndarray) -> None:
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where} examples are {x.dtype}; expected numbers [N, ...]")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = np.argwhere(~np.isfinite(x))[0].tolist()
        raise DataError(f"{where} examples have NaN or infinity at {row}; expected finite numbers")


def _is_test(labels: np.ndarray) -> np.ndarray:
    """A fifth of each class, drawn with the frozen stream of RandomState."""
    chosen = np.zeros(len(labels), bool)
    order = np.random.RandomState(0).permutation(len(labels))
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        chosen[rows[: round(len(rows) / TEST_SHARE)]] = True
    if not chosen.any():
        chosen[order[:1]] = True
    return chosen
