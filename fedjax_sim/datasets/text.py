"""Plain text as clients: contiguous shards, or one text per client, cut into windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.checks import check_count, check_one_number
from fedjax_sim.data import Short, check_short, next_tokens, token_windows
from fedjax_sim.datasets.dataset import DataError, Dataset
from fedjax_sim.datasets.division import report
from fedjax_sim.types import shown


@shown
class Characters(NamedTuple):
    """Vocabulary of characters; the token id of a character is its index.

    Example:
        >>> vocabulary = Characters.of("to be, or not")
        >>> vocabulary.characters, vocabulary.encode("tor").tolist()
        (' ,benort', [7, 5, 6])
        >>> vocabulary.decode([2, 3])
        'be'
    """

    characters: str

    @classmethod
    def of(cls, *texts: str) -> Characters:
        """Returns the vocabulary of all characters of some texts, in sorted order."""
        return cls("".join(sorted(set().union(*texts))))

    @property
    def size(self) -> int:
        """Number of characters."""
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32 ``[len(text)]``.

        Raises:
            DataError: a character that the vocabulary does not have.
        """
        codes, known = (
            np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), np.uint32)
            for characters in (text, self.characters)
        )
        order = np.argsort(known)
        places = np.searchsorted(known[order], codes)
        found = places < len(known)
        found[found] = known[order[places[found]]] == codes[found]
        missing = np.flatnonzero(~found)
        if len(missing):
            raise DataError(
                f"text has {text[missing[0]]!r} at position {missing[0]}; expected characters of "
                f"the vocabulary {self.characters!r}"
            )
        return order[places].astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids."""
        return "".join(self.characters[index] for index in ids)


def from_text(
    text: str,
    num_clients: int = 1,
    *,
    context: int = 64,
    test_fraction: float = 0.1,
    vocabulary: Characters | None = None,
) -> Dataset:
    """Returns the data set of a plain text whose clients are contiguous shards.

    The end of the text is the test part.  The rest is cut into ``num_clients`` shards of equal
    length, and every shard into windows of ``context + 1`` characters, of which neighbours share
    one, so that each character is predicted once.  Examples are token ids: inputs ``x`` ``[N,
    context]``, labels ``y`` ``[N, context]``, the next character after every position.

    Args:
        text: for example ``Path("input.txt").read_text()``.
        num_clients: number of shards, ``dataset.clients("train")``.
        context: L.
        test_fraction: share of the text that is the test part, in (0, 1).
        vocabulary: default: the characters of the text.

    Raises:
        DataError: a text that is too short for one window per shard and for a test window, or a
            character outside of the vocabulary.
        ValueError: numbers outside of their ranges, or no str.

    Example:
        >>> data = from_text("to be, or not to be" * 20, num_clients=3, context=16)
        >>> data.train["x"].shape, data.test["y"].shape, data.num_classes
        ((21, 16), (2, 16), 8)
        >>> data.clients().client_ids
        ('shard 0', 'shard 1', 'shard 2')
    """
    check_count(1, num_clients=num_clients)
    _check(context, test_fraction)
    if not isinstance(text, str):
        raise ValueError(
            f"text is a {type(text).__name__}; expected a str (a text per client: "
            "from_texts({name: text, ...}))"
        )
    vocabulary = Characters.of(text) if vocabulary is None else vocabulary
    ids = vocabulary.encode(text)
    end = len(ids) - round(test_fraction * len(ids))
    size = end // num_clients
    shards = {f"shard {i}": ids[i * size : (i + 1) * size] for i in range(num_clients)}
    rest = {"test part": ids[end:]}
    _check_long(shards | rest, context)
    train, groups = _windows(shards, context)
    test, _ = _windows(rest, context)
    return _dataset(train, test, groups, None, tuple(shards), vocabulary)


def is_text(name: str) -> bool:
    """Returns True for the path of a plain text."""
    return Path(name).suffix.lower() == ".txt"


def read_text(path: str | Path, *, context: int = 64) -> Dataset:
    """Reads the data set of a file with plain text (UTF-8): windows in their order, no clients."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # without the mark at the start of a file
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); expected plain text, UTF-8") from error
    try:
        dataset = from_text(text, context=context)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return dataset._replace(
        name=path.stem, source=str(path), train_groups=None, test_groups=None, group_names=None
    )


