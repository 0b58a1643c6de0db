"""The composite experiments: selection and claims from made-up histories, and tiny runs of each."""

import functools
import json
import math

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments import fco_common, fco_lasso, fco_primal_averaging, fco_report
from experiments.fco_common import DataSet, Options
from experiments.fco_lasso import LASSO
from experiments.fco_lowrank import LOW_RANK

TINY = LASSO._replace(sets={"I": DataSet(3, 8, 4, 23), "IV": DataSet(3, 8, 6, 12)})
TINY_RANK = LOW_RANK._replace(sets={"I": DataSet(1, 3, 4, 23)})


def made(runs, metric="f1", loss=1.0):
    """``{(method, lr, server_lr): values}`` every 10 rounds; a NaN is where the run diverged."""
    rows = []
    for pair, values in runs.items():
        lost = [10 * (i + 1) for i, value in enumerate(values) if math.isnan(value)]
        diverged_at = lost[0] if lost else 0
        for i, value in enumerate(values):
            own = (*pair, 0, diverged_at, 10 * (i + 1))
            rows += [(*own, metric, value), (*own, "train/loss", loss)]
    columns = [*fco_report.PAIR, "seed", "diverged_at", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def test_pairs_are_selected_by_the_last_hundred_rounds():
    """Ten evaluations; the best of the whole run does not win, nor does one that diverged."""
    late = [0.0] * 10 + [0.5] * 10
    early = [1.0] * 10 + [0.4] * 10
    lost = [1.0] * 19 + [math.nan]
    history = made({("A", 0.1, 1.0): late, ("A", 0.2, 1.0): early, ("A", 0.3, 1.0): lost})
    score = fco_report.scored(history, LASSO, 2.0)
    # Up to a millionth of the mean over all rounds, at most 1.
    np.testing.assert_allclose(score["score"], [0.5, 0.4, math.nan], atol=1.1e-6)
    chosen = fco_report.best(score, per="method", mode="max")
    assert chosen["lr"].tolist() == [0.1]
    assert chosen["lr_at_edge"].tolist() == [True]
    assert set(fco_report.selected(history, chosen)["lr"]) == {0.1}
    renamed = history.replace({"metric": {"f1": "error"}})
    least = fco_report.scored(renamed, LOW_RANK, 2.0)
    assert fco_report.best(least, per="method", mode="min")["lr"].tolist() == [0.2]


def test_of_perfect_pairs_the_fastest_is_selected():
    slow = [0.0] * 5 + [1.0] * 10
    fast = [0.0] * 4 + [1.0] * 11
    history = made({("A", 0.1, 1.0): slow, ("A", 0.2, 1.0): fast})
    chosen = fco_report.best(fco_report.scored(history, LASSO, 2.0), per="method", mode="max")
    assert chosen["lr"].tolist() == [0.2]


def test_runs_that_end_above_the_start_have_no_score():
    fine = made({("A", 0.1, 1.0): [0.5] * 10})
    grown = made({("A", 0.2, 1.0): [0.7] * 10}, loss=1e20)
    score = fco_report.scored(pd.concat([fine, grown]), LASSO, 2.0)
    np.testing.assert_allclose(score["score"], [0.5, math.nan], rtol=1e-5)


def curve(rounds, **metrics):
    return {"round": np.array(rounds)} | {name: np.array(v) for name, v in metrics.items()}


def test_first_rounds_and_their_checks():
    curves = {
        "FedDualAvg": curve([10, 20, 30], f1=[0.5, 1.0, 0.9]),
        "FedMiD": curve([10, 20, 30], f1=[0.1, 0.2, 0.3]),
    }

    def perfect(c):
        return c["f1"] >= 1

    assert fco_report.first_round(curves["FedDualAvg"], perfect) == 20
    assert fco_report.first_round(curves["FedMiD"], perfect) == math.inf
    assert fco_report.within("FedDualAvg", perfect, 21)(curves, {}) == ("FedDualAvg round 20", True)
    assert not fco_report.within("FedDualAvg", perfect, 20)(curves, {})[1]
    assert fco_report.not_within("FedMiD", perfect, 100)(curves, {}) == ("FedMiD never", True)
    assert not fco_report.not_within("FedDualAvg", perfect, 20)(curves, {})[1]
    assert fco_report.fastest("FedDualAvg", perfect)(curves, {})[1]
    assert not fco_report.fastest("FedMiD", perfect)(curves, {})[1]
    rates = {"FedDualAvg": (0.1, 1.0), "FedMiD": (0.1, 0.3)}
    assert not fco_report.largest_rate(curves, rates)[1]
    assert fco_report.largest_rate(curves, rates | {"FedMiD": (0.01, 1.0)})[1]


def perfect_curves(**changes):
    """All methods as the paper's claims want them, on set I and the others."""
    shape = {"FedDualAvg": (0.96, 1.0), "FedDualAvg-OSP": (0.9, 0.97)}
    shape |= {"FedMiD": (0.5, 0.7), "FedMiD-OSP": (0.5, 0.75)} | changes
    density = {"FedMiD": 0.9}
    return {
        m: curve([50, 300], f1=values, density=[1.0, density.get(m, 0.6)])
        for m, values in shape.items()
    }


RATES = dict.fromkeys(fco_common.METHODS, (0.001, 0.3)) | {"FedDualAvg": (0.01, 1.0)}


def holding(name, curves, rates=RATES):
    found = fco_report.claims_table(name, LASSO.claims, curves, rates)
    return dict(zip(found["claim"], found["holds"] == "yes", strict=True))


def test_claims_hold_for_the_papers_picture_and_notice_others():
    assert all(holding("I", perfect_curves()).values())
    assert len(holding("I", perfect_curves())) == 6
    worse = perfect_curves() | {"FedDualAvg": curve([50, 300], f1=[0.2, 0.9], density=[1.0, 0.95])}
    assert sum(holding("I", worse).values()) == 3  # not its speed, its end, FedMiD's density
    other_rates = dict.fromkeys(fco_common.METHODS, (0.001, 1.0))
    assert sum(holding("I", perfect_curves(), other_rates).values()) == 4
    late = holding("IV", perfect_curves())
    assert not late.pop("FedDualAvg is at 1 before round 200")
    assert all(late.values())
    assert len(late) == 4
    only = {"FedDualAvg": perfect_curves()["FedDualAvg"]}
    assert holding("III", only) == {"FedDualAvg is at 1 before round 100": False}


def test_low_rank_claims():
    curves = {
        m: curve([50, 100], rank=[20.0, rank], error=[3.0, error], **{"train/loss": [9.0, loss]})
        for m, rank, error, loss in (
            ("FedDualAvg", 15.0, 1.0, 3.0), ("FedDualAvg-OSP", 12.0, 2.0, 5.0),
            ("FedMiD", 18.0, 1.2, 4.0), ("FedMiD-OSP", 18.0, 1.2, 2.0),
        )
    }  # fmt: skip
    found = fco_report.claims_table("I", LOW_RANK.claims, curves, RATES)
    assert (found["holds"] == "yes").tolist() == [False, False, True, True, False, True]
    curves["FedDualAvg"]["rank"] = np.array([16.0, 16.0])
    found = fco_report.claims_table("I", LOW_RANK.claims, curves, RATES)
    assert (found["holds"] == "yes").tolist() == [True, True, True, True, False, True]


def test_references_are_compared_where_the_pair_was_run():
    values = [0.1] * 4 + [0.5] * 5 + [0.9] + [0.95] * 10
    pairs = {("FedDualAvg", 1e-3, 1.0): values, ("FedDualAvg", 1e-3, 0.3): values}
    table = fco_report.reference_table(made(pairs), "I", LASSO)
    assert table["rounds"].tolist() == ["50 / 100 / 200"]
    assert table["here"].tolist() == ["0.5 / 0.9 / 0.95"]
    np.testing.assert_allclose(table["largest difference"], [0.32])
    assert not len(fco_report.reference_table(made(pairs), "unknown", LASSO))


def test_settings_are_the_papers():
    assert len(fco_common.LRS) * len(fco_common.SERVER_LRS) == 49
    for experiment in (LASSO, LOW_RANK):
        assert [s.clients * s.examples for s in experiment.sets.values()] == [8192] * 4
        for name, references in experiment.references.items():
            assert name in experiment.sets
            assert {r.method for r in references} <= set(fco_common.METHODS)
            assert {r.metric for r in references} <= set(experiment.shown)


def test_lambda_falls_with_the_curvature_unless_it_is_given():
    assert fco_common.penalty_weight(LASSO, Options()) == 0.2
    assert fco_common.penalty_weight(LOW_RANK, Options(feature_scale=0.5)) == pytest.approx(0.075)
    given = Options(weight=0.1, feature_scale=0.5)
    assert fco_common.penalty_weight(LASSO, given) == 0.1
    assert fco_common.variant(given) == "-lambda0.1-scale0.5"
    assert fco_common.variant(Options()) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"methods": ("FedAvg",)}, r"methods is \('FedAvg',\); expected some of FedDualAvg"),
        ({"lrs": (0.1, 0.0)}, "lrs is"),
        ({"server_lrs": ()}, r"server_lrs is \(\); expected positive"),
        ({"weight": -1.0}, "lambda is -1.0; expected at least 0"),
    ],
)
def test_refuses_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        Options(**changes)


