"""FISTA against scikit-learn, scipy and closed forms, and the recovery problems' optima."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.tree_util import Partial
from sklearn.linear_model import ElasticNet, Lasso

from experiments.fco.composite_optimum import CompositeOptimum, composite_optimum
from fedjax_sim import prox
from fedjax_sim.diagnostics.optimum import mean_loss
from fedjax_sim.diagnostics.recovery import numerical_rank, recovery_error, support_scores
from fedjax_sim.objectives import binary_cross_entropy, squared_error
from fedjax_sim.problems.recovery import RecoveryProblem, low_rank_regression, sparse_regression


def weight_only(path, leaf):
    return path == "weight"


def half_distance(v, x):
    return jnp.sum((x - v) ** 2) / 2


def mean_square(x, y, params):
    return jnp.mean((x @ params["weight"] + params["bias"] - y) ** 2)


def design(seed, size=40, dim=8):
    """Columns of different scales: condition numbers of about 1,000."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, dim)) * np.geomspace(0.3, 3, dim) + rng.normal(size=dim)
    return x, x[:, :3].sum(1) + 0.5 + 0.1 * rng.normal(size=size)


ZEROS = {"weight": jnp.zeros(8), "bias": jnp.array(0.0)}


@settings(max_examples=6)
@given(seed=st.integers(0, 2**16), weight=st.sampled_from([0.01, 0.2, 3.0]), given_l=st.booleans())
def test_lasso_is_scikit_learns(seed, weight, given_l):
    """Its objective is (1 / 2n) ||r||^2 + alpha ||w||_1, half of ours; with coordinate descent."""
    x, y = design(seed)
    hessian = 2 * np.c_[x, np.ones(40)].T @ np.c_[x, np.ones(40)] / 40
    bound = float(np.linalg.eigvalsh(hessian)[-1]) if given_l else None
    result = composite_optimum(
        Partial(mean_square, x, y), prox.composite(prox.L1(weight), where=weight_only), ZEROS,
        tolerance=1e-9, smoothness=bound,
    )  # fmt: skip
    reference = Lasso(alpha=weight / 2, tol=1e-14, max_iter=100_000).fit(x, y)
    # Residuals of 1e-9 over the least curvature, which is above 0.01.
    np.testing.assert_allclose(result.params["weight"], reference.coef_, rtol=0, atol=2e-7)
    np.testing.assert_allclose(result.params["bias"], reference.intercept_, rtol=0, atol=2e-7)
    value = ((x @ reference.coef_ + reference.intercept_ - y) ** 2).mean()
    np.testing.assert_allclose(
        result.value, value + weight * np.abs(reference.coef_).sum(), rtol=1e-12
    )
    np.testing.assert_array_equal(result.params["weight"] == 0, reference.coef_ == 0)
    assert result.residual <= 1e-9
    assert result.params["weight"].dtype == np.float64


def test_elastic_net_is_scikit_learns():
    x, y = design(3)
    result = composite_optimum(
        Partial(mean_square, x, y),
        prox.composite(prox.ElasticNet(0.4, 0.3), where=weight_only),
        ZEROS,
    )
    # Halved: alpha l1_ratio = 0.2, alpha (1 - l1_ratio) / 2 = 0.15.
    reference = ElasticNet(alpha=0.5, l1_ratio=0.4, tol=1e-14, max_iter=100_000).fit(x, y)
    np.testing.assert_allclose(result.params["weight"], reference.coef_, rtol=0, atol=1e-8)


def test_box_is_scipys_bounded_least_squares():
    x, y = design(4)
    result = composite_optimum(
        Partial(mean_square, x, y),
        prox.composite(prox.Box(-0.2, 0.6), where=weight_only),
        ZEROS,
    )
    bounds = np.append(np.full(8, -0.2), -np.inf), np.append(np.full(8, 0.6), np.inf)
    reference = scipy.optimize.lsq_linear(np.c_[x, np.ones(40)], y, bounds, tol=1e-14)
    np.testing.assert_allclose(result.params["weight"], reference.x[:8], rtol=0, atol=1e-7)
    assert 0 < np.isin(result.params["weight"], [-0.2, 0.6]).sum() < 8


def test_nuclear_norm_thresholds_singular_values():
    v = np.random.default_rng(5).normal(size=(6, 4))
    loss = Partial(half_distance, v)
    result = composite_optimum(loss, prox.composite(prox.Nuclear(1.0)), jnp.zeros((6, 4)))
    u, s, w = np.linalg.svd(v, full_matrices=False)
    kept = np.maximum(s - 1, 0)
    np.testing.assert_allclose(result.params, (u * kept) @ w, rtol=0, atol=1e-12)
    assert result.steps <= 2  # the curvature is 1, so the first step is exact
    np.testing.assert_allclose(result.value, ((s - kept) ** 2).sum() / 2 + kept.sum(), rtol=1e-12)


def logistic(x, y, w):
    return jnp.mean(binary_cross_entropy(lambda w, x: x @ w)(w, {"x": x, "y": y}, None))


def test_losses_that_are_not_quadratic_meet_their_conditions():
    """0 is in the subdifferential: |g_i| <= weight at zeros, g_i = -weight sign elsewhere."""
    x, y = design(6)
    labels = (y > np.median(y)).astype(float)
    weight = 0.02
    result = composite_optimum(
        Partial(logistic, x, labels), prox.composite(prox.L1(weight)), jnp.zeros(8), tolerance=1e-10
    )
    w = result.params
    gradient = x.T @ (1 / (1 + np.exp(-x @ w)) - labels) / 40
    active = w != 0
    assert 0 < active.sum() < 8
    np.testing.assert_allclose(gradient[active], -weight * np.sign(w[active]), rtol=0, atol=1e-9)
    assert (np.abs(gradient[~active]) <= weight).all()


