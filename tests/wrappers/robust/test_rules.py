"""Robust rules: the reference figures, NumPy's derivations, breakdown points and symmetries.

One compiled program evaluates all rules on twelve slots, of which a mask selects some.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robust_rules as derived
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import compiled

from fedjax_sim import robust
from fedjax_sim.types import Stack
from fedjax_sim.wrappers.robust.aggregation import points_of
from fedjax_sim.wrappers.robust.krum import bulyan_selection, krum_scores
from fedjax_sim.wrappers.robust.mixing import buckets
from fedjax_sim.wrappers.robust.rules import squared_distances

pytestmark = pytest.mark.usefixtures("x64")

SLOTS, DIM = 12, 5
TAU = 1.0
RULES = {
    "mean": robust.mean(),
    "median": robust.median(f=2),
    "trimmed f=2": robust.trimmed_mean(2),
    "trimmed f=3": robust.trimmed_mean(3),
    "krum f=2": robust.krum(2),
    "krum f=3": robust.krum(3),
    "multi_krum": robust.multi_krum(2),
    "multi_krum m=3": robust.multi_krum(2, m=3),
    "multi_krum n-f": robust.multi_krum(2, m="n-f"),
    "bulyan": robust.bulyan(2),
    "multi_krum m=10": robust.multi_krum(2, m=10),
    "rfa": robust.rfa(),
    "geometric": robust.geometric_median(),
    "converged": robust.geometric_median(iterations=3000),
    "clipping": robust.centred_clipping(TAU),
    "clipping L=3": robust.centred_clipping(TAU, iterations=3),
    "nnm + median": robust.nnm(robust.median(), 3),
    "nnm + trimmed": robust.nnm(robust.trimmed_mean(3)),
    "trimmed f=0": robust.trimmed_mean(0),
    "nnm(0) + mean": robust.nnm(robust.mean(), 0),
    "buckets of 1 + mean": robust.bucketing(robust.mean(), size=1),
    "buckets of 2 + median": robust.bucketing(robust.median(), size=2),
    "clipping tau=inf": robust.centred_clipping(float("inf")),
}
WEIGHTED = {name: RULES[name] for name in ("mean", "median", "rfa", "geometric", "clipping L=3")}
# Of any size, translated with the uploads: not those with a fixed radius around the past.
EQUIVARIANT = [name for name in RULES if "clipping" not in name]
REFERENCE = {
    "mean": [1.515671, -1.373161, 1.758524, -1.176570, 1.873842],
    "median": [0.849229, -0.340297, 0.831203, -0.246688, 1.197701],
    "trimmed f=3": [0.758392, -0.325950, 0.752857, -0.134622, 0.933119],
    "krum f=2": [0.241120, -0.079415, 0.712118, -0.136573, 1.150288],
    "krum f=3": [0.241120, -0.079415, 0.712118, -0.136573, 1.150288],
    "multi_krum": [0.439001, 0.043025, 0.432572, 0.341738, 0.399349],
    "bulyan": [0.804968, -0.211978, 0.531028, 0.282239, -0.015870],
    "rfa": [0.486152, -0.164063, 0.733525, -0.090596, 0.966123],
    "converged": [0.468716, -0.144803, 0.715001, -0.075278, 0.960370],
    "clipping": [0.228476, -0.051975, 0.251523, -0.002786, 0.305804],
    "clipping L=3": [0.451404, -0.096286, 0.524258, 0.006607, 0.647885],
    "nnm + median": [0.317245, 0.170396, 0.358223, 0.316222, 0.511971],
    "nnm + trimmed": [0.317245, 0.170396, 0.358223, 0.316222, 0.511971],
}
MASKED = {  # without slots 5 and 11
    "median": [0.849229, -0.212238, 0.576619, -0.246688, 1.197701],
    "trimmed f=2": [0.758392, -0.083731, 0.555047, -0.134622, 0.864508],
}
X = derived.reference_uploads()


@functools.cache
def program():
    def aggregates(stack, previous):
        points, key = points_of(stack), jax.random.key(7)
        equal = {name: rule.aggregate(points, previous, key) for name, rule in RULES.items()}
        points = points._replace(weights=jnp.arange(1.0, SLOTS + 1))
        weighted = {n: rule.aggregate(points, previous, key) for n, rule in WEIGHTED.items()}
        return equal, weighted

    return compiled(aggregates)


def aggregate(x, mask=None, previous=None):
    mask = np.ones(SLOTS, bool) if mask is None else mask
    stack = Stack(jnp.asarray(x), None, jnp.asarray(mask), jnp.arange(SLOTS, dtype=jnp.int32))
    previous = np.zeros(DIM) if previous is None else previous
    return jax.tree.map(np.asarray, program()(stack, jnp.asarray(previous)))


def full(x):
    arrived = jnp.ones(len(x), bool)
    return points_of(Stack(jnp.asarray(x), None, arrived, jnp.arange(len(x), dtype=jnp.int32)))


@pytest.mark.slow
def test_reference_figures():
    equal, weighted = aggregate(X)
    for name, figures in REFERENCE.items():
        np.testing.assert_allclose(equal[name], figures, rtol=0, atol=5e-7, err_msg=name)
    figures = [1.089358, -0.550987, 1.256376, -0.591779, 1.350904]
    np.testing.assert_allclose(weighted["median"], figures, rtol=0, atol=5e-7)
    masked, _ = aggregate(X, ~np.isin(np.arange(1, 13), [5, 11]))
    for name, figures in MASKED.items():
        np.testing.assert_allclose(masked[name], figures, rtol=0, atol=5e-7, err_msg=name)
    distances = np.linalg.norm(X - equal["converged"], axis=1)
    np.testing.assert_allclose(distances.mean(), 4.236551, rtol=0, atol=5e-7)


def test_reference_figures_of_parts():
    """Krum's scores, Bulyan's picks, and the buckets of an order that is not random."""

    @compiled
    def parts(points):
        distances = squared_distances(points)
        scores = jnp.stack([krum_scores(distances, 12 - f - 2) for f in (2, 3)])
        pairs = buckets(points, jnp.arange(12), size=2)
        middle = robust.median().aggregate(pairs, None, jax.random.key(0))
        return scores, bulyan_selection(points, 2), middle

    scores, selected, middle = parts(full(X))
    assert scores.argmin(axis=1).tolist() == [2, 2]
    np.testing.assert_allclose(scores[:, 2], [29.942062, 24.891008], rtol=0, atol=5e-7)
    assert (np.flatnonzero(selected) + 1).tolist() == sorted([3, 7, 8, 6, 5, 1, 9, 2])
    assert [pick + 1 for pick in derived.bulyan_picks(X, 2)] == [3, 7, 8, 6, 5, 1, 9, 2]
    figures = [0.949278, -0.032025, 0.257594, 0.195723, 0.970041]
    np.testing.assert_allclose(middle, figures, rtol=0, atol=5e-7)


@st.composite
def rounds(draw, finite=True):
    """Uploads with many ties, and a mask; the last rows of some rounds are not finite."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grid = draw(st.sampled_from([2, 5, None]))
    x = rng.normal(size=(SLOTS, DIM)) if grid is None else rng.integers(-grid, grid, (SLOTS, DIM))
    x = x.astype(float)
    mask = rng.permutation(SLOTS) < draw(st.integers(1, SLOTS))
    if not finite:
        bad = rng.permutation(SLOTS) < draw(st.integers(1, SLOTS))
        x[bad, rng.integers(DIM)] = rng.choice([np.inf, -np.inf, np.nan])
    return x, mask, rng.normal(size=DIM)