def test_refuses_unknown_sets(tmp_path):
    with pytest.raises(ValueError, match=r"sets is \('V',\); expected some of I, II"):
        fco_report.conduct(LASSO, Options(sets=("V",), work=tmp_path, output=tmp_path))
    with pytest.raises(ValueError, match=r"sets is \('V',\)"):
        fco_primal_averaging.Options(sets=("V",))


def test_only_the_weights_are_regularised():
    shared = fco_common.problem(TINY, "I", Options(rounds=2))
    params = {"weight": jax.numpy.ones(8), "bias": jax.numpy.ones(())}
    shrunk = shared.composite.argmin(params, 2.0)
    np.testing.assert_allclose(shrunk["weight"], 0.6, rtol=1e-6)
    assert float(shrunk["bias"]) == 1
    measured = shared.eval_fn(params)
    x, y = shared.data.train.examples["x"], shared.data.train.examples["y"]
    loss = ((x.sum(axis=1) + 1 - y) ** 2).mean() + 0.2 * 8
    np.testing.assert_allclose(measured["train/loss"], loss, rtol=1e-5)
    assert (float(measured["precision"]), float(measured["recall"])) == (0.375, 1)


def test_more_seeds_leave_the_first_as_it_was():
    one, two = (fco_common.problem(TINY, "I", Options(rounds=5, seeds=n)) for n in (1, 2))
    np.testing.assert_array_equal(one.timeline.clients[0], two.timeline.clients[0])
    assert (two.timeline.clients[0] != two.timeline.clients[1]).any()
    keys = [jax.random.key_data(shared.keys) for shared in (one, two)]
    np.testing.assert_array_equal(keys[0][0], keys[1][0])


