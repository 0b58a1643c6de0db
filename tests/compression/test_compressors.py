"""Sparsifiers, signs, natural compression and PowerSGD: rules, constants and bits.

Figures: computed with NumPy in float64 from the definitions.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import KEY, assert_identical, compiled

import fedjax_sim as fs
from fedjax_sim import compression
from fedjax_sim.compression import (
    contractive,
    gaussian_low_rank,
    identity,
    natural,
    power_sgd,
    random_k,
    scaled_sign,
    stateful,
    top_k,
)
from fedjax_sim.compression.sparsifiers import count

pytestmark = pytest.mark.usefixtures("x64")
SINGLE = jax.ShapeDtypeStruct((1000,), jnp.float32)
MATRIX = jax.ShapeDtypeStruct((100, 10), jnp.float32)
HALF = jax.ShapeDtypeStruct((1000,), jnp.float16)
SIZE, KEPT = 8, 3


def sent(codec, x, key=KEY):
    return np.asarray(codec.through(key, jnp.asarray(x), jnp.zeros_like(jnp.asarray(x))))


THROUGH = {
    name: compiled(codec.through)
    for name, codec in {"top": top_k(KEPT), "sign": scaled_sign(), "random": random_k(2)}.items()
}


def through(name, x, key=KEY):
    x = jnp.asarray(x)
    return np.asarray(THROUGH[name](key, x, x))


vectors = st.lists(st.floats(-100, 100), min_size=SIZE, max_size=SIZE).map(np.array)


# ---- rules and constants


@settings(max_examples=30, deadline=None)
@given(vectors)
def test_top_k_is_a_contraction_and_keeps_the_largest(v):
    result = through("top", v)
    kept = sorted(range(SIZE), key=lambda j: (-abs(v[j]), j))[:KEPT]  # ties: lowest index
    expected = np.zeros(SIZE)
    expected[kept] = v[kept]
    np.testing.assert_array_equal(result, expected)
    error, size = ((result - v) ** 2).sum(), (v**2).sum()
    assert error <= (1 - KEPT / SIZE) * size * (1 + 1e-12)


def test_the_constant_of_top_k_is_attained():
    v = np.ones(SIZE)
    assert ((through("top", v) - v) ** 2).sum() == SIZE - KEPT


@settings(max_examples=30, deadline=None)
@given(vectors)
def test_scaled_sign_is_a_contraction_with_its_constant(v):
    v = np.where(np.abs(v) < 1e-100, 0, v)  # squares must not underflow
    result, size = through("sign", v), (v**2).sum()
    assert set(np.abs(result)) == {np.abs(result[0])}
    if size > 0:
        alpha = np.abs(v).sum() ** 2 / (SIZE * size)
        assert alpha >= 1 / SIZE - 1e-12
        error = ((result - v) ** 2).sum()
        np.testing.assert_allclose(error, (1 - alpha) * size, rtol=0, atol=1e-12 * size)


def test_random_k_by_enumeration():
    """Every draw is one of the C(5, 2) results, all as often."""
    v, k = np.array([1.0, -3.0, 0.5, 2.0, -0.25]), 2
    results = []
    for chosen in itertools.combinations(range(5), k):
        result = np.zeros(5)
        result[list(chosen)] = 5 / k * v[list(chosen)]
        results.append(result)
    results = np.array(results)
    draws = 2000
    keys = jax.random.split(KEY, draws)
    x = jnp.asarray(v)
    drawn = np.asarray(compiled(jax.vmap(lambda key: random_k(k).through(key, x, x)))(keys))
    which = (drawn[:, None] == results).all(-1)
    assert (which.sum(1) == 1).all()
    counts = which.sum(0)
    # Multinomial: five standard deviations of a count with the mean 200.
    assert np.abs(counts - draws / 10).max() < 5 * np.sqrt(draws * 0.1 * 0.9)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-30, 1e30), st.sampled_from([-1.0, 1.0]))
def test_natural_compression_is_unbiased_with_its_variance(size, sign):
    """Exact: its two values and their probabilities follow from the smallest and largest draw."""
    low = 2.0 ** np.floor(np.log2(size))
    low = low / 2 if low > size else 2 * low if 2 * low <= size else low
    keys = jax.random.split(KEY, 64)
    drawn = np.asarray(NATURAL(keys, jnp.full(4, sign * size)))
    values = set(np.abs(drawn).ravel().tolist())
    assert values <= {low, 2 * low}
    assert (np.sign(drawn) == sign).all()
    p = size / low - 1
    assert p * (1 - p) * low**2 <= size**2 / 8 * (1 + 1e-12)
    # The number of results above: five standard deviations, and exactly none if p is 0.
    above = (np.abs(drawn) > low).sum()
    assert abs(above - 256 * p) <= 5 * np.sqrt(256 * p * (1 - p)) + 1e-6


NATURAL = compiled(jax.vmap(lambda key, x: natural().through(key, x, x), (0, None)))


def test_natural_compression_of_special_entries(allow_nans):
    x = jnp.array([0.0, jnp.inf, jnp.nan, 1e-310, -8.0])
    np.testing.assert_array_equal(natural().through(KEY, x, x), x)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
def test_natural_compression_at_the_ends_of_the_range(dtype):
    """Its values are the powers of two of the dtype; above the largest one there is none."""
    info = jnp.finfo(dtype)
    x = jnp.array([info.max, -info.max, 1.5 * 2.0 ** (info.maxexp - 2)], dtype)
    drawn = np.asarray(NATURAL(jax.random.split(KEY, 64), x), np.float64)
    largest = 2.0 ** (info.maxexp - 1)
    np.testing.assert_array_equal(drawn[:, :2], np.broadcast_to([largest, -largest], (64, 2)))
    assert set(drawn[:, 2]) == {largest / 2, largest}
    subnormal = jnp.full(64, info.tiny / 4 * 3, dtype)
    y = np.asarray(natural().through(KEY, subnormal, subnormal), np.float64)
    if dtype == jnp.float16:  # its exponents are those of single precision, which reach further
        assert set(y) == {info.tiny / 2, float(info.tiny)}
    else:
        np.testing.assert_array_equal(y, np.asarray(subnormal, np.float64))


@settings(max_examples=20, deadline=None)
@given(vectors)
def test_unbiased_codecs_over_one_plus_omega_are_contractions(v):
    """Q / (1 + omega) keeps entries v_j: the mean error over all supports is (1 - k / d) |v|^2."""
    codec = contractive(random_k(2))
    assert codec.kind == "contraction"
    assert contractive(codec) is codec
    result = sent(codec, v)
    kept = result != 0
    np.testing.assert_allclose(result[kept], v[kept], rtol=1e-14)
    assert kept.sum() <= 2


HARD = np.array([1.0, -1.0, *6 * [0.0]])  # where uniform(2) has its largest error
ONE_LARGE = np.array([1.0, *7 * [0.5 / 8]])  # half of the threshold of luq_codec(3)
FLAT = np.array([1.0, *7 * [0.75]])


@pytest.mark.parametrize(
    ("codec", "omega", "attained"),
    [
        (identity(), 0, FLAT),
        (random_k(2), 3, HARD),
        (random_k(0.3), 8 / 3 - 1, FLAT),  # 3 of 8 entries
        (natural(), 1 / 8, np.full(8, 4 / 3)),
        (compression.uniform(2), 3, HARD),
        (compression.uniform(5), 6 / 32, np.array([2.0, -2.0, *6 * [0.5]])),
        (compression.qsgd(1), 8**0.5, FLAT),
        (compression.qsgd(8), 8 / 64, FLAT),
        (compression.luq_codec(3), 1 / 8 + 7 / 256, ONE_LARGE),
    ],
)
def test_unbiased_codecs_have_their_variance(codec, omega, attained):
    """Mean and variance of 4,000 draws within five standard errors; omega from the papers."""
    assert codec.kind.variance(attained) == pytest.approx(omega)
    keys = jax.random.split(KEY, 4000)
    draw = compiled(jax.vmap(lambda key, x: codec.through(key, x, x), (0, None)))
    for v in (HARD, ONE_LARGE, FLAT, attained):
        drawn = np.asarray(draw(keys, jnp.asarray(v)))
        slack = 5 * drawn.std(0) / 4000**0.5 + 1e-12
        assert (np.abs(drawn.mean(0) - v) <= slack).all()
        errors = ((drawn - v) ** 2).sum(1)
        slack = 5 * errors.std() / 4000**0.5 + 1e-12
        assert errors.mean() <= omega * (v**2).sum() + slack


@pytest.mark.parametrize(
    "codec", [top_k(2), scaled_sign(), gaussian_low_rank(1), contractive(natural())]
)
def test_contractions_state_it_and_shrink_the_error(codec):
    assert codec.kind == "contraction"
    send = compiled(jax.vmap(lambda key, x: codec.through(key, x, jnp.zeros_like(x)), (0, None)))
    for v in (HARD, ONE_LARGE, FLAT):
        x = v.reshape(2, 4)
        errors = ((send(jax.random.split(KEY, 20), jnp.asarray(x)) - x) ** 2).sum((1, 2))
        assert np.mean(errors) < (v**2).sum()
    assert power_sgd(1).kind == "contraction"


def test_contractions_in_half_precision():
    """Random k sends 4 * 30,000, beyond float16, and a variance of float32 keeps the dtype."""
    x = jnp.full(4, 3e4, jnp.float16)
    decode = jax.jit(lambda variance: contractive(random_k(1), variance).through(KEY, x, x))
    y = decode(jnp.float32(3.0))
    assert y.dtype == jnp.float16
    assert sorted(y.tolist()) == [0, 0, 0, float(x[0])]


def test_a_constant_of_a_tree_is_that_of_its_tensors():
    x = {"a": jnp.arange(1.0, 9.0), "b": jnp.array([3.0, 1.0])}
    y = top_k(0.5).through(KEY, x, x)
    np.testing.assert_array_equal(y["a"], [0, 0, 0, 0, 5, 6, 7, 8])
    np.testing.assert_array_equal(y["b"], [3, 0])


# ---- PowerSGD


def test_warm_start_converges_to_the_best_approximation():
    matrix = jnp.array([[2.0, 1.0], [1.0, 3.0], [0.0, 1.0]])
    codec, start = power_sgd(rank=1), [jnp.array([[1.0], [0.0]])]
    errors = []
    for _ in range(20):
        y, start = codec.through(KEY, matrix, start)
        errors.append(float(((y - matrix) ** 2).sum()))
    np.testing.assert_allclose(errors[:4], [6, 2.3076923, 2.1724980, 2.1691330], rtol=0, atol=5e-8)
    np.testing.assert_allclose(errors[-1], 2.1690481, rtol=0, atol=5e-8)
    np.testing.assert_allclose(errors[-1], np.linalg.svd(matrix)[1][1] ** 2, rtol=1e-9)


def test_power_sgd_is_a_projection_and_exact_at_full_rank():
    rng = np.random.default_rng(0)
    x = {"kernel": jnp.asarray(rng.normal(size=(3, 2, 4))), "bias": jnp.asarray(rng.normal(size=4))}
    codec = power_sgd(rank=2)
    y, memory = codec.through(KEY, x, codec.init(x))
    np.testing.assert_array_equal(y["bias"], x["bias"])
    original, result = (np.asarray(v["kernel"]).reshape(6, 4) for v in (x, y))
    assert np.linalg.matrix_rank(result) == 2
    np.testing.assert_allclose((result * (original - result)).sum(), 0, atol=1e-12)
    again, _ = codec.through(KEY, y, memory)
    np.testing.assert_allclose(again["kernel"], y["kernel"], atol=1e-12)
    full = power_sgd(rank=9)
    y, _ = full.through(KEY, x, full.init(x))
    np.testing.assert_allclose(y["kernel"], x["kernel"], atol=1e-12)
    y = gaussian_low_rank(rank=4).through(KEY, x, x)
    np.testing.assert_allclose(y["kernel"], x["kernel"], atol=1e-12)
    np.testing.assert_array_equal(y["bias"], x["bias"])


def test_power_sgd_of_zeros_keeps_its_start():
    x = jnp.zeros((3, 2))
    codec = power_sgd(rank=1)
    y, memory = codec.through(KEY, x, codec.init(x))
    assert_identical(y, x)
    assert_identical(memory, codec.init(x))


def test_power_sgd_leaves_a_start_without_an_image():
    """The first matrix has the row space of e_0, the second one that of e_1, with a first row 0."""
    codec = power_sgd(rank=1)
    first, second = jnp.diag(jnp.array([2.0, 0.0])), jnp.diag(jnp.array([0.0, 3.0]))
    _, memory = codec.through(KEY, first, codec.init(first))
    for _ in range(2):
        y, memory = codec.through(KEY, second, memory)
    np.testing.assert_allclose(y, second, atol=1e-12)


def test_power_sgd_finds_a_direction_that_a_visit_had_not():
    """The first matrix has one direction; without a fresh column the other one stays unused."""
    codec = power_sgd(rank=2)
    first = jnp.zeros((4, 4)).at[0, 0].set(2.0)
    second = jnp.diag(jnp.array([3.0, 0.0, 0.0, 1.0]))
    y, memory = codec.through(KEY, first, codec.init(first))
    np.testing.assert_allclose(y, first, atol=1e-12)
    for _ in range(2):
        y, memory = codec.through(KEY, second, memory)
        np.testing.assert_allclose(y, second, atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_factors_of_half_precision_have_single_precision(dtype):
    """Only the product is rounded to the dtype; factors that were would be off by more."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 7)), dtype)
    codec = power_sgd(3)
    start = codec.init(x)
    y, _ = codec.through(KEY, x, start)
    assert y.dtype == dtype
    matrix = np.asarray(x, np.float64)
    left, _ = np.linalg.qr(matrix @ np.asarray(start[0], np.float64))
    right = matrix.T @ left
    # Half a unit in the last place of the result, and sums of nine numbers in single precision.
    half = float(jnp.finfo(dtype).eps) / 2
    slack = half * np.abs(left @ right.T) + 1e-5
    assert (np.abs(np.asarray(y, np.float64) - left @ right.T) <= slack).all()
    rounded = [np.asarray(jnp.asarray(v, dtype), np.float64) for v in (left, right)]
    assert (np.abs(rounded[0] @ rounded[1].T - left @ right.T) > slack).any()
    assert codec.bits(x) == 3 * (9 + 7) * 32