def from_texts(
    texts: Mapping[str, str],
    *,
    context: int = 64,
    test_fraction: float = 0.1,
    vocabulary: Characters | None = None,
    short: Short = "drop",
) -> Dataset:
    """Returns the data set of several texts, one per client; the end of each is for testing.

    Args:
        texts: text by the client's name, such as :func:`fedjax_sim.datasets.role_texts`.
        context: as for :func:`~fedjax_sim.datasets.from_text`.
        test_fraction: share of every text, as for :func:`~fedjax_sim.datasets.from_text`.
        vocabulary: default: the characters of all texts.
        short: "drop" leaves out what is shorter than ``context + 1`` characters, "pad" keeps it,
            with -1 as the label of padding (:func:`~fedjax_sim.data.tokens.token_windows`).

    Raises:
        DataError: no texts, none that is long enough, or as
            :func:`~fedjax_sim.datasets.from_text`.
        ValueError: another ``short``, or as :func:`~fedjax_sim.datasets.from_text`.

    Warns:
        UserWarning: texts that are too short for training or for testing, by number and name.

    Example:
        >>> data = from_texts({"NURSE": "Now, by my maidenhead", "CADE": "We John Cade"}, context=4,
        ...                   test_fraction=0.5)
        >>> data.train_groups.tolist(), data.test_groups.tolist()
        ([0, 0, 1], [0, 0, 1])
        >>> data.group_names
        ('NURSE', 'CADE')
    """
    _check(context, test_fraction)
    check_short(short)
    if not isinstance(texts, Mapping):
        raise ValueError(
            f"texts is a {type(texts).__name__}; expected a dict of texts by the client's name"
        )
    if not texts:
        raise DataError("texts is empty; expected at least one text")
    vocabulary = Characters.of(*texts.values()) if vocabulary is None else vocabulary
    parts = ({}, {})
    for name, text in texts.items():
        ids = vocabulary.encode(text)
        end = len(ids) - round(test_fraction * len(ids))
        parts[0][name], parts[1][name] = ids[:end], ids[end:]
    (train, groups), (test, test_groups) = (_windows(part, context, short) for part in parts)
    least = context + 1 if short == "drop" else 2
    for part, owners in (("training", groups), ("test", test_groups)):
        if not len(owners):
            raise DataError(
                f"texts have no {part} part of {least} characters; expected a longer text, or a "
                "smaller context"
            )
        lost = np.setdiff1d(np.arange(len(texts)), owners).tolist()
        report(
            "texts",
            f"of {len(texts)} have less than {least} characters in the {part} part, and no "
            f"{part} examples",
            [[*texts][i] for i in lost],
        )
    return _dataset(train, test, groups, test_groups, tuple(texts), vocabulary)


def _check(context: int, test_fraction: float) -> None:
    check_count(1, context=context)
    check_one_number(test_fraction=test_fraction)
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}; expected a number in (0, 1)")


def _check_long(texts: Mapping[str, np.ndarray], context: int) -> None:
    for name, ids in texts.items():
        if len(ids) <= context:
            raise DataError(
                f"{name} has {len(ids)} characters; expected at least context + 1 = {context + 1}"
            )


def _windows(
    texts: Mapping[str, np.ndarray], context: int, short: Short = "drop"
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the examples of all texts, and the number of the text of each."""
    windows = token_windows([*texts.values()], context, short=short)
    return next_tokens(windows.tokens, lengths=windows.lengths), windows.owners


def _dataset(
    train: dict[str, np.ndarray],
    test: dict[str, np.ndarray],
    groups: np.ndarray,
    test_groups: np.ndarray | None,
    names: tuple[str, ...],
    vocabulary: Characters,
) -> Dataset:
    return Dataset(
        "text", train, test, vocabulary.size, groups, test_groups, names, "arrays",
        class_names=tuple(vocabulary.characters),
    )  # fmt: skip
