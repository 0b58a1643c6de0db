"""Federated LASSO and low-rank estimation: settings, problems, tiny runs with their files."""

import dataclasses
import json
import math

import jax
import numpy as np
import pandas as pd
import pytest
from kept_runs import identities

from experiments.fco import methods, recovery
from experiments.fco.lasso import LASSO, REFERENCES
from experiments.fco.lowrank import LOW_RANK
from experiments.fco.recovery import DataSet, Options
from experiments.fco.recovery_report import conduct, redraw


def rounded(*args, **options):
    """Integer data, whose sums are exact on every machine."""
    problem = LASSO.generate(*args, **options)

    def exact(data):
        x = np.round(data.examples["x"])
        return dataclasses.replace(data, examples={"x": x, "y": np.sign(x[:, 0])})

    return problem._replace(train=exact(problem.train), test=exact(problem.test))


TINY = LASSO._replace(sets={"I": DataSet(3, 8, 4, 23)})
TINY_RANK = LOW_RANK._replace(sets={"I": DataSet(1, 3, 4, 23)})


@pytest.fixture(scope="module")
def tiny():
    return recovery.make_problem(TINY, "I", Options(rounds=5))


def test_settings_are_the_papers():
    assert len(methods.LRS) * len(methods.SERVER_LRS) == 49
    for experiment in (LASSO, LOW_RANK):
        assert [s.clients * s.examples for s in experiment.sets.values()] == [8192] * 4
        for name, references in experiment.references.items():
            assert name in experiment.sets
            assert {r.method for r in references} <= set(methods.METHODS)
            assert {r.metric for r in references} <= set(experiment.shown)


def test_lambda_falls_with_the_features_unless_it_is_given():
    assert LASSO.penalty_weight(Options()) == 0.2
    assert LOW_RANK.penalty_weight(Options(feature_scale=0.5)) == pytest.approx(0.15)
    given = Options(weight=0.1, feature_scale=0.5)
    assert LASSO.penalty_weight(given) == 0.1
    assert given.variant() == "-lambda0.1-scale0.5"
    assert Options().variant() == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "ones"}, "start is 'ones'; expected"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"methods": ("FedAvg",)}, r"methods is \('FedAvg',\); expected some of FedDualAvg"),
        ({"lrs": (0.1, 0.0)}, "lrs is"),
        ({"server_lrs": ()}, r"server_lrs is \(\); expected positive"),
        ({"sets": ("V",)}, r"sets is \('V',\); expected some of I, II"),
        ({"rounds": 0}, "rounds is 0; expected at least 1"),
        ({"weight": -1.0}, "lambda is -1.0; expected at least 0"),
    ],
)
def test_bad_options_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        Options(**changes)


@pytest.mark.slow
def test_only_the_weights_are_regularised(tiny):
    shared = tiny.shared
    params = {"weight": jax.numpy.ones(8), "bias": jax.numpy.ones(())}
    shrunk = shared.composite.argmin(params, 2.0)
    np.testing.assert_allclose(shrunk["weight"], 0.6, rtol=1e-6)
    assert float(shrunk["bias"]) == 1
    measured = tiny.measured(params)
    x, y = tiny.data.train.examples["x"], tiny.data.train.examples["y"]
    loss = ((x.sum(axis=1) + 1 - y) ** 2).mean() + 0.2 * 8
    np.testing.assert_allclose(measured["train/loss"], loss, rtol=1e-5)
    assert (measured["precision"], measured["recall"]) == (0.375, 1)


@pytest.mark.slow
def test_more_seeds_leave_the_first_as_it_was(tiny):
    two = recovery.make_problem(TINY, "I", Options(rounds=5, seeds=2)).shared
    one = tiny.shared
    np.testing.assert_array_equal(one.timeline.clients[0], two.timeline.clients[0])
    assert (two.timeline.clients[0] != two.timeline.clients[1]).any()
    keys = [jax.random.key_data(shared.keys) for shared in (one, two)]
    np.testing.assert_array_equal(keys[0][0], keys[1][0])


@pytest.mark.slow
def test_centralised_optimum_is_below_nearby_losses():
    tiny = recovery.make_problem(TINY, "I", Options(rounds=5, start="zeros"))
    least = tiny.optimum()
    truth = {"weight": tiny.data.weight, "bias": tiny.data.bias}
    assert least["train/loss"] < tiny.measured(truth)["train/loss"]
    y = tiny.data.train.examples["y"]
    loss = tiny.measured(tiny.initial())["train/loss"]
    np.testing.assert_allclose(loss, np.mean(y**2), rtol=1e-5)


