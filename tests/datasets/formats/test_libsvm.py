"""LIBSVM text: rows, damage and bad input."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.datasets import DataError, linear
from fedjax_sim.datasets.linear import parse_libsvm

TEXT = b"-1 1:0.25 3:-2e-1 \n+1 2:1\n1\n-1.0 3:.5\n"


def test_reads_rows_features_and_labels():
    x, y = parse_libsvm([TEXT], 4)
    # float32 of the decimal numbers written above.
    expected = [[0.25, 0, -0.2, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0]]
    np.testing.assert_array_equal(x, np.array(expected, np.float32))
    assert y.tolist() == [0, 1, 1, 0]
    assert (x.dtype, y.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_pieces_do_not_matter(size, monkeypatch):
    monkeypatch.setattr(linear, "_BLOCK", 5)
    pieces = [TEXT[i : i + size] for i in range(0, len(TEXT), size)]
    x, y = parse_libsvm(pieces, 4)
    whole, labels = parse_libsvm([TEXT], 4)
    np.testing.assert_array_equal(x, whole)
    np.testing.assert_array_equal(y, labels)


def test_windows_line_ends():
    x, _ = parse_libsvm([TEXT.replace(b"\n", b"\r\n")], 4)
    np.testing.assert_array_equal(x, parse_libsvm([TEXT], 4)[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no example"),
        (b"+1 1:1", "does not end"),
        (b"\n", "empty line"),
        (b"+1 1:1\n\n+1 1:1\n", "empty line"),
        (b"+1 1:1\n \n", "empty line"),
        (b"1:1\n", "of the form"),
        (b"+1 1\n", "of the form"),
        (b"+1 1: 1\n", "of the form"),
        (b"+1 1 :1\n", "of the form"),
        (b"+1 1::1\n", "of the form"),
        (b"+1 1:1:1\n", "of the form"),
        (b"+1 :1 1\n", "of the form"),
        (b"+1 1:1" + b"0" * 50 + b"\n", "beyond float32"),
        (b"+1 1:1 # comment\n", "'#'"),
        (b"+1 qid:1 1:1\n", "'q'"),
        (b"+1 1:1_0\n", "'_'"),
        (b"+1 1:nan\n", "'n'"),
        (b"+1 1:inf\n", "'i'"),
        (b"+1 1:1\r2:1\n", r"'\\r'"),
        (b"+1\t1:1\n", "expected finite numbers"),
        (b"+1 1:1e999\n", "beyond float32"),
        (b"+1 1:1e39\n", "beyond float32"),
        (b"+1 1:1-2\n", "convert string to float"),
        (b"+1 1:e\n", "convert string to float"),
        (b"+1 1.0:1\n", "invalid literal for int"),
        (b"+1 99999999999999999999:1\n", "too large"),
        (b"+1 0:1\n", r"Invalid index 0 .* 1 \.\. 4"),
        (b"+1 -1:1\n", r"Invalid index -1 .* 1 \.\. 4"),
        (b"+1 5:1\n", r"contains 5 features; .* 1 \.\. 4"),
        (b"+1 2:1 1:1\n", "ascending"),
        (b"+1 2:1 2:1\n", "ascending"),
        (b"0 1:1\n", r"label 0\.0"),
        (b"2 1:1\n", r"label 2\.0"),
    ],
)
def test_refuses(text, message):
    with pytest.raises(DataError, match=rf"^file.*{message}"):
        parse_libsvm([text], 4, "file")


def test_refuses_rows_and_lines_without_end(monkeypatch):
    """Before their dense rows, or the pieces of the line, fill the memory."""
    with pytest.raises(DataError, match="more than 2 rows; expected at most 2"):
        parse_libsvm([b"+1 1:1\n"] * 3, 4, max_rows=2)
    assert len(parse_libsvm([b"+1 1:1\n"] * 3, 4, max_rows=3)[1]) == 3
    monkeypatch.setattr(linear, "_BLOCK", 100)
    blocks = iter([b"+1 1:1\n", *[bytes(100)] * 50])
    with pytest.raises(DataError, match=r"has a line of .* bytes; expected at most 410"):
        parse_libsvm(blocks, 4)
    assert len(list(blocks)) > 40  # not read


rows = st.lists(
    st.tuples(
        st.sampled_from([-1, 1]),
        st.dictionaries(st.integers(1, 9), st.floats(-(2.0**99), 2.0**99, width=32), max_size=9),
    ),
    min_size=1,
    max_size=8,
)


@given(rows)
def test_whatever_is_written_is_read(rows):
    lines = [
        " ".join([f"{label:+d}", *(f"{i}:{value!r}" for i, value in sorted(features.items()))])
        for label, features in rows
    ]
    x, y = parse_libsvm(["\n".join([*lines, ""]).encode()], 9)
    expected = np.zeros((len(rows), 9), np.float32)
    for row, (_, features) in enumerate(rows):
        for index, value in features.items():
            expected[row, index - 1] = value
    # Exact: repr prints as many digits as distinguish the number.
    np.testing.assert_array_equal(x, expected)
    assert y.tolist() == [int(label > 0) for label, _ in rows]


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"sklearn\.datasets .*'\.\[datasets\]'"):
        parse_libsvm([TEXT], 4)