def derivations(x, previous, weights):
    """The aggregates of the uploads that arrived, by NumPy."""
    n = len(x)
    mixed = derived.nnm(x, 3) if n > 3 else None
    equal = {
        "mean": lambda: derived.mean(x),
        "median": lambda: derived.median(x),
        "trimmed f=2": lambda: derived.trimmed_mean(x, 2),
        "trimmed f=3": lambda: derived.trimmed_mean(x, 3),
        "krum f=2": lambda: derived.krum(x, 2),
        "krum f=3": lambda: derived.krum(x, 3),
        "multi_krum": lambda: derived.multi_krum(x, 2, n - 4),
        "multi_krum m=3": lambda: derived.multi_krum(x, 2, 3),
        "multi_krum n-f": lambda: derived.multi_krum(x, 2, n - 2),
        "bulyan": lambda: derived.bulyan(x, 2),
        "multi_krum m=10": lambda: derived.multi_krum(x, 2, 10),
        "rfa": lambda: derived.rfa(x, 4),
        "geometric": lambda: derived.geometric_median(x, 32),
        "clipping": lambda: derived.centred_clipping(x, previous, TAU, 1),
        "clipping L=3": lambda: derived.centred_clipping(x, previous, TAU, 3),
        "nnm + median": lambda: derived.median(mixed),
        "nnm + trimmed": lambda: derived.trimmed_mean(mixed, 3),
        "trimmed f=0": lambda: derived.trimmed_mean(x, 0),
        "nnm(0) + mean": lambda: derived.mean(derived.nnm(x, 0)),
        "buckets of 1 + mean": lambda: derived.mean(x),
        "clipping tau=inf": lambda: derived.centred_clipping(x, previous, np.inf, 1),
    }
    weighted = {
        "mean": lambda: derived.mean(x, weights),
        "median": lambda: derived.weighted_median(x, weights),
        "rfa": lambda: derived.rfa(x, 4, weights=weights),
        "geometric": lambda: derived.geometric_median(x, 32, weights=weights),
        "clipping L=3": lambda: derived.centred_clipping(x, previous, TAU, 3, weights),
    }
    return equal, weighted


