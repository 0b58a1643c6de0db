"""Claims of robust rules: |aggregate - honest mean| <= c times the honest spread.

The spread is the root mean squared distance of the n - f honest uploads from their mean.  All in
single precision, where squares overflow.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import compiled

from fedjax_sim import robust
from fedjax_sim.studies.setups import Run, fields_of, kind_of
from fedjax_sim.types import Stack
from fedjax_sim.wrappers.robust.aggregation import points_of
from fedjax_sim.wrappers.robust.rules import length

SLOTS, DIM = 12, 5


def full(x):
    arrived = jnp.ones(len(x), bool)
    return points_of(Stack(jnp.asarray(x), None, arrived, jnp.arange(len(x), dtype=jnp.int32)))


def median_claim(n, f):
    """Sum over all of |x_i - z| is smallest at z: with h = n - f, (h - f)|z - m| <= 2 h spread."""
    return 2 * (n - f) / (n - 2 * f)


def trimmed_claim(n, f):
    """Allouah et al., 2023, Proposition 2."""
    return np.sqrt(6 * f * (n - f)) / (n - 2 * f)


def krum_claim(n, f):
    """The mean of the m <= n - f smallest scores is at most that of the honest, 2 h spread^2."""
    return np.sqrt(6 * (n - f) / (n - 2 * f - 1))


def bulyan_claim(n, f):
    """By coordinate twice the honest range, which is at most sqrt(2 h) times the spread."""
    return 2 * np.sqrt(2 * (n - f))


def nnm_claim(inner):
    """Allouah et al., 2023, Lemma 1."""
    return lambda n, f: np.sqrt(8 * f / (n - f) * (inner(n, f) ** 2 + 1))


def bucketing_claim(inner, size=2):
    """Squared distances of honest buckets from the honest mean sum to at most h spread^2."""

    def claim(n, f):
        number = -(-n // size)
        return (inner(number, f) + 1) * np.sqrt((n - f) / (number - f))

    return claim


CLAIMS = {
    "median": (robust.median, median_claim, 2),
    "geometric_median": (lambda f: robust.geometric_median(f=f), median_claim, 2),
    "trimmed_mean": (robust.trimmed_mean, trimmed_claim, 2),
    "krum": (robust.krum, krum_claim, 2),
    "multi_krum": (robust.multi_krum, krum_claim, 2),
    "multi_krum n-f": (lambda f: robust.multi_krum(f, m="n-f"), krum_claim, 2),
    "multi_krum m=9": (lambda f: robust.multi_krum(f, m=9), krum_claim, 2),
    "bulyan": (robust.bulyan, bulyan_claim, 2),
    "nnm+median": (lambda f: robust.nnm(robust.median(f)), nnm_claim(median_claim), 2),
    "nnm+geometric_median": (
        lambda f: robust.nnm(robust.geometric_median(f=f)),
        nnm_claim(median_claim),
        2,
    ),
    "nnm+krum": (lambda f: robust.nnm(robust.krum(f)), nnm_claim(krum_claim), 2),
    "bucketing+median": (
        lambda f: robust.bucketing(robust.median(f)),
        bucketing_claim(median_claim),
        2,
    ),
    "bucketing+geometric_median": (
        lambda f: robust.bucketing(robust.geometric_median(f=f)),
        bucketing_claim(median_claim),
        2,
    ),
    "bucketing+krum": (lambda f: robust.bucketing(robust.krum(f)), bucketing_claim(krum_claim), 1),
    "nnm+bucketing+trimmed_mean": (
        lambda f: robust.nnm(robust.bucketing(robust.trimmed_mean(f))),
        nnm_claim(bucketing_claim(trimmed_claim)),
        2,
    ),
}
# `centred_clipping` states its error in its radius; the others state none.
NO_CLAIM = {"mean", "rfa", "centred_clipping"}
SCALES = [1.0, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12, 1e20, 1e30]


def attacked(f, seed):
    """Honest uploads with one far from the others, and uploads of attackers, at every scale."""
    rng = np.random.default_rng(seed)
    x = 3 + rng.normal(size=(SLOTS, DIM))
    x[-1] += 5
    places = rng.permutation(SLOTS)
    sent = np.repeat(x[None], 3 * len(SCALES), axis=0)
    directions = {
        "apart": rng.normal(size=(f, DIM)),
        "together": np.ones((f, 1)) * rng.normal(size=DIM),
        "opposite": np.where(np.arange(f) % 2, 1, -1)[:, None] * rng.normal(size=DIM),
    }
    attacks = [x.mean(0) + s * d for s in SCALES for d in directions.values()]
    sent[:, places[:f]] = attacks
    return sent.astype(np.float32), x[places[f:]]


def test_every_rule_has_a_claim_or_none():
    names = {part for name in CLAIMS for part in name.split(" ")[0].split("+")}
    (field,) = (field for field in fields_of(Run) if field.name == "robust")
    kinds = {kind_of(rule) for rule in field.alternatives}
    assert names == kinds - NO_CLAIM - {"none"}


# Of compositions with nnm and with bucketing, one rule each, and one of both, suffices quickly.
COMPOSED = {"nnm+geometric_median", "nnm+krum", "bucketing+geometric_median", "bucketing+krum"}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in COMPOSED else x for x in CLAIMS]
)
def test_rules_keep_their_claims_at_every_scale(name):
    """Single precision, attackers at 1 to 1e30; nu adds 1e-5 n / (n - 2 f), rounding about 1e-6."""
    build, claim, f = CLAIMS[name]
    rule, key = build(f), jax.random.key(0)

    @compiled
    def go(sent):
        return jax.vmap(lambda x: rule.aggregate(full(x), None, key))(sent)

    for seed in range(3):
        sent, honest = attacked(f, seed)
        results = go(jnp.asarray(sent))
        assert results.dtype == jnp.float32
        spread = np.sqrt(((honest - honest.mean(0)) ** 2).sum(1).mean())
        errors = np.linalg.norm(results - honest.mean(0), axis=1)
        assert (errors <= claim(SLOTS, f) * spread + 1e-4).all(), (errors, claim(SLOTS, f) * spread)


@pytest.mark.parametrize(
    "rule",
    [robust.mean(), robust.rfa(), robust.bucketing(robust.mean()), robust.nnm(robust.mean(), 2)],
    ids=lambda rule: rule.name,
)
def test_rules_without_a_claim_follow_the_attackers(rule):
    sent, honest = attacked(2, 0)
    go = compiled(lambda x: rule.aggregate(full(x), None, jax.random.key(0)))
    result = go(sent[3 * SCALES.index(1e12)])
    assert np.linalg.norm(np.asarray(result, float) - honest.mean(0)) > 1e6


@pytest.mark.parametrize("iterations", [1, 3])
def test_attackers_move_centred_clipping_by_their_share_of_the_radius(iterations):
    """Per pass f tau / n; later passes do not enlarge it, clipping being non-expansive."""
    f, tau = 2, 2.0
    rule = robust.centred_clipping(tau, iterations, f=f)
    previous = jnp.full(DIM, 3, jnp.float32)
    for seed in range(3):
        sent, _ = attacked(f, seed)
        absent = sent[0].copy()
        changed = (sent != sent[-1]).any((0, 2))
        assert changed.sum() == f
        absent[changed] = previous
        go = compiled(lambda x: rule.aggregate(full(x), previous, jax.random.key(0)))
        calm = np.asarray(go(absent))
        for x in sent:
            moved = np.linalg.norm(np.asarray(go(x)) - calm)
            assert moved <= iterations * 2 * f * tau / SLOTS + 1e-5


def test_distant_attackers_pull_geometric_medians_and_clipping_with_their_direction():
    """From 1e6 on only the direction counts; squares above 1e38 must not drop it."""
    _, honest = attacked(2, 0)
    for rule in (robust.geometric_median(), robust.centred_clipping(1.0)):
        results = []
        for size in (1e8, 1e15, 1e25, 1e34):
            x = np.concatenate([honest, size * np.ones((2, DIM))]).astype(np.float32)
            go = compiled(lambda x, rule=rule: rule.aggregate(full(x), x[0], jax.random.key(0)))
            results.append(np.asarray(go(x)))
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], rtol=1e-5)


@pytest.mark.parametrize("size", [1e37, 8e37, 1e38, 3e38])
@pytest.mark.parametrize("jitted", [False, True])
def test_the_largest_numbers_are_clipped(size, jitted):
    """A huge upload is clipped, though XLA's reciprocal of a number above 2^126 is 0 on a CPU."""
    honest = np.random.default_rng(0).normal(size=(6, 64))
    x = np.concatenate([honest, size * np.random.default_rng(1).uniform(0.5, 1, (1, 64))])
    norm = jax.jit(length) if jitted else length
    expected = min(np.linalg.norm(x[-1] / size) * size, np.inf)
    with np.errstate(over="ignore"):  # a norm above the largest number is infinite
        expected = np.float32(expected)
    np.testing.assert_allclose(norm(jnp.asarray(x[-1], jnp.float32)), expected, rtol=1e-6)
    rule, previous = robust.centred_clipping(1.0), jnp.zeros(64, jnp.float32)

    def go(x):
        return rule.aggregate(full(jnp.asarray(x, jnp.float32)), previous, jax.random.key(0))

    result = np.asarray((jax.jit(go) if jitted else go)(x), np.float64)
    assert np.linalg.norm(result) <= 1 + 1e-5  # seven changes of at most 1
    whole = rule.change(previous, jnp.asarray(x[-1], jnp.float32))
    assert np.linalg.norm(np.asarray(whole, float)) <= 1 + 1e-5


def test_one_of_five_uploads_does_not_move_the_geometric_median():
    """At 1e6; four passes from the mean are moved by hundreds."""
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    x[0] = 1e6
    spread = np.sqrt(((x[1:] - x[1:].mean(0)) ** 2).sum(1).mean())
    rules = (robust.geometric_median(), robust.rfa())
    go = compiled(lambda x: [rule.aggregate(full(x), None, jax.random.key(0)) for rule in rules])
    errors = [np.linalg.norm(np.asarray(result) - x[1:].mean(0)) for result in go(x)]
    assert errors[0] < spread < 100 < errors[1]
