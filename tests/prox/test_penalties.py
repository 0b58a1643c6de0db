"""Penalties and constraints: values, proximal points and projections."""

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
    REGULARIZERS,
    ROUNDING,
    ROWS,
    SHAPE,
    STEPS,
    exact_above_level,
    exact_l1_ball,
    in_double,
    outputs_in_double,
    program,
    random_point,
    support,
)
from small_problems import assert_identical, compiled

from fedjax_sim import prox

every_penalty = pytest.mark.parametrize("name", PENALTIES)
every_regularizer = pytest.mark.parametrize("name", REGULARIZERS)


@every_regularizer
@given(v=POINTS, c=STEPS)
@settings(max_examples=40)
def test_prox_is_optimal(name, v, c):
    """v - x is in the subdifferential of c psi at x, or normal to the set: nothing is further."""
    psi, known = REGULARIZERS[name], PENALTIES.get(name)
    assert isinstance(psi, prox.Penalty) == (known is not None)
    x, value = outputs_in_double(psi, v, c)[:2]
    if known:
        assert known.violation(v - x, x, c) <= ROUNDING
    else:
        assert outputs_in_double(psi, x, c)[1] == 0
        assert support(psi, v - x) <= np.vdot(v - x, x) + ROUNDING
        assert value == 0 or np.any(x != v)


@every_regularizer
@given(u=POINTS, v=POINTS, c=STEPS)
@settings(max_examples=30)
def test_prox_is_firmly_non_expansive(name, u, v, c):
    psi = REGULARIZERS[name]
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
        (lambda: prox.L1Ball(-1.0), "radius is -1.0; expected at least 0"),
        (lambda: prox.L2Ball(jnp.array([1.0, -1.0])), "radius is .*; expected at least 0"),
        (lambda: prox.L2Ball(float("nan")), "radius is nan; expected at least 0"),
        (lambda: prox.Box(1.0, 0.0), "low is 1.0; expected at most high, 0.0"),
        (lambda: prox.Box(float("nan"), 0.0), "low is nan; expected at most high, 0.0"),
        (lambda: prox.Box(np.array([0.0, 2.0]), np.ones(2)), "low is .*; expected at most high"),
        (lambda: prox.Simplex(0.0), "total is 0.0; expected a positive number"),
        (lambda: prox.Simplex(-1), "total is -1; expected a positive number"),
        (lambda: prox.Simplex(float("nan")), "total is nan; expected a positive number"),
        (lambda: prox.Weighted(jnp.array([1.0, 0.0])), "scales is .*; expected a positive number"),
        (lambda: prox.PNorm(1.0), "p is 1.0; expected a number above 1, at most 2"),
        (lambda: prox.PNorm(2.5), "p is 2.5; expected a number above 1, at most 2"),
        (lambda: prox.PNorm(float("nan")), "p is nan; expected a number above 1, at most 2"),
        (lambda: prox.Hypentropy(0.0), "b is 0.0; expected a positive number"),
        (lambda: prox.Hypentropy(np.array([1.0, -1.0])), "b is .*; expected a positive number"),
        (lambda: prox.composite(3.0), "expected a regulariser, for example"),
        (lambda: prox.composite(prox.L1), "expected a regulariser, for example"),
        (lambda: prox.composite(prox.L1(0.1), prox.L1(0.1)), "mirror is .*; expected a mirror map"),
        (lambda: prox.composite(prox.L1(0.1), prox.Entropy), "mirror is .*; expected a mirror map"),
    ],
)
def test_bad_numbers(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# ---- constraints


every_constraint = pytest.mark.parametrize("name", CONSTRAINTS)
# The programs that run in practice: large sums may be ordered by what the compiler chooses.
projected = jax.jit(lambda psi, v: psi.prox(v, 0.0))
indicated = jax.jit(lambda psi, x: psi.value(x))


@every_constraint
@given(v=POINTS)
@settings(max_examples=50)
def test_projection_stays(name, v):
    x = in_double(CONSTRAINTS[name], v, 0.0)
    again = in_double(CONSTRAINTS[name], x, 0.0)
    # The sums of x may exceed the radius by rounding.
    np.testing.assert_allclose(again, x, rtol=0, atol=10 * EPS)


@every_constraint
@given(v=POINTS)
@settings(max_examples=20)
def test_step_has_no_effect(name, v):
    psi = CONSTRAINTS[name]
    assert_identical(in_double(psi, v, 0.0), in_double(psi, v, 3.7))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("psi", "v"),
    [
        (prox.L1Ball(3.0), [1.0, -1.5, 0.25]),
        (prox.L2Ball(3.0), [1.0, -1.5, 0.25]),
        (prox.Box(-2.0, 1.0), [1.0, -1.5, 0.25]),
        (prox.L1Ball(0.0), [0.0, 0.0, 0.0]),
        (prox.L2Ball(0.0), [0.0, 0.0, 0.0]),
        (prox.L1Ball(np.inf), [1e30, -1.0, 0.0]),
        (prox.L2Ball(np.inf), [1e30, -1.0, 0.0]),
    ],
)
def test_points_inside_are_untouched(psi, v):
    v = jnp.array(v)
    assert_identical(projected(psi, v), v)
    assert_identical(psi.prox(v, 0.0), v)  # step by step nothing is NaN, either
    assert indicated(psi, v) == 0


