"""Max-pooling against ``lax.reduce_window``."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

from fedjax_sim.models.convolution.pooling import max_pool


def reference(x, window=(2, 2), strides=None, padding: Any = "VALID"):
    strides = window if strides is None else strides
    low = np.asarray(-np.inf, x.dtype)
    return lax.reduce_window(x, low, lax.max, (1, *window, 1), (1, *strides, 1), padding)


def images(shape, decimals=None):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return jnp.asarray(x if decimals is None else np.round(x, decimals))


def weighted_sum(pool):
    def value(x):
        out = pool(x)
        weights = jnp.arange(1, out.size + 1, dtype=x.dtype).reshape(out.shape)
        return jnp.sum(weights * out)

    return value


# Selecting entries rounds nothing, so all comparisons are exact.
@pytest.mark.slow
@pytest.mark.parametrize("decimals", [None, 0])  # 0: rounded, so most windows have ties
@pytest.mark.parametrize(
    ("size", "window"), [((6, 8), (2, 2)), ((7, 9), (2, 2)), ((7, 8), (3, 2)), ((5, 5), (1, 1))]
)
def test_value_and_gradient(size, window, decimals):
    x = images((2, *size, 3), decimals)
    np.testing.assert_array_equal(max_pool(x, window), reference(x, window))
    actual = jax.grad(weighted_sum(lambda x: max_pool(x, window)))(x)
    expected = jax.grad(weighted_sum(lambda x: reference(x, window)))(x)
    np.testing.assert_array_equal(actual, expected)


def test_constant_window_gives_its_gradient_to_the_first_entry():
    gradient = jax.grad(lambda x: max_pool(x).sum())(jnp.zeros((1, 2, 2, 1)))
    assert gradient[0, :, :, 0].tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_vmap_inside_scan():
    x = images((3, 4, 2, 6, 6, 3))

    def run(pool):
        gradients = jax.vmap(jax.grad(weighted_sum(pool)))
        return lax.scan(lambda total, x: (total + gradients(x), None), jnp.zeros_like(x[0]), x)[0]

    np.testing.assert_array_equal(jax.jit(run, static_argnums=0)(max_pool), run(reference))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_derivatives_of_all_modes():
    # Distinct entries at least 0.1 apart: numerical differences do not change who is the maximum.
    x = jnp.asarray(np.random.default_rng(0).permutation(32).reshape(1, 4, 4, 2) * 0.1)
    check_grads(lambda x: jnp.sin(max_pool(x)), (x,), order=2, modes=("fwd", "rev"), rtol=1e-5)


@pytest.mark.parametrize(
    ("strides", "padding"), [((1, 1), "VALID"), ((2, 2), "SAME"), ((2, 1), ((1, 0), (0, 1)))]
)
def test_overlap_and_padding(strides, padding):
    x = images((2, 7, 7, 3))
    pads = padding if isinstance(padding, str) else [(0, 0), *padding, (0, 0)]
    expected = reference(x, (3, 2), strides, pads)
    np.testing.assert_array_equal(max_pool(x, (3, 2), strides, padding), expected)


@pytest.mark.usefixtures("allow_nans")
def test_nan_is_not_hidden():
    for place in np.ndindex(2, 2):
        x = jnp.ones((1, 2, 2, 1)).at[0, place[0], place[1], 0].set(jnp.nan)
        assert jnp.isnan(max_pool(x)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": jnp.ones((4, 4, 1))}, r"x is float32\[4,4,1\]"),
        ({"x": jnp.ones((1, 4, 4, 1), jnp.int32)}, r"x is int32\[1,4,4,1\]"),
        ({"window": (5, 2)}, r"window is \(5, 2\); expected at most the size \(4, 4\)"),
        (
            {"window": (3, 6), "padding": [(0, 0), (1, 0)]},
            r"window is \(3, 6\); expected at most the size \(4, 5\) of x with its padding",
        ),
        ({"window": (0, 2)}, r"window is \(0, 2\)"),
        ({"strides": (2,)}, r"strides is \(2,\)"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        max_pool(**({"x": jnp.ones((1, 4, 4, 1))} | arguments))
