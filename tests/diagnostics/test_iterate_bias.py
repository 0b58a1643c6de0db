"""The bias of SGD's iterates: the recursion, paths, the noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from experiments.local_methods.bias_laws import piecewise_quadratic_limit
from fedjax_sim.diagnostics.gradient_noise import gaussian, uniform
from fedjax_sim.diagnostics.iterate_bias import mean_iterates, simulate_paths
from fedjax_sim.problems.asymmetric import piecewise_quadratic, third_order_smooth

SMOOTH = functools.partial(third_order_smooth, smoothness=1.0, third=0.5)
FIGURE = functools.partial(piecewise_quadratic, right=2.0, left=0.2)


@pytest.mark.parametrize(
    ("noise", "reference"),
    [
        (gaussian(1.0), {2: -2.49999e-10, 8: -6.96851e-9, 32: -1.21241e-7, 64: -4.81144e-7}),
        (uniform(1.0), {64: -1.60390e-7}),
    ],
)
def test_third_order_bias_has_its_reference_values(noise, reference):
    """The references are printed to six digits; rounding is at most 1e-17."""
    grid = np.linspace(-0.3, 0.3, 1201)
    bias = mean_iterates(SMOOTH, noise, 1e-3, 64, grid).bias[:, 600]
    for k, value in reference.items():
        np.testing.assert_allclose(bias[k], value, rtol=5e-6)
    assert bias[0] == 0
    assert abs(bias[1]) < 1e-17


@pytest.mark.slow
def test_kink_has_its_reference_values():
    """The first is exact: E|N(0, 1)|; the references of the others have errors of about 2e-5,
    seen at k = 2, where they say -1.994678e-7.
    """
    gradient = functools.partial(piecewise_quadratic, right=1.0, left=0.5)
    grid = 2.5e-4 * np.arange(-720, 721)
    bias = mean_iterates(gradient, gaussian(1.0, 8, panels=34), 1e-3, 512, grid).bias[:, 720]
    np.testing.assert_allclose(bias[2], -1e-6 * 0.5 / np.sqrt(2 * np.pi), rtol=1e-6)
    reference = {8: -2.679870e-6, 32: -2.310099e-5, 128: -1.792359e-4, 512: -1.186650e-3}
    for k, value in reference.items():
        np.testing.assert_allclose(bias[k], value, rtol=1e-4)


@pytest.mark.slow
def test_recursion_against_nested_integrals():
    """E x_3 by adaptive quadrature of the noise of the first two steps, split at the kink.

    Kinks inside a panel cost the square of the node spacing: 40 panels leave 2e-7, 160 5e-10.
    """
    lr, std = 0.1, 0.5

    def descend(x):
        return x - lr * (2.0 if x >= 0 else 0.2) * x

    def density(z):
        return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    def mean(x, after):
        y = descend(x)
        kink = y / (lr * std)

        def integrand(z):
            return density(z) * after(y - lr * std * z)

        # Beyond 9 standard deviations the mass is 2e-19.
        return sum(
            integrate.quad(integrand, a, b, epsabs=1e-12, epsrel=1e-12)[0]
            for a, b in ((-9, kink), (kink, 9))
        )

    start = 0.02
    expected = mean(start, lambda x: mean(x, descend))
    grid = 2e-3 * np.arange(-300, 301)
    result = mean_iterates(FIGURE, gaussian(std, 8, panels=160), lr, 3, grid).mean[3, 310]
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-9)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    curvature=st.floats(0.1, 2.0), centre=st.floats(-0.1, 0.1), lr=st.floats(0.01, 0.5),
    steps=st.integers(1, 20),
)  # fmt: skip
def test_quadratics_have_no_bias(curvature, centre, lr, steps):
    """Every grid point, linear continuation included; rounding of the matrix product only."""
    grid = np.linspace(-1, 1, 41)
    result = mean_iterates(lambda x: curvature * (x - centre), gaussian(0.3), lr, steps, grid)
    np.testing.assert_allclose(result.bias, 0, atol=1e-12)
    expected = centre + (1 - lr * curvature) ** np.arange(steps + 1)[:, None] * (grid - centre)
    np.testing.assert_allclose(result.descent, expected, atol=1e-12)


def test_second_moment_of_a_quadratic():
    """Var x_k = eta^2 sigma^2 (1 - q^(2k)) / (1 - q^2): cubic interpolation is exact there."""
    lr, std, q = 0.1, 0.3, 0.8
    grid = np.linspace(-2, 2, 201)
    result = mean_iterates(lambda x: 2 * x, gaussian(std), lr, 12, grid, jnp.square)
    k = np.arange(13)
    expected = lr**2 * std**2 * (1 - q ** (2 * k)) / (1 - q**2) + (q**k * grid[110]) ** 2
    np.testing.assert_allclose(result.mean[:, 110], expected, atol=1e-12)
    np.testing.assert_allclose(result.descent[:, 110], (q**k * grid[110]) ** 2, atol=1e-12)


def _moments(num_steps):
    """Means and standard deviations of Figure 2.1 by the recursion."""
    noise, grid = gaussian(0.1, 6, panels=17), 1.25e-4 * np.arange(-640, 641)
    first = mean_iterates(FIGURE, noise, 1e-2, num_steps, grid).mean[:, 640]
    second = mean_iterates(FIGURE, noise, 1e-2, num_steps, grid, jnp.square).mean[:, 640]
    return first, np.sqrt(second - first**2)


@pytest.mark.slow
def test_figure_of_the_thesis():
    """Reference moments have a discretisation error of about 1e-3; paths lie within 5 standard
    errors of the recursion and, with half of that error, of the references.
    """
    at, count = [128, 256, 512, 1024], 8192
    reference_mean = np.array([-0.003165, -0.005294, -0.007315, -0.008422])
    reference_std = np.array([0.007572, 0.008997, 0.010243, 0.010903])
    mean, std = (x[at] for x in _moments(1024))
    np.testing.assert_allclose(mean, reference_mean, rtol=1.5e-3)
    np.testing.assert_allclose(std, reference_std, rtol=5e-4)
    paths = simulate_paths(FIGURE, gaussian(0.1).sample, 1e-2, 0.0, at, count, jax.random.key(3))
    errors = std / count**0.5
    assert (np.abs(paths.mean(1) - mean) < 5 * errors).all()
    assert (np.abs(paths.mean(1) - reference_mean) < 5 * errors).all()
    # The error of a standard deviation is about std / sqrt(2 N) for tails as light as these.
    assert (np.abs(paths.std(1) - std) < 5 * errors).all()
    # The limit belongs to the diffusion; SGD's differs by the order of the rate.
    limit = piecewise_quadratic_limit(2.0, 0.2, 1e-2, 0.1)
    assert limit == pytest.approx(-0.008626, abs=5e-7)
    assert 0.97 < mean[-1] / limit < 1


def test_antithetic_paths_and_starts():
    key = jax.random.key(0)
    paths = simulate_paths(lambda x: x, uniform(1.0).sample, 0.5, 1.0, [0, 3], 8, key, True)
    np.testing.assert_array_equal(paths[0], np.ones(8))
    # Of a quadratic the pairs' means are those of gradient descent.
    np.testing.assert_allclose((paths[1, :4] + paths[1, 4:]) / 2, 0.125, rtol=1e-6)
    later = simulate_paths(lambda x: x, uniform(1.0).sample, 0.5, 1.0, [1, 3], 8, key, True)
    np.testing.assert_array_equal(later[1], paths[1])  # what is recorded changes nothing


@pytest.mark.parametrize(
    "noise", [gaussian(0.7), uniform(0.7), gaussian(0.7, 6, 17), uniform(0.7, 6, 4)]
)
def test_quadrature_and_draws_have_the_same_moments(noise):
    """Even moments 2 and 4, odd ones 0; draws within 5 standard errors."""
    draws = np.asarray(noise.sample(jax.random.key(0), (20_000,)), np.float64)
    assert noise.weights @ noise.nodes**2 == pytest.approx(noise.variance, rel=1e-10)
    for power in range(1, 5):
        exact = noise.weights @ noise.nodes**power
        spread = (draws**power).std() / len(draws) ** 0.5
        assert abs((draws**power).mean() - exact) < 5 * spread


GRID = np.linspace(-1, 1, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian(0.0), "std is 0.0; expected"),
        (lambda: uniform(1.0, 0), "num_nodes is 0; expected"),
        (lambda: gaussian(1.0, panels=0), "panels is 0; expected"),
        (lambda: mean_iterates(FIGURE, gaussian(1.0), 0.0, 1, GRID), "lr is 0.0; expected"),
        (lambda: mean_iterates(FIGURE, gaussian(1.0), 0.1, 0, GRID), "num_steps is 0; expected"),
        (lambda: mean_iterates(FIGURE, gaussian(1.0), 0.1, 2.5, GRID), "num_steps is 2.5; expec"),
        (
            lambda: simulate_paths(FIGURE, jax.random.normal, 0.1, 0.0, [0.5, 1.5], 2, None),
            "record_at is 0.5; expected an integer",
        ),
        (
            lambda: simulate_paths(FIGURE, jax.random.normal, 0.1, 0.0, [1], 2.0, None),
            "num_paths is 2.0; expected an integer",
        ),
        (lambda: mean_iterates(FIGURE, gaussian(1.0), 0.1, 1, GRID**3), "grid has shape"),
        (lambda: mean_iterates(FIGURE, gaussian(1.0), 0.1, 1, GRID[:3]), "grid has shape"),
        (lambda: mean_iterates(FIGURE, gaussian(1.0), 0.1, 1, GRID * np.nan), "grid has shape"),
        (lambda: simulate_paths(FIGURE, None, 0.1, 0.0, [], 1, None), "record_at is"),
        (lambda: simulate_paths(FIGURE, None, 0.1, 0.0, [3, 3], 1, None), "record_at is"),
        (lambda: simulate_paths(FIGURE, None, 0.1, 0.0, [3], 0, None), "num_paths is 0"),
        (lambda: simulate_paths(FIGURE, None, 0.1, 0.0, [3], 3, None, True), "an even number"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