@pytest.mark.parametrize("psi", [prox.L1Ball(0.0), prox.L2Ball(0.0), prox.Box(0.0, 0.0)])
def test_one_point(psi):
    assert_identical(projected(psi, jnp.array([3.0, -1.5, 3.0])), jnp.zeros(3))


def kinds(size, rng):
    """Points at which sums, ties or magnitudes are awkward."""
    normal = rng.normal(size=size)
    return {
        "normal": normal,
        "ties": rng.integers(-3, 4, size=size) * 0.1,
        "equal": np.full(size, 0.7),
        "zeros": np.zeros(size),
        "mostly_zeros": normal * (rng.random(size) < 0.05),
        "offset": 1234.567 + 1e-3 * normal,
        "large": 1e6 * normal,
        "wide": np.sign(normal) * np.logspace(-25, 15, size),
        "geometric": 2.0 ** -np.arange(size).clip(max=100),
    }


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 300, 3000])
def test_l1_ball_and_simplex_are_exact_to_rounding(size, dtype):
    """Relative to the radius, however large v is; the reference sorts rational numbers.

    Every entry is rounded once or twice, and the common level by the rounding of a sum.
    """
    tolerance = 16 * np.finfo(dtype).eps
    with jax.enable_x64(dtype == np.float64):
        for kind, point in kinds(size, np.random.default_rng(size)).items():
            v = point.astype(dtype)
            norm = float(np.sum(np.abs(v), dtype=np.float64))
            for radius in [0.0, 1e-6, 1e-3, 1.0, 0.5 * norm, 1e6]:
                radius = float(dtype(radius))
                ball = projected(prox.L1Ball(radius), jnp.asarray(v))
                np.testing.assert_allclose(
                    ball, exact_l1_ball(v, radius), rtol=0, atol=tolerance * radius, err_msg=kind
                )
                if radius > 0:
                    simplex = projected(prox.Simplex(radius), jnp.asarray(v))
                    reference = exact_above_level(v, radius)
                    np.testing.assert_allclose(
                        simplex, reference, rtol=0, atol=tolerance * radius, err_msg=kind
                    )


@pytest.mark.parametrize("value", [0.7, 3.3, 1234.567, 1e5])
@pytest.mark.parametrize("spread", [1, 4, 30])
@pytest.mark.parametrize("total", [1e-3, 30.0])
def test_many_entries_a_few_roundings_apart(value, spread, total):
    """Sums of single precision then decide which entries stay; theta lies between two numbers."""
    v = np.full(3000, value, np.float32)
    v += np.spacing(v) * np.random.default_rng(0).integers(0, spread, v.size).astype(np.float32)
    x = projected(prox.Simplex(total), jnp.asarray(v))
    reference = exact_above_level(v, np.float32(total))
    # A few units in the last place of the largest entry, which is small.
    atol = 8 * np.finfo(np.float32).eps * reference.max()
    np.testing.assert_allclose(x, reference, rtol=0, atol=atol)


