"""SGD in continuous time: the backward equation and paths, against the recursion."""

import functools
import math

import jax
import numpy as np
import pytest
from numpy.polynomial import Polynomial

from experiments.local_methods.bias_laws import third_order_bias
from experiments.local_methods.diffusion import backward_equation, diffusion_paths
from fedjax_sim.diagnostics.gradient_noise import gaussian
from fedjax_sim.diagnostics.iterate_bias import mean_iterates
from fedjax_sim.problems.asymmetric import piecewise_quadratic, third_order_smooth

SMOOTH = functools.partial(third_order_smooth, smoothness=1.0, third=0.5)
FIGURE = functools.partial(piecewise_quadratic, right=2.0, left=0.2)
GRID = np.linspace(-1, 1, 5)


def expected_after(steps, dt, gradient, variance):
    """E[x_m | x_0 = x] and the noiseless iterate as polynomials in x, by an exact recursion.

    The mean of a polynomial u over a Gaussian is ``sum_j u^(2 j) variance^j / (2^j j!)``.
    """
    identity = Polynomial([0.0, 1.0])
    u, z = identity, identity
    for _ in range(steps):
        smoothed, derivative = u, u
        for j in range(1, u.degree() // 2 + 1):
            derivative = derivative.deriv(2)
            smoothed = smoothed + derivative * (variance**j / (2**j * math.factorial(j)))
        u, z = (f(identity - dt * gradient) for f in (smoothed, z))
    return u, z


@pytest.mark.parametrize("steps", [2, 4, 6])
def test_printed_generator_doubles_the_bias(steps):
    """Thesis, Equations 2.29 and 2.30: u_xx has the factor eta sigma^2 / 2, not eta sigma^2.

    F' is x / 2 + q x^2 / 2, so the third derivative is q.  Euler-Maruyama with m steps over the
    time t has the bias -1/4 eta sigma^2 q t^2 (1 - 1 / m) to relative order t; with m = k and
    t = eta k it is SGD.  The generator applied twice to x is u_tt(0, x).
    """
    eta, sigma, q, t, x = 0.1, 0.3, 0.7, 1e-3, 0.2
    gradient = Polynomial([0.0, 0.5, q / 2])
    u, z = expected_after(steps, t / steps, gradient, eta * sigma**2 * t / steps)
    constant = (u(x) - z(x)) / (eta * sigma**2 * q * t**2 * (1 - 1 / steps))
    assert constant == pytest.approx(-1 / 4, rel=5 * t)

    def from_generator(share):
        u = Polynomial([0.0, 1.0])
        for _ in range(2):
            u = -gradient * u.deriv() + share * eta * sigma**2 * u.deriv(2)
        return (u(x) - gradient(x) * gradient.deriv()(x)) / 2 / (eta * sigma**2 * q)

    rounding = 1e-12
    assert from_generator(1 / 2) == pytest.approx(-1 / 4, rel=rounding)
    assert from_generator(1) == pytest.approx(-1 / 2, rel=rounding)  # printed


@pytest.mark.slow
def test_backward_equation_against_closed_form_and_recursion():
    """Ornstein and Uhlenbeck: u = x exp(-a t), errors of order dt^2 + 0 in space.  Third order:
    u(0) is 1/4 k^2 to relative order lr k, and the recursion's times k / (k - 1).
    """
    grid = np.linspace(-0.1, 0.1, 41)
    u = backward_equation(lambda x: 2 * x, 1.0, 1e-2, 50, grid)
    t = 1e-2 * np.arange(51)
    np.testing.assert_allclose(u, np.exp(-2 * t)[:, None] * grid, atol=0.1 * 4 * 1e-4)
    lr, k = 1e-3, 64
    points = lr / 4 * np.arange(-300, 301)
    recursion = mean_iterates(SMOOTH, gaussian(1.0), lr, k, points).mean[:, 300]
    equation = backward_equation(SMOOTH, 1.0, lr, k, points)[:, 300]
    for at in (16, 64):
        ratio = equation[at] / recursion[at] * (at - 1) / at
        assert ratio == pytest.approx(1, abs=3e-3)
        law = float(third_order_bias(SMOOTH, 0.0, 1.0, lr, at))
        assert equation[at] / law == pytest.approx(1, abs=at * lr)
        assert equation[at] / law > 0.9  # printed: below 0.5


@pytest.mark.slow
def test_diffusion_paths():
    """Moments of the recursion of a tenth of the rate with noise that gives the same diffusion."""
    lr, std, count = 1e-2, 0.1, 2048
    at = np.array([64, 128])
    paths = diffusion_paths(FIGURE, std, lr, 0.0, at, count, jax.random.key(1))
    assert paths.shape == (2, count)
    fine = 1e-3
    noise = gaussian(std * (lr / fine) ** 0.5, 6, panels=17)
    grid = fine * noise.variance**0.5 / 2 * np.arange(-500, 501)
    expected = mean_iterates(FIGURE, noise, fine, 1280, grid).mean[[640, 1280], 500]
    errors = paths.std(1) / count**0.5
    assert (np.abs(paths.mean(1) - expected) < 5 * errors).all()
    assert (np.abs(expected) > 10 * errors).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: backward_equation(FIGURE, 0.0, 0.1, 1, GRID), "variance is 0.0; expected"),
        (lambda: backward_equation(FIGURE, 1.0, 0.1, 1, GRID[::-1]), "grid has shape"),
        (lambda: backward_equation(FIGURE, 1.0, 0.1, 1, GRID), "grid has spacing 0.5; expected"),
        (lambda: diffusion_paths(FIGURE, 1.0, 0.1, 0.0, [2, 2], 1, None), "record_at is"),
        (lambda: diffusion_paths(FIGURE, 1.0, 0.1, 0.0, [2], 0, None), "num_paths is 0"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