def test_centralised_optimum_is_below_nearby_losses():
    shared = fco_common.problem(TINY, "I", Options(rounds=2))
    least = fco_common.optimum(shared)
    truth = {"weight": shared.data.weight, "bias": shared.data.bias}
    truth = jax.tree.map(jax.numpy.asarray, truth)
    assert least["train/loss"] < fco_common.measured(shared, truth)["train/loss"]
    y = shared.data.train.examples["y"]
    np.testing.assert_allclose(fco_common.start_loss(shared), np.mean(y**2), rtol=1e-5)


@pytest.mark.slow
def test_lasso_files_and_resumption(tmp_path, allow_nans, capsys):
    """A rate that diverges, two seeds; a second run repeats nothing and writes the same."""
    options = Options(
        sets=("I",), methods=("FedDualAvg", "FedMiD"), rounds=20, seeds=2, lrs=(1e-3, 1.0),
        server_lrs=(1.0,), work=tmp_path / "work", output=tmp_path / "out",
    )  # fmt: skip
    fco_report.conduct(TINY, options)
    folder = tmp_path / "out" / "fco_lasso"
    grids = ["I-feddualavg-grid.png", "I-fedmid-grid.png"]
    assert {path.name for path in folder.iterdir()} == {
        "I.csv", "I.json", "I.md", "I.png", "I-losses.png", "I-scores.csv", *grids,
    }  # fmt: skip
    scores = pd.read_csv(folder / "I-scores.csv")
    assert len(scores) == 8
    assert (scores["score"].isna() == (scores["lr"] == 1)).all()
    assert (scores.loc[scores["lr"] == 1, "diverged_at"] > 0).all()
    kept = pd.read_csv(folder / "I.csv")
    assert set(kept["lr"]) == {1e-3}
    assert set(kept["metric"]) >= {"f1", "precision", "recall", "density", "train/loss", "test/mse"}
    text = (folder / "I.md").read_text()
    assert "4 clients, 23 examples each; 8 weights, 3 of them 1" in text
    assert "2 of 4" in text  # failed runs
    assert json.loads((folder / "I.json").read_text())["options"]["rounds"] == 20

    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.npz")}
    capsys.readouterr()
    fco_report.conduct(TINY, options)
    assert "4 runs, 4 found; compiling 0.0 s" in capsys.readouterr().out
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.npz")}
    pd.testing.assert_frame_equal(pd.read_csv(folder / "I.csv"), kept)


