"""Initial models of the LASSO and of low-rank estimation, and the rows at the thesis's rates."""

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.fco import recovery
from experiments.fco.lasso import LASSO
from experiments.fco.recovery import DataSet, Options
from experiments.fco.recovery_report import fixed_means, fixed_table

TINY = LASSO._replace(sets={"I": DataSet(3, 8, 4, 23)})


@pytest.mark.parametrize("shape", [(1024,), (32, 32)])
def test_start_is_that_of_a_keras_layer(shape):
    """Glorot and Bengio, 2010, Eq. 16, for 1,024 features and one output: U(+-sqrt(6 / 1025)).

    Six standard errors of the variance of 1,024 uniform numbers, limit^2 sqrt(4 / 45 / 1024).
    """
    params = recovery.glorot(shape, jax.random.key(3))
    limit = (6 / 1025) ** 0.5
    weight = np.asarray(params["weight"], np.float64)
    assert weight.shape == shape
    assert float(params["bias"]) == 0
    assert 0.95 * limit < np.abs(weight).max() <= limit
    assert abs(weight.var() - limit**2 / 3) < 6 * limit**2 * (4 / 45 / 1024) ** 0.5


@pytest.mark.slow
def test_every_seed_starts_elsewhere_and_is_measured_apart():
    """The loss of the start by NumPy, in double precision; single precision has 1e-5."""
    problem = recovery.make_problem(TINY, "I", Options(rounds=5, seeds=2))
    weights = np.asarray(problem.shared.params["weight"], np.float64)
    assert (weights[0] != weights[1]).all()
    x, y = (problem.data.train.examples[name].astype(np.float64) for name in ("x", "y"))
    expected = [((x @ w - y) ** 2).mean() + 0.2 * np.abs(w).sum() for w in weights]
    np.testing.assert_allclose(problem.initial_losses(), expected, rtol=1e-5)
    zeros = recovery.make_problem(TINY, "I", Options(rounds=5, start="zeros"))
    assert not zeros.initial()["weight"].any()
    assert Options(start="zeros", feature_scale=0.5).variant() == "-scale0.5-zeros"


def test_rows_at_the_thesis_rates():
    """Rows have the pair of set I of each method, never the best; means over seeds, and range."""
    rows = [
        (method, lr, server_lr, seed, done, metric, 0.1 * seed + done / 1000 + 7 * (lr == 1.0))
        for method, lr, server_lr in (
            ("FedDualAvg", 0.01, 1.0), ("FedDualAvg", 1.0, 1.0),
            ("FedMiD", 0.001, 0.3), ("FedMiD", 1.0, 1.0), ("FedMiD-OSP", 1.0, 1.0),
        )
        for seed in range(2)
        for done in (10, 50, 500)
        for metric in ("f1", "density", "recall")
    ]  # fmt: skip
    names = ["method", "lr", "server_lr", "seed", "round", "metric", "value"]
    by_seed = fixed_table(pd.DataFrame(rows, columns=pd.Index(names)), LASSO)
    assert by_seed["seed"].tolist() == 4 * [0, 1]
    np.testing.assert_allclose(by_seed["round 50"], 4 * [0.05, 0.15], rtol=1e-12)
    table = fixed_means(by_seed)
    assert table[["method", "lr", "server_lr", "metric"]].to_numpy().tolist() == [
        ["FedDualAvg", 0.01, 1.0, "f1"], ["FedDualAvg", 0.01, 1.0, "density"],
        ["FedMiD", 0.001, 0.3, "f1"], ["FedMiD", 0.001, 0.3, "density"],
    ]  # fmt: skip
    np.testing.assert_allclose(table["round 50"], 0.1, rtol=1e-12)  # (0.05 + 0.15) / 2
    np.testing.assert_allclose(table["last, least"], 0.5)
    np.testing.assert_allclose(table["last, largest"], 0.6)
    assert set(table["seeds"]) == {2}
    assert "round 100" not in table
