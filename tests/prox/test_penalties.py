"""Penalties: their proximal operators are certified by subgradients, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from proximal_points import (
    CONSTRAINTS,
    EPS,
    PENALTIES,
    POINTS,
    ROUNDING,
    ROWS,
    SHAPE,
    STEPS,
    exact_l1_ball,
    in_double,
    outputs_in_double,
    program,
    random_point,
)
from small_problems import assert_identical, compiled

from fedjax_sim import prox

every_penalty = pytest.mark.parametrize("name", PENALTIES)


@pytest.mark.slow
@every_penalty
@given(v=POINTS, c=STEPS)
@settings(max_examples=60)
def test_prox_is_optimal(name, v, c):
    """v - x is in the subdifferential of c psi at x; not divided by c, which may be 0."""
    known = PENALTIES[name]
    x = in_double(known.psi, v, c)
    assert known.violation(v - x, x, c) <= ROUNDING


@every_penalty
@given(u=POINTS, v=POINTS, c=STEPS)
@settings(max_examples=50)
def test_prox_is_firmly_non_expansive(name, u, v, c):
    psi = PENALTIES[name].psi
    moved = in_double(psi, u, c) - in_double(psi, v, c)
    assert np.vdot(moved, u - v) >= np.vdot(moved, moved) - ROUNDING


@every_penalty
def test_prox_with_step_0_is_the_identity(name, x64):
    v = random_point()
    # The singular value decomposition multiplies out to v up to rounding; the others are exact.
    atol = 10 * EPS if name == "nuclear" else 0
    np.testing.assert_allclose(in_double(PENALTIES[name].psi, v, 0.0), v, rtol=0, atol=atol)


@every_penalty
def test_prox_of_one_entry_minimises(name):
    """The definition itself, by a search over the line: one half, squares and factors are right."""
    known = PENALTIES[name]
    psi = prox.GroupL1(known.psi.weight) if name == "labels" else known.psi
    for v, c in [(2.0, 1.0), (-0.9, 0.5), (0.3, 0.8), (-4.0, 2.5)]:
        result = scipy.optimize.minimize_scalar(
            lambda x, v=v, c=c: (
                (x - v) ** 2 / 2 + c * (known.weight * abs(x) + known.square * x**2)
            ),
            bounds=(-5, 5),
            method="bounded",
            options={"xatol": 1e-9},
        )
        # A search by values finds a minimum to the square root of their rounding.
        np.testing.assert_allclose(in_double(psi, [[v]], c).item(), result.x, atol=1e-6)


class TestMoreau:
    """v = prox(v) + the projection of v on the ball of the dual norm, of radius c weight."""

    @given(v=POINTS, c=STEPS)
    def test_l1(self, v, c):
        radius = 0.7 * c
        box = in_double(prox.Box(-radius, radius), v, 0.0)
        np.testing.assert_allclose(in_double(prox.L1(0.7), v, c) + box, v, atol=ROUNDING)

    @given(v=POINTS, c=STEPS)
    @settings(max_examples=50)
    def test_linf(self, v, c):
        ball = exact_l1_ball(v.ravel(), 0.7 * c).reshape(SHAPE)
        np.testing.assert_allclose(in_double(prox.LInf(0.7), v, c) + ball, v, atol=ROUNDING)

    @given(v=POINTS, c=STEPS)
    @settings(max_examples=50)
    def test_groups(self, v, c):
        balls = np.stack([in_double(prox.L2Ball(0.7 * c), row, 0.0) for row in v])
        np.testing.assert_allclose(in_double(prox.GroupL1(0.7), v, c) + balls, v, atol=ROUNDING)

    @given(v=POINTS, c=STEPS)
    def test_nuclear(self, v, c):
        u, s, w = np.linalg.svd(v, full_matrices=False)
        clipped = (u * np.minimum(s, 0.7 * c)) @ w
        np.testing.assert_allclose(in_double(prox.Nuclear(0.7), v, c) + clipped, v, atol=ROUNDING)


def test_nuclear_of_a_diagonal_is_soft_thresholding():
    entries = np.array([3.0, -0.5, 1.0, -2.0])
    x = in_double(prox.Nuclear(0.5), np.diag(entries), 2.0)
    np.testing.assert_allclose(x, np.diag([2.0, 0.0, 0.0, -1.0]), atol=20 * EPS)


def test_nuclear_acts_on_every_matrix_of_a_stack(x64):
    psi = prox.Nuclear(0.7)
    v = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3, 5)))
    np.testing.assert_allclose(
        psi.prox(v, 0.9), np.stack([psi.prox(x, 0.9) for x in v]), atol=50 * EPS
    )
    np.testing.assert_allclose(
        psi.subgradient(v), np.stack([psi.subgradient(x) for x in v]), atol=50 * EPS
    )
    assert psi.value(v) == pytest.approx(sum(float(psi.value(x)) for x in v), rel=50 * EPS)


def test_labels_of_rows_are_rows(x64):
    v = jnp.asarray(random_point())
    by_axis, by_label = prox.GroupL1(0.7), prox.GroupL1(0.7, labels=jnp.asarray(ROWS))
    np.testing.assert_allclose(by_label.prox(v, 0.9), by_axis.prox(v, 0.9), rtol=4 * EPS)
    assert by_label.value(v) == pytest.approx(float(by_axis.value(v)), rel=4 * EPS)


def test_axis_counts_from_either_end():
    v = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)
    for axis in range(3):
        assert_identical(
            prox.GroupL1(0.7, axis=axis - 3).prox(v, 1.0), prox.GroupL1(0.7, axis=axis).prox(v, 1.0)
        )


def test_scalar_is_one_group():
    assert prox.GroupL1(0.5).prox(jnp.array(-2.0), 1.0) == -1.5


@pytest.mark.parametrize("labels", [None, jnp.zeros(2, jnp.int32)])
def test_group_whose_square_overflows(labels):
    x = jnp.full(2, 1e25) if labels is not None else jnp.full((1, 2), 1e25)
    rows = prox.GroupL1(1.0, labels=labels)
    np.testing.assert_allclose(rows.value(x), 2**0.5 * 1e25, rtol=1e-6)
    np.testing.assert_allclose(rows.subgradient(x), jnp.full_like(x, 0.5**0.5), rtol=1e-6)
    np.testing.assert_allclose(rows.prox(x, 2**0.5 * 5e24), x / 2, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-25, 1e-30])
def test_group_whose_square_vanishes_is_dropped(size):
    v = jnp.full((2, 3), size, jnp.float32)
    assert_identical(prox.GroupL1(1e-3).prox(v, 1.0), jnp.zeros_like(v))


@pytest.mark.parametrize("name", ["l1", "rows", "labels", "linf", "elastic_net"])
def test_small_points_give_exact_zeros(name):
    """In single precision, too: sparsity is counted."""
    v = jnp.asarray(0.1 * random_point(), jnp.float32)
    assert_identical(program(PENALTIES[name].psi, v, 5.0)[0], jnp.zeros_like(v))


@pytest.mark.slow
@every_penalty
@given(x=POINTS, z=POINTS)
@settings(max_examples=50)
def test_value_and_subgradient(name, x, z):
    known = PENALTIES[name]
    _, value, s = outputs_in_double(known.psi, x, 1.0)
    np.testing.assert_allclose(value, known.value(x), rtol=50 * EPS, atol=ROUNDING)
    # Singular values at the level of rounding may count as 0 or not.
    assert known.violation(s, x) <= ROUNDING
    assert known.value(z) >= known.value(x) + np.vdot(s, z - x) - ROUNDING


@every_penalty
def test_subgradient_at_0_is_0(name):
    zero = np.zeros(SHAPE)
    assert_identical(outputs_in_double(PENALTIES[name].psi, zero, 1.0)[2], zero)


def test_subgradient_where_some_of_it_can_be_0(x64):
    x = jnp.array([[3.0, 0.0], [0.0, 0.0], [-4.0, 3.0]])
    assert_identical(prox.L1(2.0).subgradient(x), 2 * jnp.sign(x))
    expected = np.array([[2.0, 0.0], [0.0, 0.0], [-1.6, 1.2]])
    np.testing.assert_allclose(prox.GroupL1(2.0).subgradient(x), expected, rtol=4 * EPS)
    rank_one = jnp.outer(jnp.array([1.0, 2.0, 2.0]), jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(
        prox.Nuclear(2.0).subgradient(rank_one), 2 * rank_one / 15, atol=10 * EPS
    )


@every_penalty
def test_gradient_of_the_value(name, x64):
    x = jnp.asarray(random_point(5))
    psi = PENALTIES[name].psi
    gradient = compiled(jax.grad(psi.value))(x)
    np.testing.assert_allclose(gradient, outputs_in_double(psi, x, 1.0)[2], atol=100 * EPS)


def test_soft_threshold_keeps_the_type_of_the_point(x64):
    v = jnp.array([3.0, -0.5], jnp.float32)
    assert_identical(prox.soft_threshold(v, jnp.float64(1.0)), jnp.array([2.0, 0.0], jnp.float32))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: prox.L1(-0.5), "weight is -0.5; expected at least 0"),
        (lambda: prox.SquaredL2(-1), "weight is -1; expected at least 0"),
        (lambda: prox.GroupL1(float("nan")), "weight is nan; expected at least 0"),
        (lambda: prox.LInf(jnp.array([1.0, -1.0])), "weight is .*; expected at least 0"),
        (lambda: prox.Nuclear(np.float32(-2)), "weight is -2.0; expected at least 0"),
        (lambda: prox.ElasticNet(-1.0, 1.0), "l1 is -1.0; expected at least 0"),
        (lambda: prox.ElasticNet(1.0, -1.0), "l2 is -1.0; expected at least 0"),
    ],
)
def test_bad_weights(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("axis", [2, -3, 5])
def test_bad_axis(axis):
    psi = prox.GroupL1(1.0, axis=axis)
    for act in (psi.value, psi.subgradient, lambda v: psi.prox(v, 1.0)):
        with pytest.raises(ValueError, match=rf"axis is {axis}; expected one of an array of shape"):
            act(jnp.ones((2, 3)))


@pytest.mark.usefixtures("allow_nans")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nuclear_norm_of_a_diverged_run(bad, capfd):
    """NaN for that matrix only, without the messages that LAPACK prints for infinity."""
    psi = prox.Nuclear(1.0)
    # LAPACK prints nothing for matrices of a few rows.
    good = jnp.asarray(np.random.default_rng(2).normal(size=(32, 32)), jnp.float32)
    both = jnp.stack([good, good.at[1, 2].set(bad)])
    for act in (psi.subgradient, lambda v: psi.prox(v, 1.0)):
        first, second = jax.block_until_ready(act(both))
        np.testing.assert_allclose(first, act(good), atol=1e-4)  # single precision
        assert np.isnan(second).all()
    assert np.isnan(psi.value(both[1]))
    assert capfd.readouterr() == ("", "")


def test_nuclear_norm_of_a_vector():
    psi = prox.Nuclear(1.0)
    for act in (psi.value, psi.subgradient, lambda v: psi.prox(v, 1.0)):
        with pytest.raises(ValueError, match=r"x has shape \(3,\); expected a matrix"):
            act(jnp.ones(3))


def test_which_are_penalties():
    for known in PENALTIES.values():
        assert isinstance(known.psi, prox.Penalty)
    for psi in CONSTRAINTS.values():
        assert isinstance(psi, prox.Regularizer)
        assert not isinstance(psi, prox.Penalty)
