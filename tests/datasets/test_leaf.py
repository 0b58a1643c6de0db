"""Files that LEAF's scripts write: users without samples, counts that are too large, FedProx.

The files are built here by the rules of LEAF's data/utils/split_data.py
(https://github.com/TalwalkarLab/leaf), before and after its commit 94ff90c of 2020.
"""

import json
import random

import numpy as np
import pytest

from fedjax_sim.datasets import DataError, load, read_leaf
from fedjax_sim.datasets.shakespeare import decode, parse_roles

FRACTION = 0.9
TEXT = "".join(random.Random(0).choices("abcdefgh ", k=400))


def windows(text):
    starts = range(len(text) - 80)
    return {"x": [text[i : i + 80] for i in starts], "y": [text[i + 80] for i in starts]}


def divided(user_data, fixed, text):
    """The files train and test of users, as LEAF divides their samples before or after the fix."""
    users, counts = [], {"train": [], "test": []}
    parts = {"train": {}, "test": {}}
    draw = random.Random(0)
    for user, own in user_data.items():
        size = len(own["y"])
        train = 1 if size == 2 else max(1, int(FRACTION * size))
        chosen = list(range(train)) if fixed and text else sorted(draw.sample(range(size), train))
        gap = 79 if fixed and text else 0
        rest = [i for i in range(size) if i not in chosen][gap:]
        kept = size >= 2 and (rest or not fixed)
        if kept:
            users.append(user)
            counts["train"].append(train)
            counts["test"].append(size - train)  # with the gap, after the fix
        for part, rows in (("train", chosen), ("test", rest)):
            if kept or not fixed:
                rows = rows if kept else []
                parts[part][user] = {key: [own[key][i] for i in rows] for key in "xy"}
    return {
        part: {"users": users, "num_samples": counts[part], "user_data": parts[part]}
        for part in ("train", "test")
    }


def write(folder, files, name="all_data_niid_2_keep_0_{}_9.json"):
    for part, content in files.items():
        (folder / "data" / part).mkdir(parents=True)
        (folder / "data" / part / name.format(part)).write_text(json.dumps(content))


SIZES = {"HAMLET": 3000, "MESSENGER": 81, "NURSE": 2000}  # MESSENGER has one window


def roles():
    draw = random.Random(1)
    return {role: windows("".join(draw.choices("abcd ", k=n))) for role, n in SIZES.items()}


@pytest.mark.parametrize("fixed", [False, True])
def test_shakespeare_before_and_after_the_fix(tmp_path, fixed):
    files = divided(roles(), fixed, text=True)
    assert ("MESSENGER" in files["train"]["user_data"]) == (not fixed)
    assert files["train"]["users"] == ["HAMLET", "NURSE"]
    write(tmp_path / "shakespeare", files)
    data = load("shakespeare", tmp_path, source="files")
    assert data.group_names == ("HAMLET", "NURSE")
    train, test = (data.clients(part) for part in ("train", "test"))
    for i, role in enumerate(data.group_names):
        for part, clients in (("train", train), ("test", test)):
            own = files[part]["user_data"][role]
            examples = clients.client(i)
            assert [decode(x) for x in examples["x"]] == own["x"]
            assert decode(examples["y"]) == "".join(own["y"])
    # 2,920 and 1,920 windows: 9 of 10 are for training, and 79 of the others are left out.
    assert train.sizes.tolist() == [2628, 1728]
    assert test.sizes.tolist() == [292 - 79 * fixed, 192 - 79 * fixed]


@pytest.mark.parametrize(
    ("part", "counts", "accepted"),
    [
        ("test", [213 + 79, 113 + 79], True),
        ("test", [213, 113], True),
        ("test", [213 + 79, 113], False),  # LEAF counts the gap of all roles or of none
        ("test", [213 + 78, 113 + 78], False),
        ("train", [213 + 79, 113 + 79], False),
    ],
)
def test_counts_of_the_test_part_may_be_79_too_large(part, counts, accepted):
    file = divided(roles(), True, text=True)["test"]
    text = json.dumps({**file, "num_samples": counts}).encode()
    if accepted:
        assert list(parse_roles(text, split=part)) == ["HAMLET", "NURSE"]
    else:
        with pytest.raises(DataError, match=r"(HAMLET has 213|NURSE has 113) samples; num_samples"):
            parse_roles(text, split=part)


def images(sizes):
    stream = np.random.default_rng(0)
    return {
        user: {
            "x": (stream.integers(0, 256, (n, 784)) / 255).tolist(),
            "y": stream.integers(0, 62, n).tolist(),
        }
        for user, n in sizes.items()
    }


@pytest.mark.parametrize("fixed", [False, True])
def test_femnist_writers_with_one_image(tmp_path, fixed):
    data = images({"f0": 12, "f1": 1, "f2": 2})
    write(tmp_path / "femnist", divided(data, fixed, text=False))
    dataset = load("femnist", tmp_path, source="files")
    assert dataset.group_names == ("f0", "f2")
    assert dataset.clients().sizes.tolist() == [10, 1]
    assert dataset.clients("test").sizes.tolist() == [2, 1]


