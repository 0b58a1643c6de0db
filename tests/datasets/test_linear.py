"""a9a and epsilon from folders with LIBSVM files."""

import bz2

import pytest

from fedjax_sim.datasets import DataError, load


def test_samples_of_epsilon_are_found_by_name(tmp_path):
    line = b"-1 " + b" ".join(b"%d:0.5" % i for i in range(1, 2001)) + b"\n"
    (tmp_path / "epsilon").mkdir()
    (tmp_path / "epsilon" / "epsilon_normalized.2rows.bz2").write_bytes(bz2.compress(2 * line))
    with pytest.raises(DataError, match=r"epsilon_normalized\.t is missing"):
        load("epsilon", tmp_path)
    (tmp_path / "epsilon" / "epsilon_normalized.t.1rows").write_bytes(line.replace(b"-1", b"1"))
    data = load("epsilon", tmp_path)
    assert data.train["x"].shape == (2, 2000)
    assert data.train["y"].tolist() == [0, 0]
    assert data.test["y"].tolist() == [1]


def test_a9a_with_lines_lost_is_refused(tmp_path):
    for name in ("a9a", "a9a.t"):
        (tmp_path / name).write_bytes(b"-1 3:1 11:1 \n")
    with pytest.raises(DataError, match="1 rows; expected 32561"):
        load("a9a", tmp_path)
