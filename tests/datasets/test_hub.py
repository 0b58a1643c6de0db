"""Data sets of the Hugging Face Hub: from folders that its library reads without a network."""

import importlib
import re

import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.datasets import DataError, from_hub

pytest.importorskip("datasets.arrow_dataset")
LIBRARY = importlib.import_module("datasets")  # the folder of these tests has the same name
IMAGE = pytest.importorskip("PIL.Image")
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 5, 5), dtype=np.uint8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(LIBRARY.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(LIBRARY.config, "HF_HUB_OFFLINE", True)
    LIBRARY.disable_progress_bars()


def images(rows):
    return [IMAGE.fromarray(PIXELS[row]) for row in rows]


def write(folder, columns, features, splits):
    """Parquet files as the Hub has them, with kinds of columns in their schema."""
    folder.mkdir()
    for split, rows in splits.items():
        part = {name: [values[row] for row in rows] for name, values in columns.items()}
        table = LIBRARY.Dataset.from_dict(part, features=LIBRARY.Features(features))
        table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return str(folder)


def femnist(folder):
    """The columns of FEMNIST in the form of flwr-datasets."""
    columns = {
        "image": images(range(12)),
        "writer_id": [f"f{row % 3:04}" for row in range(12)],
        "hsf_id": [0] * 12,
        "character": [row % 4 for row in range(12)],
    }
    features = {
        "image": LIBRARY.Image(),
        "writer_id": LIBRARY.Value("string"),
        "hsf_id": LIBRARY.Value("int64"),
        "character": LIBRARY.ClassLabel(names=["0", "1", "A", "a"]),
    }
    return write(folder, columns, features, {"train": range(12)})


def cifar100(folder):
    """The columns of CIFAR-100 on the Hub."""
    columns = {
        "img": images(range(12)),
        "fine_label": [row % 3 for row in range(12)],
        "coarse_label": [row % 2 for row in range(12)],
    }
    features = {
        "img": LIBRARY.Image(),
        "fine_label": LIBRARY.ClassLabel(names=["apple", "bear", "cup"]),
        "coarse_label": LIBRARY.ClassLabel(names=["plants", "animals"]),
    }
    return write(folder, columns, features, {"train": range(8), "test": range(8, 12)})


def test_femnist_has_the_writers_as_clients(tmp_path):
    data = from_hub(femnist(tmp_path / "femnist"), client_column="writer_id")
    assert (data.name, data.class_names) == ("femnist", ("0", "1", "A", "a"))
    assert data.group_names == ("f0000", "f0001", "f0002")
    both = {tuple(x.ravel()): y for part in (data.train, data.test)
            for x, y in zip(part["x"].astype(np.uint8), part["y"], strict=True)}  # fmt: skip
    assert both == {tuple(x.ravel()): row % 4 for row, x in enumerate(PIXELS)}
    assert len(data.test["y"]) == 3  # one of each writer


def test_cifar100_has_the_fine_labels_and_its_own_test_part(tmp_path):
    data = from_hub(cifar100(tmp_path / "cifar100"))
    assert data.class_names == ("apple", "bear", "cup")
    np.testing.assert_array_equal(data.train["x"][..., 0], PIXELS[:8])
    np.testing.assert_array_equal(data.test["x"][..., 0], PIXELS[8:])
    assert data.test["y"].tolist() == [2, 0, 1, 2]
    coarse = from_hub(cifar100(tmp_path / "again"), label_column="coarse_label")
    assert coarse.class_names == ("plants", "animals")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"test_split": "valid"}, "test_split is 'valid'; expected one of train, test, the splits"),
        ({"train_split": "trian"}, "train_split is 'trian'; expected one of train, test"),
        ({"label_column": "fine"}, "label_column is 'fine'; expected one of img, fine_label"),
    ],
)
def test_what_a_data_set_lacks_is_named(tmp_path, arguments, expected):
    folder = cifar100(tmp_path / "cifar100")
    with pytest.raises(DataError, match=re.escape(expected)):
        from_hub(folder, **arguments)


def test_without_cache_and_network_the_message_says_what_fills_the_cache():
    expected = "path is 'uoft-cs/cifar100': .*datasets.load_dataset.'uoft-cs/cifar100', 'plain'. fi"
    with pytest.raises(DataError, match=expected):
        from_hub("uoft-cs/cifar100", "plain")


@pytest.mark.parametrize("rows", ["one table", "two parts"])
def test_streams_are_refused(rows):
    stream = LIBRARY.Dataset.from_dict({"x": [1.0, 2.0], "y": [0, 1]}).to_iterable_dataset()
    table = stream if rows == "one table" else {"train": stream, "test": stream}
    with pytest.raises(DataError, match=r"IterableDataset, a stream; expected rows .*streaming"):
        fs.from_table(table)


def test_option_of_a_run(tmp_path):
    """By the command line's options: the data of the run are those of the function."""
    from fedjax_sim.studies.setups.data import HuggingFace, load

    folder = femnist(tmp_path / "femnist")
    options = HuggingFace(hub=folder, client_column="writer_id", scale="unit")
    loaded, direct = load(options, 0, 0), from_hub(folder, client_column="writer_id", scale="unit")
    for part in ("train", "test"):
        for name, values in getattr(direct, part).items():
            np.testing.assert_array_equal(getattr(loaded, part)[name], values)
    assert loaded.group_names == direct.group_names