def test_sums_of_many_entries():
    """A level that exceeds all entries by rounding would leave nothing, or everything."""
    for value in (0.7, 1.1, 1234.567):
        x = projected(prox.Simplex(1.0), jnp.full(100_000, value))
        # Rounding of 1e-5, the same in every entry.
        np.testing.assert_allclose(x, 1e-5, rtol=4 * np.finfo(np.float32).eps)


def test_sum_that_is_infinite():
    v = jnp.array([3e38, -2e38, 1e38])
    assert_identical(projected(prox.L1Ball(2.0), v), jnp.array([2.0, 0.0, 0.0]))
    assert_identical(projected(prox.Simplex(2.0), jnp.abs(v)), jnp.array([2.0, 0.0, 0.0]))


@pytest.mark.parametrize("magnitude", [1e-25, 1e-3, 1.0, 1e20, 1e30])
def test_l2_ball_of_any_magnitude(magnitude):
    """Also where squares are no numbers of single precision."""
    v = jnp.array([3.0, -4.0]) * magnitude
    x = projected(prox.L2Ball(0.5 * magnitude), v)
    np.testing.assert_allclose(x / magnitude, [0.3, -0.4], rtol=1e-6)
    assert indicated(prox.L2Ball(5.1 * magnitude), v) == 0
    assert indicated(prox.L2Ball(4.9 * magnitude), v) == np.inf


def test_bounds_entry_by_entry(x64):
    low, high = np.array([[-1.0, 0.0]] * 3), np.array([[0.5], [1.0], [2.0]])
    v = random_point(1, 3.0)
    x = in_double(prox.Box(low, high), v, 0.0)
    assert_identical(x, np.clip(v, low, high))
    assert prox.Box(low, high).value(jnp.asarray(x)) == 0
    assert prox.Box(low, high).value(jnp.asarray(v)) == np.inf


SETS = {
    "l1_ball": prox.L1Ball,
    "l2_ball": prox.L2Ball,
    "simplex": prox.Simplex,
    "box": lambda radius: prox.Box(-radius, radius),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("name", SETS)
def test_value_distinguishes_projected_points_from_others(name, size, dtype):
    rng = np.random.default_rng(size)
    point = rng.normal(size=(2, size))
    with jax.enable_x64(dtype == np.float64):
        for magnitude in (1e-3, 1.0, 1e6):
            v = jnp.asarray(np.abs(point[0]) * magnitude + magnitude, dtype)
            w = jnp.asarray(point[1] * magnitude, dtype)
            for radius in (1e-3, 1.0, 1e6):
                psi = SETS[name](radius)
                x, y = projected(psi, v), projected(psi, w)
                assert indicated(psi, x) == 0
                assert indicated(psi, y) == 0
                assert indicated(psi, (x + y) / 2) == 0  # a mean of clients
                if indicated(psi, v) == np.inf:  # then x is on the boundary
                    # Rounding that is granted is 1e-4 in single precision.
                    assert indicated(psi, x * 1.001) == np.inf


def test_value_outside():
    assert prox.Simplex().value(jnp.array([0.5, 0.499])) == np.inf
    assert prox.Simplex().value(jnp.array([1.01, -0.01])) == np.inf
    assert prox.Box(0.0).value(jnp.array([1e6, -1e-3])) == np.inf
    assert prox.Box(-1.0, 1.0).value(jnp.array([0.0, -1.001])) == np.inf
    assert prox.L1Ball(0.0).value(jnp.array([1e-20])) == np.inf
    assert prox.L1Ball(1e-4).value(jnp.array([-2e-4])) == np.inf


def test_bounds_of_two_precisions(x64):
    """An array in single precision and one in double, which must not be compared as they are."""
    box = prox.Box(jnp.zeros(2, jnp.float32), np.ones(2))
    assert_identical(box.prox(jnp.array([-1.0, 3.0]), 0.0), jnp.array([0.0, 1.0]))
