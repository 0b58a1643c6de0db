import io
import json
import tarfile

import numpy as np
import pytest

from fedjax_sim.datasets import DataError, drop_duplicates, load
from fedjax_sim.datasets.leaf import parse_leaf


def content(sizes, seed=0):
    """LEAF's json of writers with so many images, and the uint8 images."""
    rng = np.random.default_rng(seed)
    images = {user: rng.integers(0, 256, (n, 784), dtype=np.uint8) for user, n in sizes.items()}
    user_data = {
        user: {"x": (x / 255).tolist(), "y": rng.integers(0, 62, len(x)).tolist()}
        for user, x in images.items()
    }
    file = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": user_data}
    return file, images


def test_reads_images_and_labels_by_writer():
    file, images = content({"bob": 3, "ann": 1})
    users = parse_leaf(json.dumps(file).encode())
    assert list(users) == ["bob", "ann"]
    for user, (x, y) in users.items():
        # Exact: a level over 255 in double precision is nearest to its own level.
        np.testing.assert_array_equal(x, images[user].reshape(-1, 28, 28, 1))
        assert x.dtype == np.uint8
        assert y.tolist() == file["user_data"][user]["y"]
        assert y.dtype == np.int32


def refused(change):
    file, _ = content({"bob": 2, "ann": 1})
    change(file)
    return json.dumps(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected LEAF json"),
        ("[" * 100_000, "expected LEAF json"),
        ("[]", "no 'users'"),
        ('{"users": {}, "num_samples": [], "user_data": {}}', "expected lists"),
        ('{"users": [], "users": []}', "twice"),
        (refused(lambda f: f.pop("num_samples")), "no 'num_samples'"),
        (refused(lambda f: f["num_samples"].pop()), "lengths"),
        (refused(lambda f: f["users"].pop()), "lengths"),
        (refused(lambda f: f.update(users=["bob"] * 2, num_samples=[2, 2])), "occurs twice"),
        (refused(lambda f: f["users"].__setitem__(1, "eve")), "no 'eve'"),
        (refused(lambda f: f["users"].__setitem__(1, 7)), "user 7"),
        (refused(lambda f: f["users"].__setitem__(1, " ann")), "printable"),
        (refused(lambda f: f["num_samples"].__setitem__(0, 3)), "2 samples; num_samples says 3"),
        (refused(lambda f: f["user_data"]["bob"].pop("y")), "no 'y'"),
        (refused(lambda f: f["user_data"]["bob"]["y"].pop()), "lengths"),
        (refused(lambda f: f["user_data"]["bob"]["y"].__setitem__(0, 62)), r"expected 0 \.\. 61"),
        (refused(lambda f: f["user_data"]["bob"]["y"].__setitem__(0, "a")), "integers"),
        (refused(lambda f: f["user_data"]["bob"]["y"].__setitem__(0, 1.5)), "integers"),
        (refused(lambda f: f["user_data"]["bob"].update(x=[])), "expected lists of 784"),
        (refused(lambda f: f["user_data"]["bob"].update(x=[], y=[])), "num_samples says 2"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].pop()), "784"),
        (refused(lambda f: f["user_data"]["bob"].update(x=3)), "784"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, "1")), "784"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, 10**400)), "784"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, 1.1)), "outside"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, -0.1)), "outside"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, 0.5)), "grey levels"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, float("nan"))), "NaN"),
        (refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, float("inf"))), "Infin"),
        (
            refused(lambda f: f["user_data"]["bob"]["x"][0].__setitem__(0, 2.5)).replace(
                "2.5", "1e999"
            ),
            "outside",
        ),
    ],
)
def test_refuses(text, message):
    with pytest.raises(DataError, match=rf"(?s)^file: .*({message})"):
        parse_leaf(text.encode(), "file")


def write_parts(folder, train, test):
    for split, files in (("train", train), ("test", test)):
        (folder / split).mkdir(parents=True)
        for i, sizes in files.items():
            text = json.dumps(content(sizes, seed=i)[0])
            (folder / split / f"all_data_{i}_niid_0_keep_0_{split}_9.json").write_text(text)


TRAIN, TEST = {2: {"bob": 2}, 10: {"ann": 1}}, {2: {"bob": 1}, 3: {"new": 2}}


@pytest.mark.parametrize("below", ["", "data"])
def test_folder_of_parts(tmp_path, below):
    write_parts(tmp_path / "femnist" / below, TRAIN, TEST)
    data = load("femnist", tmp_path)
    # all_data_2 comes before all_data_10; writers of the test part only come last.
    assert data.group_names == ("bob", "ann", "new")
    assert data.train_groups.tolist() == [0, 0, 1]
    assert data.test_groups.tolist() == [0, 2, 2]
    assert data.train["x"].shape == (3, 28, 28, 1)
    images = content(TRAIN[10], seed=10)[1]["ann"]
    np.testing.assert_array_equal(data.train["x"][2], images[0].reshape(28, 28, 1))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_archive_of_parts(tmp_path, suffix):
    write_parts(tmp_path / "unpacked", TRAIN, TEST)
    with tarfile.open(tmp_path / f"femnist-leaf.tar{suffix}", f"w:{suffix[1:]}") as tar:
        tar.add(tmp_path / "unpacked", "data")
    data = load("femnist", tmp_path)
    assert data.group_names == ("bob", "ann", "new")
    assert data.test["y"].shape == (3,)


def test_refuses_incomplete_and_repeated_parts(tmp_path):
    write_parts(tmp_path / "a" / "femnist", TRAIN, {})
    with pytest.raises(DataError, match=r"no samples in test/\*\.json"):
        load("femnist", tmp_path / "a")
    write_parts(tmp_path / "b" / "femnist", TRAIN | {11: {"bob": 1}}, TEST)
    with pytest.raises(DataError, match="'bob' is in an earlier file"):
        load("femnist", tmp_path / "b")


def test_duplicates_are_dropped_within_a_writer_only(tmp_path):
    file, _ = content({"bob": 3, "ann": 1})
    bob, ann = (file["user_data"][user] for user in ("bob", "ann"))
    bob["x"][2], bob["y"][2] = bob["x"][0], bob["y"][0]
    ann["x"][0], ann["y"][0] = bob["x"][0], bob["y"][0]
    for split in ("train", "test"):
        (tmp_path / "femnist" / split).mkdir(parents=True)
        (tmp_path / "femnist" / split / "all_data_0.json").write_text(json.dumps(file))
    data = load("femnist", tmp_path)
    distinct = load("femnist", tmp_path, deduplicate=True)
    assert distinct.train_groups.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(distinct.train["x"], data.train["x"][[0, 1, 3]])
    np.testing.assert_array_equal(distinct.test["x"], data.test["x"])
    # Equal images with different labels are different rows.
    data.train["y"][2] = (data.train["y"][0] + 1) % 62
    assert len(drop_duplicates(data).train["y"]) == 4


def test_other_json_files_of_an_archive_are_passed_over(tmp_path):
    write_parts(tmp_path / "unpacked", TRAIN, TEST)
    with tarfile.open(tmp_path / "femnist.tar", "w") as tar:
        tar.add(tmp_path / "unpacked", "data")
        info = tarfile.TarInfo("data/meta/writers.json")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"???"))
    assert load("femnist", tmp_path).num_classes == 62