@pytest.mark.slow
def test_low_rank_files(tmp_path):
    options = Options(
        sets=("I",), methods=("FedDualAvg",), rounds=10, lrs=(1e-3,), server_lrs=(1.0, 0.3),
        work=tmp_path / "work", output=tmp_path / "out",
    )  # fmt: skip
    fco_report.conduct(TINY_RANK, options)
    folder = tmp_path / "out" / "fco_lowrank"
    assert set(pd.read_csv(folder / "I.csv")["metric"]) >= {"rank", "error"}
    assert "23 examples each; 3 x 3, of rank 1" in (folder / "I.md").read_text()


def densities(run, clients):
    """By metric ``[T]``, of a run of 6 rounds with that many clients in all."""
    experiment = LASSO._replace(sets={"I": DataSet(3, 8, clients, 23)})
    shared = fco_common.problem(experiment, "I", Options(rounds=6))
    history = fco_primal_averaging.measure(run, shared)
    assert history["round"].max() == 6
    return {str(name): part["value"].to_numpy() for name, part in history.groupby("metric")}


@pytest.mark.parametrize("method", ["FedDualAvg", "FedMiD", "FedDualAvg-OSP"])
def test_of_one_client_the_average_is_its_model(method):
    """And FedDualAvg's server has that model, too, whose dual state it takes over."""
    found = densities(fco_primal_averaging.Run(method, 0.02), clients=1)
    for cutoff in ("0", "0.01"):
        alone = found[f"clients > {cutoff}"]
        np.testing.assert_array_equal(alone, found[f"average > {cutoff}"])
        if method.startswith("FedDualAvg"):
            np.testing.assert_allclose(alone, found[f"server > {cutoff}"], atol=1e-6)
    assert found["clients > 0.01"].min() < 1


def test_one_clients_model_is_fedmids_server_without_its_proximal_step(monkeypatch):
    plain = functools.partial(fs.fedmid, server_prox=False)
    monkeypatch.setitem(fco_common.METHODS, "FedMiD", plain)
    found = densities(fco_primal_averaging.Run("FedMiD", 0.02), clients=1)
    # x - (x - end) is end up to rounding, and 0 where it is 0.
    for cutoff in ("0", "0.01"):
        np.testing.assert_allclose(
            found[f"clients > {cutoff}"], found[f"server > {cutoff}"], atol=1e-6
        )
    assert found["clients > 0.01"].min() < 1


def test_averages_have_the_union_of_the_supports():
    found = densities(fco_primal_averaging.Run("FedDualAvg", 0.02), clients=4)
    assert (found["average > 0"] >= found["clients > 0"] - 1e-6).all()
    assert (found["average > 0"] > found["clients > 0"] + 1e-6).any()
    assert (found["server > 0"] <= found["average > 0"] + 1e-6).all()


@pytest.mark.slow
def test_primal_averaging_files(tmp_path, monkeypatch):
    monkeypatch.setattr(fco_primal_averaging, "LASSO", TINY)
    monkeypatch.setattr(fco_primal_averaging, "RUNS", fco_primal_averaging.RUNS[-1:])
    options = fco_primal_averaging.Options(sets=("IV",), rounds=20, output=tmp_path)
    fco_primal_averaging.main(options)
    folder = tmp_path / "fco_primal_averaging"
    assert set(pd.read_csv(folder / "IV.csv")["round"]) == {1, 10, 20}
    assert "| run | density of | round 20 |" in (folder / "IV.md").read_text()
    assert (folder / "IV.png").stat().st_size > 10_000


def test_references_that_diverged_are_at_the_rate_of_feddualavg():
    stuck = [r for r in fco_lasso.REFERENCES["I"] if math.isnan(r.values[500])]
    assert {(r.lr, r.server_lr) for r in stuck} == {(1e-3, 1.0)}
    assert "FedDualAvg" not in {r.method for r in stuck}
