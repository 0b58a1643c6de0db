"""Writes a data set from raw files in the layout of tensorflow-datasets, without TensorFlow.

    python -m fedjax_sim.datasets.prepare mnist --from RAW_DIR --to DATA_DIR

Afterwards ``load("mnist", DATA_DIR)`` reads the prepared data set, and so do other programs for
array_record files: ``tfds.builder_from_directory("DATA_DIR/mnist/1.0.0")``.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import Dataset
from fedjax_sim.datasets.formats import prepared as prepared_format
from fedjax_sim.datasets.registry import load

_VERSION = "1.0.0"
_GROUP = prepared_format.GROUP


def prepare(name: str, raw_dir: str | Path, data_dir: str | Path | None = None) -> Path:
    """Reads a data set's raw files and writes ``DATA_DIR/NAME/1.0.0`` in array_record files.

    Rows keep their order.  Features: ``image`` (uint8) or ``features`` (float32), ``label``, where
    present ``coarse_label``, and ``group``, whose class names are the natural clients.

    Args:
        name: a name that :func:`fedjax_sim.datasets.load` accepts, except "digits".
        raw_dir: folder of the raw files, as for ``load``.
        data_dir: folder to write to; default: the directory of tensorflow-datasets.

    Returns:
        The new folder.
    """
    root = prepared_format.default_dir() if data_dir is None else Path(data_dir).expanduser()
    folder = root / name / _VERSION
    if folder.exists():
        raise ValueError(f"data_dir has {folder} already; expected a new folder")
    if name == "digits":
        raise ValueError("name is 'digits', which needs no files; expected another data set")
    dataset = load(name, raw_dir, source="files")
    for module in ("array_record", "importlib_resources"):
        import_extra(module, "datasets")
    _builder(dataset, root).download_and_prepare()
    return folder


def _builder(dataset: Dataset, root: Path) -> Any:
    tfds = import_extra("tensorflow_datasets", "datasets")
    leaves = _feature_of_leaf(dataset)

    # The keyword excludes the class from the global list of builders of tensorflow-datasets.
    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # pyright: ignore
        name = dataset.name
        VERSION = tfds.core.Version(_VERSION)

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                description=f"{dataset.name} from raw files, by fedjax_sim.datasets.prepare.",
                features=tfds.features.FeaturesDict(_features(tfds, dataset, leaves)),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            del dl_manager
            return {
                split: _examples(_with_groups(dataset, split), leaves)
                for split in ("train", "test")
            }

        def _generate_examples(
            self,
        ):  # abstract in the base class; not used
            raise NotImplementedError

    return Builder(data_dir=root, file_format="array_record")


def _feature_of_leaf(dataset: Dataset) -> dict[str, str]:
    x = "image" if dataset.train["x"].dtype == np.uint8 else "features"
    names = {leaf: feature for feature, leaf in prepared_format.LEAVES.items() if leaf != "x"}
    leaves = {"x": x} | {leaf: names[leaf] for leaf in dataset.train if leaf != "x"}
    return leaves if dataset.group_names is None else leaves | {_GROUP: _GROUP}


def _with_groups(dataset: Dataset, split: str) -> dict[str, np.ndarray]:
    part = dataset.train if split == "train" else dataset.test
    groups = dataset.train_groups if split == "train" else dataset.test_groups
    # A part without natural clients beside one with them: -1 is tensorflow-datasets' "no label".
    return part | {_GROUP: np.full(len(part["y"]), -1) if groups is None else groups}


def _features(tfds: Any, dataset: Dataset, leaves: dict[str, str]) -> dict[str, Any]:
    def feature(leaf: str) -> Any:
        if leaf == _GROUP:
            return tfds.features.ClassLabel(names=list(dataset.group_names or ()))
        column = dataset.train[leaf]
        if leaf == "x":
            shape, dtype = column.shape[1:], column.dtype.type
            return tfds.features.Tensor(shape=shape, dtype=dtype, encoding="bytes")
        classes = max(int(part[leaf].max()) + 1 for part in (dataset.train, dataset.test))
        return tfds.features.ClassLabel(num_classes=dataset.num_classes if leaf == "y" else classes)

    return {name: feature(leaf) for leaf, name in leaves.items()}


def _examples(
    columns: dict[str, np.ndarray], leaves: dict[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    for row in range(len(columns["y"])):
        yield row, {name: columns[leaf][row] for leaf, name in leaves.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="data set, such as mnist")
    parser.add_argument("--from", dest="raw_dir", required=True, help="folder of the raw files")
    parser.add_argument("--to", dest="data_dir", help="default: the folder of tensorflow-datasets")
    settings = parser.parse_args(arguments)
    try:
        print(prepare(**vars(settings)))
    except (ValueError, ImportError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
