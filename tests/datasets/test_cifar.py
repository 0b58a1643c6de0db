import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from fedjax_sim.datasets import DataError
from fedjax_sim.datasets.cifar import CIFAR10, CIFAR100, from_folder, parse_batch, parse_binary

# The official layouts with few examples to a file.
SMALL = {
    "cifar10": CIFAR10._replace(batch_size={"train": 2, "test": 3}),
    "cifar100": CIFAR100._replace(batch_size={"train": 10, "test": 3}),
}


def examples(variant, size, seed):
    rng = np.random.default_rng(seed)
    labels = {key: rng.integers(0, n, size, dtype=np.uint8) for _, key, n in variant.labels}
    return rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8), labels


def encode_binary(x, labels):
    planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return np.concatenate([np.stack(list(labels.values()), 1), planes], 1).tobytes()


def encode_batch(x, labels, protocol=2):
    planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    lists = {key.encode(): values.tolist() for key, values in labels.items()}
    return pickle.dumps({b"data": planes, b"batch_label": b"one of", **lists}, protocol)


def splits(variant):
    sizes = {split: n * len(variant.batches[split]) for split, n in variant.batch_size.items()}
    return {split: examples(variant, size, seed=size) for split, size in sizes.items()}


def write_batches(folder, variant, suffix, encode):
    folder.mkdir()
    for split, (x, labels) in splits(variant).items():
        size = variant.batch_size[split]
        for i, name in enumerate(variant.batches[split]):
            rows = slice(i * size, (i + 1) * size)
            part = {key: values[rows] for key, values in labels.items()}
            (folder / f"{name}{suffix}").write_bytes(encode(x[rows], part))


def write_strips(folder, variant):
    folder.mkdir()
    for split, (x, labels) in splits(variant).items():
        for i in range(0, len(x), 4):
            strip = Image.fromarray(x[i : i + 4].reshape(-1, 32, 3))
            strip.save(folder / f"{split}-{i // 4:03}.webp", lossless=True)
        for key, values in labels.items():
            values.tofile(folder / f"{split}_{key}.u8")


def pack(folder, archive):
    with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as tar:
        tar.add(folder, folder.name)


def write_layout(root, variant, layout):
    if layout == "strips":
        write_strips(root / "any-name", variant)
        pack(root / "any-name", root / variant.strips)
        return root / "any-name"
    kind = layout.partition(" ")[0]
    encode, suffix = {"binary": (encode_binary, ".bin"), "python": (encode_batch, "")}[kind]
    folder = root / getattr(variant, kind)
    write_batches(folder, variant, suffix, encode)
    if "archive" in layout:
        pack(folder, root / getattr(variant, f"{kind}_archive"))
        folder.rename(root / "elsewhere")
    return folder


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "layout", ["binary", "binary archive", "python", "python archive", "strips"]
)
def test_every_layout_gives_the_same_arrays(tmp_path, name, layout):
    variant = SMALL[name]
    write_layout(tmp_path, variant, layout)
    data = from_folder(variant, tmp_path)
    assert data is not None
    assert (data.name, data.num_classes) == (name, {"cifar10": 10, "cifar100": 100}[name])
    for split, part in (("train", data.train), ("test", data.test)):
        x, labels = splits(variant)[split]
        np.testing.assert_array_equal(part["x"], x)
        assert part.keys() == {"x", *(leaf for leaf, _, _ in variant.labels)}
        for leaf, key, _ in variant.labels:
            np.testing.assert_array_equal(part[leaf], labels[key])
            assert part[leaf].dtype == np.int32


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_refuses_missing_and_short_files(tmp_path, layout):
    variant = SMALL["cifar10"]
    folder = write_layout(tmp_path, variant, layout)
    with pytest.raises(DataError, match=r"data_batch_1.*: 2 examples; expected 10000"):
        from_folder(CIFAR10, tmp_path)
    suffix = ".bin" if layout == "binary" else ""
    (folder / f"data_batch_3{suffix}").unlink()
    with pytest.raises(DataError, match=r"data_batch_3.* is missing"):
        from_folder(variant, tmp_path)


def rename(folder):
    (folder / "train-001.webp").rename(folder / "train-007.webp")


def lossy(folder):
    Image.new("RGB", (32, 128)).save(folder / "train-000.webp", quality=90)


def wide(folder):
    Image.new("RGB", (33, 128)).save(folder / "train-000.webp", lossless=True)


def high(folder):
    Image.new("RGB", (32, 127)).save(folder / "train-000.webp", lossless=True)


def cut(folder):
    path = folder / "train-000.webp"
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename, r"train-001\.webp is missing"),
        (lossy, r"train-000\.webp: .*lossless"),
        (wide, "33 wide"),
        (high, "127 high"),
        (cut, r"train-000\.webp: .*lossless"),
        (lambda folder: (folder / "test_labels.u8").unlink(), r"test_labels\.u8 is missing"),
        (lambda folder: (folder / "test_labels.u8").write_bytes(b"\0" * 4), "lengths"),
        (lambda folder: (folder / "test_labels.u8").write_bytes(b"\x0a" * 3), r"expected 0 \.\. 9"),
    ],
)
def test_refuses_damaged_strips(tmp_path, change, message):
    variant = SMALL["cifar10"]
    folder = write_layout(tmp_path, variant, "strips")
    change(folder)
    pack(folder, tmp_path / variant.strips)
    with pytest.raises(DataError, match=message):
        from_folder(variant, tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (bytes(3072), "multiple of 3073"),
        (bytes(3074), "multiple of 3073"),
        (bytes([10]) + bytes(3072), r"expected 0 \.\. 9"),
    ],
)
def test_refuses_binary(data, message):
    with pytest.raises(DataError, match=message):
        parse_binary(data, CIFAR10)


PIXELS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": PIXELS}, "has no .*labels"),
        ({"labels": [1, 2]}, "has no .*data"),
        ({"data": [0] * 3072, "labels": [1]}, "not an array"),
        ({"data": PIXELS.astype(np.int32), "labels": [1, 2]}, "not an array of bytes"),
        ({"data": PIXELS[:, 1:], "labels": [1, 2]}, r"\(2, 3071\)"),
        ({"data": PIXELS[:, :, None], "labels": [1, 2]}, r"\(2, 3072, 1\)"),
        ({"data": PIXELS, "labels": [1]}, "lengths"),
        ({"data": PIXELS[:0], "labels": []}, "type float64"),
        ({"data": PIXELS, "labels": [1, 10]}, r"expected 0 \.\. 9"),
        ({"data": PIXELS, "labels": [-1, 0]}, r"expected 0 \.\. 9"),
        ({"data": PIXELS, "labels": [1, 2.0]}, "integers"),
        ({"data": PIXELS, "labels": [1, [2]]}, "ragged"),
        ({"data": PIXELS, "labels": ["1", "2"]}, "integers"),
        ({"data": PIXELS, "labels": [1, 2**70]}, "integers"),
        ({"data": PIXELS, "labels": None}, "integers"),
    ],
)
def test_refuses_batch(content, message):
    with pytest.raises(DataError, match=message):
        parse_batch(pickle.dumps(content, 2), CIFAR10)
