"""Quantisers against NumPy: LUQ with the same uniform numbers, uniform grids by hand."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import compiled

from fedjax_sim.compression import (
    contractive,
    gaussian_low_rank,
    lattice,
    luq_codec,
    power_sgd,
    qsgd,
    random_k,
    stateful,
    top_k,
    uniform,
)
from fedjax_sim.compression import quantizers as q
from fedjax_sim.tree import power_of_two_below

EPS = np.finfo(np.float32).eps
KEY = jax.random.key(0)
# Shared programs: LLVM's optimisation takes longer than these small arrays need.
luq = functools.partial(compiled, static_argnums=2)(q.luq)
symmetric = functools.partial(compiled, static_argnums=(1, 2))(q.symmetric)


def heavy_tailed(seed, *shape):
    """Magnitudes over many powers of two, as neural gradients have."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * np.exp(2 * rng.normal(size=shape))).astype(np.float32)


def numpy_luq(uniforms, x, exponent_levels, largest):
    """Entry by entry, stepping through the powers."""
    threshold = float(largest) / 2**exponent_levels
    out = np.zeros(x.shape)
    for index, value in np.ndenumerate(x.astype(float)):
        size, low = abs(value), threshold
        if size < threshold:
            out[index] = np.sign(value) * threshold * (uniforms[index] < size / threshold)
            continue
        while 2 * low <= size:
            low *= 2
        out[index] = np.sign(value) * (2 * low if uniforms[index] < (size - low) / low else low)
    return out


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 8), st.integers(-60, 60))
def test_luq_is_the_paper_s(seed, exponent_levels, power):
    x = np.ldexp(heavy_tailed(seed, 7, 5), power)
    key = jax.random.key(seed)
    uniforms = np.asarray(jax.random.uniform(key, x.shape, jnp.float32))
    expected = numpy_luq(uniforms, x, exponent_levels, np.abs(x).max())
    actual = np.asarray(luq(key, jnp.asarray(x), exponent_levels), float)
    # The threshold's powers are exact; quotients in single precision could tip an entry of 35
    # over if a uniform number lay within 1e-7 of its probability.
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("exponent_levels", "count"), [(6, 15), (7, 17)])
def test_luq_values(exponent_levels, count):
    """0 and +-2^j a: 4 bits hold 16 values, so there are 6 levels and not 7."""
    x = np.random.default_rng(0).choice([-1, 1], 3000) * 2.0 ** np.linspace(-10, 3, 3000)
    x = x.astype(np.float32)  # about as many entries in every octave
    values = np.unique(np.asarray(luq(KEY, jnp.asarray(x), exponent_levels), float))
    threshold = np.abs(x).max().astype(float) / 2**exponent_levels
    positive = threshold * 2.0 ** np.arange(exponent_levels + 1)
    np.testing.assert_array_equal(values, [*-positive[::-1], 0, *positive])
    assert len(values) == count


