"""Values of faulty clients: clients of every kind, scores by hand, and a short run."""

import numpy as np
import pandas as pd
import pytest

from experiments.valuation import digits, methods, problem, report
from experiments.valuation.redraw import redraw


def test_faulty_clients():
    kinds = problem.kinds_of(honest=1, pairs=2, mislabelled=1, riders=1)
    assert len(kinds) == 7
    assert problem.num_parts(kinds) == 5
    parts = [{"x": np.full((20, 1), i), "y": np.full(20, i)} for i in range(5)]
    clients = problem.spoiled(parts, kinds, 10, 0.6, np.random.default_rng(0))
    assert [int(client["x"][0, 0]) for client in clients] == [0, 1, 1, 2, 2, 3, 4]
    wrong = [int((client["y"] != client["x"][:, 0]).sum()) for client in clients]
    assert wrong == [0, 0, 0, 0, 0, 12, 0]
    assert (parts[3]["y"] == 3).all()  # a copy was changed


def frame():
    """Two methods, one seed: the second one takes the free rider for an honest client."""
    kinds = ("honest", "honest", "duplicated", "duplicated", "mislabelled", "free rider")
    values = {methods.EXACT: [3, 2, 2, 1, -1, 0], "cheap": [3, 1, 2, 1, -1, 2]}
    return pd.concat(
        pd.DataFrame({
            "method": name, "client": range(6), "value": value, "standard_error": 0.0, "seed": 0,
            "kind": kinds, "runs": runs, "evaluations": 0,
        })
        for (name, value), runs in zip(values.items(), (63, 7), strict=True)
    )  # fmt: skip


def test_scores():
    table = report.scores(frame()).set_index("method")
    assert table["AUC mislabelled"].tolist() == [1, 1]
    assert table["AUC free rider"].tolist() == [1, 0.5]
    assert table.loc[methods.EXACT, "AUC duplicated"] == pytest.approx(3.5 / 4)
    assert table["precision"].tolist() == [1, 0.5]
    np.testing.assert_allclose(table["deviation"], [0, np.sqrt(5 / 19)])
    assert table["runs"].tolist() == [63, 7]
    assert report.reference_of(frame()) == methods.EXACT
    names = pd.DataFrame({"method": ["4 permutations", "64 permutations", "strata"]})
    assert report.reference_of(names) == "64 permutations"


@pytest.mark.slow
def test_a_short_run_is_kept_and_redrawn(tmp_path, monkeypatch):
    """Five clients, one round, no method that differentiates or sums over rounds."""
    monkeypatch.setattr(digits, "KINDS", problem.kinds_of(1, 1, 1, 1))
    every = methods.methods

    def few(*arguments, **options):
        names = (methods.EXACT, "leave-one-out", "2 permutations")
        return {name: every(*arguments, **options)[name] for name in names}

    monkeypatch.setattr(methods, "methods", few)
    options = digits.Options(
        rounds=1, seeds=1, permutations=(2,), work=tmp_path / "work", output=tmp_path
    )
    digits.main(options)
    folder = tmp_path / "valuation"
    text = (folder / "digits" / "digits.md").read_text()
    assert "| exact Shapley | 31 |" in text
    assert (folder / "digits" / "digits.png").exists()
    assert (tmp_path / "work" / "digits" / "0.3" / "0" / "coalitions.npz").exists()
    redraw(folder)
    assert (folder / "digits" / "digits.md").read_text() == text


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"false_labels is 2.0; expected at most 1"):
        digits.Options(false_labels=2.0)
    with pytest.raises(ValueError, match=r"permutations is \(\); expected positive numbers"):
        digits.Options(permutations=())
