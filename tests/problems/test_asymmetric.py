"""One-dimensional objectives whose curvature differs on the two sides of the optimum."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.problems.asymmetric import piecewise_quadratic, third_order_smooth


@pytest.mark.parametrize(("smoothness", "third"), [(1.0, 0.5), (3.0, 2.0)])
def test_derivatives_of_the_third_order_instance(x64, smoothness, third):
    """Closed forms by NumPy, also at 0 and where cosh overflows; rounding only."""
    x = np.array([-1000.0, -1.0, -1e-9, 0.0, 0.3, 1000.0])
    gradient = functools.partial(third_order_smooth, smoothness=smoothness, third=third)
    u = 4 * third / smoothness * x
    log_cosh = np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(2)
    expected = [
        0.75 * smoothness * x + smoothness**2 / (16 * third) * log_cosh,
        smoothness * (0.75 + np.tanh(u) / 4),
        third * np.cosh(np.clip(u, -300, 300)) ** -2,
    ]
    for values in expected:
        np.testing.assert_allclose(jax.vmap(gradient)(x), values, rtol=1e-12, atol=1e-15)
        gradient = jax.grad(gradient)


def test_derivatives_of_the_piecewise_quadratic():
    """All numbers are exact in float32."""
    result = piecewise_quadratic(jnp.array([-2.0, -0.5, 0.0, 0.5, 2.0]), 4.0, 0.5)
    np.testing.assert_array_equal(result, [-1.0, -0.25, 0.0, 2.0, 8.0])
    slope = jax.grad(lambda x: piecewise_quadratic(x, 4.0, 0.5))
    assert [float(slope(x)) for x in (-1.0, 1.0)] == [0.5, 4.0]