def test_femnist_writers_without_images_are_named(tmp_path):
    """LEAF's IID sampling may give a user in ``users`` no sample."""
    files = divided(images({"f0": 4, "f2": 4}), True, text=False)
    for content in files.values():
        content["users"] = ["f0", "f1", "f2"]
        content["num_samples"].insert(1, 0)
        content["user_data"]["f1"] = {"x": [], "y": []}
    write(tmp_path / "femnist", files)
    with pytest.warns(UserWarning, match="data: 1 of 3 users have no samples: f1$"):
        dataset = load("femnist", tmp_path, source="files")
    assert dataset.clients().client_ids == ("f0", "f2")


def test_samples_of_a_user_that_users_does_not_list_are_refused(tmp_path):
    files = divided(images({"f0": 4, "f2": 4}), True, text=False)
    files["train"]["users"].remove("f2")
    files["train"]["num_samples"].pop()
    write(tmp_path / "femnist", files)
    with pytest.raises(DataError, match="'f2' has samples and is not in users"):
        load("femnist", tmp_path, source="files")


def test_files_without_users_are_passed_over(tmp_path):
    """LEAF writes a file even if all writers of it were too small."""
    files = divided(images({"f0": 4, "f2": 4}), True, text=False)
    write(tmp_path / "femnist", files)
    for part in files:
        empty = {"users": [], "num_samples": [], "user_data": {}}
        (tmp_path / "femnist" / "data" / part / "all_data_1.json").write_text(json.dumps(empty))
    assert load("femnist", tmp_path, source="files").group_names == ("f0", "f2")


def vectors():
    """FedProx's synthetic data: 60 numbers, labels 0.0 .. 9.0 as floats."""
    stream = np.random.default_rng(0)
    return {
        f"f_{i:05d}": {
            "x": stream.normal(size=(20, 3)).tolist(),
            "y": stream.permutation(np.arange(20) % 10).astype(float).tolist(),
        }
        for i in range(4)
    }


@pytest.mark.parametrize("below", ["", "synthetic_1_1"])
def test_synthetic_data_of_fedprox(tmp_path, below):
    files = divided(vectors(), True, text=False)
    write(tmp_path / below, files, "my{}.json")
    data = read_leaf(tmp_path / below, name="synthetic")
    assert (data.name, data.num_classes, data.train["x"].dtype) == ("synthetic", 10, np.float32)
    assert data.class_names == tuple(map(str, range(10)))
    for part, sizes in (("train", [18] * 4), ("test", [2] * 4)):
        clients = data.clients(part)
        assert clients.client_ids == tuple(vectors())
        assert clients.sizes.tolist() == sizes
        for i, own in enumerate(files[part]["user_data"].values()):
            np.testing.assert_array_equal(clients.client(i)["x"], np.float32(own["x"]))
            assert clients.client(i)["y"].tolist() == own["y"]


def test_a_file_before_leaf_divides_it(tmp_path):
    users = vectors()
    content = {"users": [*users], "num_samples": [20] * 4, "user_data": users}
    (tmp_path / "data.json").write_text(json.dumps(content))
    data = read_leaf(tmp_path / "data.json")
    assert data.clients().sizes.tolist() == [16] * 4
    assert data.clients("test").sizes.tolist() == [4] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": ["a" * 80] * 20}, r"f_00001: x has <U80\[20\]; expected vectors of numbers"),
        ({"x": [[1.0], [1.0, 2.0]]}, "f_00001: x or y is ragged"),
        ({"x": [[1.0]]}, r"f_00001: y has \[20\] entries; expected 1"),
        ({"x": [[1.0, 2.0]] * 20}, "users have samples of several shapes"),
        ({"y": [0] * 19 + [{"c": 1}]}, r"f_00001: y\[19\] is {'c': 1}; expected a number of 64"),
        ({"y": [0, None] * 10}, r"f_00001: y\[1\] is None; expected a number of 64"),
        ({"y": [0, 10**30] * 10}, r"f_00001: y\[1\] is 10{30}; expected a number of 64"),
    ],
)
def test_other_examples_are_refused(tmp_path, change, message):
    users = vectors()
    users["f_00001"] |= change
    content = {"users": [*users], "num_samples": [20] * 4, "user_data": users}
    (tmp_path / "data.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        read_leaf(tmp_path / "data.json")


@pytest.mark.parametrize("copy", ["old", "train", "old/data"])
def test_a_copy_below_is_no_second_part_of_the_data(tmp_path, copy):
    """Its users would train and be tested beside the others."""
    write(tmp_path, divided(vectors(), True, text=False))
    users = {f"old_{name}": own for name, own in vectors().items()}
    content = {"users": [*users], "num_samples": [20] * 4, "user_data": users}
    place = tmp_path / "data" / copy / "train"
    place.mkdir(parents=True)
    (place / "all.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"have folders train or test; expected one data set"):
        read_leaf(tmp_path)


def test_no_files(tmp_path):
    with pytest.raises(DataError, match="has no data of LEAF; expected a json file, or a folder"):
        read_leaf(tmp_path)
