import functools
import subprocess
import sys

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.datasets import NAMES, DataError, load, mnist, registry
from fedjax_sim.datasets.registry import folder_of


def test_digits_need_nothing():
    data = load("digits")
    assert data.source == "scikit-learn"
    x = np.concatenate([data.train["x"], data.test["x"]])
    y = np.concatenate([data.train["y"], data.test["y"]])
    assert x.shape == (1797, 8, 8, 1)
    assert x.dtype == np.uint8
    assert (x.min(), x.max()) == (0, 255)
    # Class counts of scikit-learn's digits: its documentation of load_digits says "~180".
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # Stratified: a fifth of each class, rounded.
    assert np.bincount(data.test["y"]).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]


def test_digits_split_is_fixed_and_covers_the_source():
    from sklearn.datasets import load_digits

    source = load_digits()["images"]
    data = load("digits")
    parts = [data.train["x"], data.test["x"]]
    # 16 levels of ink to 255: the rounding can be undone.
    rows = np.rint(np.concatenate(parts).reshape(-1, 64) * (16 / 255))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, source.reshape(-1, 64)))
    np.testing.assert_array_equal(load("digits").train["x"], data.train["x"])


def test_unknown_names_and_sources():
    with pytest.raises(ValueError, match=r"name is 'minst'; expected one of digits, mnist"):
        load("minst")
    with pytest.raises(ValueError, match=r"source is 'web'; expected 'tfds'"):
        load("mnist", source="web")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_nothing_found_says_which_files_to_put_where(tmp_path, monkeypatch, name):
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert {
        "mnist": "train-images-idx3-ubyte.gz",
        "femnist": "train/*.json",
        "cifar10": "cifar-10-batches-bin",
        "cifar100": "cifar-100-binary",
        "shakespeare": "shakespeare*.tar.xz",
        "shakespeare_leaf": "shakespeare*.tar.xz",
        "shakespeare_tff": "shakespeare*.tar.xz",
        "tiny_imagenet": "tiny-imagenet-200",
        "a9a": "a9a.t",
        "epsilon": "epsilon_normalized.t",
    }[name] in str(caught.value)
    monkeypatch.delenv("FEDJAX_SIM_DATA", raising=False)
    with pytest.raises(DataError, match="FEDJAX_SIM_DATA is not set"):
        load(name)


def test_one_more_row_is_one_more_data_set(mnist_dir, monkeypatch):
    """Its files have MNIST's names, so only a folder of its own name shows that they are its."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(mnist_dir / "none"))
    row = registry._FILES["mnist"]._replace(
        read=functools.partial(mnist.from_folder, "letters"), folders=("letters",)
    )
    monkeypatch.setitem(registry._FILES, "letters", row)
    monkeypatch.setattr(registry, "NAMES", (*NAMES, "letters"))
    for folder in (mnist_dir, mnist_dir.parent):
        assert folder_of("letters", folder) is None
        with pytest.raises(DataError, match="letters: nothing found"):
            load("letters", folder)
    mnist_dir.rename(mnist_dir.parent / "letters")
    data = load("letters", mnist_dir.parent)
    assert (data.name, data.train["x"].shape) == ("letters", (200, 28, 28, 1))
    assert folder_of("letters", mnist_dir.parent) == mnist_dir.parent / "letters"


def test_environment_variable(mnist_dir, monkeypatch):
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(mnist_dir.parent))
    assert load("mnist").train["x"].shape == (200, 28, 28, 1)


@pytest.mark.parametrize("name", ["femnist", "tiny_imagenet"])
def test_no_download_of_what_is_not_offered(tmp_path, name):
    with pytest.raises(DataError, match=f"no download of {name}"):
        load(name, tmp_path, download=True)


@pytest.mark.slow
def test_heavy_packages_are_imported_when_needed_only():
    heavy = {"tensorflow_datasets", "array_record", "sklearn", "PIL"}
    code = f"import fedjax_sim.datasets, sys; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_public_names():
    names = (
        "NAMES Characters DataError Dataset Scaling drop_duplicates from_arrays from_hub "
        "from_table from_text from_texts from_tokens load merged read_leaf read_pfllib read_table "
        "read_tff role_texts to_channels_last"
    )
    assert datasets.__all__ == names.split()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte.gz"),
        ("femnist", "femnist/data/train/all_data_0.json"),
        ("cifar10", "cifar10/cifar-10-batches-py/data_batch_1"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("a9a", "a9a/a9a"),
    ],
)
def test_a_folder_with_a_data_set_is_found_without_reading(tmp_path, monkeypatch, name, file):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "none"))
    assert folder_of(name, tmp_path) is None
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("")
    folder = folder_of(name, tmp_path)
    assert folder is not None
    assert (tmp_path / file).is_relative_to(folder)
    assert folder_of("epsilon", tmp_path) is None
