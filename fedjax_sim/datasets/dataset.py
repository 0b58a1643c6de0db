"""The type of a data set, and helpers of all readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.data import FederatedData, from_assignment, group_rows
from fedjax_sim.types import Summary, shown, tree_text


class DataError(ValueError):
    """Raised if the files of a data set are missing or malformed.

    The message names the file and the expected contents.

    Example:
        >>> from fedjax_sim.datasets import load
        >>> try:
        ...     load("mnist", data_dir="/nonexistent")
        ... except DataError:
        ...     print("no files there")
        no files there
    """


@shown
class Scaling(NamedTuple):
    """Map of raw features to those that a model is trained with: ``(x - shift) / divisor``.

    Example:
        >>> Scaling(np.array([1.0, 0.0]), np.array([2.0, 1.0]))([[3.0, 4.0]]).tolist()
        [[1.0, 4.0]]
    """

    shift: np.ndarray  # of each feature
    divisor: np.ndarray  # of each feature

    def __call__(self, x: Any) -> np.ndarray:
        """Returns the features ``[N, ...]`` of other examples, such as later ones, in float32."""
        return ((np.asarray(x, np.float64) - self.shift) / self.divisor).astype(np.float32)


@shown
class Dataset(NamedTuple):
    """A supervised data set in host memory, with the natural client of each example if known.

    Images are uint8 ``[N, H, W, C]`` and labels int32, so that a data set needs no more memory than
    its file; models convert on the device.  Targets of regression are float32, and ``num_classes``
    is then 1, the outputs of a model.

    Example:
        >>> from fedjax_sim.datasets import load
        >>> digits = load("digits")
        >>> digits.train["x"].shape, digits.train["x"].dtype, digits.num_classes
        ((1438, 8, 8, 1), dtype('uint8'), 10)
    """

    name: str  # of the data set
    train: dict[str, np.ndarray]  # {"x": [N, ...], "y": int32 [N]}, CIFAR-100 also "coarse"
    test: dict[str, np.ndarray]  # with the keys of the train part
    num_classes: int  # outputs of a classifier; 1 for regression
    train_groups: np.ndarray | None  # int32 [N], indices into group_names
    test_groups: np.ndarray | None  # int32 [N] of the test part
    group_names: tuple[str, ...] | None  # natural clients; groups of the train part come first
    source: str  # origin: "tfds", "files", "scikit-learn", "download" or "arrays"
    class_names: tuple[str, ...] | None = None  # of the labels in the source; None: 0, 1, ...
    scaling: Scaling | None = None  # from raw features to those of x; None: they are equal

    @property
    def target(self) -> Literal["classes", "numbers"]:
        """Kind of the targets: classes, or real numbers ``[N]``, one output (regression).

        Example:
            >>> from fedjax_sim.datasets import from_arrays
            >>> data = from_arrays([[0.0], [1.0]], [0.5, 1.5])
            >>> data.target, data.num_classes, data.train["y"].dtype
            ('numbers', 1, dtype('float32'))
        """
        return "numbers" if self.train["y"].dtype.kind == "f" else "classes"

    def clients(self, part: Literal["train", "test", "unseen"] = "train") -> FederatedData:
        """Returns the natural clients: writers, roles, the values of a table's column.

        "train" are the clients with training examples, in the order of ``group_names``; "test" are
        the same clients with their test examples, some of them perhaps without any; "unseen" are
        the clients that have test examples only.

        Raises:
            ValueError: the data set does not say which client an example is from, another part, or
                no unseen clients.

        Example:
            >>> from fedjax_sim.datasets import from_arrays
            >>> data = from_arrays([[0.0], [1.0]], [0, 1], clients=["ann", "bob"],
            ...                    test=([[2.0], [3.0]], [0, 1]), test_clients=["bob", "eve"])
            >>> data.clients("test").sizes.tolist(), data.clients("unseen").client_ids
            ([0, 1], ('eve',))
        """
        if part not in ("train", "test", "unseen"):
            raise ValueError(f'part is {part!r}; expected "train", "test" or "unseen"')
        groups = self.train_groups if part == "train" else self.test_groups
        if self.train_groups is None or groups is None or self.group_names is None:
            raise ValueError(f"data set {self.name} does not say which client an example is from")
        trained = np.unique(self.train_groups)
        chosen = trained if part != "unseen" else np.setdiff1d(groups, trained)
        if not len(chosen):
            raise ValueError(
                f"part is {part!r}, but all clients of {self.name} have train examples"
            )
        examples = self.train if part == "train" else self.test
        rows, none = rows_by_group(groups), np.empty(0, np.int64)
        names = [self.group_names[group] for group in chosen]
        return from_assignment(examples, [rows.get(int(group), none) for group in chosen], names)

    def _summary(self) -> Summary:
        targets = "numbers" if self.target == "numbers" else f"{self.num_classes} classes"
        if self.class_names is not None:
            targets += f": {', '.join(map(str, self.class_names[:5]))}"
            targets += ", ..." if len(self.class_names) > 5 else ""
        clients = "none" if self.group_names is None else f"{len(self.group_names):,}"
        rows = {
            "train": tree_text(self.train),
            "test": tree_text(self.test),
            "targets": targets,
            "natural clients": clients,
            "source": self.source,
        }
        return Summary(f"Dataset {self.name}", rows)


def drop_duplicates(dataset: Dataset) -> Dataset:
    """Drops train rows that repeat an earlier row of the same natural client in every leaf.

    Rows of different clients are never merged; without natural clients all rows belong to one
    client.  The test part is not changed.

    Example:
        >>> part = {"x": np.array([[1], [1], [2]], np.uint8), "y": np.array([0, 0, 0], np.int32)}
        >>> data = Dataset("toy", part, part, 2, None, None, None, "files")
        >>> drop_duplicates(data).train["x"].tolist()
        [[1], [2]]
    """
    columns = list(dataset.train.values())
    if dataset.train_groups is not None:
        columns.append(dataset.train_groups)
    num_rows = len(columns[0])
    raw = [np.ascontiguousarray(column).reshape(num_rows, -1).view(np.uint8) for column in columns]
    rows = np.concatenate(raw, axis=1)
    _, first = np.unique(rows.view(np.dtype((np.void, rows.shape[1]))), return_index=True)
    keep = np.sort(first)
    groups = None if dataset.train_groups is None else dataset.train_groups[keep]
    train = {key: column[keep] for key, column in dataset.train.items()}
    return dataset._replace(train=train, train_groups=groups)


def merged(dataset: Dataset) -> Dataset:
    """Returns the data set with training and test examples together, the training ones first.

    The new training part is both; the test part is empty.

    Example:
        >>> part = {"x": np.array([[1], [2]], np.uint8), "y": np.array([0, 1], np.int32)}
        >>> data = merged(Dataset("toy", part, part, 2, None, None, None, "files"))
        >>> data.train["y"].tolist(), data.test["y"].tolist()
        ([0, 1, 0, 1], [])
    """
    keys = [key for key in dataset.train if key in dataset.test]
    train = {key: np.concatenate([dataset.train[key], dataset.test[key]]) for key in keys}
    both = None
    if dataset.train_groups is not None and dataset.test_groups is not None:
        both = np.concatenate([dataset.train_groups, dataset.test_groups])
    return dataset._replace(
        train=train,
        test={key: values[:0] for key, values in dataset.test.items()},
        train_groups=both,
        test_groups=None if both is None else both[:0],
    )


def check_choice(option: str, value: Any, choices: Any) -> None:
    """Refuses a value that is neither None nor one of a type of literals."""
    if value not in (None, *get_args(choices)):
        raise DataError(f"{option} is {value!r}; expected one of {', '.join(get_args(choices))}")


def check_listed(option: str, value: str, known: Sequence[str], of: str) -> None:
    """Refuses a name that is none of the known ones; ``of`` says whose they are."""
    if value not in known:
        raise DataError(
            f"{option} is {value!r}; expected one of {', '.join(known)}, {of}"
            f"{did_you_mean(value, known)}"
        )


def as_labels(values: Any, num_classes: int, where: object) -> np.ndarray:
    """Converts labels to int32 ``[N]``; raises DataError unless all are in 0..num_classes-1."""
    try:
        labels = np.asarray(values)
    except (ValueError, OverflowError):
        raise DataError(f"{where}: labels are ragged; expected a list of integers") from None
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{where}: labels have shape {labels.shape} and type {labels.dtype}; "
            "expected a list of integers"
        )
    if labels.size and (labels.min() < 0 or labels.max() >= num_classes):
        raise DataError(
            f"{where}: labels are in {labels.min()} .. {labels.max()}; "
            f"expected 0 .. {num_classes - 1}"
        )
    return labels.astype(np.int32)


def same_length(where: object, **columns: Any) -> None:
    """Raises DataError unless all columns have equal lengths above zero."""
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{where}: lengths are {lengths}; expected equal lengths")
    if 0 in lengths.values():
        raise DataError(f"{where}: no examples; expected at least one")


def number_groups(
    train: Iterable[Any], test: Iterable[Any] | None = None
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """Numbers the names of clients, the train part first, in order of first appearance.

    Returns the groups of the train rows, of the test rows (None without ``test``), and the names.
    """
    index: dict[str, int] = {}

    def numbers(names: Iterable[Any]) -> np.ndarray:
        texts = map(group_text, names)
        return np.array([index.setdefault(text, len(index)) for text in texts], np.int32)

    train_groups = numbers(train)
    test_groups = None if test is None else numbers(test)
    return train_groups, test_groups, tuple(index)


def rows_by_group(groups: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the rows of each group that has some, in their original order, by its number."""
    if not len(groups):
        return {}
    rows, numbers = group_rows(groups, "groups")
    return dict(zip(numbers.tolist(), rows, strict=True))


def group_text(name: Any) -> str:
    """Returns a label or a client's name as a text; whole numbers are integers, bytes UTF-8."""
    # A column of integers becomes floating where one of its rows has no value, and the other part
    # of a data set may still have integers.
    if isinstance(name, list | tuple | np.ndarray):
        raise DataError(f"a label or client is {name!r:.60}; expected one value per row")
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    whole = isinstance(name, float | np.floating) and float(name).is_integer()
    return str(int(name)) if whole else str(name)
