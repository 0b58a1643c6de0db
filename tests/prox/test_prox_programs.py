"""Every regulariser inside programs: batches, derivatives, precisions; numbers that are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from proximal_points import (
    CONSTRAINTS,
    EPS,
    PENALTIES,
    REGULARIZERS,
    SHAPE,
    central_difference,
    in_double,
    numbers,
    outputs,
    program,
    random_point,
    stacked,
)
from small_problems import assert_identical, compiled

from fedjax_sim import prox

every_regularizer = pytest.mark.parametrize("name", REGULARIZERS)


@pytest.mark.slow
@every_regularizer
def test_vmap_over_points_steps_and_numbers(name, x64):
    each, batch = stacked(REGULARIZERS[name], [0.5, 1.0, 2.0])
    v = jnp.asarray(np.stack([random_point(seed) for seed in range(3)]))
    c = jnp.array([0.3, 1.0, 0.0])
    # Zero has no numbers and so no axis to map.
    mapped = compiled(jax.vmap(outputs, (0 if jax.tree.leaves(batch) else None, 0, 0)))
    single = [program(*row) for row in zip(each, v, c, strict=True)]
    for actual, *expected in zip(mapped(batch, v, c), *single, strict=True):
        # Sums and singular values, compiled differently.
        np.testing.assert_allclose(actual, np.stack(expected), rtol=0, atol=50 * EPS)


@pytest.mark.slow
@every_regularizer
@pytest.mark.parametrize("scale", [2.0, 0.1])  # outside of the sets, and inside of the balls
def test_derivatives_are_central_differences(name, scale, x64):
    """In the point, the step and the numbers, where nothing is at a kink."""
    values, rebuild = numbers(REGULARIZERS[name])
    if name == "point":
        values = [0.05]  # a radius cannot go below 0
    direction = jnp.asarray(random_point(4))

    def along(v, c, values):
        return jnp.vdot(direction, rebuild(values).prox(v, c))

    args = (jnp.asarray(random_point(3, scale)), 0.6, values)
    v, c, _ = args
    with_gradient = compiled(jax.value_and_grad(along, (0, 1, 2)))
    by_point, by_step, by_numbers = with_gradient(*args)[1]

    def function(*args):
        return with_gradient(*args)[0]

    slopes = [
        (by_point, central_difference(lambda v: function(v, c, values), v)),
        (by_step, central_difference(lambda c: function(v, c, values), c)),
    ]
    if values:
        expected = central_difference(lambda w: function(v, c, list(w)), values)
        slopes.append((by_numbers, expected))
        if name in PENALTIES and scale > 1:
            assert np.all(np.abs(expected) > 1e-3), "no effect, so nothing is tested"
    for actual, expected in slopes:
        # The differences err by 1e-16 / 1e-6 of rounding and as much of curvature.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["l1", "elastic_net", "rows", "columns", "labels", "linf"])
def test_derivatives_at_0(name):
    """Around 0 the prox is constant, so that all its derivatives are 0, and none is NaN."""
    values, rebuild = numbers(REGULARIZERS[name])
    jacobians = compiled(jax.jacrev(lambda v, c, values: rebuild(values).prox(v, c), (0, 1, 2)))
    for jacobian in jax.tree.leaves(jacobians(jnp.zeros(SHAPE), 1.0, values)):
        assert_identical(jacobian, jnp.zeros_like(jacobian))


@pytest.mark.parametrize("psi", [prox.L1Ball(1.3), prox.L2Ball(1.3), prox.Box(-0.4, 0.9)])
def test_derivative_inside_is_the_identity(psi):
    jacobian = compiled(jax.jacrev(lambda v: psi.prox(v, 0.0)))(jnp.zeros(3))
    assert_identical(jacobian, jnp.eye(3))


@pytest.mark.parametrize("psi", [prox.L1Ball(0.0), prox.L2Ball(0.0), prox.Simplex(1.0)])
def test_derivatives_at_corners_are_numbers(psi):
    """A radius of 0, a point that is 0 or has ties; nothing is NaN."""
    gradient = compiled(jax.grad(lambda psi, v: psi.prox(v, 0.0) @ jnp.arange(3.0), (0, 1)))
    for v in (jnp.zeros(3), jnp.ones(3), jnp.array([0.0, 0.0, 2.0])):
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient(psi, v)))


@pytest.mark.parametrize(
    ("psi", "v"),
    [(prox.Simplex(1.0), [1.0, 0.8, -1.0, 0.5]), (prox.L1Ball(1.0), [1.0, 0.8, -0.01, 0.5])],
)
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_jacobian_removes_the_mean_over_a_face(psi, v, mode, x64):
    """Through the search for the level, forward and backward; off the face it is 0."""
    above = np.array([1.0, 1.0, 0.0, 1.0])
    expected = np.diag(above) - np.outer(above, above) / 3
    jacobian = compiled(mode(lambda v: psi.prox(v, 0.0)))(jnp.array(v))
    np.testing.assert_allclose(jacobian, expected, rtol=0, atol=10 * EPS)


@pytest.mark.parametrize("name", [name for name in REGULARIZERS if name != "labels"])
def test_gradient_with_respect_to_a_regularizer_is_one(name):
    """Also if it has negative weights or radii, which the constructor would refuse."""
    psi = REGULARIZERS[name]
    v = jnp.asarray(np.abs(random_point(0, 3.0)), jnp.float32)
    sign = -1.0 if name in CONSTRAINTS else 1.0  # a larger set gives larger entries
    gradient = compiled(jax.grad(lambda psi: sign * psi.prox(v, 0.1).sum()))(psi)
    assert type(gradient) is type(psi)
    assert jax.tree.structure(gradient) == jax.tree.structure(psi)
    assert all(leaf <= 0 for leaf in jax.tree.leaves(gradient))
    if name not in ("zero", "orthant"):
        assert any(leaf < 0 for leaf in jax.tree.leaves(gradient))


@every_regularizer
def test_float32_numbers_on_a_float64_array(name, x64):
    values, rebuild = numbers(REGULARIZERS[name])
    psi = rebuild([jnp.float32(value) for value in values])
    v = jnp.asarray(random_point(0, 2.0))
    results = program(psi, v, jnp.float32(0.5))
    assert {x.dtype for x in results} == {np.dtype(np.float64)}
    # 0.7 and 1.3 in single precision are off by 5e-8 at most.
    expected = in_double(REGULARIZERS[name], v, 0.5)
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=1e-7)


@pytest.mark.slow
@every_regularizer
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(name, dtype):
    psi = REGULARIZERS[name]
    v = jnp.asarray(random_point(0, 2.0), dtype)
    results = program(psi, v, 0.5)
    assert {x.dtype for x in results} == {np.dtype(dtype)}
    expected = in_double(psi, np.asarray(v, np.float64), 0.5)
    # A few roundings of numbers up to 4, the step times the weight among them.
    atol = 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(results[0], np.float64), expected, rtol=0, atol=atol)
    if name in CONSTRAINTS:
        assert program(psi, results[0], 0.5)[1] == 0
        assert program(psi, results[0] - 1, 0.5)[1] == np.inf


def test_traced_numbers_are_not_checked():
    """Inside a program there is nothing to check; here the value would be refused."""

    @jax.jit
    def build(number):
        sets = [prox.L2Ball(number), prox.Simplex(number), prox.Box(1.0, number)]
        return prox.L1(number).value(jnp.ones(2)), sets

    value, sets = build(-0.5)
    assert value == -1.0
    assert sets[0].radius == -0.5
