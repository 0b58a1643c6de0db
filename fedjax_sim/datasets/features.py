"""Features: images with channels last, as models take them, and scales of numbers."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np

from fedjax_sim.datasets.dataset import DataError, Dataset, Scaling

Layout = Literal["as_given", "channels_first", "channels_last"]
Scale = Literal["none", "unit", "standardise"]
_CHANNELS = (1, 3, 4)
_PIXEL = 255
_MOST_RATIO = 1e3  # of standard deviations, without a warning
_MANY = 64  # columns, as many as the pixels of the smallest images in use, 8 x 8


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


def are_pixels(where: str, x: np.ndarray, scale: Scale | None) -> bool:
    """Returns True for bytes that stay uint8, since they are pixels, which models divide by 255."""
    # Bytes [N, H, W, ...] are pixels, unless 1 is the largest; bytes [N, D] are not. Nothing else
    # is guessed.
    if x.dtype != np.uint8:
        return False
    in_rows = x.ndim > 2
    if scale is not None:
        return in_rows and scale == "unit"
    largest = int(x.max(initial=0))
    if (in_rows and largest == 1) or (not in_rows and largest > 1):
        raise DataError(
            f"{where} examples are uint8{list(x.shape)} up to {largest}; expected scale='unit' for "
            "pixels, which are divided by 255, or scale='none' for other numbers (in a file: "
            "images [N, H, W], or floats)"
        )
    return in_rows


def scaled(dataset: Dataset, scale: Scale | None) -> Dataset:
    """Returns the data set with features of a scale, in the types of models, and ``scaling``."""
    x = dataset.train["x"]
    if scale is None and x.ndim > 1 and x.dtype.kind == "f":
        _warn(dataset.name, x)
    if are_pixels(dataset.name, x, scale):
        return dataset
    scaling = None
    if scale == "unit":
        for part in (x, dataset.test["x"]):
            if part.size and not 0 <= part.min() <= part.max() <= _PIXEL:
                raise DataError(
                    f"{dataset.name}: scale is 'unit', but examples are in {part.min():g} .. "
                    f"{part.max():g}; expected pixels 0 .. 255, or scale='standardise'"
                )
        scaling = Scaling(np.zeros(()), np.full((), _PIXEL, float))
    elif scale == "standardise":
        scaling = _standardising(x)
    arrays = {}
    for key, part in (("train", dataset.train), ("test", dataset.test)):
        x = _typed(part["x"], scale) if scaling is None else scaling(part["x"])
        check_numbers(f"{dataset.name}: {key}", x)
        arrays[key] = {**part, "x": x}
    return dataset._replace(**arrays, scaling=scaling)


def check_numbers(where: str, x: np.ndarray) -> None:
    """Refuses examples that are no finite numbers."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where} examples are {x.dtype}; expected numbers [N, ...]")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = np.argwhere(~np.isfinite(x))[0].tolist()
        raise DataError(f"{where} examples have NaN or infinity at {row}; expected finite numbers")


def _typed(x: np.ndarray, scale: Scale | None) -> np.ndarray:
    """Floats in float32, and so are flags of bytes and integers that are said to be numbers."""
    are_ids = x.dtype.kind in "iu" and x.dtype != np.uint8 and scale is None
    with np.errstate(over="ignore"):  # checked by the caller
        return x.astype(x.dtype.newbyteorder("=") if are_ids else np.float32, copy=False)


def _standardising(x: np.ndarray) -> Scaling:
    axes = tuple(range(max(1, x.ndim - 1)))
    std = x.std(axis=axes, dtype=np.float64)
    # Equal numbers have a mean that rounding may move, and so a small standard deviation.
    constant = x.max(axis=axes) == x.min(axis=axes)
    return Scaling(x.mean(axis=axes, dtype=np.float64), np.where(constant, 1.0, std))


def _warn(name: str, x: np.ndarray) -> None:
    shape = x.shape[1:]
    x = x.reshape(len(x), -1)
    varying = np.flatnonzero(x.max(axis=0) != x.min(axis=0))
    if not len(varying):
        return
    std = x.std(axis=0, dtype=np.float64)[varying]
    # Pixels at the border of an image hardly vary.
    if len(shape) == 1 and std.max() > _MOST_RATIO * std.min():
        columns = varying[[std.argmax(), std.argmin()]]
        warnings.warn(
            f"{name}: the standard deviations of columns {columns[0]} and {columns[1]} of the "
            f"features are {std.max():.3g} and {std.min():.3g}; expected scale='standardise', or "
            "scale='none' to keep them",
            stacklevel=5,
        )
    elif (
        x.shape[1] >= _MANY
        and _PIXEL // 2 < x.max() <= _PIXEL
        and x.min() >= 0
        and (x == np.rint(x)).all()
    ):
        warnings.warn(
            f"{name}: the features are {list(shape)} integers 0 .. {x.max():g}, as pixels are; "
            "expected scale='unit' for x / 255, or scale='none' to keep them",
            stacklevel=5,
        )
