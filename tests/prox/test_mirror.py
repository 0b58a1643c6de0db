"""Mirror maps: values, gradients, inverses and divergences."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from mirror_maps import (
    CLOSED,
    DIM,
    MIRRORS,
    POSITIVE,
    SIGNED,
    argmin,
    divergence,
    double,
    every_mirror,
    inner,
    p_norm,
    to_dual,
    to_primal,
)
from proximal_points import (
    EPS,
    REGULARIZERS,
    central_difference,
    in_double,
    largest,
    numbers,
    stacked,
)
from small_problems import assert_identical, compiled

from fedjax_sim import prox


@pytest.mark.slow
@every_mirror
@given(x=SIGNED, positive=POSITIVE)
def test_dual_and_back(name, x, positive):
    mirror, _ = MIRRORS[name]
    x = positive if name == "entropy" else x
    # The powers p - 1 and q - 1 and the logarithms magnify rounding by 10 at most.
    back = double(to_primal, mirror, double(to_dual, mirror, x))
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-13 * max(1, largest(x)))
    # The other way, where the dual points are as large.
    forth = double(to_dual, mirror, double(to_primal, mirror, x))
    np.testing.assert_allclose(forth, x, rtol=0, atol=1e-13 * max(1, largest(x)))


value_and_gradient = compiled(jax.value_and_grad(lambda mirror, x: mirror.value(x), 1))


@every_mirror
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient(name, seed, x64):
    mirror, h = MIRRORS[name]
    x = inner(name, seed)
    value, gradient = value_and_gradient(mirror, jnp.asarray(x))
    dual = to_dual(mirror, jnp.asarray(x))
    np.testing.assert_allclose(value, h(x), rtol=20 * EPS)
    np.testing.assert_allclose(gradient, dual, rtol=100 * EPS)
    # The differences err by 1e-16 / 1e-6 of rounding and as much of curvature.
    np.testing.assert_allclose(dual, central_difference(h, x), rtol=1e-8, atol=1e-8)


@every_mirror
@given(x=SIGNED, z=SIGNED, positive=POSITIVE, other=POSITIVE)
@settings(max_examples=50)
def test_divergence(name, x, z, positive, other):
    mirror, h = MIRRORS[name]
    x, z = (positive, other) if name == "entropy" else (x, z)
    actual = double(divergence, mirror, x, z)
    gradient = double(to_dual, mirror, z)
    np.testing.assert_allclose(actual, h(x) - h(z) - gradient @ (x - z), rtol=0, atol=1e-11)
    assert actual >= -1e-11  # convex; both are differences of numbers up to 1e3


@given(x=SIGNED, z=SIGNED, p=st.floats(1.05, 2.0))
def test_p_norm_is_strongly_convex_in_the_p_norm(x, z, p):
    """With constant 1; rounding of sums up to 1e3."""
    actual = double(divergence, prox.PNorm(p), x, z)
    assert actual >= p_norm(x - z, p) ** 2 / 2 - 1e-10


@given(x=POSITIVE, z=POSITIVE)
def test_entropy_is_strongly_convex_on_the_simplex(x, z):
    """Pinsker's inequality."""
    x, z = x / x.sum(), z / z.sum()
    assert double(divergence, prox.Entropy(), x, z) >= np.sum(np.abs(x - z)) ** 2 / 2 - 1e-14


@given(x=SIGNED)
@settings(max_examples=30)
def test_p_norm_of_2_is_euclidean(x):
    mirror = prox.PNorm(2.0)
    for function in (to_dual, to_primal):
        np.testing.assert_allclose(double(function, mirror, x), x, rtol=0, atol=20 * EPS)
    soft = in_double(prox.L1(0.7), x, 0.9)
    np.testing.assert_allclose(
        double(argmin, mirror, prox.L1(0.7), x, 0.9), soft, rtol=0, atol=20 * EPS
    )