def test_luq_of_nothing_and_next_to_nothing():
    for x in (jnp.zeros((3, 2)), jnp.zeros((0, 4)), jnp.full(3, 1e-37), jnp.zeros(())):
        np.testing.assert_array_equal(luq(KEY, x), x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_quantisers_keep_the_dtype(dtype):
    x = jnp.asarray(heavy_tailed(0, 30)).astype(dtype)
    for function in (
        lambda x: q.luq(KEY, x),
        lambda x: q.symmetric(x, q.signed(3)),
        lambda x: q.symmetric(x, q.signed(4), q.sawb_clip()),
        jax.grad(lambda x: q.luq_gradient(KEY, x).sum()),
    ):
        assert jax.eval_shape(function, x).dtype == dtype


def test_double_precision_sees_the_draws_of_single(x64):
    x = heavy_tailed(0, 200)
    double = luq(KEY, jnp.asarray(x.astype(np.float64)))
    assert double.dtype == jnp.float64
    np.testing.assert_array_equal(double, luq(KEY, jnp.asarray(x)))
    assert q.symmetric(jnp.asarray(x.astype(np.float64)), q.signed(3)).dtype == jnp.float64


@pytest.mark.parametrize("value", [-0.01, 1 - 2.0**-8])
def test_random_rounding_in_half_precision_has_no_bias(value):
    """With draws and fractions in bfloat16 -.01 was -1 in 1.36 % of the cases, not in 1 %."""
    x = jnp.full(2**20, value, jnp.bfloat16)
    rounded = q.stochastic_round(KEY, x)
    assert rounded.dtype == x.dtype
    p, mean = float(x[0]) % 1, np.asarray(rounded, float).mean()
    # Four standard deviations.
    assert abs(mean - float(x[0])) < 4 * np.sqrt(p * (1 - p) / x.size)


def test_luq_batches_by_tensor():
    x = jnp.asarray(heavy_tailed(0, 3, 20) * np.array([[1], [1e3], [0]], np.float32))
    keys = jax.random.split(KEY, 3)
    batched = compiled(jax.vmap(lambda key, row: q.luq(key, row)))(keys, x)
    for key, row, out in zip(keys, x, batched, strict=True):
        np.testing.assert_array_equal(out, luq(key, row))


def test_gradients_pass_luq_and_values_do_not():
    x, slopes = jnp.asarray(heavy_tailed(0, 4, 30)), jnp.asarray(heavy_tailed(1, 4, 30))
    keys = jax.random.split(KEY, 4)

    def loss(x, slope, key):
        return (q.luq_gradient(key, x, exponent_levels=5) * slope).sum()

    values, gradients = compiled(jax.vmap(jax.value_and_grad(loss)))(x, slopes, keys)
    np.testing.assert_allclose(values, (x * slopes).sum(axis=1), rtol=1e-4)  # sums of 30
    for key, slope, gradient in zip(keys, slopes, gradients, strict=True):
        np.testing.assert_array_equal(gradient, luq(key, slope, 5))


def numpy_symmetric(x, low, high, clip):
    unit = 2 * clip / (high - low)
    return unit * np.round(np.clip(x / unit, low, high))


def numpy_widest(x, low, high):
    return np.abs(x).max() * (high - low) / (2 * high)


LEVELS = [q.signed(3), q.signed(2), q.non_negative(3), q.signed(8)]


@pytest.mark.parametrize("levels", LEVELS)
def test_uniform_quantisation_with_the_best_clip(levels, x64):
    """The error is the smallest on the grid of candidates, and the values are NumPy's."""
    x = np.random.default_rng(0).normal(size=(20, 15))
    x = np.abs(x) if levels.low == 0 else x
    candidates = tuple(np.linspace(0.05, 1, 24))
    tried = [
        numpy_symmetric(x, *levels[:2], fraction * numpy_widest(x, *levels[:2]))
        for fraction in candidates
    ]
    expected = tried[np.argmin([((out - x) ** 2).mean() for out in tried])]
    out = symmetric(jnp.asarray(x), levels, q.mse_clip(candidates))
    np.testing.assert_allclose(out, expected, rtol=1e-12)  # double precision
    assert len(np.unique(expected)) <= levels.high - levels.low + 1


@pytest.mark.parametrize("levels", LEVELS)
def test_the_default_clip_is_close_to_the_best(levels):
    """Candidates a factor 2^(1/4) apart, against a fine search."""
    x = np.random.default_rng(1).normal(size=2000).astype(np.float32)
    x = np.abs(x) if levels.low == 0 else x

    def error(out):
        return float(((np.asarray(out, float) - x) ** 2).mean())

    widest = numpy_widest(x.astype(float), *levels[:2])
    best = min(
        error(numpy_symmetric(x, *levels[:2], c * widest)) for c in np.linspace(0.02, 1, 300)
    )
    assert error(symmetric(jnp.asarray(x), levels)) <= 1.1 * best


def test_levels_fit_in_their_bits():
    for bits in range(2, 9):
        for make in (q.signed, q.non_negative):
            levels = make(bits)
            assert levels.high - levels.low + 1 <= 2**bits
        assert q.non_negative(bits).high + 1 == 2**bits
        assert q.signed(bits).low == -q.signed(bits).high


def test_sawb_clip():
    x = heavy_tailed(0, 1000).astype(np.float64)
    clip = 12.1 * np.sqrt((x**2).mean()) - 12.2 * np.abs(x).mean()
    levels = q.signed(4)
    out = symmetric(jnp.asarray(x, jnp.float32), levels, q.sawb_clip())
    # The clip is a difference, so single precision loses a digit; no entry is that near a tie.
    np.testing.assert_allclose(out, numpy_symmetric(x, *levels[:2], clip), rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clip", [q.mse_clip(), q.mse_clip((0.3, 0.7)), q.sawb_clip(11.3, 12)])
def test_numbers_of_clips_are_arguments_of_programs(clip, dtype):
    """Traced numbers give the bytes of constants, since the operations are the same."""
    with jax.enable_x64(dtype == np.float64):
        assert len(jax.tree.leaves(clip.spec)) == len(np.ravel([*clip.spec.arguments.values()]))
        traced = jax.jit(lambda spec, x: spec.build()(x, q.signed(4)))
        constant = jax.jit(lambda x: clip(x, q.signed(4)))
        # Tensors are arguments of both programs, as in a run: of a constant one the compiler would
        # compute the clip itself, with sums in another order.
        for seed in range(40):
            x = np.random.default_rng(seed).normal(size=200).astype(dtype)
            np.testing.assert_array_equal(traced(clip.spec, x), constant(x))


@pytest.mark.parametrize("clip", [q.mse_clip(), q.sawb_clip()])
def test_tensors_of_one_magnitude_and_of_zeros(clip):
    """SAWB's clip is negative for the first; nothing is clipped then."""
    x = jnp.array([0.5, -0.5, 0.5])
    np.testing.assert_array_equal(symmetric(x, q.signed(3), clip), x)
    for levels in (q.signed(3), q.non_negative(3)):
        np.testing.assert_array_equal(symmetric(jnp.zeros(4), levels, clip), jnp.zeros(4))


def test_the_range_follows_the_sign():
    x = jnp.asarray([[-1.0, 2.0, 3.0], [0.0, 2.0, 7.0]])
    out = compiled(jax.vmap(lambda row: q.symmetric(row, q.by_sign(row, 3))))(x)
    np.testing.assert_allclose(out, x, rtol=4 * EPS)  # on the grids -3 .. 3 and 0 .. 7
    two_sided = symmetric(x[1], q.signed(3))
    assert np.abs(np.asarray(two_sided) - x[1]).max() > 0.1


def test_gradients_are_straight_through():
    """Also of clipped entries, in reverse and forward mode, and twice."""
    x = jnp.asarray(heavy_tailed(0, 40))
    weights = jnp.asarray(heavy_tailed(1, 40))

    def loss(x):
        return (q.symmetric(x, q.signed(3)) ** 2 * weights).sum()

    quantised = np.asarray(symmetric(x, q.signed(3)))
    assert np.abs(quantised).max() < np.abs(x).max()  # something is clipped
    expected = 2 * quantised * np.asarray(weights)
    np.testing.assert_allclose(compiled(jax.grad(loss))(x), expected, rtol=4 * EPS)
    direction = jnp.asarray(heavy_tailed(2, 40))
    _, slope = compiled(lambda x, v: jax.jvp(loss, (x,), (v,)))(x, direction)
    np.testing.assert_allclose(slope, (expected * direction).sum(), rtol=1e-4)  # sum of 40
    second = compiled(jax.grad(lambda x: (jax.grad(loss)(x) * direction).sum()))(x)
    np.testing.assert_allclose(second, 2 * weights * direction, rtol=4 * EPS)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: lattice(1, 0.1), "bits is 1"),
        (lambda: lattice(25, 0.1), "bits is 25"),
        (lambda: lattice(8.5, 0.1), r"bits is 8\.5; expected an integer"),
        (lambda: lattice(8, 0.0), "cell is 0.0"),
        (lambda: lattice(8, -1.0), "cell is -1.0"),
        (lambda: uniform(1), "levels is 1"),
        (lambda: qsgd(0), "levels is 0"),
        (lambda: luq_codec(-1), "exponent_levels is -1"),
        (lambda: power_sgd(0), "rank is 0"),
        (lambda: gaussian_low_rank(-1), "rank is -1"),
        (lambda: contractive(random_k(1), -1), "variance is -1"),
        (
            lambda: contractive(top_k(1), 3),
            "variance is 3; expected none with a codec that",
        ),
        (
            lambda: contractive(random_k(1), 2.9).through(KEY, jnp.ones(4), jnp.ones(4)),
            r"variance is 2.9; expected at least 3, .* shape \[4\]",
        ),
        (lambda: stateful(3), "codec is 3; expected a codec"),
        (lambda: contractive(power_sgd(1), 1.0), "codec keeps a memory between messages"),
        (lambda: q.luq(KEY, jnp.ones(2), -1), "exponent_levels is -1"),
        (lambda: q.signed(1), "bits is 1"),
        (lambda: q.non_negative(0), "bits is 0"),
        (lambda: q.signed(40), "bits is 40; expected at most 31"),
        (lambda: q.non_negative(32), "bits is 32; expected at most 31"),
        (lambda: q.mse_clip(()), r"candidates is \(\)"),
        (lambda: q.mse_clip((0.5, 1.5)), "candidates is"),
        (lambda: q.mse_clip(["a"]), r"candidates is \('a',\); expected numbers in \(0, 1\]"),
        (lambda: q.mse_clip([None]), r"candidates is \(None,\)"),
        (lambda: q.mse_clip([Fraction(3)]), r"candidates is \(Fraction\(3, 1\),\)"),
        (lambda: q.mse_clip([lambda round: 3.0]), r"candidates is \(<function"),
        (lambda: q.mse_clip([float("nan")]), r"candidates is \(nan,\)"),
    ],
)
def test_bad_arguments(make, name):
    with pytest.raises(ValueError, match=name):
        make()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_two_are_those_of_frexp(dtype):
    with jax.enable_x64(dtype == np.float64):
        info = np.finfo(dtype)
        powers = np.ldexp(dtype(1), np.arange(info.minexp, info.maxexp))
        x = np.concatenate([powers, np.nextafter(powers[1:], dtype(0)), 1.5 * powers, [info.max]])
        expected = np.ldexp(dtype(1), np.frexp(x)[1] - 1)
        np.testing.assert_array_equal(jax.jit(power_of_two_below)(x.astype(dtype)), expected)