def check_against_derivations(case):
    x, mask, previous = case
    equal, weighted = aggregate(x, mask, previous)
    rows = np.where(np.isfinite(x).all(axis=1)[:, None], x, np.inf)[mask]
    expected, expected_weighted = derivations(rows, previous, np.arange(1.0, SLOTS + 1)[mask])
    for name, value in expected.items():
        if len(rows) >= RULES[name].smallest:
            np.testing.assert_allclose(equal[name], value(), rtol=0, atol=1e-11, err_msg=name)
    for name, value in expected_weighted.items():
        np.testing.assert_allclose(weighted[name], value(), rtol=0, atol=1e-11, err_msg=name)


@settings(max_examples=30)
@given(rounds())
def test_rules_are_those_of_their_definitions(case):
    """Also the order of ties, and slots that are deleted by the mask."""
    check_against_derivations(case)


@settings(max_examples=20)
@given(rounds(finite=False))
def test_uploads_that_are_not_finite(case):
    check_against_derivations(case)


@settings(max_examples=10)
@given(rounds(), st.integers(0, 2**32 - 1))
def test_symmetries(case, seed):
    """Order of slots, translation and scale; equal uploads are returned."""
    x, _, previous = case
    rng = np.random.default_rng(seed)
    x = x + 1e-3 * rng.normal(size=x.shape)  # no ties, which the order of slots decides
    equal, _ = aggregate(x, None, previous)
    order = rng.permutation(SLOTS)
    stack = Stack(jnp.asarray(x[order]), None, jnp.ones(SLOTS, bool), jnp.asarray(order, jnp.int32))
    permuted, _ = program()(stack, jnp.asarray(previous))
    shift = rng.normal(size=DIM)
    moved, _ = aggregate(x + shift, None, previous + shift)
    larger, _ = aggregate(4 * x, None, 4 * previous)
    same, _ = aggregate(np.broadcast_to(shift, x.shape), None, shift)
    for name, value in equal.items():
        if name != "bulyan":  # two last uploads that are each other's nearest have equal scores
            np.testing.assert_allclose(permuted[name], value, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(moved[name], value + shift, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(same[name], shift, atol=1e-12, err_msg=name)
        if name in EQUIVARIANT:
            # nu is a distance; far from it the passes do not depend on the unit.
            np.testing.assert_allclose(larger[name], 4 * value, atol=1e-5, err_msg=name)


F = {"bulyan": 2, "nnm + median": 3, "nnm + trimmed": 3, "trimmed f=3": 3, "krum f=3": 3}
NOT_ROBUST = ("mean", "trimmed f=0", "nnm(0) + mean", "buckets of 1 + mean", "clipping tau=inf")


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 1e3, 1e8]))
def test_as_many_attackers_as_a_rule_tolerates(seed, size):
    """The aggregate stays near the honest uploads, wherever the attackers are."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(SLOTS, DIM))
    slots, attack = rng.permutation(SLOTS), size * rng.normal(size=(SLOTS, DIM))
    for f in (2, 3):
        sent = x.copy()
        sent[slots[:f]] += attack[slots[:f]]
        result, _ = aggregate(sent)
        honest = x[slots[f:]]
        centre, diameter = honest.mean(0), np.ptp(honest, axis=0)
        for name in RULES:
            if f > F.get(name, 2) or name in (*NOT_ROBUST, "rfa"):
                continue
            error = np.linalg.norm(result[name] - centre)
            assert error <= 3 * np.linalg.norm(diameter) + 3 * TAU, (name, f)


@pytest.mark.slow
def test_passes_of_the_geometric_median_are_enough():
    """32 against 3,000 passes of NumPy on 100 cases, attackers at 1 to 1e12."""
    go = compiled(
        jax.vmap(lambda x: robust.geometric_median().aggregate(full(x), None, jax.random.key(0)))
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, SLOTS, DIM))
    scales = 10 ** rng.uniform(0, 12, (100, 1, 1))
    x[:, :3] += scales * rng.normal(size=(100, 3, DIM))
    found = np.asarray(go(jnp.asarray(x)))
    expected = np.array([derived.geometric_median(case, 3000) for case in x])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_the_geometric_median_has_a_derivative():
    """That of its shift is the identity, also where the start is one of the uploads."""
    x = np.random.default_rng(0).normal(size=(SLOTS, DIM))
    x[:3] = [[1e6], [-1e9], [1e12]]
    x[3:6] = x[3]  # the median of some coordinates is at distance 0 of three uploads

    def moved(shift):
        return robust.geometric_median().aggregate(full(x + shift), None, jax.random.key(0))

    jacobian = compiled(jax.jacobian(moved))(jnp.zeros(DIM))
    np.testing.assert_allclose(jacobian, np.eye(DIM), rtol=0, atol=1e-6)


def test_breakdown_points():
    """One attacker more than tolerated, or half of all, moves the aggregate without limit."""
    x = np.random.default_rng(0).normal(size=(SLOTS, DIM))

    def error(name, attackers, size=1e8):
        sent = x.copy()
        sent[:attackers] = size
        return np.linalg.norm(aggregate(sent)[0][name] - x[attackers:].mean(0))

    for name in NOT_ROBUST:
        assert error(name, 1) > 1e6, name
    for name, f in {"trimmed f=2": 2, "trimmed f=3": 3, "median": 5}.items():
        assert error(name, f) < 10 < 1e6 < error(name, f + 1), name
    for name in ("krum f=2", "multi_krum", "bulyan", "geometric", "nnm + median"):
        assert error(name, 2) < 10 < 1e6 < error(name, 7), name
    # A pass of the smoothed Weiszfeld algorithm shrinks the error by about f / (n - f).
    assert 0.5 < error("rfa", 2) / error("mean", 2) * (10 / 2) ** 4 < 2


def test_copies_of_one_upload_win():
    """n - f equal uploads are returned by every robust rule, whatever the others send."""
    x = np.broadcast_to(np.array([1.0, -2.0, 0.5, 0.0, 3.0]), (SLOTS, DIM)).copy()
    x[[4, 9]] = [[1e8], [-7.0]]
    result, _ = aggregate(x, previous=x[0])
    for name in RULES:
        if name not in (*NOT_ROBUST, "rfa") and "clipping" not in name:
            np.testing.assert_allclose(result[name], x[0], atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_uploads_of_several_parts_and_precisions():
    """Distances are those of all leaves together; leaves keep their dtypes."""
    x = np.random.default_rng(1).normal(size=(SLOTS, 7)).astype(np.float32)
    points = full(x)
    parts = points._replace(x={"a": points.x[:, :6].reshape(SLOTS, 2, 3), "b": points.x[:, 6]})
    rule = robust.nnm(robust.multi_krum(2))
    program = compiled(lambda points: rule.aggregate(points, None, jax.random.key(0)))
    whole, split = program(points), program(parts)
    joined = np.append(split["a"].reshape(-1), split["b"])
    np.testing.assert_allclose(joined, whole, rtol=1e-6)
    half = points._replace(x=points.x.astype(jnp.bfloat16))
    for name, rule in RULES.items():
        shape = jax.eval_shape(lambda p, r=rule: r.aggregate(p, p.x[0], jax.random.key(0)), half)
        assert (shape.dtype, shape.shape) == (jnp.bfloat16, (7,)), name


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: robust.trimmed_mean(-1), "f is -1; expected at least 0"),
        (lambda: robust.krum(0.2), "f is 0.2; expected an integer, the number of attackers"),
        (lambda: robust.multi_krum(1, m=0), "m is 0; expected an integer of at least 1, 'n-f-2'"),
        (lambda: robust.multi_krum(1, m="n"), "m is 'n'; expected an integer of at least 1"),
        (lambda: robust.geometric_median(-1), "iterations is -1; expected at least 0"),
        (lambda: robust.rfa(-1), "iterations is -1; expected at least 0"),
        (lambda: robust.rfa(nu=0.0), "nu is 0.0; expected a positive number"),
        (lambda: robust.geometric_median(nu=0.0), "nu is 0.0; expected a positive number"),
        (lambda: robust.centred_clipping(0.0), "tau is 0.0; expected a positive number"),
        (lambda: robust.centred_clipping(iterations=0), "iterations is 0; expected at least 1"),
        (lambda: robust.nnm(robust.mean()), r"f is None; expected .* since mean\(\) has none"),
        (lambda: robust.bucketing(robust.mean(), 0), "size is 0; expected at least 1"),
        (lambda: robust.bucketing(robust.mean), r"rule is <function mean .*; expected a robust"),
        (lambda: robust.nnm("median", 1), "rule is 'median'; expected a robust.Rule, for example"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("rule", "smallest", "f"),
    [
        (robust.median(), 1, None),
        (robust.median(3), 7, 3),
        (robust.trimmed_mean(3), 7, 3),
        (robust.krum(2), 7, 2),
        (robust.multi_krum(2), 7, 2),
        (robust.multi_krum(2, m=8), 10, 2),
        (robust.multi_krum(2, m=5), 7, 2),
        (robust.multi_krum(2, m="n-f"), 7, 2),
        (robust.multi_krum(2, m=6), 8, 2),
        (robust.bulyan(2), 11, 2),
        (robust.centred_clipping(f=4), 9, 4),
        (robust.nnm(robust.median(), 3), 7, 3),
        (robust.nnm(robust.trimmed_mean(2), 3), 7, 2),
        (robust.bucketing(robust.trimmed_mean(2)), 9, 2),
    ],
)
def test_conditions(rule, smallest, f):
    assert (rule.smallest, rule.f) == (smallest, f)


def test_numbers_of_attackers_may_be_those_of_numpy():
    assert robust.krum(np.int64(2)).name == robust.krum(2).name
    assert robust.krum(np.int64(2)).smallest == 7
    assert robust.multi_krum(1, np.int64(3)).smallest == robust.multi_krum(1, 3).smallest
    assert robust.nnm(robust.median(), np.int64(2)).f == 2
    with pytest.raises(ValueError, match=r"f is 2\.0; expected an integer"):
        robust.krum(2.0)
    with pytest.raises(ValueError, match=r"m is 3\.0; expected an integer"):
        robust.multi_krum(1, 3.0)


@pytest.mark.parametrize(
    "name", ["mean", "trimmed f=2", "multi_krum", "bulyan", "buckets of 1 + mean", "nnm(0) + mean"]
)
def test_means_of_half_precision_are_rounded_once(name):
    """Weights such as 1/7 and sums have more digits than the uploads; the result is rounded."""
    half = full(X * 100)
    half = half._replace(x=half.x.astype(jnp.bfloat16))
    single = half._replace(x=half.x.astype(jnp.float32))
    program = compiled(lambda points: RULES[name].aggregate(points, None, jax.random.key(0)))
    expected = program(single).astype(jnp.bfloat16).astype(jnp.float32)
    # bulyan and nnm round once more on the way: half a unit in the last of eight digits each.
    np.testing.assert_allclose(program(half).astype(jnp.float32), expected, rtol=2.0**-8)


@pytest.mark.parametrize("rule", ["clipping", "clipping L=2", "median", "trimmed", "mean", "nnm"])
def test_large_uploads_in_half_precision_do_not_overflow(rule):
    """Squares above 65504, and sums of two values above it."""
    rules = {
        "trimmed": robust.trimmed_mean(1),
        "mean": robust.mean(),
        "nnm": robust.nnm(robust.trimmed_mean(1)),
        "clipping": robust.centred_clipping(10.0),
        "clipping L=2": robust.centred_clipping(10.0, iterations=2),
        "median": robust.median(),
    }
    values = np.array([[40000.0, 0.0], [45000.0, 500.0], [1.0, 1.0], [50000.0, 600.0]])
    go = jax.jit(lambda x: rules[rule].aggregate(full(x), 0 * x[0], jax.random.key(0)))
    half, double = (np.asarray(go(values.astype(dtype)), float) for dtype in ("half", "double"))
    np.testing.assert_allclose(half, double, rtol=5e-3)
