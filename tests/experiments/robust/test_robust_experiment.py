"""The experiment on robust rules: tables and claims by hand, conditions, a short run."""

import itertools
import types

import numpy as np
import pandas as pd
import pytest

from experiments.robust import mnist, problem, report
from experiments.robust.redraw import redraw


def table(keep=lambda rule, split: 0.9):
    """Accuracies of 0.9 without attackers, times the share that a rule keeps under ALIE."""
    rows = [
        (attack, 5, split, rule, seed, 0.9 * (1 if attack == "none" else keep(rule, split)))
        for attack, split, rule, seed in itertools.product(
            ("none", "ALIE"), problem.SPLITS, problem.RULES, (0, 1)
        )
    ]
    columns = ["attack", "attackers", "split", "rule", "seed", "accuracy"]
    return pd.DataFrame(rows, columns=columns)


def published(rule, split):
    """Mixing repairs what heterogeneity breaks."""
    return 0.95 if split == "IID" or rule.startswith("NNM") else 0.4


def test_claims_of_the_published_picture():
    holds = [claim.holds for claim in report.claims(table(published))]
    assert holds == [True] * 4
    nothing = [claim.holds for claim in report.claims(table(lambda rule, split: 0.8))]
    assert nothing == [False] * 4
    assert report.claims(table().query("split == 'IID'")) == []


def test_the_worst_attack_counts():
    least = report.worst(table(published))
    assert least.index.tolist() == list(problem.RULES)
    np.testing.assert_allclose(least[("IID", 5)], 0.9 * 0.95)
    np.testing.assert_allclose(least.loc["Krum", ("two labels", 5)], 0.9 * 0.4)


def test_final_accuracies():
    rows = [(1, "accuracy", 0.2), (2, "accuracy", 0.5), (2, "loss", 9.0)]
    frame = pd.DataFrame(rows, columns=["round", "metric", "value"])
    frame = frame.assign(attack="none", attackers=2, split="IID", rule="mean", seed=0)
    assert report.final_accuracies(frame)["accuracy"].tolist() == [0.5]
    assert report.final_accuracies(frame.assign(value=np.nan))["accuracy"].tolist() == [0.0]


@pytest.mark.parametrize("attackers", [2, 5])
def test_all_rules_fit_the_clients(attackers):
    """Conditions of the rules with buckets, too."""
    for rule in problem.RULES.values():
        assert rule(attackers).smallest <= problem.CLIENTS
        assert rule(attackers).f in (attackers, None)
    with pytest.raises(ValueError, match="attackers is 6; expected at most 5"):
        mnist.Options(attackers=(6,))


def test_examples_have_to_be_enough_for_the_shards():
    with pytest.raises(ValueError, match="examples is 49; expected at least 50"):
        mnist.Options(examples=49)
    with pytest.raises(ValueError, match="test_examples is 0; expected at least 1"):
        mnist.Options(test_examples=0)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_without_optimizations")
def test_a_short_run_is_kept_and_redrawn(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = {"x": rng.random((500, 2, 2), np.float32), "y": np.arange(500) % 10}
    made_up = types.SimpleNamespace(train=images, test=images)
    monkeypatch.setattr(mnist.datasets, "load", lambda *names, **options: made_up)
    monkeypatch.setattr(mnist, "RULES", {"mean": None, "NNM, median": None})
    options = mnist.Options(
        attacks=("label flip",), attackers=(5,), rounds=2, seeds=1,
        work=tmp_path / "work", output=tmp_path,
    )  # fmt: skip
    mnist.main(options)
    folder = tmp_path / "robust" / "mnist"
    assert {path.name for path in folder.iterdir()} == {
        "mnist.csv", "mnist.json", "mnist.md", "mnist-label-flip.png",
    }  # fmt: skip
    kept = pd.read_csv(folder / "mnist.csv")
    assert len(kept) == 2 * 2
    text = (folder / "mnist.md").read_text()
    redraw(folder.parent)
    assert (folder / "mnist.md").read_text() == text
