"""Closed forms of the iterate bias against the recursion, quadrature and paths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from experiments.local_methods.bias_laws import (
    piecewise_quadratic_bias,
    piecewise_quadratic_limit,
    third_order_bias,
)
from fedjax_sim.diagnostics.gradient_noise import gaussian
from fedjax_sim.diagnostics.iterate_bias import mean_iterates, simulate_paths
from fedjax_sim.problems.asymmetric import piecewise_quadratic, third_order_smooth

SMOOTH = functools.partial(third_order_smooth, smoothness=1.0, third=0.5)


def test_limit_is_the_mean_of_the_stationary_density():
    """By quadrature of exp(-2 F / (eta sigma^2))."""
    right, left, lr, std = 3.0, 0.5, 0.02, 0.7

    def weight(x):
        return np.exp(-(right if x >= 0 else left) * x**2 / (lr * std**2))

    moments = [
        sum(integrate.quad(lambda x, n=n: x**n * weight(x), a, b)[0] for a, b in ((-2, 0), (0, 2)))
        for n in (0, 1)
    ]
    result = piecewise_quadratic_limit(right, left, lr, std)
    assert result == pytest.approx(moments[1] / moments[0], rel=1e-8)


@pytest.mark.slow
def test_small_time_laws_become_exact():
    """Their relative errors are of the order lr k, halved (to a tenth) with the rate."""
    kink = functools.partial(piecewise_quadratic, right=1.0, left=0.5)
    for gradient, noise, law in (
        (kink, gaussian(1.0, 8, panels=34), lambda lr: piecewise_quadratic_bias(1, 0.5, lr, 1, 16)),
        (SMOOTH, gaussian(1.0), lambda lr: third_order_bias(SMOOTH, 0.0, 1.0, lr, 16, "recursion")),
    ):
        errors = []
        for lr in (1e-3, 5e-4):
            grid = lr / 4 * np.arange(-160, 161)
            bias = mean_iterates(gradient, noise, lr, 16, grid).bias[16, 160]
            errors.append(1 - bias / float(law(lr)))
        assert 1e-3 < errors[0] < 16e-3
        assert errors[0] / errors[1] == pytest.approx(2, rel=0.1)
    assert piecewise_quadratic_bias(1.0, 0.5, 1e-3, 1.0, 10_000, "power") == pytest.approx(
        piecewise_quadratic_bias(1.0, 0.5, 1e-3, 1.0, 10_000), rel=1e-3
    )
    assert piecewise_quadratic_bias(1.0, 0.5, 1.0, 1.0, 1, "power") == pytest.approx(
        -0.132981, 1e-5
    )


@pytest.mark.slow
def test_forms_of_the_third_order_law():
    result = {
        form: float(third_order_bias(SMOOTH, 0.0, 2.0, 0.1, 5, form))
        for form in ("recursion", "diffusion")
    }
    # F''' = 0.5 at 0; float32 rounding.
    expected = {"recursion": -0.005, "diffusion": -0.00625}
    assert result == pytest.approx(expected, rel=1e-5)


def _separable(x):
    """F_1(x_1) + F_2(x_2), of different third derivatives."""
    return jnp.stack([third_order_smooth(x[0], 1.0, 0.5), third_order_smooth(x[1], 1.0, -0.2)])


@pytest.mark.slow
def test_bias_in_two_dimensions_against_the_recursion(x64):
    """Each coordinate of a separable objective has its own recursion, whatever the correlation.

    The law leaves out terms of relative order lr k = 0.008.
    """
    lr, k, stds = 1e-3, 8, (1.0, 0.5)
    sigma = np.array([[1.0, 0.3], [0.3, 0.25]])
    place = 20
    expected, x = [], []
    for third, std in zip((0.5, -0.2), stds, strict=True):
        gradient = functools.partial(third_order_smooth, smoothness=1.0, third=third)
        grid = lr * std / 4 * np.arange(-160, 161)
        expected.append(mean_iterates(gradient, gaussian(std), lr, k, grid).bias[k, 160 + place])
        x.append(grid[160 + place])
    result = third_order_bias(_separable, jnp.array(x), sigma, lr, k, "recursion")
    np.testing.assert_allclose(result, expected, rtol=0.015)
    # Rotated, the curvature is no longer diagonal.
    c, s = np.cos(0.7), np.sin(0.7)
    turn = np.array([[c, -s], [s, c]])
    turned = third_order_bias(
        lambda y: turn @ _separable(turn.T @ y), turn @ jnp.array(x), turn @ sigma @ turn.T, lr, k,
        "recursion",
    )  # fmt: skip
    np.testing.assert_allclose(turned, turn @ np.asarray(result), rtol=1e-9)


@pytest.mark.slow
def test_bias_in_two_dimensions_against_paths(x64):
    """Antithetic paths from the optimum; 5 standard errors, and 10 % for higher orders."""
    lr, k, count = 0.02, 8, 100_000
    sigma = np.array([[1.0, 0.3], [0.3, 0.25]])
    root = jnp.asarray(np.linalg.cholesky(sigma))
    c, s = np.cos(0.7), np.sin(0.7)
    turn = jnp.array([[c, -s], [s, c]])

    def sample(key, shape):
        return jax.random.normal(key, shape) @ root.T

    def gradient(y):
        return turn @ _separable(turn.T @ y)

    paths = simulate_paths(
        gradient, sample, lr, jnp.zeros(2), [k], count, jax.random.key(0), antithetic=True
    )[0]
    pairs = (paths[: count // 2] + paths[count // 2 :]) / 2
    result, errors = pairs.mean(0), pairs.std(0) / (count // 2) ** 0.5
    law = third_order_bias(gradient, jnp.zeros(2), sigma, lr, k, "recursion")
    assert (jnp.abs(result - law) < 5 * errors + 0.1 * jnp.abs(law)).all()
    assert (5 * errors < 0.3 * jnp.linalg.norm(law)).all()  # something is seen


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: third_order_bias(SMOOTH, 0.0, 1.0, 0.1, 2, "half"), "form is 'half'; expected"),
        (lambda: third_order_bias(SMOOTH, jnp.zeros(2), 1.0, 0.1, 2), "covariance has shape"),
        (lambda: piecewise_quadratic_bias(1.0, 0.5, 0.1, 1.0, 2, "half"), "form is 'half'"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