# ---- bits, identities, arguments


@pytest.mark.parametrize(
    ("codec", "shape", "expected"),
    [
        (top_k(10), SINGLE, 420),
        (top_k(0.01), SINGLE, 420),
        (random_k(10), SINGLE, 320),
        (scaled_sign(), SINGLE, 1032),
        (natural(), SINGLE, 9000),
        (power_sgd(2), MATRIX, 7040),
        (gaussian_low_rank(2), MATRIX, 7040),
        (power_sgd(2), SINGLE, 32_000),
        (contractive(random_k(10), 99.0), SINGLE, 320),
        # Entries and indices of 10 bits; single precision for what is computed.
        (top_k(10), HALF, 260),
        (random_k(10), HALF, 160),
        (compression.uniform(4), HALF, 2000 + 2 * 16),  # two of the entries
        (compression.luq_codec(), HALF, 4000 + 16),  # one of the entries
        (scaled_sign(), HALF, 1000 + 16),  # the mean magnitude arrives in the dtype
        (compression.qsgd(1), HALF, 2000 + 32),
        (natural(), HALF, 9000),
        (power_sgd(2), {"w": jax.ShapeDtypeStruct((100, 10), jnp.bfloat16)}, 7040),
        (gaussian_low_rank(2), {"w": jax.ShapeDtypeStruct((100, 10), jnp.bfloat16)}, 7040),
        (top_k(10), {"a": SINGLE, "b": jax.ShapeDtypeStruct((3,), jnp.int32)}, 420 + 96),
    ],
)
def test_bits(codec, shape, expected):
    assert codec.bits(shape) == expected
    assert stateful(codec).bits(shape) == expected


