"""Tiny ImageNet from its official folder; needs Pillow.

``wnids.txt`` lists the classes, ``train/WNID/images/WNID_N.JPEG`` are the train images of a class,
``val/images/val_N.JPEG`` those of the validation part, and ``val/val_annotations.txt`` contains the
classes of the latter.  The images below ``test/`` have no labels, so the validation part is the
test part here.
"""

import io
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import DataError, Dataset, same_length
from fedjax_sim.datasets.formats.files import read_bytes

_SIDE = 64  # pixels
_CHUNK = 250  # images that a thread decodes at a time
_WNID = re.compile(r"n\d{8}")
_VAL_IMAGE = re.compile(r"val_\d+\.JPEG")

WANTED = "tiny-imagenet-200/, the unpacked tiny-imagenet-200.zip"


def from_folder(folder: Path) -> Dataset | None:
    """Reads Tiny ImageNet (Le and Yang, 2015) from a folder with the official files, or None.

    Train images are ordered by class and number, test images as in ``val_annotations.txt``.
    """
    wnids, annotations = folder / "wnids.txt", folder / "val" / "val_annotations.txt"
    if not (wnids.is_file() or annotations.is_file()):
        return None
    classes = parse_wnids(read_bytes(wnids), wnids)
    train_files, train_labels = _train_files(folder / "train", classes)
    names, test_labels = parse_annotations(read_bytes(annotations), classes, annotations)
    test_files = _test_files(folder / "val" / "images", names, annotations)
    train, test = (
        {"x": _decoded(files), "y": np.array(labels, np.int32)}
        for files, labels in ((train_files, train_labels), (test_files, test_labels))
    )
    return Dataset("tiny_imagenet", train, test, len(classes), None, None, None, source="files")


def parse_wnids(data: bytes, where: object = "wnids.txt") -> tuple[str, ...]:
    """Returns the WordNet ids of the classes, one per line, in the order of the labels."""
    classes = tuple(line.strip() for line in _lines(data, where))
    for line, wnid in enumerate(classes, start=1):
        if not _WNID.fullmatch(wnid):
            raise DataError(f"{where}: line {line} is {wnid!r}; expected a WordNet id, n01443537")
    same_length(where, classes=classes)
    if len(set(classes)) < len(classes):
        raise DataError(f"{where}: a class occurs twice; expected {len(classes)} different ones")
    return classes


def parse_annotations(
    data: bytes, classes: Sequence[str], where: object = "val_annotations.txt"
) -> tuple[list[str], list[int]]:
    """Returns the file names of the validation images and their labels, without the boxes."""
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    rows: dict[str, int] = {}
    for line, text in enumerate(_lines(data, where), start=1):
        name, wnid = [*text.split(), "", ""][:2]
        if not _VAL_IMAGE.fullmatch(name) or name in rows:
            raise DataError(f"{where}: line {line} names {name!r}; expected a new val_N.JPEG")
        if wnid not in label_of:
            raise DataError(f"{where}: line {line} has class {wnid!r}; expected one of wnids.txt")
        rows[name] = label_of[wnid]
    same_length(where, images=rows)
    return list(rows), list(rows.values())


def _lines(data: bytes, where: object) -> list[str]:
    try:
        return data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: {error}; expected a text file") from None


def _train_files(folder: Path, classes: Sequence[str]) -> tuple[list[Path], list[int]]:
    unknown = sorted({path.name for path in folder.glob("*") if path.is_dir()}.difference(classes))
    if unknown:
        raise DataError(f"{folder / unknown[0]}: not in wnids.txt; expected folders of its classes")
    by_class = [_numbered(folder / wnid / "images", wnid) for wnid in classes]
    # Otherwise an incompletely unpacked archive would look like a smaller data set.
    size = max(map(len, by_class))
    for wnid, files in zip(classes, by_class, strict=True):
        if len(files) < size:
            raise DataError(
                f"{folder / wnid}: {len(files)} images; expected {size} as in other classes"
            )
    labels = np.repeat(np.arange(len(classes)), size).tolist()
    return [file for files in by_class for file in files], labels


def _numbered(folder: Path, wnid: str) -> list[Path]:
    """All files ``folder/WNID_0.JPEG``, ``folder/WNID_1.JPEG``, ..., without gaps."""
    found = {path.name for path in folder.glob("*.JPEG")}
    expected = [f"{wnid}_{number}.JPEG" for number in range(max(len(found), 1))]
    missing = next((name for name in expected if name not in found), None)
    if missing is not None:
        raise DataError(f"{folder / missing} is missing; expected images numbered from 0, no gaps")
    return [folder / name for name in expected]


def _test_files(folder: Path, names: Sequence[str], annotations: Path) -> list[Path]:
    found = {path.name for path in folder.glob("*.JPEG")}
    for name in names:
        if name not in found:
            raise DataError(f"{folder / name} is missing; expected all images of {annotations}")
    extra = sorted(found.difference(names))
    if extra:
        raise DataError(f"{folder / extra[0]}: is not in {annotations}; expected its class there")
    return [folder / name for name in names]


def _decoded(files: Sequence[Path]) -> np.ndarray:
    """Decodes images to uint8 ``[N, 64, 64, 3]`` in threads; Pillow's decoder releases the GIL."""
    import_extra("PIL.Image", "datasets")
    images = np.empty((len(files), _SIDE, _SIDE, 3), np.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(files))):
            images[row] = _pixels(files[row])

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, len(files), _CHUNK)))  # the list raises errors of the threads
    return images


def _pixels(file: Path) -> np.ndarray:
    data, images = read_bytes(file), import_extra("PIL.Image", "datasets")
    try:
        with images.open(io.BytesIO(data), formats=["JPEG"]) as image:
            wide, high = image.size
            if (wide, high) != (_SIDE, _SIDE):  # before its pixels need memory
                raise DataError(
                    f"{file}: {wide} wide and {high} high; expected {_SIDE} x {_SIDE} pixels"
                )
            return np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow promises no set of exceptions for damaged images
        raise DataError(f"{file}: {error}; expected a JPEG image") from error
