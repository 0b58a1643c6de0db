"""Data sets prepared by tensorflow-datasets, read without TensorFlow."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import DataError, Dataset, as_labels

# Leaf of each feature of the builders of tensorflow-datasets.
_LEAVES = {"image": "x", "label": "y", "coarse_label": "coarse"}
_CHUNK = 4096  # examples that are Python objects at the same time


def default_dir() -> Path:
    """Default data directory of tensorflow-datasets."""
    return Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()


def find_prepared(root: Path, name: str) -> Path | None:
    """Returns the newest readable ``root/name/VERSION`` of a prepared data set, or None."""
    found = [path.parent for path in root.glob(f"{name}/*/dataset_info.json")]
    found = [path for path in found if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]

    def preference(path: Path) -> tuple:
        return is_readable(path), [int(part) for part in path.name.split(".")]

    return max(found, key=preference, default=None)


def is_readable(folder: Path) -> bool:
    """Returns whether the prepared files allow random access; TFRecord files need TensorFlow."""
    return any(folder.glob("*.array_record*"))


def read_prepared(folder: Path, name: str, source: str = "tfds") -> Dataset:
    """Returns the data set that tensorflow-datasets prepared in the array_record format."""
    # Rows keep their stored order, which its builders shuffle once with a fixed seed. Builders of
    # Tiny ImageNet write the split validation instead of test.
    tfds = import_extra("tensorflow_datasets", "datasets")
    import_extra("array_record", "datasets")
    try:
        builder = tfds.builder_from_directory(folder)
        features = dict(builder.info.features)
        splits = builder.info.splits
        test = "validation" if "validation" in splits and "test" not in splits else "test"
        parts = {
            split: _columns(builder, stored, features)
            for split, stored in (("train", "train"), ("test", test))
        }
    except Exception as error:  # protobuf, json and the C++ reader each raise their own
        raise DataError(
            f"{folder}: {error}; expected {name} as tensorflow-datasets prepares it"
        ) from error
    if not {"x", "y"} <= parts["train"].keys():
        raise DataError(f"{folder}: has features {sorted(features)}; expected image and label")
    for split, part in parts.items():
        for feature, leaf in _LEAVES.items():
            if leaf != "x" and leaf in part:
                where = f"{folder}: {split} {feature}"
                part[leaf] = as_labels(part[leaf], features[feature].num_classes, where)
        if part["x"].dtype.kind == "f" and not np.isfinite(part["x"]).all():
            raise DataError(f"{folder}: {split} has values that are not finite")
    num_classes = features["label"].num_classes
    return Dataset(name, parts["train"], parts["test"], num_classes, None, None, None, source)


def _columns(builder: Any, split: str, features: dict[str, Any]) -> dict[str, np.ndarray]:
    rows = builder.as_data_source(split)
    wanted = {key: leaf for key, leaf in _LEAVES.items() if key in features}
    columns = {
        leaf: np.empty((len(rows), *features[key].shape), features[key].np_dtype)
        for key, leaf in wanted.items()
    }
    for start in range(0, len(rows), _CHUNK):
        chunk = rows.__getitems__(range(start, min(start + _CHUNK, len(rows))))
        for key, leaf in wanted.items():
            columns[leaf][start : start + len(chunk)] = [row[key] for row in chunk]
    return columns


def download(name: str, data_dir: Path) -> Dataset:
    """Lets tensorflow-datasets download and prepare a data set, then reads it."""
    tfds = import_extra("tensorflow_datasets", "datasets")
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # network, disk, missing TensorFlow
        raise DataError(
            f"{name}: tensorflow-datasets could not download and prepare it in {data_dir}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return read_prepared(Path(builder.data_dir), name, source="download")
