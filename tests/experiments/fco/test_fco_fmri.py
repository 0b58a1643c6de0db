"""Sparse logistic regression on scans: baselines by NumPy, Figure 4.11, the stand-in's label."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments.fco import brains, methods, scans
from experiments.fco import fmri as experiment
from experiments.fco import fmri_report as report
from experiments.fco.claims import judged
from experiments.fco.methods import METHODS, PENALTY_METHODS
from experiments.fco.selection import Selected

LABEL = "SYNTHETIC STAND-IN"


def options(tmp_path, **given):
    small = {"source": "synthetic", "voxels": 40, "rounds": 10}
    return experiment.Options(**small | given, work=tmp_path / "work", output=tmp_path / "out")


def numpy_baseline(data, start, rows, lr, weight, epochs):
    """Validation loss, accuracy and density after proximal gradient steps on some rows."""
    x, y = (data.train.examples[name][rows].astype(np.float64) for name in ("x", "y"))
    w, b = start, 0.0
    for _ in range(epochs):
        error = 1 / (1 + np.exp(-(x @ w + b))) - y
        w, b = w - lr * x.T @ error / len(y), b - lr * error.mean()
        w = np.sign(w) * np.maximum(abs(w) - lr * weight, 0)
    z, label = data.test.examples["x"] @ w + b, data.test.examples["y"]
    loss = np.mean(np.logaddexp(0, z) - label * z) + weight * abs(w).sum()
    return loss, np.mean((z > 0) == (label > 0)), np.mean(abs(w) > 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), [("centralised", 59 * 18), ("local", 18)])
def test_baselines_are_those_of_a_numpy_loop(tmp_path, name, rows):
    """Ten steps in single precision, of rates up to 1; accuracies are shares of 216."""
    given = options(tmp_path, weight=0.05)
    data = scans.load(given.source, given.voxels, given.data_dir)
    found = experiment.baseline(name, data, given)
    assert len(found.score) == len(experiment.BASELINE_LRS)
    problem = scans.make_problem(
        data.scans, data.scans.train, weight=0.05, batches=fs.full_batch(1), rounds=1, cohort=1,
        seeds=1,
    )  # fmt: skip
    start = np.asarray(problem.params["linear"]["kernel"], np.float64)[0, 0]
    assert (start != 0).all()
    assert abs(start).max() <= (6 / 41) ** 0.5  # 40 voxels and one output
    expected = {
        lr: numpy_baseline(data.scans, start, slice(rows), lr, 0.05, 10)
        for lr in experiment.BASELINE_LRS
    }
    for lr, score in zip(found.score["lr"], found.score["score"], strict=True):
        assert score == pytest.approx(expected[lr][0], rel=1e-4)
    (lr, server_lr) = found.rates[name]
    assert (lr, server_lr) == (min(expected, key=lambda rate: expected[rate][0]), 1.0)
    ends = [found.at_end(name, metric) for metric in scans.METRICS]
    np.testing.assert_allclose(ends, expected[lr], rtol=1e-4)


def test_stand_in_has_the_recordings_shapes():
    data = scans.load("synthetic", 1000, None)
    assert (data.scans.train.num_clients, data.scans.test.num_clients) == (59, 12)
    assert data.scans.train.examples["x"].shape == (1062, 1000)
    assert np.count_nonzero(data.scans.weight) == 5
    assert LABEL in data.label
    assert experiment.Options().voxels == 39912


def test_recordings_are_taken_where_they_are(tmp_path, monkeypatch):
    """Even if they cannot be read; the stand-in is for where there are none."""
    recordings = brains.sparse_classification(0, dim=7, num_nonzero=1)
    monkeypatch.delenv("FEDJAX_SIM_DATA", raising=False)
    with pytest.raises(ValueError, match="data_dir is not given and FEDJAX_SIM_DATA is not set"):
        scans.load("haxby", 7, None)
    assert not scans.load("auto", 7, tmp_path).real
    (tmp_path / brains.FOLDER).mkdir()
    with pytest.raises(ValueError, match=r"mask\.nii\.gz.* missing"):
        scans.load("auto", 7, tmp_path)
    monkeypatch.setattr(brains, "haxby", lambda where: recordings)
    data = scans.load("auto", 7, tmp_path)
    assert data.real
    assert LABEL not in data.label
    assert "stand-in" not in experiment.describe(data, experiment.Options())
    assert experiment.Options().folder(data) == "haxby"


def history(pairs, rounds):
    rows = [
        (method, lr, server_lr, 0, done, 0, metric, 0.5)
        for method, (lr, server_lr), done, metric in itertools.product(
            METHODS, pairs, rounds, scans.METRICS
        )
    ]
    names = ["method", "lr", "server_lr", "seed", "round", "diverged_at", "metric", "value"]
    return pd.DataFrame(rows, columns=names)


def test_figure_has_the_pairs_of_the_paper():
    """Rates are 1 or 3 times a power of ten; by integers there is no rounding at the ends."""
    tenths = {(m, e): m * 10.0**e for m, e in itertools.product((1, 3), range(-3, 2))}
    clients = [key for key, rate in tenths.items() if 1e-3 <= rate <= 1]
    servers = [(m, e) for m in (1, 3) for e in range(-2, 2) if m * 10**e <= 10]
    inside = [
        (a, b)
        for a, b in itertools.product(clients, servers)
        if 3 * 10**2 <= a[0] * b[0] * 10 ** (5 + a[1] + b[1]) <= 3 * 10**4
    ]
    pairs = list(itertools.product(methods.LRS, methods.SERVER_LRS))
    assert len(pairs) == 49
    rows = report.progress(history(pairs, (10, 20, 300)))
    assert set(rows["round"]) == {10, 300}
    assert len(rows) == 2 * len(METHODS) * len(inside)
    assert report.scatter(rows, LABEL).get_supxlabel().startswith(LABEL)


def test_shares_of_good_pairs():
    rows = pd.DataFrame(
        {
            "method": ["a", "a", "b", "b"],
            "round": [10] * 4,
            scans.ACCURACY: [0.9, 0.84, 0.86, 0.5],
            scans.DENSITY: [0.1, 0.1, 0.2, 0.1],
        }
    )
    shares = report.reaches(rows, {scans.ACCURACY: 0.9, scans.DENSITY: 0.1})
    assert shares[10].to_dict() == {"a": 0.5, "b": 0.5}


def ends(**values):
    """Curves of one evaluation: loss, accuracy, density."""
    shorts = ("dual", "osp", "mid", "mid_osp", "subgradient")
    names = dict(zip(shorts, PENALTY_METHODS, strict=True))
    return {
        names[short]: {m: np.array([v]) for m, v in zip(scans.METRICS, value, strict=True)}
        for short, value in values.items()
    }


def checked(shares, curves):
    centralised, local = ({scans.ACCURACY: a, scans.DENSITY: 0.01} for a in (0.95, 0.6))
    table = pd.DataFrame({300: shares}, index=list(METHODS)[: len(shares)])
    statements = report.statements(centralised, local, table, pairs=30)
    rates, empty = dict.fromkeys(curves, (1.0, 1.0)), pd.DataFrame()
    selected = Selected(scans.LOSS, "min", 1, empty, empty, empty, empty, curves, rates)
    return [claim.holds for claim in judged("fmri", statements, selected)]


def test_claims():
    dual, osp = (0.2, 0.93, 0.015), (0.3, 0.8, 0.005)
    mid = {"mid": (0.3, 0.85, 0.5), "mid_osp": (0.3, 0.9, 0.6)}
    assert checked([0.9, 0.3, 0.1, 0.1], ends(dual=dual, osp=osp, **mid)) == [True] * 6
    bad = ends(dual=(0.5, 0.55, 0.7), osp=(0.5, 0.6, 0.1), **mid)
    assert checked([0.1, 0.3, 0.1, 0.1], bad) == [False] * 6
    assert checked([0.5], ends(dual=dual)) == [True, True]
    worse, better = (0.4, 0.9, 1.0), (0.1, 0.99, 0.001)
    assert checked([0.5], ends(dual=dual, subgradient=worse)) == [True] * 5
    assert checked([0.5], ends(dual=dual, subgradient=better)) == [True] * 2 + [False] * 3


@pytest.mark.slow
def test_files_say_that_they_are_of_a_stand_in(tmp_path, capsys):
    """A second call finds all runs and writes the same bytes."""
    given = options(tmp_path, methods=("FedDualAvg",), lrs=(0.03, 0.1), server_lrs=(0.3,))
    experiment.main(given)
    printed = capsys.readouterr().out
    assert printed.count("2 runs, 0 found") == 1
    assert printed.count("9 runs, 0 found") == 2
    folder = tmp_path / "out" / "fmri-standin-40"
    text = (folder / "fmri.md").read_text()
    assert text.startswith(f"# Sparse logistic regression on fMRI ({LABEL}, no recordings)")
    assert "not the recordings of Haxby et al." in text
    assert "10 of the paper's 300 rounds of 20 clients" in text
    assert LABEL in json.loads((folder / "fmri.json").read_text())["data"]
    rows = (folder / "fmri.csv").read_bytes()
    table = pd.read_csv(folder / "fmri.csv")
    assert set(table["method"]) == {"FedDualAvg", "centralised", "local"}
    assert len(pd.read_csv(folder / "fmri-figure-4.11.csv")) == 2
    for name in ("fmri", "figure-4.11", "fmri-rates"):
        assert (folder / f"{name}.png").stat().st_size > 2_000
    experiment.main(given)
    printed = capsys.readouterr().out
    assert printed.count("2 runs, 2 found") == 1
    assert (folder / "fmri.csv").read_bytes() == rows
    (folder / "figure-4.11.png").unlink()
    report.redraw(folder)
    assert (folder / "fmri.md").read_text().splitlines()[:4] == text.splitlines()[:4]
    assert (folder / "figure-4.11.png").exists()
    # A further method joins the kept ones.
    wider = dataclasses.replace(given, methods=("subgradient-FedAvg",), widen=True)
    experiment.main(wider)
    assert len(pd.read_csv(folder / "fmri-scores.csv")) == 4
    assert len(pd.read_csv(folder / "fmri-figure-4.11.csv")) == 4
    text = (folder / "fmri.md").read_text()
    assert "FedDualAvg is sparser than subgradient-FedAvg" in text
    assert len(json.loads((folder / "fmri.json").read_text())["earlier"]) <= 1
    # The batches are single examples, one pass: 18 steps.
    data = scans.load(given.source, given.voxels, given.data_dir)
    shared = scans.make_problem(
        data.scans, data.scans.train, weight=0.02, batches=fs.epochs(1, 1), rounds=3, cohort=20,
        seeds=2,
    )  # fmt: skip
    assert shared.task.num_steps.tolist() == [18] * 59
    assert shared.timeline.clients.shape == (2, 3, 20)
    linear = jax.tree.map(np.asarray, shared.params["linear"])
    assert not linear["bias"].any()
    assert (linear["kernel"][0] != linear["kernel"][1]).all()  # of two seeds


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "nilearn"}, "source is 'nilearn'; expected one of"),
        ({"voxels": 0}, "voxels is 0; expected at least 1"),
        ({"weight": -0.1}, "lambda is -0.1; expected at least 0"),
        ({"rounds": 0}, "rounds is 0; expected at least 1"),
        ({"server_lrs": (0.0,)}, "server_lrs is .0.0,.; expected positive numbers"),
    ],
)
def test_bad_options(given, message):
    with pytest.raises(ValueError, match=message):
        experiment.Options(**given)
