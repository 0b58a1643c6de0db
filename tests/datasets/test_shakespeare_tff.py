"""TFF's task: sequences of snippets, and the same from LEAF's windows."""

import numpy as np
import pytest

from fedjax_sim.datasets import DataError, Dataset
from fedjax_sim.datasets.shakespeare import CHARACTERS, encode
from fedjax_sim.datasets.shakespeare_tff import all_positions, from_snippets

TEXTS = ["O, take his mother's thanks, ", "a widow's thanks, " * 12, "", "x" * 79, "y" * 80]


def by_position(text):
    """Lists of (token, next token) of a snippet, a position after the other; padding is 0."""
    ids = {character: 1 + i for i, character in enumerate(CHARACTERS)}
    tokens = [88, *(ids.get(character, 87) for character in text), 89]
    while len(tokens) % 81:
        tokens.append(0)
    return [
        [(tokens[i + j], tokens[i + j + 1]) for j in range(80)] for i in range(0, len(tokens), 81)
    ]


def test_snippets_become_sequences():
    data = from_snippets({"NURSE": TEXTS, "CADE": ["é~"]}, {"CADE": ["hm"], "NEW": ["a"]})
    expected = [pairs for text in [*TEXTS, "é~"] for pairs in by_position(text)]
    assert len(expected) == 1 + 3 + 1 + 1 + 2 + 1
    x, y = np.array(expected).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.train["x"], x)
    np.testing.assert_array_equal(data.train["y"], np.where(y == 0, -1, y))
    assert data.train["x"].dtype == np.int32
    assert data.group_names == ("NURSE", "CADE", "NEW")
    assert data.train_groups.tolist() == [0] * 8 + [1]
    assert data.test_groups.tolist() == [1, 2]
    assert data.clients("unseen").client_ids == ("NEW",)
    assert data.num_classes == len(data.class_names) == 90
    assert [data.class_names[i] for i in (0, 1, 86, 87, 88, 89)] == [
        "<pad>", "d", "\r", "<unknown>", "<bos>", "<eos>",
    ]  # fmt: skip


def test_windows_are_joined_to_the_text_that_they_were_cut_from():
    texts = {"NURSE": ["ab~" * 50, "c" * 100], "CADE": ["dh" * 60]}

    def windows(text):
        tokens = encode(text)
        starts = range(len(tokens) - 80)
        return np.stack([tokens[i : i + 80] for i in starts]), tokens[80:].astype(np.int32)

    parts = [windows(text) for own in texts.values() for text in own]
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    groups = np.repeat([0, 0, 1], [len(part[1]) for part in parts]).astype(np.int32)
    part = {"x": x, "y": y}
    source = Dataset("shakespeare", part, part, 90, groups, groups, tuple(texts), "files")
    data, expected = all_positions(source), from_snippets(texts, texts)
    for ours, theirs in ((data.train, expected.train), (data.test, expected.test)):
        np.testing.assert_array_equal(ours["x"], theirs["x"])
        np.testing.assert_array_equal(ours["y"], theirs["y"])
    np.testing.assert_array_equal(data.train_groups, expected.train_groups)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_snippets({"A": []}, {"A": ["a"]}), "train has no snippets"),
        (lambda: from_snippets({"A": ["a"]}, {}), "test has no snippets"),
        (
            lambda: all_positions(from_snippets({"A": ["a"]}, {"A": ["a"]})),
            "dataset is shakespeare_tff; expected load",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()
