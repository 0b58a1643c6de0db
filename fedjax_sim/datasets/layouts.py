"""Layouts of images: models take ``[H, W, C]`` per example, channels last."""

import numpy as np

_CHANNELS = (1, 3, 4)


def to_channels_last(x: np.ndarray) -> np.ndarray:
    """Returns images as ``[N, H, W, C]``.

    ``[N, H, W]`` gets one channel, ``[N, C, H, W]`` is transposed, and ``[N, H, W, C]`` is
    unchanged, with C = 1, 3 or 4.

    Raises:
        ValueError: another shape, or one that has two meanings.

    Example:
        >>> to_channels_last(np.zeros((5, 28, 28))).shape
        (5, 28, 28, 1)
        >>> to_channels_last(np.zeros((5, 3, 32, 32))).shape
        (5, 32, 32, 3)
    """
    x = np.asarray(x)
    if x.ndim == 3:
        return x[..., None]
    if x.ndim == 4:
        last, first = x.shape[3] in _CHANNELS, x.shape[1] in _CHANNELS
        if last and not first:
            return x
        if first and not last:
            return np.moveaxis(x, 1, 3)
    raise ValueError(
        f"x has shape {x.shape}; expected images [N, H, W], [N, H, W, C] or [N, C, H, W] with 1, 3 "
        "or 4 channels on one side only"
    )


def layout_hint(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Returns the end of a message about examples whose layout is not that of a model.

    Example:
        >>> layout_hint((3, 32, 32), (32, 32, 3))
        '; these are images with channels first: fedjax_sim.datasets.to_channels_last converts them'
        >>> layout_hint((28, 28), (32, 32, 3))
        ''
    """
    if len(wanted) != 3:
        return ""
    found = {
        (wanted[2], *wanted[:2]): "with channels first",
        wanted[:2]: "without channels",
    }
    if shape not in found or (shape == wanted[:2] and wanted[2] != 1):
        return ""
    return f"; these are images {found[shape]}: fedjax_sim.datasets.to_channels_last converts them"