# Of runs that users have kept: by folder, configuration and seed.
IDENTITIES = {
    'fco_lasso/I-20-zeros/FedDualAvg {"lr": 0.001, "server_lr": 1.0} 0': "e11699e4301e6f74",
    'fco_lasso/I-20-zeros/FedDualAvg {"lr": 0.001, "server_lr": 1.0} 1': "870c6b2e69810cbc",
}


@pytest.mark.slow
def test_lasso_files_and_resumption(tmp_path, allow_nans, capsys):
    """A rate that diverges, two seeds; a second run repeats nothing and writes the same.

    Identities of runs are pinned from the first version of the experiment.
    """
    options = Options(
        sets=("I",), methods=("FedDualAvg",), rounds=20, seeds=2, lrs=(1e-3, 1.0),
        server_lrs=(1.0,), start="zeros", work=tmp_path / "work", output=tmp_path / "out",
    )  # fmt: skip
    conduct(TINY._replace(generate=rounded), options)
    folder = tmp_path / "out" / "lasso-zeros"
    assert {path.name for path in folder.iterdir()} == {
        "I.csv",
        "I.json",
        "I.md",
        "I.png",
        "I-rates.png",
        "I-scores.csv",
    }
    scores = pd.read_csv(folder / "I-scores.csv")
    assert len(scores) == 4
    assert (scores["score"].isna() == (scores["lr"] == 1)).all()
    assert (scores.loc[scores["lr"] == 1, "diverged_at"] > 0).all()
    table = pd.read_csv(folder / "I.csv")
    assert set(table["lr"]) == {1e-3}
    metrics = ["f1", "precision", "recall", "density", "train/loss", "test/mse"]
    assert sorted(table.columns[6:]) == sorted(metrics)
    text = (folder / "I.md").read_text()
    assert "4 clients, 23 examples each; 8 weights, 3 of them 1" in text
    assert "2 of 4" in text  # failed runs
    facts = json.loads((folder / "I.json").read_text())
    assert facts["options"]["rounds"] == 20
    assert "work" not in facts["options"]
    (folder / "I.md").unlink()
    (folder / "I.png").unlink()
    redraw(TINY, folder, "I")
    assert (folder / "I.md").read_text().splitlines()[:5] == text.splitlines()[:5]
    assert (folder / "I.png").exists()

    kept = identities(tmp_path / "work")
    assert kept == IDENTITIES | {key.replace("0.001", "1.0"): v for key, v in IDENTITIES.items()}
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.npz")}
    capsys.readouterr()
    conduct(TINY._replace(generate=rounded), options)
    assert "4 runs, 4 found; compiling 0.0 s" in capsys.readouterr().out
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.npz")}
    pd.testing.assert_frame_equal(pd.read_csv(folder / "I.csv"), table)


@pytest.mark.slow
def test_low_rank_files(tmp_path):
    options = Options(
        sets=("I",), methods=("FedDualAvg",), rounds=10, lrs=(1e-3,), server_lrs=(1.0, 0.3),
        work=tmp_path / "work", output=tmp_path / "out",
    )  # fmt: skip
    conduct(TINY_RANK, options)
    folder = tmp_path / "out" / "lowrank"
    assert set(pd.read_csv(folder / "I.csv")) >= {"rank", "error"}
    assert len(pd.read_csv(folder / "I-scores.csv")) == 2
    conduct(TINY_RANK, dataclasses.replace(options, server_lrs=(1.0, 3.0), widen=True))
    scores = pd.read_csv(folder / "I-scores.csv")
    assert sorted(scores["server_lr"]) == [0.3, 1.0, 3.0]
    assert scores["round of the exact rank"].notna().all()
    assert "3 pairs of rates per method" in (folder / "I.md").read_text()
    assert "23 examples each; 3 x 3, of rank 1" in (folder / "I.md").read_text()


def test_references_that_diverged_are_at_the_rate_of_feddualavg():
    stuck = [r for r in REFERENCES["I"] if math.isnan(r.values[500])]
    assert {(r.lr, r.server_lr) for r in stuck} == {(1e-3, 1.0)}
    assert "FedDualAvg" not in {r.method for r in stuck}
