"""Tables of token lists and authors: every token is predicted once, padding never counts."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedjax_sim as fs
from fedjax_sim.datasets import DataError, from_table, from_tokens
from fedjax_sim.objectives import cross_entropy

END = 2  # also the padding, as in GPT-2
TOKENS = [[5, 6, 7, END], [8, END], [9, 5, END], [6] * 8 + [END], [7, 8, END], [5, 5, 9, END]]
AUTHORS = ["ann", "bob", "ann", "bob", "ann", "bob"]
SPLIT = ["train", "train", "test", "train", "train", "test"]


def predicted(part):
    """The labels that count, per example."""
    return [y[y >= 0].tolist() for y in part["y"]]


@pytest.mark.parametrize("kind", ["lists", "pandas", "padded"])
def test_lists_series_and_padded_arrays(kind):
    lengths = None
    tokens = {"lists": TOKENS, "pandas": pd.DataFrame({"tokens": TOKENS})["tokens"]}.get(kind)
    if kind == "padded":
        tokens = np.full((6, 9), END)
        lengths = [len(ids) for ids in TOKENS]
        for row, ids in zip(tokens, TOKENS, strict=True):
            row[: len(ids)] = ids
    data = from_tokens(tokens, clients=AUTHORS, lengths=lengths, split=SPLIT, context=4)
    assert data.train["x"].dtype == data.train["y"].dtype == np.int32
    assert data.num_classes == 10
    # The 9 tokens of the fourth list are two windows of 4 predictions.
    assert predicted(data.train) == [[6, 7, END], [END], [6] * 4, [6] * 3 + [END], [8, END]]
    assert predicted(data.test) == [[5, END], [5, 9, END]]
    assert data.group_names == ("ann", "bob")
    assert data.train_groups.tolist() == [0, 1, 1, 1, 0]
    assert data.test_groups.tolist() == [0, 1]


def test_padding_does_not_count_in_the_loss():
    """Uniform logits over 10 ids: log 10 at each of the predicted tokens, whatever the context."""
    for context in (3, 16):
        data = from_tokens(TOKENS, clients=AUTHORS, split=SPLIT, context=context)
        objective = cross_entropy(lambda table, x: table[x], ignore=-1)
        losses = objective(np.zeros((10, 10), np.float32), data.train, None)
        # Mean over the positions that count; float32 has 7 digits.
        np.testing.assert_allclose(losses, np.log(10.0), rtol=1e-6)


def test_short_lists_are_dropped_and_counted():
    with pytest.warns(UserWarning) as log:  # noqa: PT030 all warnings are compared
        data = from_tokens(TOKENS, clients=AUTHORS, split=SPLIT, context=3, short="drop")
    assert [str(one.message) for one in log] == [
        "tokens: 3 of 6 sequences have less than 4 tokens and are left out: number 1, number 2, "
        "number 4",
        "tokens: 1 of 2 clients have no test rows: ann",
    ]
    assert predicted(data.train) == [[6, 7, END], [6] * 3, [6] * 3]


def test_a_list_without_anything_to_predict_refuses_no_others():
    tokens = [*TOKENS, [5], []]
    message = "2 of 8 sequences have less than 2 tokens and are left out: number 6, number 7"
    with pytest.warns(UserWarning, match=message):
        data = from_tokens(tokens, clients=[*AUTHORS, "bob", "bob"], split=[*SPLIT, "test", "test"])
    assert predicted(data.test) == [[5, END], [5, 9, END]]
    with (
        pytest.warns(UserWarning, match="1 of 7 sequences have less than 2"),
        pytest.warns(UserWarning, match="1 of 3 clients have no examples: eve"),
    ):
        from_tokens([*TOKENS, [5]], clients=[*AUTHORS, "eve"], split=[*SPLIT, "test"])


def test_a_fifth_of_each_authors_lists_is_for_testing():
    tokens = [[i % 7, 3] for i in range(60)]
    data = from_tokens(tokens, clients=[f"a{i % 4}" for i in range(60)])
    assert data.clients().sizes.tolist() == [12] * 4
    assert data.clients("test").sizes.tolist() == [3] * 4
    alone = from_tokens(tokens)
    assert (len(alone.train["y"]), len(alone.test["y"]), alone.group_names) == (48, 12, None)


def test_a_data_set_trains():
    data = from_tokens(TOKENS, clients=AUTHORS, split=SPLIT, context=4)
    assert isinstance(data.clients(), fs.FederatedData)
    assert fs.datasets.arrays.check_dataset(data) is data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": []}, r"tokens is \[\]; expected a list of ids per sequence"),
        ({"tokens": ["to be"]}, r"tokens\[0\] has <U5 to be; expected ids of int32"),
        ({"tokens": [[1, 2], [0.5]]}, r"tokens\[1\] has float64 \[0.5\]; expected ids"),
        ({"tokens": [[1, -1]]}, r"tokens\[0\] has the id -1; expected 0 .."),
        ({"tokens": [[1, 9]], "vocabulary_size": 9}, "has the id 9; expected 0 .. 8"),
        ({"clients": ["ann"]}, "clients has 1 entries; expected 6, one per sequence"),
        ({"split": ["dev"] * 6}, "split has dev; expected train and test"),
        ({"split": ["train"] * 6}, "has no test example"),
        ({"lengths": [5, 2, 3, 9, 3, 4]}, r"lengths\[0\] is 5; expected 0 .. 4"),
        ({"lengths": [0.5] * 6}, r"lengths is float64\[6\]; expected integers \[6\]"),
        ({"context": 0}, "context is 0"),
        ({"short": "cut"}, "short is 'cut'; expected one of pad, drop"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        from_tokens(**({"tokens": TOKENS} | arguments))


def test_a_table_with_lists_of_tokens_names_the_reader():
    columns = {"tokens": TOKENS, "label": [0, 1] * 3}
    for table in (columns, pd.DataFrame(columns)):
        with pytest.raises(DataError, match=r"column 'tokens' .*\(lists of tokens: from_tokens\)"):
            from_table(table)


def test_columns_of_pyarrow():
    table = pa.table({"tokens": TOKENS, "author": AUTHORS, "split": SPLIT})
    data = from_tokens(table["tokens"], clients=table["author"], split=table["split"], context=4)
    lists = from_tokens(TOKENS, clients=AUTHORS, split=SPLIT, context=4)
    assert data.group_names == lists.group_names
    for part, other in ((data.train, lists.train), (data.test, lists.test)):
        np.testing.assert_array_equal(part["y"], other["y"])


@pytest.mark.parametrize("value", [None, float("nan"), pd.NA])
def test_a_sequence_without_author_is_refused(value):
    with pytest.raises(DataError, match=r"clients\[1\] has no value; expected one"):
        from_tokens(TOKENS, clients=["ann", value, *AUTHORS[2:]], context=4)
    with pytest.raises(DataError, match=r"clients\[1\] has no value; expected one"):
        from_tokens(TOKENS, clients=pa.array([1, None, 1, 1, 2, 2]), context=4)
