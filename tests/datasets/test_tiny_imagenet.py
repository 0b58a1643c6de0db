import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedjax_sim.datasets import DataError, load
from fedjax_sim.datasets.tiny_imagenet import from_folder, parse_annotations

# Neither sorted nor reversed, so that an order that is not the file's is seen.
CLASSES = ("n02124075", "n04067472", "n01443537")
TRAIN_SIZE = 12  # of a class; from 10 on the order of names is not that of numbers
# Validation images in the order of the annotations, with their labels.
VAL = {"val_0.JPEG": 2, "val_1.JPEG": 0, "val_10.JPEG": 1, "val_2.JPEG": 2}


def colour(label, number):
    """The colour of a train image (flat ones survive JPEG almost unchanged)."""
    return (40 + 80 * label, 20 + 15 * number, 100)


def save(path, rgb, size=(64, 64), mode="RGB"):
    Image.new("RGB", size, rgb).convert(mode).save(path, "JPEG", quality=95)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "raw" / "tiny-imagenet-200"
    for label, wnid in enumerate(CLASSES):
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("the boxes are not read")
        for number in range(TRAIN_SIZE):
            save(images / f"{wnid}_{number}.JPEG", colour(label, number))
    (root / "val" / "images").mkdir(parents=True)
    for number, name in enumerate(VAL):
        save(root / "val" / "images" / name, (60 * number, 60 * number, 200))
    lines = [f"{name}\t{CLASSES[label]}\t0\t32\t44\t62\n" for name, label in VAL.items()]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in CLASSES))
    (root / "words.txt").write_text("n02124075\tEgyptian cat\n")
    (root / "test" / "images").mkdir(parents=True)
    (root / "test" / "images" / "test_0.JPEG").write_bytes(b"not read")
    return root


def read(folder):
    dataset = from_folder(folder)
    assert dataset is not None
    return dataset


def test_images_and_labels_in_the_files_order(folder):
    data = read(folder)
    assert (data.name, data.num_classes, data.source) == ("tiny_imagenet", 3, "files")
    assert (data.train_groups, data.test_groups, data.group_names) == (None, None, None)
    assert data.train["x"].shape == (3 * TRAIN_SIZE, 64, 64, 3)
    assert data.test["x"].shape == (4, 64, 64, 3)
    for part in (data.train, data.test):
        assert (part["x"].dtype, part["y"].dtype) == (np.uint8, np.int32)
    assert data.train["y"].tolist() == [c for c in range(3) for _ in range(TRAIN_SIZE)]
    assert data.test["y"].tolist() == [2, 0, 1, 2]
    # Quality 95 and the conversion between colour spaces cost a flat image two grey levels at most;
    # neighbouring colours are 15 apart.
    expected = [colour(c, n) for c in range(3) for n in range(TRAIN_SIZE)]
    middle = data.train["x"][:, 32, 32].astype(int)
    np.testing.assert_allclose(middle, expected, rtol=0, atol=3)
    expected = [(60 * n, 60 * n, 200) for n in range(4)]
    np.testing.assert_allclose(data.test["x"][:, 7, 50].astype(int), expected, rtol=0, atol=3)


def test_pixels_are_those_that_pillow_decodes(folder):
    """Rows and columns in place, many threads' chunks, and nothing between the two."""
    rng = np.random.default_rng(0)
    path = folder / "train" / CLASSES[1] / "images" / f"{CLASSES[1]}_11.JPEG"
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    with Image.open(path) as image:
        expected = np.asarray(image)
    np.testing.assert_array_equal(read(folder).train["x"][2 * TRAIN_SIZE - 1], expected)


def test_grey_images_get_three_equal_channels(folder):
    path = folder / "val" / "images" / "val_10.JPEG"
    save(path, (10, 90, 250), mode="L")
    with Image.open(path) as image:
        assert image.mode == "L"
    image = read(folder).test["x"][2]
    np.testing.assert_array_equal(image, np.repeat(image[..., :1], 3, axis=-1))


@pytest.mark.parametrize(
    "below", ["tiny-imagenet-200", "tiny_imagenet", "tiny_imagenet/tiny-imagenet-200", "."]
)
def test_found_by_name(folder, tmp_path, below):
    target = tmp_path / "data" / below
    shutil.copytree(folder, target)
    assert load("tiny_imagenet", tmp_path / "data").test["y"].tolist() == [2, 0, 1, 2]


