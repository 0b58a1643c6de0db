"""Lojasiewicz families: their constants and gradients, and the noise of their tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from small_problems import compiled

from experiments.lojasiewicz.families import (
    largest,
    logistic,
    power,
    quadratic,
    sine_quadratic,
    softplus_tilted,
)
from experiments.lojasiewicz.family import gap, gaussian, gradients, noisy_task, sphere
from experiments.lojasiewicz.policies import softmax_bandit, softmax_mdp, two_armed_bandit

RNG = np.random.default_rng(0)
MATRIX = np.diag([0.0, 0.5, 2.0])
CENTRES = RNG.normal(size=(4, 3))
REWARDS = np.array([[1.0, 0.3, 0.6], [0.2, 0.9, 0.5], [0.7, 0.3, 0.8]])
MDP_REWARDS = RNG.uniform(size=(2, 3, 2))
TRANSITIONS = RNG.dirichlet(np.ones(3), size=(3, 2))
INITIAL = np.array([0.2, 0.5, 0.3])


def in_ball(radius, count, dim):
    """Points of every length up to the radius."""
    x = RNG.normal(size=(count, dim))
    lengths = np.linspace(0.0, radius, count)[:, None]
    return lengths * x / np.linalg.norm(x, axis=1, keepdims=True)


# A family and points of its domain; for trajectory families, the visited models.
THETAS = RNG.normal(size=(300, 3)) * 2
TABLES = RNG.normal(size=(300, 3, 2)) * 1.5
HALF_LINE = np.linspace(-0.5, 12.0, 4001)
LINE = np.linspace(-12.0, 12.0, 4001)
FAMILIES = {
    "quadratic": (lambda: quadratic(MATRIX, CENTRES), RNG.normal(size=(300, 3)) * 3),
    "softplus_tilted": (lambda: softplus_tilted(1.0, 0.8, 4), LINE * 5),
    "strongly_tilted": (lambda: softplus_tilted(0.5, 1.9, 2), LINE),
    "sine_quadratic": (lambda: sine_quadratic(2), LINE),
    "power_2": (lambda: power(2.0, 1.5, 2), in_ball(1.5, 300, 2)),
    "power_3": (lambda: power(3.0, 0.7, 2), in_ball(0.7, 300, 2)),
    "power_4": (lambda: power(4.0, 1.5, 2), in_ball(1.5, 300, 3)),
    "logistic": (lambda: logistic(np.array([0.5, 1.0, 2.0]), low=-0.5), HALF_LINE),
    "two_armed": (lambda: two_armed_bandit(np.array([1.0, 0.4]), low=-0.5), HALF_LINE),
    "bandit": (lambda: softmax_bandit(REWARDS, THETAS), THETAS),
    "mdp": (lambda: softmax_mdp(MDP_REWARDS, TRANSITIONS, INITIAL, 0.6, TABLES), TABLES),
}
# Families for which the inequality with mu is an equality at some point, up to the spacing.
ATTAINED = "softplus_tilted sine_quadratic power_2 power_3 power_4 logistic two_armed".split()
# Families for which some pair of neighbouring points attains L, up to the spacing.
SMOOTHNESS_ATTAINED = "softplus_tilted strongly_tilted sine_quadratic logistic two_armed".split()
# Families for which some point has the spread zeta; for tilted ones it is a limit.
SPREAD_ATTAINED = "quadratic softplus_tilted strongly_tilted logistic two_armed bandit mdp".split()


@functools.partial(compiled, static_argnums=2)
def evaluated(value, gradient, num_clients, points):
    """f_c [n, M], its gradient and its derivative [n, M, d]; the mean gradient and the spread."""
    clients = jnp.arange(num_clients)

    def over(function):
        return jax.vmap(jax.vmap(function, (0, None)), (None, 0))(clients, points)

    means = jax.vmap(lambda x: gradients(gradient, num_clients, x))(points)
    return over(value), over(gradient), over(jax.grad(value, 1)), means


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_constants_and_gradients(x64, name):
    """The inequality, smoothness, the spread, the infima; and the gradients are derivatives.

    1e-9 allows for rounding in double precision, 1 % for the spacing of the points.
    """
    make, points = FAMILIES[name]
    family = make()
    alpha, mu, L, zeta, infima, minimum = family.constants
    results = evaluated(family.value, family.gradient, family.num_clients, jnp.asarray(points))
    values, each, derivatives, (total, spreads) = jax.tree.map(np.asarray, results)
    np.testing.assert_allclose(each, derivatives, rtol=1e-9, atol=1e-13)
    each = each.reshape(*values.shape, -1)
    gaps = values - infima
    assert (gaps >= -1e-12).all()
    squared = (each**2).sum(axis=-1)
    bound = mu * np.maximum(gaps, 0) ** alpha
    assert (squared >= bound * (1 - 1e-9) - 1e-14).all()
    far = gaps > 1e-6
    tightest = (squared[far] / bound[far]).min()
    # The curvature m - delta / 4 is one client's at 0, where its minimum is not.
    if name in ATTAINED:
        assert tightest < (1.2 if name == "softplus_tilted" else 1.01)

    steps = points[1:] - points[:-1]
    distance = np.sqrt((steps.reshape(len(steps), -1) ** 2).sum(axis=1))[:, None]
    quotients = np.sqrt(((each[1:] - each[:-1]) ** 2).sum(axis=-1)) / distance
    assert quotients.max() <= L * (1 + 1e-9)
    if name in SMOOTHNESS_ATTAINED:
        assert quotients.max() > 0.99 * L

    mean = each.mean(axis=1, keepdims=True)
    spread = np.sqrt(((each - mean) ** 2).sum(axis=-1).mean(axis=1))
    assert spread.max() <= zeta * (1 + 1e-9) + 1e-14
    if name in SPREAD_ATTAINED:
        assert spread.max() > 0.99 * zeta
    assert values.mean(axis=1).min() >= minimum - 1e-12
    assert family.constants.floor >= -1e-12
    # The identity behind Equation 19, and with it the inequality of the mean.
    np.testing.assert_allclose(spreads, spread, rtol=1e-9, atol=1e-14)
    norms = np.square(total).reshape(len(points), -1).sum(axis=1)
    np.testing.assert_allclose(norms, squared.mean(axis=1) - spread**2, rtol=1e-7, atol=1e-12)
    means = compiled(jax.vmap(lambda x: gap(family, x)))(jnp.asarray(points[::50]))
    np.testing.assert_allclose(means, gaps.mean(axis=1)[::50], rtol=1e-12, atol=1e-14)
    lower = mu * np.maximum(means, 0) ** alpha - zeta**2
    assert (norms[::50] >= lower - 1e-12).all()


def test_constants_of_the_table(x64):
    """Printed to these digits; the infima by scipy."""
    assert sine_quadratic(1).constants.mu == pytest.approx(0.35106, abs=5e-6)
    assert logistic(np.ones(2)).constants.mu == pytest.approx(0.52034, abs=5e-6)
    known = two_armed_bandit(np.ones(1), 0.0).constants
    np.testing.assert_allclose(known.L, 0.0963, atol=1e-4)
    assert known.mu == 0.25
    assert power(4.0, 1.5, 1).constants[:3] == pytest.approx((1.5, 8.0, 6.75), rel=1e-14)
    assert power(2.0, 1.5, 1).constants[:3] == pytest.approx((1.0, 2.0, 1.0), rel=1e-14)
    result = softplus_tilted(1.0, 0.8, 8).constants
    assert result.optimum == pytest.approx(-0.083232, abs=5e-7)
    assert result.floor == -result.optimum
    for sign, infimum in zip((1, -1), result.infima[:2], strict=True):
        objective = lambda x, s=sign: x**2 / 2 + 0.8 * s * np.logaddexp(0, x)  # noqa: E731
        assert infimum == pytest.approx(scipy.optimize.minimize_scalar(objective).fun, rel=1e-10)
    assert softplus_tilted(1.0, 0.0, 2).constants.floor == 0
    known = quadratic(MATRIX, CENTRES).constants
    middle = CENTRES - CENTRES.mean(axis=0)
    assert known.minimum == pytest.approx(np.mean([b @ MATRIX @ b for b in middle]) / 2)
    assert known[:3] == (1.0, 1.0, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "shape"), [(sphere, (5,)), (gaussian, (5,)), (sphere, ())])
def test_noise(noise, shape):
    """Mean 0 and E||noise||^2 = 1: 5 standard errors of 4,000 draws; keyed by visit and step."""
    family = power(2.0, 1.0, 2)
    task = noisy_task(family, 0.3, 2, noise)
    x = jnp.full(shape, 0.1)

    @compiled
    def draws(keys):
        def one(key, step):
            oracle = task.oracle(jnp.array(0), key, 2)
            return oracle.grad(x, step) - oracle.full_grad(x)

        return jax.vmap(lambda key: jax.vmap(lambda k: one(key, k))(jnp.arange(2)))(keys)

    result = np.asarray(draws(jax.random.split(jax.random.key(0), 2000)), np.float64) / 0.3
    result = result.reshape(4000, -1)
    squared = (result**2).sum(axis=1)
    assert abs(squared.mean() - 1) < 5 * squared.std() / 4000**0.5 + 1e-6  # float32
    assert (abs(result.mean(axis=0)) < 5 * result.std(axis=0) / 4000**0.5).all()
    if noise is sphere:
        np.testing.assert_allclose(squared, 1, rtol=1e-5)  # float32, of a difference
    if shape:
        assert len(np.unique(result[:, 0])) > 3990
    oracle = task.oracle(jnp.array(1), jax.random.key(3), 2)
    both = compiled(lambda x: (jax.grad(oracle.loss)(x, 1), oracle.grad(x, 1)))
    derivative, gradient = both(x)
    np.testing.assert_allclose(derivative, gradient, rtol=1e-5)
    with jax.enable_x64(True):
        double = noisy_task(power(2.0, 1.0, 2), 0.3, 2, noise).oracle(
            jnp.array(1), jax.random.key(3), 2
        )
        same = compiled(lambda x: double.grad(x, 1))(jnp.full(shape, 0.1))
    np.testing.assert_allclose(same, gradient, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quadratic(np.ones((2, 3)), CENTRES), r"shapes \(2, 3\) and \(4, 3\); expected"),
        (lambda: quadratic(-np.eye(3), CENTRES), "matrix has eigenvalues"),
        (lambda: quadratic(np.zeros((3, 3)), CENTRES), "matrix has eigenvalues"),
        (lambda: softplus_tilted(0.0, 0.1, 2), "curvature is 0.0; expected"),
        (lambda: softplus_tilted(1.0, 4.0, 2), r"tilt is 4.0; expected 0 <= tilt < 4"),
        (lambda: softplus_tilted(1.0, 0.1, 3), "num_clients is 3; expected an even"),
        (lambda: sine_quadratic(0), "num_clients is 0; expected"),
        (lambda: power(1.9, 1.0, 1), "degree is 1.9; expected at least 2"),
        (lambda: power(2.0, 0.0, 1), "radius is 0.0; expected"),
        (lambda: logistic(np.array([1.0, 0.0])), "slopes is"),
        (lambda: two_armed_bandit(np.array([-1.0]), 0.0), "gaps is"),
        (
            lambda: softmax_bandit(np.ones(3), THETAS),
            r"rewards has shape \(3,\); expected \[M, A\]",
        ),
        (lambda: softmax_bandit(2 * REWARDS, THETAS), "expected numbers in"),
        (lambda: softmax_bandit(REWARDS, np.zeros((4, 2))), r"shape \(4, 2\); expected \[..., 3\]"),
        (
            lambda: softmax_mdp(MDP_REWARDS, TRANSITIONS[:2], INITIAL, 0.5, TABLES),
            "rewards, transitions and initial have shapes",
        ),
        (
            lambda: softmax_mdp(MDP_REWARDS, 2 * TRANSITIONS, INITIAL, 0.5, TABLES),
            "transitions has row sums",
        ),
        (
            lambda: softmax_mdp(MDP_REWARDS, TRANSITIONS, np.array([0, 0.5, 0.5]), 0.5, TABLES),
            "initial is",
        ),
        (
            lambda: softmax_mdp(MDP_REWARDS, TRANSITIONS, INITIAL, 1.0, TABLES),
            "discount is 1.0; expected",
        ),
        (lambda: noisy_task(power(2.0, 1.0, 1), -1.0, 1), "std is -1.0; expected"),
        (lambda: noisy_task(power(2.0, 1.0, 1), 1.0, 0), "num_steps is 0; expected"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_largest_at_a_border_and_inside():
    """x (1 - x) has 1/4 inside; 1/3 is no point of the first grid."""
    assert largest(lambda x: x, 0.0, 2.0) == 2.0
    assert largest(lambda x: -x, 1.0, 2.0) == -1.0
    assert largest(lambda x: -((x - 1 / 3) ** 2), 0.0, 1.0) > -1e-16