# ---- ends of the range: with a power of two taken out of a tensor, nothing else changes

# Largest magnitudes: squares, ranges, products with levels and reciprocals would leave the range.
SIZES = [1e-36, 1e-30, 1e-20, 1e-18, 1.0, 2e19, 1e30, 1e37, 6e37, 1e38, 3e38]


def numpy_best_clip(x, low, high):
    """The default candidate of the smallest squared error, in double precision."""
    widest = numpy_widest(x, low, high)
    clips = [2 ** (-k / 4) * widest for k in range(16)]
    unit = np.abs(x).max()  # squares in double precision would not overflow, but be large
    errors = [(((numpy_symmetric(x, low, high, c) - x) / unit) ** 2).mean() for c in clips]
    return clips[int(np.argmin(errors))]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [q.signed(3), q.signed(8), q.non_negative(3)])
def test_uniform_grids_of_all_sizes(levels, size):
    x = np.random.default_rng(0).uniform(-1, 1, 50) ** 3
    x = (np.abs(x) if levels.low == 0 else x) / np.abs(x).max()
    x = (size * x).astype(np.float32)
    # Entries below the normal numbers count as 0 on a CPU.
    wide = np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x.astype(np.float64))
    expected = numpy_symmetric(wide, *levels[:2], numpy_best_clip(wide, *levels[:2]))
    actual = np.asarray(symmetric(jnp.asarray(x), levels), np.float64)
    # Single precision; no entry is that near a tie.
    np.testing.assert_allclose(actual / size, expected / size, rtol=0, atol=4 * EPS)


