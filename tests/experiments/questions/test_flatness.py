"""Flatness and generalisation: measures against closed forms, planted correlations, a small run."""

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.questions import flatness, flatness_problem, flatness_report
from experiments.questions.flatness_report import ACROSS, STUDY, WITHIN
from fedjax_sim import models


def test_measures_of_a_model_without_curvature_but_in_the_biases():
    """At weights of 0 only the last biases matter: a softmax of 10 equal logits."""
    model = jax.tree.map(np.zeros_like, flatness_problem.network().init(jax.random.key(0)))
    images, train, test = flatness_problem.digits(0)
    found = flatness_problem.measures(model, images, train, test)
    assert found["train loss"] == pytest.approx(np.log(10), abs=1e-12)
    assert found["gap"] == pytest.approx(0, abs=1e-12)
    # The Hessian of the biases is diag(p) - p p^T with p = 1/10: nine eigenvalues of 1/10.
    assert found["top eigenvalue"] == pytest.approx(0.1, abs=1e-12)
    assert found["trace"] == pytest.approx(0.9, abs=1e-12)
    counts = np.bincount(images["y"][train], minlength=10) / len(train)
    gradient = 0.1 - counts
    biases = flatness_report.RADIUS * gradient / np.linalg.norm(gradient)
    rise = np.log(np.exp(biases).sum()) - biases @ counts - np.log(10)
    assert found["rise"] == pytest.approx(rise, abs=1e-12)
    assert len(set(train) | set(test)) == len(images["y"])


def test_hessian_against_differences_of_gradients():
    model = flatness_problem.network().init(jax.random.key(1))
    images, train, _ = flatness_problem.digits(1)
    with jax.enable_x64(True):
        vector, _ = jax.flatten_util.ravel_pytree(jax.tree.map(np.float64, model))
        x, y = np.float64(images["x"][train]), images["y"][train]
        direction = np.random.default_rng(0).normal(size=(1, vector.size))
        column = flatness_problem._columns(vector, x, y, direction)[0]
        gradient = jax.grad(flatness_problem._loss)
        # Central differences: the error is of the order h^2 = 1e-10 beside values of order 1.
        ends = [gradient(vector + h * direction[0], x, y) for h in (1e-5, -1e-5)]
        np.testing.assert_allclose(column, (ends[0] - ends[1]) / 2e-5, atol=1e-6)


@pytest.fixture
def runs():
    """Six methods at two rates with ten seeds, of which one diverged.

    The gap follows the training loss over methods; the trace follows the gap over seeds.
    """
    rng = np.random.default_rng(3)
    rows = []
    for number, (method, lr) in enumerate(
        (method, lr) for lr in (0.1, 0.3) for method in flatness_problem.METHODS
    ):
        for seed in range(10):
            gap = np.exp(number / 4 + 0.01 * rng.normal())
            row = {"method": method, "lr": lr, "seed": seed, "diverged": False}
            row |= {
                "train loss": rng.uniform(1, 1.001) / (1 + number),
                "test loss": gap,
                "gap": gap,
            }
            row |= {"train error": 0.0, "test error": rng.uniform(), "trace": gap}
            row |= {
                "top eigenvalue": rng.uniform(),
                "rise": (1 + seed) * (0.5 if method == "FedSAM" else 1.0),
            }
            rows.append(row)
    table = pd.DataFrame(rows)
    lost = (table["method"] == "FedSAM") & (table["seed"] == 4)
    table.loc[lost, table.columns[4:]] = np.nan
    return table.assign(diverged=lost)


def test_planted_correlations_are_found(runs):
    table = flatness_report.correlations(runs)
    assert flatness_report.of(table, WITHIN, "gap", "trace").mean == pytest.approx(1)
    assert flatness_report.of(table, ACROSS, "gap", "train loss").mean == pytest.approx(
        -1, abs=0.02
    )
    top = flatness_report.of(table, ACROSS, "gap", "top eigenvalue")
    assert top.low < 0 < top.high
    x, y = (flatness_report.matrices(runs, name) for name in ("top eigenvalue", "test error"))
    assert x.shape == (12, 9)  # without the seed in which a run diverged
    by_scipy = np.mean([stats.spearmanr(x[:, s], y[:, s]).statistic for s in range(9)])
    assert flatness_report.across(x, y).mean == pytest.approx(by_scipy)
    assert flatness_report.within(x, y).mean == pytest.approx(
        np.mean([stats.spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)])
    )


def test_partial_correlation_against_residuals_of_ranks(runs):
    x, y, z = (flatness_report.matrices(runs, n) for n in ("top eigenvalue", "test error", "rise"))
    z = z + np.linspace(0, 1, z.shape[0])[:, None]

    def residual(values, given):
        ranks = [stats.rankdata(one) for one in (values, given)]
        slope = stats.linregress(ranks[1], ranks[0])
        return ranks[0] - slope.intercept - slope.slope * ranks[1]

    expected = [
        stats.pearsonr(residual(x[:, s], z[:, s]), residual(y[:, s], z[:, s])).statistic
        for s in range(x.shape[1])
    ]
    assert flatness_report.at_equal(x, y, z).mean == pytest.approx(np.mean(expected))
    assert np.isnan(flatness_report.at_equal(x, y, -x).mean)


def test_ratios_are_paired_by_seed(runs):
    ratios = flatness_report.flatter(runs).set_index(["method", "lr", "measure"])
    row = ratios.loc[("FedSAM", 0.1, "rise")]
    assert tuple(row) == pytest.approx((0.5, 0.5, 0.5))


def test_page_of_planted_results(runs):
    facts = {"rounds": 4, "seeds": 10, "lrs": [0.1, 0.3], "parameters": 1210}
    page = STUDY.page({"": runs}, facts)
    assert "1.00 [1.00, 1.00] over seeds of one method (trace)" in page.found
    assert page.answers[0].right is False
    report, figures = STUDY.build({"": runs}, facts)
    assert "2 of 120 runs diverged" in report.text
    assert list(figures) == ["flatness"]


@pytest.mark.slow
def test_small_run(tmp_path, monkeypatch):
    """With 310 parameters: the full network's 18 Hessians take 40 seconds."""
    small = models.mlp(64, (4,), 10)
    monkeypatch.setattr(flatness_problem, "network", lambda: small)
    options = flatness.Options(
        lrs=(0.1,), seeds=3, rounds=4, work=tmp_path / "work", output=tmp_path / "results"
    )
    flatness.main(options)
    runs = pd.read_csv(tmp_path / "results" / "questions" / "flatness" / "flatness.csv")
    assert len(runs) == 3 * len(flatness_problem.METHODS)
    assert runs["top eigenvalue"].gt(0).all()
    # From equal initial models on equal minibatches: SWA is a mean of FedAvg's models.
    assert not np.allclose(
        runs.loc[runs["method"] == "FedAvg", "train loss"],
        runs.loc[runs["method"] == "SWA", "train loss"],
    )
