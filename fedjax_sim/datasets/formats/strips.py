"""Image strips: images of one size stacked into tall lossless WebP files, labels beside them.

A tar archive or folder with ``train-000.webp``, ``train-001.webp``, ... and ``test-000.webp``, ...,
each as wide as an image and a multiple of its height, images in order from the top; labels are
raw bytes in ``train_labels.u8`` and ``test_labels.u8``, or one file for each kind of label
(``train_fine_labels.u8``).  About half the size of the raw pixels; needs Pillow.
"""

import io
from pathlib import Path, PurePosixPath

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import DataError, as_labels, same_length
from fedjax_sim.datasets.formats.files import read_tree

_SIDE = 32  # pixels


def parse_strips(
    location: Path, labels: tuple[tuple[str, str, int], ...]
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the parts "train" and "test" of a folder or archive of strips.

    Args:
        location: the folder or tar archive.
        labels: for each kind of label: leaf of the result, name in the files, number of classes.
    """
    files = read_tree(location, lambda name: name.endswith((".webp", ".u8")))
    files = {PurePosixPath(name).name: data for name, data in files.items()}
    parts = {}
    for split in ("train", "test"):
        part = {"x": _images(files, split, location)}
        for leaf, name, num_classes in labels:
            file = f"{split}_{name}.u8"
            if file not in files:
                raise DataError(f"{location}: {file} is missing; expected one byte per image")
            values = np.frombuffer(files[file], np.uint8)
            part[leaf] = as_labels(values, num_classes, f"{location}: {file}")
        same_length(f"{location}: {split}", **part)
        parts[split] = part
    return parts


def _images(files: dict[str, bytes], split: str, location: Path) -> np.ndarray:
    names = sorted(name for name in files if name.startswith(f"{split}-"))
    expected = [f"{split}-{i:03}.webp" for i in range(max(len(names), 1))]
    if names != expected:
        gap = next(name for name in expected if name not in names)
        raise DataError(f"{location}: {gap} is missing; expected strips numbered without gap")
    return np.concatenate([_strip(files[name], f"{location}: {name}") for name in names])


def _strip(data: bytes, where: str) -> np.ndarray:
    image_module = import_extra("PIL.Image", "datasets")
    # A lossy file would decode without complaint; the lossless kind names itself here.
    if data[:4] != b"RIFF" or data[8:16] != b"WEBPVP8L":
        raise DataError(f"{where}: begins with {data[:16]!r}; expected a lossless WebP image")
    try:
        with image_module.open(io.BytesIO(data), formats=["WEBP"]) as image:
            wide, high = image.size
            if wide != _SIDE or high % _SIDE:  # before its pixels need memory
                raise DataError(
                    f"{where}: {wide} wide and {high} high; expected {_SIDE} wide and a multiple "
                    f"of {_SIDE} high"
                )
            pixels = np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow promises no set of exceptions for damaged images
        raise DataError(f"{where}: {error}; expected a lossless WebP image") from error
    return pixels.reshape(-1, _SIDE, _SIDE, 3)
