"""Examples of language models."""

from collections.abc import Sequence

import numpy as np

from fedjax_sim.checks import INT32_MAX, check_count


def next_tokens(
    tokens: np.ndarray, pad: int | None = None, ignore: int = -1
) -> dict[str, np.ndarray]:
    """Returns inputs and labels of next-token prediction: ``x[:, l] = t[:, l]``, ``y = t[:, l+1]``.

    Args:
        tokens: integer ids ``[N, L + 1]``.
        pad: id of positions after the end of a sequence; None: there are none.
        ignore: label of positions whose next token is padding, for the argument ``ignore`` of
            :func:`fedjax_sim.objectives.cross_entropy`.

    Returns:
        ``{"x": [N, L], "y": [N, L]}`` of dtype int32: uint8 would count as pixels.

    Raises:
        ValueError: another shape or dtype, or ids that int32 does not have.

    Example:
        >>> examples = next_tokens(np.array([[5, 7, 2, 0]]), pad=0)
        >>> examples["x"].tolist(), examples["y"].tolist()
        ([[5, 7, 2]], [[7, 2, -1]])
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
    if pad is not None:
        labels = np.where(labels == pad, np.int32(ignore), labels)
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
        ValueError: a length below 2, or a sequence of other numbers than ids of int32.

    Example:
        >>> chunks = padded_chunks([np.array([5, 6, 7]), np.array([8])], 4, begin=1, end=2, pad=0)
        >>> chunks.tolist()
        [[1, 5, 6, 7], [2, 0, 0, 0], [1, 8, 2, 0]]
        >>> next_tokens(chunks, pad=0)["y"].tolist()
        [[5, 6, 7], [-1, -1, -1], [8, 2, -1]]
    """
    check_count(2, length=length)
    rows = []
    for i, sequence in enumerate(sequences):
        ids = np.asarray(sequence)
        if ids.size and not (
            ids.dtype.kind in "iu" and -INT32_MAX <= ids.min() <= ids.max() <= INT32_MAX
        ):
            raise ValueError(f"sequences[{i}] has {ids.dtype} {ids[:5]}; expected ids of int32")
        whole = np.concatenate([[begin], ids, [end]]).astype(np.int32)
        padding = -len(whole) % length
        rows.append(np.pad(whole, (0, padding), constant_values=pad).reshape(-1, length))
    return np.concatenate(rows) if rows else np.empty((0, length), np.int32)