def test_all_entries_are_the_identity():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    for codec in (top_k(12), top_k(1.0), random_k(12), random_k(1.0), identity()):
        np.testing.assert_array_equal(codec.through(KEY, x, x), x)


@pytest.mark.parametrize(
    ("keep", "size", "expected"),
    [(5, 3, 3), (0.07, 100, 7), (0.5, 5, 3), (1e-9, 5, 1), (1.0, 5, 5)],
)
def test_numbers_of_entries(keep, size, expected):
    assert count(keep, jnp.zeros(size)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("codec", [top_k(2), random_k(2), scaled_sign(), natural()])
def test_codecs_batch_and_keep_dtypes(codec):
    """Per-tensor results are per message, not per batch."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4)))
    keys = jax.random.split(KEY, 3)
    batched = jax.vmap(lambda key, v: codec.through(key, v, v))(keys, x)
    for key, v, y in zip(keys, x, batched, strict=True):
        np.testing.assert_allclose(codec.through(key, v, v), y, rtol=1e-15)
    half = x[0].astype(jnp.bfloat16)
    assert codec.through(KEY, half, half).dtype == jnp.bfloat16
    zero = jnp.zeros((2, 2))
    assert_identical(codec.through(KEY, zero, zero), zero)


@pytest.mark.parametrize("make", [top_k, random_k])
@pytest.mark.parametrize("keep", [0, -1, 0.0, 1.5, True, float("nan"), "2"])
def test_bad_numbers_of_entries(make, keep):
    with pytest.raises(ValueError, match="keep is "):
        make(keep)


def test_codecs_that_do_not_fit():
    with pytest.raises(ValueError, match="down keeps a memory between messages"):
        compression.compressed(fs.fedavg(0.1), identity(), down=power_sgd(1))  # pyright: ignore
    for codec in (3, top_k):
        with pytest.raises(ValueError, match=r"codec is .*; expected a codec, for example"):
            compression.compressed(fs.fedavg(0.1), codec)  # pyright: ignore[reportArgumentType]
    cut = compression.Codec(lambda key, x, near: x[:1], lambda x: 32)
    with pytest.raises(ValueError, match=r"returns float32\[1\]; expected float32\[2\], the form"):
        stateful(cut).through(KEY, jnp.ones(2, jnp.float32), ())
    with pytest.raises(ValueError, match="down is 3; expected a codec, for example"):
        compression.compressed(fs.fedavg(0.1), identity(), down=3)  # pyright: ignore


def test_numbers_of_entries_may_be_those_of_numpy():
    x = jnp.array([1.0, -3.0, 2.0, 3.0])
    for make in (top_k, random_k):
        for number, other in ((2, np.int64(2)), (0.5, np.float64(0.5)), (0.5, np.float32(0.5))):
            sent = [make(keep).through(jax.random.key(0), x, x) for keep in (number, other)]
            np.testing.assert_array_equal(*sent)
            assert make(number).bits(x) == make(other).bits(x)


@pytest.mark.parametrize("make", [top_k, random_k])
@pytest.mark.parametrize("one", [np.float16, np.float32, jnp.float32])
@pytest.mark.parametrize("fraction", [0.07, 0.1, 0.3, 1.0])
def test_fractions_in_other_precisions_are_the_decimals_that_are_shown(make, one, fraction):
    """0.1 in single precision is above a tenth: of 1,000 entries 101 would be sent."""
    assert make(one(fraction)).bits(SINGLE) == make(fraction).bits(SINGLE)
    for wrong in (one(1.5), one(0)):
        with pytest.raises(ValueError, match="keep is "):
            make(wrong)


def test_tensors_without_entries_have_no_errors():
    x = {"empty": jnp.zeros((0, 3)), "w": jnp.array([1.0, -2.0, 3.0, 4.0])}
    codecs = (
        random_k(2), random_k(0.5), compression.uniform(3), compression.qsgd(2),
        compression.luq_codec(), natural(), top_k(0.5), scaled_sign(), gaussian_low_rank(1),
    )  # fmt: skip
    for codec in codecs:
        assert codec.through(KEY, x, x)["empty"].shape == (0, 3)
        assert codec.bits(x) == codec.bits({"w": x["w"]})
        if isinstance(codec.kind, compression.Unbiased):
            assert codec.kind.variance(x["empty"]) >= 0
    assert random_k(2).kind.variance(x["empty"]) == 0  # pyright: ignore


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_random_k_of_half_precision(dtype):
    """The factor d / k = 10 / 3 is not rounded to the dtype of a tensor, only products are."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=10), dtype)
    y = random_k(3).through(KEY, x, x)
    assert y.dtype == dtype
    sent = np.asarray(y, np.float64) != 0
    assert sent.sum() == 3
    products = jnp.asarray(10 / 3 * np.asarray(x, np.float64)[sent], dtype)
    np.testing.assert_array_equal(np.asarray(y)[sent], products)


# Sums of magnitudes overflow, and so do products of a matrix and a start of its size.
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e20, 1e30, 1e38])
def test_signs_and_projections_of_all_sizes(size):
    matrix = np.random.default_rng(0).uniform(-1, 1, (12, 10))
    x = jnp.asarray(size * matrix, jnp.float32)
    wide = np.asarray(x, np.float64) / size
    y = np.asarray(through("sign", x), np.float64) / size
    # Sums of 120 numbers in single precision.
    np.testing.assert_allclose(y, np.abs(wide).mean() * np.sign(wide), rtol=1e-6)
    codec = power_sgd(2)
    memory = codec.init(x)
    (start,) = (np.asarray(q, np.float64) for q in memory)
    send = compiled(codec.through)
    for _ in range(3):
        y, memory = send(KEY, x, memory)
        left, _ = np.linalg.qr(wide @ start)
        start = wide.T @ left
        # Single precision: three steps, whose products are sums of 12 numbers.
        np.testing.assert_allclose(np.asarray(y, float) / size, left @ start.T, rtol=0, atol=1e-5)
