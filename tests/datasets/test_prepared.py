import io
import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from fedjax_sim.datasets import DataError, load
from fedjax_sim.datasets.formats.prepared import find_prepared

tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("array_record")


def write_tfds(root, version, png, name="mnist", test="test"):
    """A data set as tensorflow-datasets' own builders write it: PNG images, no groups."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    title = name

    def image(array):
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, "PNG")
        buffer.seek(0)
        return buffer

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = title
        VERSION = tfds.core.Version(version)

        def _info(self):
            kind = tfds.features.Image if png else tfds.features.Tensor
            options = {} if png else {"dtype": np.uint8}
            features = {
                "image": kind(shape=(28, 28, 1), **options),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(4), test: self._generate_examples(2)}

        def _generate_examples(self, size):
            for i in range(size):
                x = image(pixels[i]) if png else pixels[i][..., None]
                yield str(i), {"image": x, "label": i}

    builder = Builder(data_dir=root, file_format="array_record")
    builder.download_and_prepare()
    return builder, pixels


def test_the_routes_order_and_choice(mnist_dir):
    root = mnist_dir.parent  # raw files and prepared ones in one data directory
    write_tfds(root, "1.0.0", png=False)
    assert load("mnist", root).source == "tfds"
    assert load("mnist", root, source="files").source == "files"
    shutil.rmtree(root / "mnist" / "1.0.0")
    assert load("mnist", root).source == "files"
    with pytest.raises(DataError, match="nothing found"):
        load("mnist", root, source="tfds")


def test_default_directory_comes_after_the_given_one(mnist_dir, tmp_path):
    write_tfds(tmp_path / "tensorflow_datasets", "1.0.0", png=False)
    assert load("mnist", tmp_path / "empty").source == "tfds"
    assert load("mnist", mnist_dir).source == "files"


@pytest.mark.parametrize("png", [True, False])
def test_data_sets_of_tensorflow_datasets_own_builders(tmp_path, png):
    _, pixels = write_tfds(tmp_path, "3.0.1", png)
    data = load("mnist", tmp_path)
    assert (data.source, data.num_classes, data.train_groups) == ("tfds", 10, None)
    # Its builders shuffle; the label says which image it is.
    np.testing.assert_array_equal(data.train["x"][..., 0], pixels[data.train["y"]])
    np.testing.assert_array_equal(data.test["x"][..., 0], pixels[data.test["y"]])
    assert sorted(data.train["y"]) == [0, 1, 2, 3]


def test_a_validation_split_without_a_test_split_is_the_test_part(tmp_path):
    """As builders of one's own write the official files of Tiny ImageNet."""
    _, pixels = write_tfds(tmp_path, "0.1.0", True, "tiny_imagenet", "validation")
    data = load("tiny_imagenet", tmp_path)
    assert (sorted(data.train["y"]), sorted(data.test["y"])) == ([0, 1, 2, 3], [0, 1])
    np.testing.assert_array_equal(data.test["x"][..., 0], pixels[data.test["y"]])


def test_of_two_versions_the_newest(tmp_path):
    for version in ("10.0.0", "3.0.1"):
        write_tfds(tmp_path, version, png=False)
    assert find_prepared(tmp_path, "mnist") == tmp_path / "mnist" / "10.0.0"


def test_a_format_that_needs_tensorflow_is_passed_over(mnist_dir, tmp_path):
    folder = tmp_path / "mnist" / "3.0.1"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "mnist-train.tfrecord-00000-of-00001").touch()
    with pytest.raises(DataError, match=r"3\.0\.1 is not in the array_record format"):
        load("mnist", tmp_path)
    for path in mnist_dir.iterdir():
        shutil.copy(path, tmp_path)
    assert load("mnist", tmp_path).source == "files"


def test_download(tmp_path, monkeypatch):
    monkeypatch.setattr(
        tfds, "builder", lambda name, data_dir: write_tfds(data_dir, "3.0.1", png=True)[0]
    )
    data = load("mnist", tmp_path, download=True)
    assert (data.source, data.train["x"].shape) == ("download", (4, 28, 28, 1))
    assert load("mnist", tmp_path, download=True).source == "tfds"


def test_a_failed_download_says_why(tmp_path, monkeypatch):
    def fail(name, data_dir):
        raise ModuleNotFoundError("No module named 'tensorflow'")

    monkeypatch.setattr(tfds, "builder", fail)
    with pytest.raises(DataError, match=r"mnist: .*ModuleNotFoundError: No module named"):
        load("mnist", tmp_path, download=True)


def break_json(folder):
    (folder / "dataset_info.json").write_text("{")


def break_features(folder):
    (folder / "features.json").unlink()


def cut_records(folder):
    path = next(folder.glob("*train.array_record*"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_test(folder):
    next(folder.glob("*test.array_record*")).unlink()


def rename_label(folder):
    text = (folder / "features.json").read_text()
    (folder / "features.json").write_text(json.dumps(json.loads(text)).replace("label", "labl"))


@pytest.mark.parametrize(
    "change", [break_json, break_features, cut_records, lose_test, rename_label]
)
def test_refuses_damaged_data_sets(tmp_path, change):
    write_tfds(tmp_path, "1.0.0", png=False)
    folder = tmp_path / "mnist" / "1.0.0"
    change(folder)
    with pytest.raises(DataError, match=str(folder)):
        load("mnist", tmp_path)


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    write_tfds(tmp_path, "1.0.0", png=False)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"'\.\[datasets\]'"):
        load("mnist", tmp_path)