@pytest.mark.parametrize("size", [1e-36, 1e-30, 1e-20, 1e-18, 1.0, 2e19, 1e30, 6e37])
def test_sawb_clips_of_all_sizes(size):
    """Up to where the clip itself, about four times the largest entry, is a number."""
    x = (size * np.random.default_rng(0).uniform(-1, 1, 50) ** 3).astype(np.float32)
    wide = np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x.astype(np.float64) / size)
    clip = 12.1 * np.sqrt((wide**2).mean()) - 12.2 * np.abs(wide).mean()
    actual = float(jax.jit(lambda x: q.sawb_clip()(x, q.signed(4)))(x)) / size
    # A difference of numbers near 4 in single precision.
    np.testing.assert_allclose(actual, clip, rtol=0, atol=16 * EPS)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30, 1e38, 3e38])
@pytest.mark.parametrize("exponent_levels", [0, 1, 6])
def test_luq_of_all_sizes(exponent_levels, size):
    x = (size * np.random.default_rng(0).uniform(-1, 1, 40)).astype(np.float32)
    uniforms = np.asarray(jax.random.uniform(KEY, x.shape, jnp.float32))
    expected = numpy_luq(uniforms, x, exponent_levels, np.abs(x).max())
    actual = np.asarray(luq(KEY, jnp.asarray(x), exponent_levels), float)
    # Quotients in single precision tip no entry over: no uniform number is that near.
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30, 1e38, 3e38])
def test_scaled_grids_of_all_sizes(size):
    """A codec draws and rounds tensors of any size as one of size 1 (NumPy, double precision)."""
    shape = np.random.default_rng(0).uniform(-1, 1, 40)
    x = (size * shape).astype(np.float32)
    wide = x.astype(np.float64) / size
    key = jax.random.fold_in(KEY, 0)  # of the first leaf
    uniforms = np.asarray(jax.random.uniform(key, x.shape, jnp.float32))
    unit = (wide.max() - wide.min()) / 6
    steps = (wide - wide.min()) / unit
    expected = wide.min() + unit * (np.floor(steps) + (uniforms < steps - np.floor(steps)))
    actual = np.asarray(compiled(uniform(7).through)(KEY, x, x), np.float64) / size
    np.testing.assert_allclose(actual, expected, rtol=0, atol=8 * EPS)
    unit = np.sqrt((wide**2).sum()) / 40
    steps = np.abs(wide) / unit
    expected = unit * np.sign(wide) * (np.floor(steps) + (uniforms < steps - np.floor(steps)))
    actual = np.asarray(compiled(qsgd(40).through)(KEY, x, x), np.float64) / size
    np.testing.assert_allclose(actual, expected, rtol=0, atol=8 * EPS)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int32])
def test_integers_are_refused(dtype):
    x = jnp.asarray([1, 7, 3], dtype)
    for function in (lambda: q.symmetric(x, q.signed(3)), lambda: q.luq(KEY, x)):
        with pytest.raises(ValueError, match=f"x has dtype {x.dtype}; expected a floating one"):
            function()
