"""Windows of texts: every character is predicted once, by the shard or the client that has it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.data.tokens import next_tokens, padded_chunks, token_windows
from fedjax_sim.datasets import Characters, DataError, from_text, from_texts, load, role_texts
from fedjax_sim.datasets.dataset import Dataset
from fedjax_sim.datasets.text import read_text

texts = st.text(st.characters(max_codepoint=0x2FF), min_size=40, max_size=120)


@given(texts, st.integers(1, 3), st.integers(1, 6))
def test_shards_are_contiguous(text, num_clients, context):
    data = from_text(text, num_clients, context=context, test_fraction=0.25)
    vocabulary = Characters.of(text)
    assert data.num_classes == len(set(text)) == vocabulary.size
    end = len(text) - round(0.25 * len(text))
    size = end // num_clients
    for shard in range(num_clients):
        rows = {key: values[data.train_groups == shard] for key, values in data.train.items()}
        own = text[shard * size : (shard + 1) * size]
        count = (size - 1) // context * context
        assert vocabulary.decode(rows["x"].reshape(-1)) == own[:count]
        assert vocabulary.decode(rows["y"].reshape(-1)) == own[1 : count + 1]
    shown = vocabulary.decode(data.test["x"].reshape(-1))
    assert text[end:].startswith(shown)
    assert len(text) - end - len(shown) in range(1, context + 1)


def test_texts_of_clients():
    data = from_texts({"b": "abcdefgh", "a": "hgfedcba"}, context=3, test_fraction=0.5)
    assert data.clients("train").client_ids == ("b", "a")
    decode = Characters("abcdefgh").decode
    assert [decode(row) for row in data.train["x"]] == ["abc", "hgf"]
    assert [decode(row) for row in data.test["y"]] == ["fgh", "cba"]
    assert data.train["x"].dtype == np.int32  # uint8 would count as pixels


def test_one_short_text_refuses_no_others():
    """Lengths 9, 3 and 8: with half for testing, 4 + 1 and 2 + 1 characters are long enough."""
    given = {"a": "abcdefghi", "b": "abc", "c": "hgfedcba"}
    with pytest.warns(UserWarning, match="texts: 1 of 3 have less than 4 characters in the") as log:
        data = from_texts(given, context=3, test_fraction=0.5)
    assert [str(one.message).split(" in the ")[1] for one in log] == [
        f"{part} part, and no {part} examples: b" for part in ("training", "test")
    ]
    assert data.clients().client_ids == ("a", "c")
    # The training part of a is its first 5 characters, and that of b its first 1: half is rounded
    # to even numbers.
    with pytest.warns(UserWarning, match="texts: 1 of 3 have less than 2 characters .*: b$"):
        padded = from_texts(given, context=3, test_fraction=0.5, short="pad")
    assert padded.clients("test").sizes.tolist() == [1, 1]
    assert padded.clients("unseen").client_ids == ("b",)
    decode = Characters("abcdefghi").decode
    assert [decode(y[y >= 0]) for y in padded.train["y"]] == ["bcd", "e", "gfe"]
    with pytest.raises(DataError, match="texts have no training part of 31 characters"):
        from_texts(given, context=30)
    with pytest.raises(ValueError, match="short is 'cut'; expected one of pad, drop"):
        from_texts(given, short="cut")


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=4), st.integers(1, 7))
def test_windows_predict_every_token_once(sequences, context):
    windows = token_windows([np.array(s, int) for s in sequences], context, pad=3)
    examples = next_tokens(windows.tokens, lengths=windows.lengths)
    for i, sequence in enumerate(sequences):
        own = windows.owners == i
        x, y = examples["x"][own], examples["y"][own]
        assert y[y >= 0].tolist() == sequence[1:]
        assert x[y >= 0].tolist() == sequence[:-1]
    whole = token_windows([np.array(s, int) for s in sequences], context, short="drop")
    full = windows.lengths == context + 1
    np.testing.assert_array_equal(whole.tokens, windows.tokens[full])


def test_padding_that_is_also_a_token():
    """Sequences end with token 2, which also fills them: the real end is a label."""
    tokens = np.array([[5, 6, 2, 2, 2], [7, 2, 8, 2, 2]])
    labels = next_tokens(tokens, lengths=np.array([3, 4]))["y"]
    assert labels.tolist() == [[6, 2, -1, -1], [2, 8, 2, -1]]
    with pytest.raises(ValueError, match="pad is 2, which is also begin or end"):
        padded_chunks([np.array([5])], 4, begin=1, end=2, pad=2)
    with pytest.raises(ValueError, match=r"sequences\[0\] has the token 0, which is pad"):
        padded_chunks([np.array([5, 0])], 4, begin=1, end=2, pad=0)
    with pytest.raises(ValueError, match="pad is 2 and lengths are given"):
        next_tokens(tokens, pad=2, lengths=np.array([3, 4]))
    with pytest.raises(ValueError, match=r"lengths are in 3 .. 6; expected 0 .. 5"):
        next_tokens(tokens, lengths=np.array([3, 6]))
    with pytest.raises(ValueError, match=r"lengths is int64\[1\]; expected integers \[2\]"):
        next_tokens(tokens, lengths=np.array([3]))


@given(st.lists(st.lists(st.integers(3, 9), max_size=12), max_size=4), st.integers(2, 7))
def test_chunks_hold_every_sequence(sequences, length):
    chunks = padded_chunks([np.array(s, int) for s in sequences], length, begin=1, end=2, pad=0)
    assert chunks.shape[1:] == (length,)
    kept = chunks[chunks != 0].tolist()
    assert kept == [token for sequence in sequences for token in (1, *sequence, 2)]
    assert len(chunks) == sum(-(-(len(sequence) + 2) // length) for sequence in sequences)
    if len(chunks):
        labels = next_tokens(chunks, pad=0)["y"]
        assert ((labels == -1) == (chunks[:, 1:] == 0)).all()


def test_messages():
    with pytest.raises(
        DataError, match=r"shard 0 has 4 characters; expected at least context \+ 1"
    ):
        from_text("abcdefgh" * 2, 3, context=6)
    with pytest.raises(DataError, match=r"test part has 2 characters"):
        from_text("abcdefgh" * 2, context=6)
    with pytest.raises(ValueError, match=r"test_fraction is 1; expected a number in \(0, 1\)"):
        from_text("abcdefgh", test_fraction=1)
    with pytest.raises(DataError, match=r"text has 'd' at position 3; expected characters of the"):
        from_text("abcdef", vocabulary=Characters("abc"))
    with pytest.raises(ValueError, match=r"text is a dict; expected a str .*from_texts"):
        from_text({"ann": "abcdefgh"})
    with pytest.raises(ValueError, match="texts is a list; expected a dict of texts by"):
        from_texts(["abcdefgh"])
    with pytest.raises(DataError, match="texts is empty"):
        from_texts({})
    with pytest.raises(ValueError, match="length is 1; expected at least 2"):
        padded_chunks([], 1, begin=1, end=2, pad=0)


def test_a_vocabulary_without_characters():
    assert Characters("").encode("").shape == (0,)
    with pytest.raises(DataError, match="text has 'a' at position 0; expected characters of"):
        Characters("").encode("a")


def test_windows_with_a_gap_are_passages():
    windows = np.full((2, 80), 4, np.uint16)  # "p"
    part = {"x": windows, "y": np.array([1, 2], np.int32)}
    data = Dataset("shakespeare", part, part, 90, np.zeros(2, int), None, ("KING",), "files")
    assert role_texts(data)["KING"] == "p" * 80 + "d\n" + "p" * 80 + "h"


@pytest.mark.slow
def test_texts_of_roles(real_data):
    """One character per example, after the 80 of the first window."""
    if not (real_data / "shakespeare").is_dir():
        pytest.skip("FEDJAX_SIM_DATA has no folder shakespeare")
    dataset = load("shakespeare", real_data)
    for part in ("train", "test"):
        roles = role_texts(dataset, part)
        examples = dataset.train if part == "train" else dataset.test
        assert sum(len(text) - 80 for text in roles.values()) == len(examples["y"])
        assert all("<unknown>" not in text for text in roles.values())
    data = from_texts(role_texts(dataset), context=80)
    assert data.clients().num_clients == len(roles)


@pytest.mark.parametrize("sequence", [np.array([2**40]), np.array([1.7])])
def test_sequences_of_other_numbers_than_ids_are_refused(sequence):
    """As int32 they would be 0 and 1."""
    with pytest.raises(ValueError, match=r"sequences\[1\] has .*; expected ids of int32"):
        padded_chunks([[], sequence], 4, begin=1, end=2, pad=0)


def test_padding_may_be_no_token_of_the_type_of_the_sequences():
    """Bytes are uint8, as which 256 would be the token 0 and -1 the token 255."""
    text = np.frombuffer(b"ab", np.uint8)
    for pad in (256, -1):
        assert token_windows([text], 3, pad=pad).tokens.tolist() == [[97, 98, pad, pad]]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: token_windows([np.array([5])], 4, pad=x), "pad"),
        (lambda x: padded_chunks([np.array([5])], 4, begin=x, end=2, pad=0), "begin"),
        (lambda x: padded_chunks([np.array([5])], 4, begin=1, end=x, pad=0), "end"),
        (lambda x: padded_chunks([np.array([5])], 4, begin=1, end=2, pad=x), "pad"),
        (lambda x: next_tokens(np.array([[5, 6]]), pad=x), "pad"),
        (lambda x: next_tokens(np.array([[5, 6]]), ignore=x), "ignore"),
    ],
)
@pytest.mark.parametrize(
    ("value", "expected"), [(2**31, "at most"), (-(2**31), "at least"), (0.5, "an integer")]
)
def test_ids_of_padding_and_marks_are_those_of_int32(call, name, value, expected):
    """As int32, 2^31 would be -2^31."""
    with pytest.raises(ValueError, match=f"{name} is {value}; expected {expected}"):
        call(value)


def test_the_mark_at_the_start_of_a_file_is_no_character(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"to be\r\n" * 100)
    assert read_text(path, context=8).class_names == ("\n", " ", "b", "e", "o", "t")


def test_half_of_a_surrogate_pair_is_a_character():
    data = from_text("ab\ud800" * 100, context=4)
    assert data.class_names == ("a", "b", "\ud800")