def test_entropy_of_zeros():
    """An x of 0 counts as the least positive number, in the value's gradient up to its step."""
    mirror, x = prox.Entropy(), jnp.array([0.0, 1.0, 0.0, 0.5])
    tiny = np.finfo(np.float32).tiny
    np.testing.assert_allclose(
        mirror.to_dual(x), np.log([tiny, 1.0, tiny, 0.5]), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(mirror.value(x), -1 + 0.5 * np.log(0.5) - 0.5, rtol=1e-6)
    np.testing.assert_allclose(mirror.to_primal(mirror.to_dual(x)), x, atol=1e-7)
    assert np.all(np.isfinite(jax.grad(mirror.value)(x)))
    z = jnp.full(4, 0.5)
    # sum of x log(x / z) - x + z
    np.testing.assert_allclose(prox.divergence(mirror, x, z), 0.5 + np.log(2), rtol=1e-6)
    assert np.isfinite(prox.divergence(mirror, z, x))


@pytest.mark.parametrize("p", [1.05, 1.3, 2.0])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e18])
def test_p_norm_of_any_magnitude(p, scale):
    """Powers of the entries need not be numbers of single precision; h, a square, must be."""
    mirror = prox.PNorm(p)
    x = jnp.array([1.0, -0.9, 0.0, 0.8]) * scale
    # Single precision times the power q - 1 of the way back, 20 for p = 1.05.
    np.testing.assert_allclose(mirror.to_primal(mirror.to_dual(x)) / scale, x / scale, atol=3e-5)
    assert mirror.to_dual(x)[2] == 0
    expected = p_norm(np.array([1.0, 0.9, 0.0, 0.8]), p) * scale
    if expected**2 > 1e-30:
        np.testing.assert_allclose(np.sqrt(2 * (p - 1) * mirror.value(x)), expected, rtol=1e-5)


derivatives = compiled(lambda m, x: (jax.grad(m.value)(x), jax.jacrev(m.to_primal)(x)))


@every_mirror
def test_derivatives_at_0_are_numbers(name):
    mirror = MIRRORS[name][0]
    zero = jnp.zeros(DIM)
    gradient, jacobian = derivatives(mirror, zero)
    assert np.all(np.isfinite(gradient))
    assert np.all(np.isfinite(jacobian))
    if name != "entropy":
        assert_identical(to_dual(mirror, zero), zero)
        assert_identical(to_primal(mirror, zero), zero)
        assert_identical(gradient, zero)


def outputs(mirror, x):
    """The value, both maps and a minimiser."""
    minimiser = mirror.argmin(prox.L1(0.3), x, 0.5)
    return mirror.value(x), mirror.to_dual(x), mirror.to_primal(x), minimiser


program = compiled(outputs)


@every_mirror
def test_vmap_over_points_and_numbers(name, x64):
    mirror = MIRRORS[name][0]
    each, batch = stacked(mirror, [0.9, 1.0, 1.1])
    x = jnp.asarray(np.stack([inner(name, seed) for seed in range(3)]))
    mapped = compiled(jax.vmap(outputs, (0 if jax.tree.leaves(batch) else None, 0)))
    single = [program(*row) for row in zip(each, x, strict=True)]
    for actual, *expected in zip(mapped(batch, x), *single, strict=True):
        np.testing.assert_allclose(actual, np.stack(expected), rtol=1e-13, atol=50 * EPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weighted", "p_norm", "hypentropy"])
def test_gradient_with_respect_to_a_mirror_map_is_one(name):
    """Also if its numbers are ones that the constructor would refuse."""
    mirror = MIRRORS[name][0]
    gradient = jax.grad(lambda m: -m.value(jnp.asarray(inner(name), jnp.float32)))(mirror)
    assert type(gradient) is type(mirror)


@every_mirror
def test_float32_numbers_on_a_float64_array(name, x64):
    values, rebuild = numbers(MIRRORS[name][0])
    mirror = rebuild([jnp.asarray(value, jnp.float32) for value in values])
    x = jnp.asarray(inner(name))
    results = [*program(mirror, x), argmin(mirror, prox.L1(jnp.float32(0.3)), x, jnp.float32(0.5))]
    assert {x.dtype for x in results} == {np.dtype(np.float64)}


@pytest.mark.slow
@every_mirror
def test_bfloat16(name):
    mirror, x = MIRRORS[name][0], jnp.asarray(inner(name), jnp.bfloat16)
    results = [*program(mirror, x)]
    results += [argmin(mirror, REGULARIZERS[psi], x, 0.5) for psi in CLOSED[name]]
    assert {x.dtype for x in results} == {np.dtype(jnp.bfloat16)}
    assert all(np.all(np.isfinite(np.asarray(x, np.float32))) for x in results)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: prox.Weighted(jnp.array([1.0, 0.0])), "scales is .*; expected a positive number"),
        (lambda: prox.PNorm(1.0), "p is 1.0; expected a number above 1, at most 2"),
        (lambda: prox.PNorm(2.5), "p is 2.5; expected a number above 1, at most 2"),
        (lambda: prox.PNorm(float("nan")), "p is nan; expected a number above 1, at most 2"),
        (lambda: prox.Hypentropy(0.0), "b is 0.0; expected a positive number"),
        (lambda: prox.Hypentropy(np.array([1.0, -1.0])), "b is .*; expected a positive number"),
    ],
)
def test_bad_numbers(build, message):
    with pytest.raises(ValueError, match=message):
        build()
