"""Measured constants against NumPy: dense Hessians, gradients per example, closed forms."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.tree_util import Partial
from small_problems import (
    compiled,
    logistic_data,
    logistic_losses,
    logistic_task,
    quadratic_task,
    random_quadratics,
)

import fedjax_sim as fs
from fedjax_sim.diagnostics.constants import measure, suboptimality
from fedjax_sim.diagnostics.dynamics import client_dynamics
from fedjax_sim.diagnostics.gradient_moments import batch_moments, sampled_moments
from fedjax_sim.diagnostics.heterogeneity import ClientMap, Heterogeneity, heterogeneity
from fedjax_sim.diagnostics.linear_models import LOGISTIC, linear_model_bounds
from fedjax_sim.diagnostics.optimum import mean_loss, optimum
from fedjax_sim.diagnostics.sharpness import client_sharpness
from fedjax_sim.diagnostics.smoothness import curvature, hessian_lipschitz
from fedjax_sim.diagnostics.stability import neighbours, stability
from fedjax_sim.engine.evaluation import RunContext, evaluate
from fedjax_sim.studies.advice.sources import rounding

KEY = jax.random.key(0)
ROWS = {"x": np.eye(3, 2, dtype=np.float32), "y": np.ones((3, 2), np.float32)}


def logistic_points():
    """Three models, the first 0: leaves [3, ...]."""
    draws = np.random.default_rng(0).normal(size=(3, 4)) * np.array([0, 1, 3])[:, None]
    return {"w": jnp.asarray(draws[:, :3]), "b": jnp.asarray(draws[:, 3])}


def with_ones(part):
    return np.c_[part["x"], np.ones(len(part["x"]))]


def example_gradients(part, w):
    """[n, 4]: of the weights, then the intercept."""
    x = with_ones(part)
    return (1 / (1 + np.exp(-x @ w)) - part["y"])[:, None] * x


def per_client(function):
    """[P, M] of function(client's examples, model)."""
    points = logistic_points()
    models = np.c_[points["w"], points["b"]]
    data = logistic_data()
    return np.array(
        [[function(data.client(m), w) for m in range(data.num_clients)] for w in models]
    )


@pytest.mark.slow
def test_curvature_of_logistic_regression(x64):
    measured = jax.jit(lambda task, points: curvature(task, points, KEY, iterations=4))
    result = measured(logistic_task(), logistic_points())

    def hessian(part, w):
        x = with_ones(part)
        p = 1 / (1 + np.exp(-x @ w))
        return (x * (p * (1 - p))[:, None]).T @ x / len(x)

    hessians = per_client(hessian)
    values = np.linalg.eigvalsh(hessians)
    # As many iterations as parameters; Hessians of norm about 1.
    np.testing.assert_allclose(result.clients.largest, values[..., -1], rtol=0, atol=1e-13)
    np.testing.assert_allclose(result.clients.smallest, values[..., 0], rtol=0, atol=1e-13)
    total = np.linalg.eigvalsh(hessians.mean(axis=1))
    np.testing.assert_allclose(result.total.largest, total[:, -1], rtol=0, atol=1e-13)
    np.testing.assert_allclose(result.total.smallest, total[:, 0], rtol=0, atol=1e-13)
    # The bound that holds everywhere is met with equality at 0, where p = 1 / 2.
    data = logistic_data()
    bounds = linear_model_bounds(data.examples["x"], data.offsets, LOGISTIC)
    np.testing.assert_allclose(bounds.client_L, values[0, :, -1], rtol=1e-6)  # float32 features
    np.testing.assert_allclose(bounds.total_L, total[0, -1], rtol=1e-6)
    assert (values[1:, :, -1] <= bounds.client_L).all()


def test_hessian_lipschitz_constant(x64):
    """The third derivative of w -> mean softplus(w x) is s (1 - s) (1 - 2 s) x^3."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=12)
    data = fs.FederatedData({"x": x}, np.array([0, 5, 12]))
    task = fs.empirical_task(
        lambda w, batch, key: jax.nn.softplus(batch["x"] * w[0]), data, fs.full_batch(1)
    )
    points = jnp.array([[-1.0], [0.0], [2.0]])
    measured = jax.jit(lambda task, points: hessian_lipschitz(task, points, KEY, iterations=1))
    result = measured(task, points)
    s = 1 / (1 + np.exp(-np.asarray(points) * x))
    third = s * (1 - s) * (1 - 2 * s) * x**3
    expected = np.abs([[row[:5].mean(), row[5:].mean()] for row in third])
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)
    bounds = linear_model_bounds(x[:, None], data.offsets, LOGISTIC, intercept=False)
    assert (expected <= bounds.Q * (1 + 1e-6)).all()


def test_power_method_finds_the_largest_form(x64):
    """The largest form of an orthogonal cubic ``sum_i c_i x_i^3 / 6`` is max c."""
    weights = jnp.array([1.0, 3.0, 2.0])

    def oracle(client, key, max_steps):
        gradient = jax.grad(lambda x: jnp.sum(weights * x**3) / 6)
        return fs.Oracle(lambda x, k: gradient(x), lambda x, k: 0.0, gradient)

    task = fs.Task(Partial(oracle), np.ones(4, np.int32), np.ones(4, np.int32))
    result = hessian_lipschitz(task, jnp.ones((1, 3)), KEY, iterations=30)
    # Each client starts elsewhere; local maxima are 1, 2 and 3, none is exceeded.
    assert (np.asarray(result) <= 3 + 1e-12).all()
    np.testing.assert_allclose(np.max(result), 3, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("block", [64, 4, 1])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_minibatch_moments_are_those_of_all_minibatches(x64, batch_size, block):
    """Enumerated: n^b minibatches, equally likely; clients have 1 to 9 examples."""
    data = logistic_data()
    measured = compiled(lambda x: batch_moments(logistic_losses, data, x, batch_size, block=block))
    result = measured(logistic_points())

    def moments(part, w):
        gradients = example_gradients(part, w)
        rows = list(itertools.product(range(len(gradients)), repeat=batch_size))
        noise = gradients[np.array(rows)].mean(axis=1) - gradients.mean(axis=0)
        squares = (noise**2).sum(axis=1)
        return squares.mean(), (squares**2).mean(), np.linalg.norm(gradients, axis=1).max()

    expected = per_client(moments)
    for name, values in zip(result._fields, np.moveaxis(expected, 2, 0), strict=True):
        # A few hundred operations; a client of one example has no noise.
        np.testing.assert_allclose(getattr(result, name), values, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(result.sigma, np.sqrt(expected[..., 0].max()), rtol=1e-12)
    np.testing.assert_allclose(result.sigma4, expected[..., 1].max() ** 0.25, rtol=1e-12)


@pytest.mark.slow
def test_sampled_moments_tend_to_the_exact_ones():
    data, points = logistic_data(), logistic_points()
    points = jax.tree.map(lambda x: x.astype(jnp.float32), points)
    task = fs.empirical_task(logistic_losses, data, fs.with_replacement(2, 1))
    exact = compiled(lambda x: batch_moments(logistic_losses, data, x, 2))(points)
    sampled = compiled(lambda task, x: sampled_moments(task, x, KEY, num_samples=2000))
    result = sampled(task, points)
    # Standard errors of about 1 / sqrt(2000) of variances within a factor of 3 of their means:
    # 5 of them, for 24 values.
    for name in ("variance", "fourth"):
        a, b = (np.asarray(getattr(x, name)) for x in (result, exact))
        np.testing.assert_allclose(a, b, rtol=0.4, atol=1e-4)
    np.testing.assert_allclose(result.variance.mean(), exact.variance.mean(), rtol=0.05)


def test_heterogeneity_of_logistic_regression(x64):
    result = compiled(heterogeneity)(logistic_task(), logistic_points())
    gradients = per_client(lambda part, w: example_gradients(part, w).mean(axis=0))
    mean = gradients.mean(axis=1, keepdims=True)
    deviations = np.linalg.norm(gradients - mean, axis=2)
    np.testing.assert_allclose(result.deviations, deviations, rtol=1e-12)
    np.testing.assert_allclose(result.client_norms, np.linalg.norm(gradients, axis=2), rtol=1e-12)
    np.testing.assert_allclose(result.norms, np.linalg.norm(mean[:, 0], axis=1), rtol=1e-12)
    np.testing.assert_allclose(result.zeta, deviations.max(), rtol=1e-12)
    mean_square = np.sqrt((deviations**2).mean(axis=1)).max()
    np.testing.assert_allclose(result.mean_zeta, mean_square, rtol=1e-12)


def test_equal_clients_have_no_heterogeneity():
    """Exactly 0, which bounds for one objective ask for, though float32 means round."""
    data = logistic_data()
    examples = jax.tree.map(lambda x: np.asarray(x, np.float32), data.examples)
    task = fs.shared_task(logistic_losses, examples, 7, fs.with_replacement(1, 2))
    points = jax.tree.map(lambda x: x.astype(jnp.float32), logistic_points())
    result = heterogeneity(task, points, execution=fs.execution.chunked(3))
    assert result.zeta == result.mean_zeta == 0
    assert result.mean_norm > 0.1


@pytest.mark.slow
@settings(max_examples=5)
@given(st.integers(0, 10**6))
def test_quadratics_have_closed_forms(seed):
    hessians, centres = random_quadratics(4, 3, seed)
    mean = hessians.mean(axis=0)
    best = np.linalg.solve(mean, np.einsum("mij,mj->i", hessians, centres) / 4)

    def loss(a, b, x):
        return jax.vmap(lambda a, b: 0.5 * (x - b) @ a @ (x - b))(a, b).mean()

    carried = Partial(loss, jnp.asarray(hessians), jnp.asarray(centres))
    result = optimum(carried, np.zeros(3))
    task = quadratic_task(hessians, centres, 1)
    points = jnp.asarray(np.stack([np.ones(3), best, -np.ones(3)]), jnp.float32)
    constants = measure(task, points, KEY, found=result, loss=carried, iterations=3)
    # All in float32: condition numbers below 3.
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(constants.L, np.linalg.eigvalsh(hessians).max(), **close)
    np.testing.assert_allclose(constants.mu, np.linalg.eigvalsh(mean)[0], **close)
    np.testing.assert_allclose(constants.B, np.linalg.norm(1 - best), **close)
    start = np.ones(3) - best
    np.testing.assert_allclose(constants.Delta, 0.5 * start @ mean @ start, **close)
    assert constants.Q < 1e-5
    gradients = np.einsum("mij,pmj->pmi", hessians, np.asarray(points)[:, None] - centres)
    deviations = np.linalg.norm(gradients - gradients.mean(axis=1, keepdims=True), axis=2)
    np.testing.assert_allclose(constants.zeta, deviations.max(), **close)
    np.testing.assert_allclose(
        constants.zeta_star, np.sqrt((gradients[1] ** 2).sum(axis=1).mean()), **close
    )
    assert constants.sigma is None
    assert constants.G is None


@pytest.mark.slow
def test_convexity_is_not_claimed_where_there_is_none():
    def oracle(sign, client, key, max_steps):
        gradient = jax.grad(lambda x: jnp.sum(jnp.array([1.0, 1.0]) * x**2) * sign + x[0] ** 2)
        return fs.Oracle(lambda x, k: gradient(x), lambda x, k: 0.0, gradient)

    one = np.ones(1, np.int32)
    for sign, expected in ((0.0, 0.0), (-0.5, None)):
        task = fs.Task(Partial(oracle, jnp.array(sign)), one, one)
        assert measure(task, jnp.ones((1, 2)), KEY).mu == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "point", "expected"),
    [
        (lambda x: 0.05 * x[0] ** 2 + 5 * jnp.cos(x[1]), [1.0, 0.0], 5.0),  # eigenvalues 0.1, -5
        (lambda x: jnp.cos(x[0]), [0.0], 1.0),  # a maximum
    ],
)
def test_directions_of_negative_curvature_count_for_smoothness(loss, point, expected):
    data = fs.FederatedData({"x": np.zeros(2, np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda x, batch, key: loss(x) + batch["x"], data, fs.full_batch(1))
    bent = curvature(task, jnp.array([point]), KEY, iterations=2)
    constants = measure(task, jnp.array([point]), KEY, bent=bent, iterations=2)
    np.testing.assert_allclose(constants.L, expected, rtol=1e-6)  # float32, 2 parameters at most
    np.testing.assert_allclose(rounding(bent), 100 * 2**-23 * expected, rtol=1e-6)
    assert constants.mu is None


def test_suboptimality_of_almost_optimal_models():
    """In single precision F - F* would be its rounding error, 1e-8."""
    x = np.random.default_rng(5).normal(size=20) + 10
    loss = Partial(lambda x, w: jnp.mean((x - w) ** 2), x)
    result = optimum(loss, np.float64(0))
    # The variance of x is 1: its rounding error is that of doubles.
    np.testing.assert_allclose(suboptimality(loss, x.mean() + 1e-6, result), 1e-12, rtol=1e-3)


def test_errors():
    task = quadratic_task(*random_quadratics(2, 3), 1)
    for points in (jnp.ones(()), {"a": jnp.ones((2, 3)), "b": jnp.ones((1, 3))}):
        with pytest.raises(ValueError, match=r"points has leaves of shapes .*expected \[P, ...\]"):
            heterogeneity(task, points)
    empty = dataclasses.replace(task, num_examples=np.array([1, 0]))
    with pytest.raises(ValueError, match="task has 1 clients without examples, the first is 1"):
        curvature(empty, jnp.ones((1, 3)), KEY)
    data, points = logistic_data(), logistic_points()
    with pytest.raises(ValueError, match="batch_size is 0; expected at least 1"):
        batch_moments(logistic_losses, data, points, 0)
    with pytest.raises(ValueError, match="num_samples is 0"):
        sampled_moments(task, jnp.ones((1, 3)), KEY, num_samples=0)
    with pytest.raises(ValueError, match="iterations is 0"):
        hessian_lipschitz(task, jnp.ones((1, 3)), KEY, iterations=0)
    with pytest.raises(ValueError, match="l2 is -1"):
        linear_model_bounds(np.ones((2, 1)), [0, 2], LOGISTIC, l2=-1)
    with pytest.raises(ValueError, match=r"offsets has clients of sizes \[2, 0\]"):
        linear_model_bounds(np.ones((2, 1)), [0, 2, 2], LOGISTIC)


def context_of(task, points):
    """The context of FedAvg before the first round, at the first of some models."""
    server = fs.fedavg(0.1).init(fs.tree.take(points, 0))
    state = fs.RunState(jnp.array(0), server, (), (), jnp.array(0))
    return RunContext(state, fs.fedavg(0.1), task, 1, KEY)


@pytest.mark.parametrize(
    "measured",
    [
        lambda task, x, *_: heterogeneity(task, x),
        lambda task, x, *_: curvature(task, x, KEY),
        lambda task, x, *_: hessian_lipschitz(task, x, KEY),
        lambda task, x, *_: measure(task, x, KEY),
        lambda task, x, *_: sampled_moments(task, x, KEY),
        lambda task, x, *_: ClientMap(task, KEY).mean_gradient(fs.tree.take(x, 0)),
        lambda task, x, *_: client_sharpness(task, fs.tree.take(x, 0), KEY),
        lambda _, x, objective, data: batch_moments(objective, data, x, 1),
        lambda _, x, objective, data: mean_loss(objective, data),
        lambda _, x, objective, data: stability(
            fs.fedavg(0.1), objective, neighbours(data, [0], jax.tree.map(lambda x: x[:1], ROWS)),
            fs.full_batch(1), fs.timelines.full(1, 1, 1), fs.tree.take(x, 0), KEY, ROWS,
        ),
        lambda task, x, *_: evaluate(client_dynamics(("noise",)), context_of(task, x)),
    ],
)  # fmt: skip
def test_running_statistics_have_no_gradients(measured):
    """Norms and Hessians of their changes were part of all numbers."""
    model = fs.models.from_nnx(lambda rngs: nnx.BatchNorm(2, momentum=0.5, rngs=rngs))
    objective, data = fs.objectives.squared_error(model), fs.from_clients([ROWS])
    task = fs.empirical_task(objective, data, fs.full_batch(1))
    points = jax.tree.map(lambda x: x[None], model.init(KEY))
    with pytest.raises(ValueError, match="running statistics"):
        measured(task, points, objective, data)


@pytest.mark.slow
def test_constants_of_a_diverged_model_are_not_zero():
    data = fs.from_clients([{"x": np.ones((1, 2))}])
    quartic = fs.empirical_task(
        lambda w, batch, key: ((batch["x"] - w) ** 4).sum(-1), data, fs.full_batch(1)
    )
    with jax.debug_nans(False):
        constants = measure(quartic, jnp.full((1, 2), jnp.nan), KEY, iterations=1)
    assert np.isnan([constants.L, constants.mu, constants.zeta, constants.zeta_mean]).all()


def test_heterogeneity_in_half_precision():
    ones = jnp.ones((1, 2), jnp.bfloat16)
    spread = Heterogeneity(2 * ones, ones, ones[:, 0])
    assert (spread.zeta, spread.mean_zeta, spread.mean_norm) == (2, 2, 1)


@pytest.mark.slow
def test_points_that_lie_on_several_devices():
    """A run leaves its models there; programs on all of them could wait for each other forever."""
    mesh = jax.make_mesh((4,), ("clients",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    points = jax.tree.map(lambda x: x.astype(jnp.float32), logistic_points())
    result, expected = (
        heterogeneity(logistic_task(), x) for x in (jax.device_put(points, everywhere), points)
    )
    np.testing.assert_array_equal(result.deviations, expected.deviations)
    assert len(result.deviations.devices()) == 1


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_points_in_half_precision_are_those_models_in_single_precision(dtype):
    """100 times the rounding of bfloat16 is 0.8 of a norm, so that clients seemed equal."""
    data = fs.from_clients([{"x": np.full((1, 2), x, np.float32)} for x in (400.0, -400.0, 100.0)])
    task = fs.empirical_task(
        lambda w, batch, key: 0.5 * ((batch["x"] - w) ** 2).sum(-1), data, fs.full_batch(1)
    )
    points = jnp.ones((1, 2), dtype)
    single = points.astype(jnp.float32)
    result, expected = heterogeneity(task, points), heterogeneity(task, single)
    assert result.deviations.dtype == jnp.float32
    np.testing.assert_array_equal(result.deviations, expected.deviations)
    np.testing.assert_allclose(result.zeta, np.sqrt(2) * (400 + 100 / 3), rtol=1e-6)
    assert result.mean_zeta > 300
    measured, known = measure(task, points, KEY), measure(task, single, KEY)
    assert measured.known == known.known
