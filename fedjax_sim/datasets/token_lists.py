"""Sequences of token ids with authors, such as the columns of a tokenised table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_sim.checks import check_count
from fedjax_sim.data import Short, check_short, missing, next_tokens, token_ids, token_windows
from fedjax_sim.datasets.dataset import DataError, Dataset, number_groups
from fedjax_sim.datasets.division import report, report_lost, rows_for_testing


def from_tokens(
    tokens: Sequence[Any] | np.ndarray,
    *,
    clients: Sequence[Any] | np.ndarray | None = None,
    lengths: Sequence[int] | np.ndarray | None = None,
    split: Sequence[str] | np.ndarray | None = None,
    context: int = 64,
    short: Short = "pad",
    vocabulary_size: int | None = None,
    name: str = "tokens",
) -> Dataset:
    """Returns the data set of lists of token ids, to predict the next token at every position.

    For the columns of a table: ``from_tokens(table["tokens"], clients=table["author"])``.  Each
    sequence is cut into windows of ``context + 1`` tokens, of which neighbours share one, so that
    each token besides the first is predicted once.  Examples are ``x`` and ``y`` int32 ``[N,
    context]``; the label after the end of a sequence is -1, which does not count in the loss.  The
    end is that of the list, or given by ``lengths``: padding may have the id of a token.

    Args:
        tokens: a list of ids per sequence, of any lengths, or an array ``[N, L]``.
        clients: author of each sequence; default: no natural clients.
        lengths: number of real tokens of each sequence, if ``tokens`` are padded on the right.
        split: "train" or "test" of each sequence; default: a fifth of each client's sequences is
            for testing, as in :func:`~fedjax_sim.datasets.from_table`.
        context: L.
        short: "pad" fills windows that are shorter than ``context + 1``; "drop" leaves them out,
            and with them shorter sequences.
        vocabulary_size: number of ids, ``num_classes``; default: the largest one and 1.
        name: name of the data set.

    Raises:
        DataError: no sequences, other values than ids, lengths, clients or split that do not fit,
            or no example in a part.
        ValueError: a context or vocabulary below 1, or another ``short``.

    Warns:
        UserWarning: sequences that are left out; clients without training or test examples.

    Example:
        >>> data = from_tokens([[5, 3, 2], [4, 2], [3, 3, 3, 5, 2], [4, 2]], context=3,
        ...                    clients=["ann", "bob", "ann", "bob"],
        ...                    split=["train", "train", "test", "test"])
        >>> data.train["x"].tolist(), data.train["y"].tolist(), data.clients().client_ids
        ([[5, 3, 2], [4, 2, 0]], [[3, 2, -1], [2, -1, -1]], ('ann', 'bob'))
    """
    check_count(1, context=context)
    check_short(short)
    tokens, clients, lengths, split = map(_listed, (tokens, clients, lengths, split))
    sequences = _sequences(name, tokens, lengths)
    for option, values in (("clients", clients), ("split", split)):
        if values is not None and len(values) != len(sequences):
            raise DataError(
                f"{name}: {option} has {len(values)} entries; expected {len(sequences)}, one per "
                "sequence"
            )
    if clients is not None and (is_missing := missing(clients)).any():
        raise DataError(f"{name}: clients[{int(is_missing.argmax())}] has no value; expected one")
    size = 1 + max(int(ids.max()) for ids in sequences if len(ids))
    if vocabulary_size is not None:
        check_count(1, vocabulary_size=vocabulary_size)
        if size > vocabulary_size:
            raise DataError(
                f"{name} has the id {size - 1}; expected 0 .. {vocabulary_size - 1}, since "
                f"vocabulary_size is {vocabulary_size}"
            )
        size = vocabulary_size
    groups, _, names = number_groups([""] * len(sequences) if clients is None else clients)
    least = context + 1 if short == "drop" else 2
    kept = np.array([len(ids) >= least for ids in sequences])
    report(
        name,
        f"of {len(sequences)} sequences have less than {least} tokens and are left out",
        [f"number {i}" for i in np.flatnonzero(~kept)],
    )
    if not kept.any():
        raise DataError(f"{name} has no sequence of {least} tokens; expected a smaller context")
    if clients is not None:
        lost = np.setdiff1d(groups, groups[kept]).tolist()
        report(name, f"of {len(names)} clients have no examples", [names[i] for i in lost])
    is_test = _is_test(name, split, groups, names, kept)
    parts, owners = {}, {}
    for part, chosen in (("train", kept & ~is_test), ("test", kept & is_test)):
        rows = np.flatnonzero(chosen)
        if not len(rows):
            raise DataError(f"{name} has no {part} example; expected some")
        windows = token_windows([sequences[i] for i in rows], context, short=short)
        parts[part] = next_tokens(windows.tokens, lengths=windows.lengths)
        owners[part] = [names[i] for i in groups[rows[windows.owners]]]
    if clients is None:
        own = (None, None, None)
    else:
        own = number_groups(owners["train"], owners["test"])
        if split is not None:
            report_lost(name, owners["train"], owners["test"])
    return Dataset(name, parts["train"], parts["test"], size, *own, source="arrays")


def _listed(values: Any) -> Any:
    """Returns a column of pyarrow as a list, whose entries are Python's."""
    return values.to_pylist() if hasattr(values, "to_pylist") else values


def _sequences(name: str, tokens: Any, lengths: Any) -> list[np.ndarray]:
    if isinstance(tokens, str) or not hasattr(tokens, "__len__") or not len(tokens):
        raise DataError(f"{name}: tokens is {tokens!r:.40}; expected a list of ids per sequence")
    sequences = []
    for i, ids in enumerate(tokens):
        try:
            sequences.append(token_ids(f"tokens[{i}]", ids))
        except ValueError as error:
            raise DataError(f"{name}: {error}") from error
        if len(sequences[-1]) and sequences[-1].min() < 0:
            raise DataError(f"{name}: tokens[{i}] has the id {sequences[-1].min()}; expected 0 ..")
    if not any(map(len, sequences)):
        raise DataError(f"{name} has no tokens; expected some")
    if lengths is None:
        return sequences
    real = np.asarray(lengths)
    wide = np.array([len(ids) for ids in sequences])
    if real.shape != wide.shape or real.dtype.kind not in "iu":
        raise DataError(
            f"{name}: lengths is {real.dtype}{list(real.shape)}; expected integers [{len(wide)}]"
        )
    if ((real < 0) | (real > wide)).any():
        i = int(np.argmax((real < 0) | (real > wide)))
        raise DataError(f"{name}: lengths[{i}] is {real[i]}; expected 0 .. {wide[i]}, the tokens")
    return [ids[:length] for ids, length in zip(sequences, real, strict=True)]


def _is_test(
    name: str, split: Any, groups: np.ndarray, names: Sequence[str], kept: np.ndarray
) -> np.ndarray:
    """Returns the mask of the sequences for testing."""
    if split is not None:
        given = np.asarray(split).astype(str)
        if set(given) - {"train", "test"}:
            known = ", ".join(sorted(set(given)))
            raise DataError(f"{name}: split has {known}; expected train and test")
        return given == "test"
    present, numbers = np.unique(groups[kept], return_inverse=True)
    chosen = np.zeros(len(groups), bool)
    chosen[kept] = rows_for_testing(
        name, np.zeros(len(numbers), int), numbers, np.asarray(names)[present].tolist()
    )
    return chosen
