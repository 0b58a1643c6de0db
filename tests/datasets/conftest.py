"""Small data sets in the official formats, and the folder of the real ones."""

import os
from pathlib import Path

import numpy as np
import pytest
from idx_files import write_idx


@pytest.fixture
def mnist_dir(tmp_path):
    """200 + 50 noise images in MNIST's official files, with QMNIST's label files for 7 writers."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "raw" / "mnist"
    folder.mkdir(parents=True)
    for split, official, size in (("train", "train", 200), ("test", "t10k", 50)):
        images = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, size, dtype=np.uint8)
        # QMNIST's test labels go on beyond MNIST's.
        table = rng.integers(0, 9, (size + 30 * (split == "test"), 8), dtype=np.int32)
        table[:size, 0] = labels
        table[:, 2] = rng.integers(*{"train": (100, 105), "test": (104, 107)}[split], len(table))
        write_idx(folder / f"{official}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{official}-labels-idx1-ubyte.gz", labels)
        write_idx(folder / f"qmnist-{split}-labels-idx2-int.gz", table)
    return folder


@pytest.fixture(autouse=True)
def no_prepared_data_of_this_machine(tmp_path, monkeypatch):
    """Keeps data that tensorflow-datasets prepared on this machine out of the tests."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tensorflow_datasets"))


@pytest.fixture(scope="session")
def real_data():
    folder = os.environ.get("FEDJAX_SIM_DATA")
    if not folder:
        pytest.skip("FEDJAX_SIM_DATA is not set; it names the folder of the real data files")
    return Path(folder)
