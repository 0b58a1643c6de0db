"""CIFAR-10 and CIFAR-100: official binary files, official pickles, and strips of images.

Strips are images of one size stacked into tall lossless WebP files, a tar archive or folder with
``train-000.webp``, ``train-001.webp``, ... and ``test-000.webp``, ..., images in order from the
top.  Labels are raw bytes in ``train_labels.u8`` and ``test_labels.u8``, or one file for each kind
of label (``train_fine_labels.u8``).  About half the size of the raw pixels; needs Pillow.
"""

import io
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import DataError, Dataset, as_labels, same_length
from fedjax_sim.datasets.formats.files import find_one, read_tree
from fedjax_sim.datasets.formats.pickles import parse_pickle

_SIDE = 32  # pixels
_PIXELS = 3 * _SIDE**2


class Variant(NamedTuple):
    """File names and sizes of CIFAR-10 or CIFAR-100."""

    name: str
    binary: str  # folder of the official binary files, and the stem of its archive
    binary_archive: str
    python: str  # folder of the official pickles
    python_archive: str
    strips: str
    batches: dict[str, tuple[str, ...]]  # official files per split, without suffix
    batch_size: dict[str, int]  # examples per file
    labels: tuple[tuple[str, str, int], ...]  # (leaf, name in files, classes), in binary order


CIFAR10 = Variant(
    name="cifar10",
    binary="cifar-10-batches-bin",
    binary_archive="cifar-10-binary.tar.gz",
    python="cifar-10-batches-py",
    python_archive="cifar-10-python.tar.gz",
    strips="cifar-10-webp.tar",
    batches={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    batch_size={"train": 10_000, "test": 10_000},
    labels=(("y", "labels", 10),),
)
CIFAR100 = Variant(
    name="cifar100",
    binary="cifar-100-binary",
    binary_archive="cifar-100-binary.tar.gz",
    python="cifar-100-python",
    python_archive="cifar-100-python.tar.gz",
    strips="cifar-100-webp.tar",
    batches={"train": ("train",), "test": ("test",)},
    batch_size={"train": 50_000, "test": 10_000},
    labels=(("coarse", "coarse_labels", 20), ("y", "fine_labels", 100)),
)
WANTED = {
    v.name: f"{v.binary}/ or {v.binary_archive}, or {v.python}/ or {v.python_archive}"
    for v in (CIFAR10, CIFAR100)
}

Part = dict[str, np.ndarray]  # {"x": uint8 [N, 32, 32, 3], "y": int32 [N], maybe "coarse"}


def from_folder(variant: Variant, folder: Path) -> Dataset | None:
    """Reads CIFAR (Krizhevsky, 2009) from a folder that has it in one of the layouts, or None.

    These are, in this order: binary files, their archive, pickles, their archive, image strips.
    """
    layouts = (
        (variant.binary, variant.binary_archive, ".bin", parse_binary),
        (variant.python, variant.python_archive, "", parse_batch),
    )
    for directory, archive, suffix, parse in layouts:
        location = folder / directory if (folder / directory).is_dir() else None
        location = location or find_one(folder, (archive,))
        if location is None:
            continue
        wanted = {f"{name}{suffix}" for names in variant.batches.values() for name in names}
        files = read_tree(location, lambda path, w=wanted: PurePosixPath(path).name in w)
        files = {PurePosixPath(path).name: data for path, data in files.items()}
        parts = {}
        for split, names in variant.batches.items():
            batches = []
            for name in names:
                where = f"{location}: {name}{suffix}"
                if f"{name}{suffix}" not in files:
                    raise DataError(f"{where} is missing; expected {', '.join(sorted(wanted))}")
                batches.append(parse(files[f"{name}{suffix}"], variant, where))
                _expect_size(batches[-1], variant.batch_size[split], where)
            parts[split] = {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}
        return _dataset(variant, parts)

    location = find_one(folder, (variant.strips,))
    if location is None:
        return None
    parts = parse_strips(location, variant.labels)
    for split, names in variant.batches.items():
        size = len(names) * variant.batch_size[split]
        _expect_size(parts[split], size, f"{location}: {split} strips")
    return _dataset(variant, parts)


def parse_binary(data: bytes, variant: Variant, where: object = "CIFAR binary") -> Part:
    """Reads records of label bytes (CIFAR-100: coarse, fine) and 3072 bytes of pixels by plane."""
    width = len(variant.labels) + _PIXELS
    if not data or len(data) % width:
        raise DataError(f"{where}: {len(data)} bytes; expected a multiple of {width} above zero")
    records = np.frombuffer(data, np.uint8).reshape(-1, width)
    labels = {
        leaf: as_labels(records[:, column], classes, where)
        for column, (leaf, _, classes) in enumerate(variant.labels)
    }
    return {"x": _images(records[:, len(labels) :]), **labels}


def parse_batch(data: bytes, variant: Variant, where: object = "CIFAR pickle") -> Part:
    """Reads a pickled batch: a dict of ``data``, uint8 ``[N, 3072]``, and lists of labels."""
    content = parse_pickle(data, where)
    missing = {"data", *(key for _, key, _ in variant.labels)} - content.keys()
    if missing:
        raise DataError(f"{where}: has no {sorted(missing)}; expected a CIFAR batch")
    pixels = content["data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise DataError(f"{where}: data is not an array of bytes; expected uint8 [N, {_PIXELS}]")
    if pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise DataError(f"{where}: data is {pixels.shape}; expected uint8 [N, {_PIXELS}]")
    labels = {
        leaf: as_labels(content[key], classes, f"{where}: {key}")
        for leaf, key, classes in variant.labels
    }
    same_length(where, data=pixels, **labels)
    return {"x": _images(pixels), **labels}


def _images(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _expect_size(part: Part, size: int, where: object) -> None:
    if len(part["y"]) != size:
        raise DataError(f"{where}: {len(part['y'])} examples; expected {size}")


def _dataset(variant: Variant, parts: dict[str, Part]) -> Dataset:
    num_classes = variant.labels[-1][2]
    return Dataset(
        variant.name, parts["train"], parts["test"], num_classes, None, None, None, source="files"
    )


def parse_strips(
    location: Path, labels: tuple[tuple[str, str, int], ...]
) -> dict[str, dict[str, np.ndarray]]:
    """Returns "train" and "test" of strips, with labels (leaf, name in files, classes)."""
    files = read_tree(location, lambda name: name.endswith((".webp", ".u8")))
    files = {PurePosixPath(name).name: data for name, data in files.items()}
    parts = {}
    for split in ("train", "test"):
        part = {"x": _stacked(files, split, location)}
        for leaf, name, num_classes in labels:
            file = f"{split}_{name}.u8"
            if file not in files:
                raise DataError(f"{location}: {file} is missing; expected one byte per image")
            values = np.frombuffer(files[file], np.uint8)
            part[leaf] = as_labels(values, num_classes, f"{location}: {file}")
        same_length(f"{location}: {split}", **part)
        parts[split] = part
    return parts


def _stacked(files: dict[str, bytes], split: str, location: Path) -> np.ndarray:
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