def image_of(wnid, number):
    return f"train/{wnid}/images/{wnid}_{number}.JPEG"


def remove(name):
    return lambda folder: (folder / name).unlink()


def write(name, text):
    return lambda folder: (folder / name).write_bytes(text)


def last_class_is_short(folder):
    for number in (10, 11):
        (folder / image_of(CLASSES[2], number)).unlink()


def truncate(folder):
    path = folder / image_of(CLASSES[1], 3)
    path.write_bytes(path.read_bytes()[:400])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("wnids.txt"), r"wnids\.txt: .*expected"),
        (write("wnids.txt", b""), r"wnids\.txt: no examples"),
        (write("wnids.txt", b"n02124075\ncat\n"), r"wnids\.txt: line 2 is 'cat'"),
        (write("wnids.txt", b"n02124075\n" * 2), r"wnids\.txt: a class occurs twice"),
        (write("wnids.txt", b"\xff\xfe"), r"wnids\.txt: .*expected a text file"),
        # A class that the list lacks, and one of which there is no folder.
        (write("wnids.txt", b"n02124075\nn04067472\n"), "n01443537: not in wnids.txt"),
        (write("wnids.txt", "\n".join((*CLASSES, "n00000001")).encode()), r"n00000001_0\.JPEG is "),
        (remove(image_of(CLASSES[0], 5)), r"n02124075_5\.JPEG is missing"),
        (last_class_is_short, r"n01443537: 10 images; expected 12"),
        (lambda folder: shutil.rmtree(folder / "train"), r"n02124075_0\.JPEG is missing"),
        (remove("val/val_annotations.txt"), r"val_annotations\.txt: .*expected"),
        (write("val/val_annotations.txt", b""), r"val_annotations\.txt: no examples"),
        (write("val/val_annotations.txt", b"val_0.JPEG\tn99999999\t0\n"), "line 1 has class 'n999"),
        (write("val/val_annotations.txt", b"val_0.JPEG\n"), "line 1 has class ''"),
        (write("val/val_annotations.txt", b"val_0.JPEG\tn02124075\n" * 2), "line 2 names 'val_0.J"),
        (
            write("val/val_annotations.txt", b"../../val_0.JPEG\tn02124075\n"),
            r"line 1 names '\.\./",
        ),
        (
            write("val/val_annotations.txt", b"val_0.JPEG\tn02124075\n"),
            r"val_1\.JPEG: is not in .*val_annotations\.txt",
        ),
        (remove("val/images/val_2.JPEG"), r"val_2\.JPEG is missing"),
        (write("val/images/val_0.JPEG", b"not an image"), r"val_0\.JPEG: .*expected a JPEG"),
        (truncate, r"n04067472_3\.JPEG: .*expected a JPEG"),
        (
            lambda folder: save(folder / image_of(CLASSES[0], 2), (0, 0, 0), size=(64, 63)),
            r"n02124075_2\.JPEG: 64 wide and 63 high; expected 64 x 64",
        ),
        (
            lambda folder: Image.new("RGB", (64, 64)).save(folder / image_of(CLASSES[0], 1), "PNG"),
            r"n02124075_1\.JPEG: .*expected a JPEG",
        ),
    ],
)
def test_refuses_damaged_trees(folder, change, message):
    change(folder)
    with pytest.raises(DataError, match=message):
        from_folder(folder)


def test_files_that_are_no_images_are_passed_over(folder):
    (folder / "train" / ".DS_Store").touch()
    (folder / "val" / "images" / "Thumbs.db").touch()
    assert len(read(folder).train["y"]) == 3 * TRAIN_SIZE


def test_line_ends_of_windows(folder):
    for name in ("wnids.txt", "val/val_annotations.txt"):
        text = (folder / name).read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        (folder / name).write_bytes(text)
    assert read(folder).test["y"].tolist() == [2, 0, 1, 2]


@given(
    labels=st.dictionaries(st.integers(0, 10**6), st.integers(0, 2), min_size=1),
    separator=st.sampled_from(["\t", " ", "  "]),
)
def test_annotations_survive_writing(labels, separator):
    rows = [(f"val_{number}.JPEG", label) for number, label in labels.items()]
    text = "\n".join(separator.join((name, CLASSES[label], "0")) for name, label in rows)
    names, read_labels = parse_annotations(text.encode(), CLASSES)
    assert list(zip(names, read_labels, strict=True)) == rows