def test_start_at_the_optimum_and_values_of_any_size():
    """Values of a flat loss are equal to rounding, and the step must not collapse."""
    x, y = design(7)
    reg = prox.composite(prox.L1(0.2), where=weight_only)
    first = composite_optimum(Partial(mean_square, x, y), reg, ZEROS)
    again = composite_optimum(Partial(mean_square, x, y), reg, first.params)
    assert again.steps <= 2

    def shifted(x, y, params):
        return mean_square(x, y, params) + 1e6

    far = composite_optimum(Partial(shifted, x, y), reg, ZEROS, tolerance=1e-8)
    np.testing.assert_allclose(far.params["weight"], first.params["weight"], rtol=0, atol=2e-7)


def test_acceleration_needs_fewer_steps_than_descent():
    """On 50 coordinates of curvatures 1 to 1e-3: plain descent needs L / mu log(1 / eps) = 2e4."""
    scales = np.geomspace(1, 1e-3, 50)
    loss = Partial(lambda a, v, x: jnp.sum(a * (x - v) ** 2) / 2, scales, np.ones(50))
    result = composite_optimum(loss, prox.composite(prox.L1(1e-4)), jnp.zeros(50))
    np.testing.assert_allclose(result.params, 1 - 1e-4 / scales, rtol=0, atol=1e-6)
    assert result.steps < 1000


def quadratic(hessian, linear, constant, params):
    w = jnp.append(params["weight"].ravel(), params["bias"])
    return w @ (hessian @ w) - 2 * linear @ w + constant


def centralised(problem: RecoveryProblem, psi: prox.Regularizer) -> CompositeOptimum:
    """On the moments of all examples, which are the mean squared error's."""
    y = problem.train.examples["y"].astype(float)
    x = np.c_[problem.train.examples["x"].astype(float).reshape(len(y), -1), np.ones(len(y))]
    loss = Partial(quadratic, x.T @ x / len(y), x.T @ y / len(y), y @ y / len(y))
    start = {"weight": np.zeros(problem.weight.shape), "bias": np.zeros(())}
    return composite_optimum(loss, prox.composite(psi, where=weight_only), start)


@pytest.mark.slow
def test_mean_loss_gives_the_same():
    """Clients of one size, so that their mean is that of all examples."""
    problem = sparse_regression(6, 40, 4, 10, 0)
    objective = squared_error(lambda p, x: x @ p["weight"] + p["bias"])
    start = {"weight": np.zeros(10), "bias": np.zeros(())}
    reg = prox.composite(prox.L1(0.2), where=weight_only)
    result = composite_optimum(mean_loss(objective, problem.train, batch_size=100), reg, start)
    expected = centralised(problem, prox.L1(0.2))
    # Residuals of 1e-9 over curvatures of about 1.
    np.testing.assert_allclose(result.params["weight"], expected.params["weight"], atol=1e-8)
    np.testing.assert_allclose(result.value, expected.value, rtol=1e-10)


@pytest.mark.slow
def test_federated_lasso_is_recovered_centrally():
    """F1 0.998, 0.948 and 1 with lambda 0.2, of seed 0; seeds 1 to 3 have 0.990 to 0.998, 0.962 to
    0.985, and 1."""
    for count, expected in ((512, 0.9980), (64, 0.9481), (8, 1.0)):
        problem = sparse_regression(64, 128, count, 1024, 0)
        result = centralised(problem, prox.L1(0.2))
        scores = support_scores(jnp.asarray(result.params["weight"]), problem.weight)
        np.testing.assert_allclose(scores.f1, expected, atol=1e-4)


@pytest.mark.slow
def test_low_rank_matrices_are_recovered_centrally():
    """Ranks 16, 4, 1 and errors 0.692, 0.289, 0.124 with lambda 0.3, of seed 0."""
    for rank, expected in ((16, 0.6924), (4, 0.2888), (1, 0.1237)):
        problem = low_rank_regression(64, 128, rank, 32, 0)
        result = centralised(problem, prox.Nuclear(0.3))
        weight = jnp.asarray(result.params["weight"])
        assert int(numerical_rank(weight)) == rank
        np.testing.assert_allclose(recovery_error(weight, problem.weight), expected, atol=1e-4)


def test_no_minimum_to_be_found(allow_nans):
    reg = prox.composite(prox.L1(0.1))
    x, y = design(8)
    with pytest.raises(FloatingPointError, match="after 3 proximal steps; expected at most the"):
        composite_optimum(Partial(logistic, x, y), reg, jnp.zeros(8), max_steps=3)
    with pytest.raises(FloatingPointError, match="has the value nan"):
        composite_optimum(lambda w: jnp.sum(jnp.sqrt(w - 1)), reg, jnp.zeros(2))
    with pytest.raises(FloatingPointError, match="one that bounds its curvature"):
        composite_optimum(lambda w: 10 * jnp.sum((w - 1) ** 2), reg, jnp.zeros(2), smoothness=0.1)


def test_refusals():
    reg = prox.composite(prox.L1(0.1))
    for options, message in (
        ({"tolerance": 0.0}, "tolerance is 0.0; expected a positive number"),
        ({"smoothness": -1.0}, "smoothness is -1.0; expected a positive number"),
        ({"max_steps": 0}, "max_steps is 0; expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            composite_optimum(jnp.sum, reg, np.zeros(2), **options)
    with pytest.raises(ValueError, match=r"params has leaves of dtypes \['int64'\]"):
        composite_optimum(jnp.sum, reg, np.zeros(2, int))
    with pytest.raises(ValueError, match=r"mirror Entropy\(\); expected Euclidean"):
        composite_optimum(jnp.sum, prox.composite(prox.L1(0.1), prox.Entropy()), np.ones(2))
