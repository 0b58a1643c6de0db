"""Mirror maps and their minimisers."""

import itertools

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
    PENALTIES,
    POINTS,
    REGULARIZERS,
    STEPS,
    central_difference,
    in_double,
    largest,
    numbers,
    stacked,
    support,
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


# ---- minimisers


PAIRS = [(mirror, psi) for mirror, psis in CLOSED.items() for psi in psis]
every_pair = pytest.mark.parametrize(("name", "psi_name"), PAIRS)
# All others, whatever the regulariser's numbers.
OPEN = [
    (mirror, psi)
    for mirror, psi in itertools.product(MIRRORS, REGULARIZERS)
    if mirror != "euclidean"
    and type(REGULARIZERS[psi]) not in {type(REGULARIZERS[closed]) for closed in CLOSED[mirror]}
]


@pytest.mark.slow
@every_pair
@given(y=SIGNED, c=STEPS)
@settings(max_examples=40)
def test_argmin_is_optimal(name, psi_name, y, c):
    r""":math:`y - \nabla h(x)` is a subgradient of c psi at x, or normal to the set at x."""
    mirror, _ = MIRRORS[name]
    psi = REGULARIZERS[psi_name]
    x = double(argmin, mirror, psi, y, c)
    g = y - double(to_dual, mirror, x)
    if name == "entropy":
        assert np.all(x > 0)
    # Rounding of a dozen operations on dual points up to 10, magnified tenfold by powers.
    if psi_name in PENALTIES:
        assert PENALTIES[psi_name].violation(g, x, c) <= 1e-12
    else:
        with jax.enable_x64(True):
            assert psi.value(jnp.asarray(x)) == 0
        assert support(psi, settled(g)) <= g @ x + 1e-12


def settled(g):
    """Without rounding, of which an unbounded set would make infinity."""
    return np.where(np.abs(g) < 1e-12, 0.0, g)


@every_pair
def test_argmin_beats_other_points(name, psi_name, x64):
    """The definition itself: h + c psi - <y, .> is larger at every feasible point around."""
    mirror, h = MIRRORS[name]
    psi, known = REGULARIZERS[psi_name], PENALTIES.get(psi_name)
    rng = np.random.default_rng(0)
    tried = 0
    for y in (inner(seed=1), inner(seed=2, scale=3.0)):
        x = np.asarray(argmin(mirror, psi, y, 0.8))

        def objective(z, y=y):
            finite = known.value(z) if known else 0.0
            return h(z) + 0.8 * finite - y @ z

        for scale in (1e-3, 0.1, 1.0):
            z = x + scale * rng.normal(size=(30, DIM))
            if name == "entropy":
                z = np.abs(z)
            if not known:
                z = np.stack([in_double(psi, row, 0.0) for row in z])
                z = z[(z > 0).all(1)] if name == "entropy" else z
            values = np.array([objective(row) for row in z])
            # Rounding of sums whose terms are a few times larger.
            assert np.all(values >= objective(x) - 1e-14 * np.abs(values))
            tried += len(values)
    assert tried >= 30


@pytest.mark.parametrize(("name", "psi_name"), OPEN)
def test_pairs_without_a_closed_form(name, psi_name):
    mirror, psi = MIRRORS[name][0], REGULARIZERS[psi_name]
    message = f"psi is {type(psi).__name__}, mirror {type(mirror).__name__}; expected a pair"
    with pytest.raises(ValueError, match=message):
        mirror.argmin(psi, jnp.ones((3, 2)), 1.0)


def test_there_are_open_pairs():
    assert len(OPEN) == 4 * 15 - (6 + 7 + 2 + 4)


@pytest.mark.slow
@pytest.mark.parametrize("psi_name", REGULARIZERS)
@given(y=POINTS, c=STEPS)
@settings(max_examples=10)
def test_euclidean_argmin_is_the_prox(psi_name, y, c):
    psi = REGULARIZERS[psi_name]
    actual = double(argmin, prox.Euclidean(), psi, y, c)
    # One formula in two programs; compilers order the sums of a decomposition differently.
    np.testing.assert_allclose(actual, in_double(psi, y, c), rtol=64 * EPS, atol=4 * EPS)


jacobian = compiled(jax.jacrev(lambda mirror, psi, y, c: mirror.argmin(psi, y, c), 2))


@pytest.mark.slow
@pytest.mark.parametrize("y", [[80.0, -80.0, 0.0, 80.0], [-80.0] * DIM, [200.0, 0.0, -200.0, 0.0]])
def test_entropy_of_extreme_dual_points(y):
    """In single precision, where exp(89) is infinite; NaNs raise."""
    y = jnp.array(y)
    for psi_name in CLOSED["entropy"]:
        psi = REGULARIZERS[psi_name]
        x = argmin(prox.Entropy(), psi, y, 0.5)
        assert np.all(x >= 0)
        if psi_name not in PENALTIES and np.all(np.isfinite(x)):
            assert psi.value(x) == 0
        gradient = jacobian(prox.Entropy(), psi, y.clip(-80, 80), 0.5)
        assert np.all(np.isfinite(gradient))


@pytest.mark.slow
@every_pair
def test_derivatives_are_central_differences(name, psi_name, x64):
    """Derivatives of the minimiser in y, c, the numbers of psi and those of the mirror map."""
    mirror, psi = MIRRORS[name][0], REGULARIZERS[psi_name]
    of_mirror, rebuild_mirror = numbers(mirror)
    of_psi, rebuild_psi = numbers(psi)
    of_mirror = [jnp.asarray(value, jnp.float64) for value in of_mirror]
    direction = jnp.asarray(inner(seed=5))

    def along(y, c, of_psi, of_mirror):
        x = rebuild_mirror(of_mirror).argmin(rebuild_psi(of_psi), y, c)
        return jnp.vdot(direction, x)

    args = (jnp.array([2.1, -1.7, 0.31, 1.2]), 0.6, of_psi, of_mirror)
    with_gradient = compiled(jax.value_and_grad(along, (0, 1, 2, 3)))
    for i, gradient in enumerate(with_gradient(*args)[1]):
        flat, unflatten = jax.tree.flatten(args[i])
        for j, (value, slope) in enumerate(zip(flat, jax.tree.leaves(gradient), strict=True)):

            def at(z, i=i, j=j, flat=flat, unflatten=unflatten):
                changed = jax.tree.unflatten(unflatten, [*flat[:j], z, *flat[j + 1 :]])
                return with_gradient(*args[:i], changed, *args[i + 1 :])[0]

            # The differences err by 1e-16 / 1e-6 of rounding and as much of curvature.
            np.testing.assert_allclose(slope, central_difference(at, value), rtol=1e-7, atol=1e-8)


def test_vmap_over_radii_of_the_entropy_ball(x64):
    y = jnp.asarray(inner(seed=1))
    radii = jnp.array([0.1, 1.0, 100.0])
    together = compiled(jax.vmap(lambda r: prox.Entropy().argmin(prox.L1Ball(r), y, 0.0)))(radii)
    apart = [argmin(prox.Entropy(), prox.L1Ball(float(r)), y, 0.0) for r in radii]
    np.testing.assert_allclose(together, np.stack(apart), rtol=10 * EPS)
