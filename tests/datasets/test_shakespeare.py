"""LEAF's Shakespeare: windows of characters by role, from both layouts of files."""

import json

import numpy as np
import pytest

from fedjax_sim.datasets import DataError, load
from fedjax_sim.datasets.shakespeare import (
    BEGIN,
    CHARACTERS,
    LEAF_CHARACTERS,
    UNKNOWN,
    decode,
    encode,
    encode_leaf,
    parse_roles,
)

TEXT = "O, take his mother's thanks, a widow's thanks, Till your strong hand shall help to give him"


def samples(text):
    """The windows of a role's text."""
    starts = range(len(text) - 80)
    return {"x": [text[i : i + 80] for i in starts], "y": [text[i + 80] for i in starts]}


def test_vocabulary():
    """86 characters, each once, between padding and the begin of a sequence."""
    assert len(set(CHARACTERS)) == len(CHARACTERS) == BEGIN - 1
    assert encode(CHARACTERS).tolist() == list(range(1, BEGIN))
    assert encode("~é\x7f\U0001f600").tolist() == [UNKNOWN] * 4


@pytest.mark.parametrize("layout", ["leaf", "roles"])
def test_windows_and_next_characters_by_role(tmp_path, layout):
    texts = {"train": {"CADE": TEXT, "NURSE": TEXT[5:]}, "test": {"NURSE": TEXT[2:]}}
    for split, roles in texts.items():
        parts = {role: samples(text) for role, text in roles.items()}
        if layout == "leaf":
            (tmp_path / "shakespeare" / split).mkdir(parents=True)
            files = {f"{split}/all_data_0.json": {"users": list(parts), "user_data": parts}}
        else:
            (tmp_path / "shakespeare").mkdir(exist_ok=True)
            files = {
                f"{i}_{split}.json": {"character": role, "num_samples": len(part["y"]), **part}
                for i, (role, part) in enumerate(parts.items())
            }
        for name, content in files.items():
            (tmp_path / "shakespeare" / name).write_text(json.dumps(content))
    data = load("shakespeare", tmp_path, source="files")
    assert data.group_names == ("CADE", "NURSE")
    assert data.train["x"].dtype == np.uint16  # uint8 would count as pixels
    nurse = data.train_groups == 1
    assert [decode(x) for x in data.train["x"][nurse]] == samples(TEXT[5:])["x"]
    assert [decode([y]) for y in data.train["y"][nurse]] == samples(TEXT[5:])["y"]
    assert set(data.test_groups) == {1}
    assert data.class_names[encode("a")[0]] == "a"
    assert data.num_classes == len(data.class_names) == 90


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected an object user_data, or character, x and y"),
        ({"character": "NURSE", "x": ["short"], "y": ["a"]}, "x is no list of texts of length 80"),
        ({"user_data": {"NURSE": samples(TEXT) | {"y": ["a"]}}}, "lengths are {'x': 11, 'y': 1}"),
    ],
)
def test_malformed_files(content, message):
    with pytest.raises(DataError, match=message):
        parse_roles(json.dumps(content).encode())


def test_the_vocabulary_of_leaf(tmp_path):
    assert len(set(LEAF_CHARACTERS)) == len(LEAF_CHARACTERS) == 80
    assert encode_leaf(LEAF_CHARACTERS).tolist() == list(range(80))
    with pytest.raises(DataError, match="character 'é'; expected one of LEAF's 80"):
        encode_leaf("née")
    for split in ("train", "test"):
        content = {"character": "NURSE", **samples(TEXT)}
        (tmp_path / f"0_{split}.json").write_text(json.dumps(content))
    data = load("shakespeare_leaf", tmp_path, source="files")
    windows = samples(TEXT)
    assert ["".join(data.class_names[i] for i in x) for x in data.train["x"]] == windows["x"]
    assert [data.class_names[y] for y in data.train["y"]] == windows["y"]
    assert (data.name, data.num_classes, data.group_names) == ("shakespeare_leaf", 80, ("NURSE",))
    windows["y"][0] = "#"  # of TFF's vocabulary, not of LEAF's
    (tmp_path / "0_train.json").write_text(json.dumps({"character": "NURSE", **windows}))
    with pytest.raises(DataError, match=r"0_train\.json: NURSE: y has character '#'"):
        load("shakespeare_leaf", tmp_path, source="files")


def test_roles_that_a_file_would_lose_are_refused():
    """json keeps the last of two equal names."""
    part = json.dumps(samples(TEXT))
    with pytest.raises(DataError, match=r"f\.json: has a name twice"):
        parse_roles(f'{{"user_data": {{"CADE": {part}, "CADE": {part}}}}}'.encode(), "f.json")
    count = len(samples(TEXT)["y"])
    for users, sizes, message in [
        (["CADE", "NURSE"], [count, 1], "f.json: has no 'NURSE'; expected users"),
        (["CADE"], [count + 1], "f.json: CADE has 11 samples; num_samples says 12"),
    ]:
        file = {"users": users, "num_samples": sizes, "user_data": {"CADE": samples(TEXT)}}
        with pytest.raises(DataError, match=message):
            parse_roles(json.dumps(file).encode(), "f.json")
    file = {"users": ["CADE"], "num_samples": [count], "user_data": {"CADE": samples(TEXT)}}
    assert len(parse_roles(json.dumps(file).encode())["CADE"][1]) == count


def test_half_of_a_surrogate_pair_is_an_unknown_character():
    assert encode("a\ud800").tolist() == [encode("a")[0], UNKNOWN]
    with pytest.raises(DataError, match=r"character '.ud800'; expected one of LEAF's 80"):
        encode_leaf("\ud800")
