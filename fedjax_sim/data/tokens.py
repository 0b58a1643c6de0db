"""Examples of language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from fedjax_sim.checks import INT32_MAX, check_at_most, check_count
from fedjax_sim.types import shown

__all__ = ["TokenWindows", "next_tokens", "padded_chunks", "token_windows"]

Short = Literal["pad", "drop"]


@shown
class TokenWindows(NamedTuple):
    """Windows of sequences, with the number of real tokens of each."""

    tokens: np.ndarray  # int32 [N, L + 1]
    lengths: np.ndarray  # int32 [N]; later tokens are padding
    owners: np.ndarray  # int32 [N], the sequence that each window is from


def next_tokens(
    tokens: np.ndarray, pad: int | None = None, ignore: int = -1, lengths: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Returns inputs and labels of next-token prediction: ``x[:, l] = t[:, l]``, ``y = t[:, l+1]``.

    Args:
        tokens: integer ids ``[N, L + 1]``.
        pad: id of positions after the end of a sequence, and of no other ones; None: there are
            none.  If it is also a token, such as the end of a text, use ``lengths``.
        ignore: label of positions whose next token is padding, for the argument ``ignore`` of
            :func:`fedjax_sim.objectives.cross_entropy`.
        lengths: number of real tokens of each row ``[N]``, instead of ``pad``.

    Returns:
        ``{"x": [N, L], "y": [N, L]}`` of dtype int32: uint8 would count as pixels.

    Raises:
        ValueError: another shape or dtype, ids (also ``pad`` and ``ignore``) that int32 does not
            have, lengths outside of 0 .. L + 1, or both ``pad`` and ``lengths``.

    Example:
        >>> examples = next_tokens(np.array([[5, 7, 2, 0]]), pad=0)
        >>> examples["x"].tolist(), examples["y"].tolist()
        ([[5, 7, 2]], [[7, 2, -1]])
        >>> next_tokens(np.array([[5, 7, 2, 2]]), lengths=np.array([3]))["y"].tolist()
        [[7, 2, -1]]
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or tokens.shape[1] < 2 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(
            f"tokens has shape {tokens.shape} and dtype {tokens.dtype}; expected integer ids "
            "[N, L + 1] with L at least 1"
        )
    if tokens.size and not -INT32_MAX <= tokens.min() <= tokens.max() <= INT32_MAX:
        raise ValueError(f"tokens are in {tokens.min()} .. {tokens.max()}; expected ids of int32")
    tokens = tokens.astype(np.int32)
    labels = tokens[:, 1:]
    _check_ids(ignore=ignore, **({} if pad is None else {"pad": pad}))
    if pad is not None and lengths is not None:
        raise ValueError(f"pad is {pad} and lengths are given; expected one of them")
    if pad is not None:
        labels = np.where(labels == pad, np.int32(ignore), labels)
    if lengths is not None:
        real = np.asarray(lengths)
        if real.shape != tokens.shape[:1] or real.dtype.kind not in "iu":
            raise ValueError(
                f"lengths is {real.dtype}{list(real.shape)}; expected integers [{len(tokens)}]"
            )
        if real.size and not 0 <= real.min() <= real.max() <= tokens.shape[1]:
            raise ValueError(
                f"lengths are in {real.min()} .. {real.max()}; expected 0 .. {tokens.shape[1]}"
            )
        after = np.arange(1, tokens.shape[1]) >= real[:, None]
        labels = np.where(after, np.int32(ignore), labels)
    return {"x": tokens[:, :-1], "y": labels}


def padded_chunks(
    sequences: Sequence[np.ndarray], length: int, *, begin: int, end: int, pad: int
) -> np.ndarray:
    """Cuts sequences of tokens into chunks of equal length, for :func:`next_tokens`.

    Every sequence becomes ``begin, tokens, end``, then padding up to the next multiple of
    ``length``.  With length 81 these are the snippets of the federated Shakespeare task of
    TensorFlow Federated: 80 tokens in, 80 out, and padding that does not count in the loss.

    Source: Reddi et al., "Adaptive Federated Optimization", 2021, appendix C.

    Args:
        sequences: integer ids, each ``[n]``.
        length: L + 1.
        begin: id at the start of a sequence.
        end: id after a sequence.
        pad: id of the padding.

    Returns:
        int32 ``[N, length]``.

    Raises:
        ValueError: a length below 2, a sequence or an argument with other numbers than ids of
            int32, or padding that is also a token: :func:`next_tokens` would mask that token.

    Example:
        >>> chunks = padded_chunks([np.array([5, 6, 7]), np.array([8])], 4, begin=1, end=2, pad=0)
        >>> chunks.tolist()
        [[1, 5, 6, 7], [2, 0, 0, 0], [1, 8, 2, 0]]
        >>> next_tokens(chunks, pad=0)["y"].tolist()
        [[5, 6, 7], [-1, -1, -1], [8, 2, -1]]
    """
    check_count(2, length=length)
    _check_ids(begin=begin, end=end, pad=pad)
    if pad in (begin, end):
        raise ValueError(
            f"pad is {pad}, which is also begin or end; expected another id (or token_windows, "
            "whose lengths say where a sequence ends)"
        )
    rows = []
    for i, sequence in enumerate(sequences):
        ids = token_ids(f"sequences[{i}]", sequence)
        if (ids == pad).any():
            raise ValueError(
                f"sequences[{i}] has the token {pad}, which is pad; expected another id as pad"
            )
        whole = np.concatenate([[begin], ids, [end]]).astype(np.int32)
        padding = -len(whole) % length
        rows.append(np.pad(whole, (0, padding), constant_values=pad).reshape(-1, length))
    return np.concatenate(rows) if rows else np.empty((0, length), np.int32)


def token_windows(
    sequences: Sequence[np.ndarray], context: int, *, short: Short = "pad", pad: int = 0
) -> TokenWindows:
    """Cuts sequences of tokens into windows of ``context + 1``, of which neighbours share one.

    Each token besides the first one of a sequence is predicted once.  The end of a sequence of n
    tokens is a window of ``(n - 1) mod context + 1`` tokens; it is padded, or dropped.

    Args:
        sequences: integer ids, each ``[n]``.
        context: L.
        short: "pad" fills a window that is shorter than ``context + 1``; "drop" leaves it out.
        pad: id that fills; ``lengths`` tell it from the same id in a sequence.

    Raises:
        ValueError: a context below 1, another ``short``, sequences or padding of other numbers
            than ids of int32.

    Example:
        >>> windows = token_windows([np.array([5, 6, 2]), np.array([7])], 4, pad=2)
        >>> windows.tokens.tolist(), windows.lengths.tolist(), windows.owners.tolist()
        ([[5, 6, 2, 2, 2]], [3], [0])
        >>> next_tokens(windows.tokens, lengths=windows.lengths)["y"].tolist()
        [[6, 2, -1, -1]]
    """
    check_count(1, context=context)
    check_short(short)
    _check_ids(pad=pad)
    tokens, lengths, owners = [], [], []
    for i, sequence in enumerate(sequences):
        ids = token_ids(f"sequences[{i}]", sequence)
        predicted = max(len(ids) - 1, 0)
        count = predicted // context if short == "drop" else -(-predicted // context)
        starts = np.arange(count) * context
        padded = np.pad(ids, (0, context), constant_values=pad)
        tokens.append(padded[starts[:, None] + np.arange(context + 1)])
        lengths.append(np.minimum(context + 1, len(ids) - starts))
        owners.append(np.full(count, i))
    if not tokens:
        return TokenWindows(np.empty((0, context + 1), np.int32), *np.empty((2, 0), np.int32))
    numbers = (np.concatenate(part).astype(np.int32) for part in (lengths, owners))
    return TokenWindows(np.concatenate(tokens), *numbers)


def check_short(short: object) -> None:
    """Refuses another rule for short windows."""
    if short not in get_args(Short):
        raise ValueError(f"short is {short!r}; expected one of {', '.join(get_args(Short))}")


def token_ids(name: str, sequence: object) -> np.ndarray:
    """Returns a sequence of tokens as int32; padding may be an id that their own type lacks."""
    ids = np.asarray(sequence)
    if not ids.size and ids.ndim == 1:
        return ids.astype(np.int32)
    whole = ids.ndim == 1 and ids.dtype.kind in "iu"
    if not (whole and -INT32_MAX <= ids.min() <= ids.max() <= INT32_MAX):
        shown = ids[:5] if ids.ndim else ids
        raise ValueError(f"{name} has {ids.dtype} {shown}; expected ids of int32 in one dimension")
    return ids.astype(np.int32)


def _check_ids(**values: int) -> None:
    """Refuses what is no id of int32."""
    check_count(-INT32_MAX, **values)
    check_at_most(INT32_MAX, **values)
