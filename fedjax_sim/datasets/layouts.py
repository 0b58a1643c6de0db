"""Layouts of images: models take ``[H, W, C]`` per example, channels last."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from fedjax_sim.datasets.dataset import DataError

Layout = Literal["as_given", "channels_first", "channels_last"]
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


def check_layout(layout: Any) -> None:
    """Refuses another name."""
    if layout not in (None, *get_args(Layout)):
        raise DataError(f"layout is {layout!r}; expected one of {', '.join(get_args(Layout))}")


def laid_out(where: str, x: np.ndarray, layout: Layout | None, pixels: bool) -> np.ndarray:
    """Returns examples with channels last, if they are images; else unchanged."""
    if layout == "as_given" or (layout is None and (not pixels or x.ndim > 4)):
        return x
    if layout is None:
        try:
            return to_channels_last(x)
        except ValueError as error:
            raise DataError(
                f"{where} {error}; or layout='channels_first', 'channels_last' or 'as_given'"
            ) from error
    if x.ndim not in (3, 4) or (x.ndim == 3 and layout == "channels_first"):
        shapes = "[N, C, H, W]" if layout == "channels_first" else "[N, H, W] or [N, H, W, C]"
        raise DataError(
            f"{where} examples have shape {x.shape}; expected {shapes}, since layout={layout!r}"
        )
    return np.moveaxis(x, 1, 3) if layout == "channels_first" else x.reshape(*x.shape[:3], -1)


def layout_hint(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Returns the end of a message about examples whose layout is not that of a model."""
    if len(wanted) != 3:
        return ""
    found = {(wanted[2], *wanted[:2]): "with channels first", wanted[:2]: "without channels"}
    if shape not in found or (shape == wanted[:2] and wanted[2] != 1):
        return ""
    return f"; these are images {found[shape]}: fedjax_sim.datasets.to_channels_last converts them"
