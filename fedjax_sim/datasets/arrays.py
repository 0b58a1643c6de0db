"""Data sets from arrays and lists: labels and clients may be text, images of a given layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.data import missing, with_nan
from fedjax_sim.datasets.columns import Encode
from fedjax_sim.datasets.dataset import DataError, Dataset, check_choice, number_groups
from fedjax_sim.datasets.division import TEST_SHARE, rows_for_testing
from fedjax_sim.datasets.features import Layout, Scale, are_pixels, check_numbers, laid_out, scaled
from fedjax_sim.datasets.targets import Target, as_targets, kind_of, of_one_type, one_per_example


class Form(NamedTuple):
    """Form of features and targets, as :func:`from_arrays` and ``from_table`` describe it."""

    scale: Scale | None
    layout: Layout | None
    target: Target | None
    encode: Encode | None = None  # of columns of text


def from_arrays(
    x: Any,
    y: Any,
    *,
    test: tuple[Any, Any] | None = None,
    clients: Sequence[Any] | np.ndarray | None = None,
    test_clients: Sequence[Any] | np.ndarray | None = None,
    scale: Scale | None = None,
    layout: Layout | None = None,
    target: Target | None = None,
    name: str = "own",
) -> Dataset:
    """Returns a data set of arrays or lists.

    Classes are numbered 0..C-1 in sorted order, numbers or text; ``class_names`` remembers them.
    Clients are numbered in order of appearance; ``group_names`` remembers them.

    Args:
        x: examples ``[N, ...]``.  Integers besides uint8 are token ids, unless ``scale`` is given.
        y: labels ``[N]`` or ``[N, 1]``.
        test: examples and labels for testing; default: a fifth of each class, or with ``clients`` a
            fifth of the rows of each client (:mod:`fedjax_sim.datasets.division`), always the same.
        clients: client of each example ``[N]``, for the natural partition.
        test_clients: client of each test example, with ``test`` and ``clients``.
        scale: "none"; "unit": pixels 0..255 are divided by 255; "standardise": mean 0 and standard
            deviation 1 of the training examples, for every position of the last axis.  Default:
            "unit" for uint8 images ``[N, H, W, ...]``, which stay uint8 until a model divides
            them, else "none", with a warning of a table ``[N, D]`` whose columns differ in scale
            by more than 1e3, and of floats that look like pixels.  uint8 that may be pixels or not
            needs ``scale``.
            ``Dataset.scaling`` maps other examples in the same way.
        layout: "channels_last" or "channels_first" of images, which become ``[N, H, W, C]``, or
            "as_given".  Default: that of uint8 images by
            :func:`~fedjax_sim.datasets.to_channels_last`, else "as_given".
        target: "classes", or "numbers" for regression, which become float32.  Default: integers,
            booleans and text are classes, floats are numbers; floats that are all whole may be
            either and need ``target``.
        name: name of the data set.

    Raises:
        DataError: lengths that differ, labels that are no list of numbers or text, missing labels
            or clients, examples that are no numbers or too large for float32, test examples of
            another shape, or uint8 in one part only, a single example, or clients of one row each,
            without ``test``, or ``test_clients`` without ``test`` or without ``clients``;
            ``scale``, ``layout`` or ``target`` that does not fit, or is needed.

    Warns:
        UserWarning: clients without test examples, by number and name; columns of other scales.

    Example:
        >>> data = from_arrays([[0.0], [1.0], [2.0]], ["cat", "dog", "cat"],
        ...                    test=([[1.5]], ["dog"]), clients=["ann", "bob", "ann"])
        >>> data.train["y"].tolist(), data.class_names, data.train_groups.tolist()
        ([0, 1, 0], ('cat', 'dog'), [0, 1, 0])
    """
    form = Form(scale, layout, target)
    return scaled(unscaled(x, y, test, clients, test_clients, form, name), scale)


def unscaled(
    x: Any, y: Any, test: Any, clients: Any, test_clients: Any, form: Form, name: str
) -> Dataset:
    """Returns :func:`from_arrays` before the scale, with examples of any type of numbers."""
    scale, layout, target, _ = form
    for option, choices in (("scale", Scale), ("layout", Layout), ("target", Target)):
        check_choice(option, getattr(form, option), choices)
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
    pixels = are_pixels(f"{name}: train", read["train"].x, scale)
    kind = kind_of(f"{name}: train", read["train"].y, target)
    arrays, labels = {}, {}
    for key, part in read.items():
        where = f"{name}: {key}"
        arrays[key] = laid_out(where, part.x, layout, pixels)
        kind_of(where, part.y, kind)
        labels[key] = as_targets(where, part.y, kind)
    classes: np.ndarray | None = None
    if kind == "classes":
        classes, numbers = np.unique(np.concatenate([*labels.values()]), return_inverse=True)
        split = np.split(numbers.astype(np.int32), [len(labels["train"])])
        labels = dict(zip(labels, split, strict=False))
    arrays = {key: {"x": arrays[key], "y": labels[key]} for key in read}
    own = [None if part.clients is None else list(part.clients) for part in read.values()]
    groups = (None, None, None) if own[0] is None else number_groups(own[0], *own[1:])
    if test is None:
        whole, (numbers, _, names) = arrays["train"], groups
        strata = labels["train"] if kind == "classes" else np.zeros(len(labels["train"]), int)
        # The labels themselves, since messages name them.
        named = read["train"].y if kind == "classes" else strata
        is_test = (
            _is_test(strata)
            if numbers is None or names is None
            else rows_for_testing(name, named, numbers, names)
        )
        arrays = {
            key: {leaf: column[rows] for leaf, column in whole.items()}
            for key, rows in (("train", ~is_test), ("test", is_test))
        }
        if numbers is not None:
            groups = (numbers[~is_test], numbers[is_test], names)
    return Dataset(
        name, arrays["train"], arrays["test"], 1 if classes is None else len(classes), *groups,
        source="arrays", class_names=None if classes is None else tuple(map(str, classes)),
    )  # fmt: skip


def check_dataset(dataset: Dataset) -> Dataset:
    """Returns a data set that a user has built, if it can be trained on."""
    for key, part in (("train", dataset.train), ("test", dataset.test)):
        where = f"{dataset.name}: {key}"
        if not isinstance(part, dict) or not {"x", "y"} <= set(part):
            raise DataError(f"{where} is {type(part).__name__}; expected {{'x': ..., 'y': ...}}")
        x, y = np.asarray(part["x"]), np.asarray(part["y"])
        if not len(y) or x.ndim < 1 or len(x) != len(y):
            raise DataError(
                f"{where} has x {list(x.shape)} and y {list(y.shape)}; expected [N, ...]"
            )
        check_numbers(where, x)
        if dataset.target == "numbers":
            if y.dtype.kind != "f" or y.ndim != 1 or dataset.num_classes != 1:
                raise DataError(
                    f"{where} labels are {y.dtype}{list(y.shape)}, with num_classes="
                    f"{dataset.num_classes}; expected floats [N] and 1, for regression"
                )
            if not np.isfinite(y).all():
                raise DataError(f"{where} labels have NaN or infinity; expected finite numbers")
            continue
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
    _check_groups(dataset)
    return dataset


def _check_groups(dataset: Dataset) -> None:
    """Refuses clients that are not one position in ``group_names`` per example."""
    names = dataset.group_names or ()
    for key, part in (("train", dataset.train), ("test", dataset.test)):
        groups = getattr(dataset, f"{key}_groups")
        if groups is None:
            continue
        where, groups = f"{dataset.name}: {key}_groups", np.asarray(groups)
        if groups.ndim != 1 or len(groups) != len(part["y"]) or not names:
            raise DataError(
                f"{where} has {len(groups)} entries; expected one per {key} example, and "
                "group_names"
            )
        if groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= len(names):
            raise DataError(
                f"{where} has {groups.dtype} {groups.min()} .. {groups.max()}; expected integers "
                f"0 .. {len(names) - 1}, positions in group_names"
            )


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
    x: np.ndarray  # all as given
    y: np.ndarray
    clients: np.ndarray | None


def _part(where: str, x: Any, y: Any, clients: Any) -> _Part:
    y = one_per_example(where, y)
    _check_present(where, "labels", y)
    if clients is not None:
        _check_present(where, "clients", clients)
    try:
        x, y = with_nan(x), of_one_type(np.asarray(y))
    except ValueError as error:
        raise DataError(f"{where} examples or labels are ragged; expected equal shapes") from error
    with np.errstate(over="ignore"):  # numbers too large for float32 are refused, too
        check_numbers(where, x.astype(np.float32) if x.dtype.kind == "f" else x)
    if y.ndim and (len(x) != len(y) or not len(y)):
        raise DataError(f"{where} has {len(x)} examples and {len(y)} labels; expected one each")
    if clients is not None and len(clients) != len(y):
        raise DataError(f"{where} has {len(clients)} clients; expected {len(y)}, one per example")
    own = None if clients is None else np.asarray(clients)
    if own is not None and own.ndim != 1:
        raise DataError(f"{where} clients have shape {list(own.shape)}; expected one per example")
    return _Part(x, y, own)


def _check_present(where: str, column: str, values: Any) -> None:
    if np.ndim(values) == 1 and (is_missing := missing(values)).any():
        row = int(is_missing.argmax())
        raise DataError(f"{where} {column}[{row}] has no value; expected one")


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
