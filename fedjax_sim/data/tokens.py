"""Examples of language models."""

import numpy as np


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
        ValueError: another shape or dtype.

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
    tokens = tokens.astype(np.int32)
    labels = tokens[:, 1:]
    if pad is not None:
        labels = np.where(labels == pad, np.int32(ignore), labels)
    return {"x": tokens[:, :-1], "y": labels}
