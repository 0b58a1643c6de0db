"""FAVANO's constants and bounds against NumPy, published numbers and what their proofs need."""

import functools
import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from symbols import FAVANO, by_symbols

from experiments.favano import steps
from experiments.favano.lemmas import potential
from experiments.favano.lemmas.reweighting import reweighting_variance
from fedjax_sim.theory.favano import rates
from fedjax_sim.theory.favano.progress import progress_constants
from fedjax_sim.theory.step_counts import CappedSteps, from_probabilities, geometric, renewal

pytestmark = pytest.mark.usefixtures("x64")

CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-12)  # float64, some ten operations
largest_lr, mean_gradient_bound, contraction, potential_bound, next_potential_bound = (
    by_symbols(function, FAVANO)
    for function in (
        rates.largest_lr,
        rates.mean_gradient_bound,
        potential.contraction,
        potential.potential_bound,
        potential.next_potential_bound,
    )
)
tuned_lr, tuned_bound, lemma_steps, fewest_steps, corollary_steps = (
    by_symbols(function, FAVANO)
    for function in (
        steps.tuned_lr,
        steps.tuned_bound,
        steps.lemma_steps,
        steps.fewest_steps,
        steps.corollary_steps,
    )
)
quantization_floor = by_symbols(rates.quantization_floor, FAVANO)
SIZES = {"L": 2.0, "B": 1.5, "b": 3.0, "n": 11, "s": 4, "K": 5}
NOISE = {"sigma": 0.7, "G": 0.4, "F": 2.5, "a": 1.2}

# P(E > 0) = P, E[E ^ K] = m1, K = 20: law -> a, 1 / P of the stochastic, a, b of the printed
# deterministic version; computed independently, to their digits.
TABLES = {
    "geometric": (
        geometric(np.array([1 / 2, 1 / 16]), 20),
        [(0.695647, 1, 0.507500, 2.999962), (0.192382, 1, 0.125772, 15.823112)],
    ),
    "geometric from 0": (
        geometric(np.array([1 / 2, 1 / 16]), 20, first=0),
        [(1.391294, 2, 1.007501, 2.999962), (0.205207, 1.066667, 0.131519, 15.823112)],
    ),
    "renewal": (
        renewal([1 / 2, 1 / 16], 20, 7, 0.2),
        [(0.13776, 1.00157, 0.12009, 16.01927), (0.74797, 1.35021, 0.46942, 4.86552)],
    ),
    "renewal, strict": (
        renewal([1 / 2, 1 / 16], 20, 7, 0.2, strict=True),
        [(0.15277, 1.00315, 0.12221, 15.96034), (0.77075, 1.38248, 0.48284, 4.85451)],
    ),
}


def printed_deterministic(law, K):
    """a and b of Theorem 1 as printed, with E[S] for E[S]^2."""
    b = law.second_moment / law.mean
    return 1 / law.mean + b / K**2, b


@pytest.mark.parametrize("table", TABLES)
def test_progress_constants_numbers(table):
    law, rows = TABLES[table]
    for i, numbers in enumerate(rows):
        one = CappedSteps(*(moment[i] for moment in law))
        stochastic = progress_constants(one, local_steps=20)
        printed = printed_deterministic(one, 20)
        found = [stochastic.a, stochastic.b, *map(float, printed)]
        np.testing.assert_allclose(found, numbers, rtol=1e-5, atol=6e-6)
        tight = progress_constants(one, local_steps=20, version="deterministic")
        CLOSE(tight.b, printed[1] / one.mean)
        CLOSE(tight.a, 1 / one.mean + tight.b / 400)
    both = progress_constants(law, local_steps=20)
    assert both.clients.shape == (2,)
    CLOSE(both.a, both.clients.mean())
    CLOSE(both.b, max(1 / law.p_active))


laws = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9).map(lambda x: np.array(x) / sum(x))


@given(mass=laws, stochastic=st.booleans(), h=st.floats(-3, 3), sigma=st.floats(0, 3))
def test_progress_constants_bound_the_second_moment(mass, stochastic, h, sigma):
    """One client, gradients of mean h and variance sigma^2, and B_t = h^2 + sigma^2 / K^2.

    The second moment is exact, by conditioning on S.  Equality in b as K grows explains 1e-9.
    """
    K = len(mass) - 1
    law, S = from_probabilities(mass, K), np.arange(K + 1)
    version = "stochastic" if stochastic else "deterministic"
    alpha = (1 - mass[0]) * np.maximum(S, 1) if stochastic else mass @ S
    moment = mass @ ((S * sigma**2 + (S * h) ** 2) / alpha**2)
    a, b, _ = progress_constants(law, local_steps=K, version=version)
    assert moment <= (a * sigma**2 + b * h**2) * (1 + 1e-9)
    variance = reweighting_variance(law, mean=h, variance=sigma**2, version=version)
    CLOSE(moment - h**2, variance, rtol=1e-9, atol=1e-9)


def test_printed_deterministic_constants_fail_below_one_step():
    """P(E > 0) = 1/10, one step then: E||h / alpha||^2 = 10 h^2, and the printed b is 1."""
    law = from_probabilities([0.9, 0.1], 1)
    tight = progress_constants(law, local_steps=1, version="deterministic")
    assert math.isclose(tight.b, 10)
    assert math.isclose(printed_deterministic(law, 1)[1], 1)


@pytest.mark.parametrize("version", ["stochastic", "deterministic"])
def test_reweighting_variance_against_draws(version):
    """Geometric S from 0 to K = 20 at lambda = 1/16, y = 1.3, standard deviation 0.7.

    Of 200,000 draws the variance has a relative standard error of about 0.5 %; four of them.
    """
    rng, samples, y, sd = np.random.default_rng(0), 200_000, 1.3, 0.7
    S = np.minimum(rng.geometric(1 / 16, samples) - 1, 20)
    law = geometric(1 / 16, 20, first=0)
    sums = y * S + sd * np.sqrt(S) * rng.normal(size=samples)
    alpha = float(law.p_active) * np.maximum(S, 1) if version == "stochastic" else float(law.mean)
    exact = float(reweighting_variance(law, mean=y, variance=sd**2, version=version))
    np.testing.assert_allclose(np.var(sums / alpha), exact, rtol=0.02)
    np.testing.assert_allclose(np.mean(sums / alpha), y, atol=4 * (exact / samples) ** 0.5)


def test_formulas():
    lr, L, B, b, n, s, K, T = 1e-4, 2.0, 1.5, 3.0, 11, 4, 5, 700
    sigma, G, F, a = 0.7, 0.4, 2.5, 1.2
    shared = 2 * 12 * F / (T * s * lr) + L * s / 12 * (sigma**2 * a + 8 * G**2 * b) * lr
    printed = L**2 * s**2 * (720 * sigma**2 * a + 5600 * b * G**2) * lr**2
    # Equations 226 and 227 with 5760
    corrected = (8 * L**2 * lr**2 * K**2 + 720 * L**2 * s**2 * lr**2 * a) * sigma**2
    corrected += (32 * L**2 * lr**2 * K**2 + 5760 * b * L**2 * s**2 * lr**2) * G**2
    CLOSE(mean_gradient_bound(lr=lr, T=T, **SIZES, **NOISE), shared + corrected)
    # Theorem 1 as printed lacks the terms in K^2 and has 5600 for 5760.
    assert printed < corrected
    CLOSE(quantization_floor(L=L, error=0.1), 12 * 4 * 0.1)
    eps = 0.01
    quadratic = L**2 * ((8 * K**2 + 720 * s**2 * a) * sigma**2)
    quadratic += L**2 * (32 * K**2 + 5760 * s**2 * b) * G**2
    start = 2 * 12 * F / s
    lemma = 36 * start * L * s / 12 * (sigma**2 * a + 8 * G**2 * b) / eps**2
    lemma += 15 * start * math.sqrt(quadratic) / eps**1.5
    lemma += 3 * start / float(largest_lr(**SIZES)) / eps
    CLOSE(lemma_steps(eps=eps, **SIZES, **NOISE), lemma)
    root = K**2 * sigma**2 + K**2 * G**2 + s**2 * (sigma**2 * a + G**2 * b)
    order = F * L * (sigma**2 * a + 8 * G**2 * b) / eps**2
    order += F * L * math.sqrt(root) / (eps**1.5 * s / n) + F * B**2 * K * L * b / eps * n
    CLOSE(corollary_steps(eps=eps, **SIZES, **NOISE), order)
    CLOSE(
        potential_bound(potential=5.0, squared_progress=2.0, lr=0.1, n=11, s=4),
        (1 - 4 / 110) * 5 + 3 * 16 / 11 * 0.01 * 2,
    )
    value = (1 - 1 / 55) * 5 + 3 * 16 * lr**2 * (sigma**2 * a + 8 * b * G**2)
    value += 24 * B**2 * 16 * lr**2 * b * 0.3
    given_ = SIZES | {"sigma": sigma, "G": G, "a": a}
    found = next_potential_bound(potential=5.0, squared_gradient=0.3, lr=lr, **given_)
    CLOSE(found, value)


constants = st.floats(1e-2, 1e2)
counts = st.integers(1, 60)


@given(L=constants, B=st.floats(1, 10), b=st.floats(1, 50), n=counts, s=counts, K=counts)
def test_corrected_rate_is_the_largest_that_the_proof_allows(L, B, b, n, s, K):
    """Its two conditions hold there, one with equality, and what else the proof uses follows."""
    s = min(s, n)
    lr = float(largest_lr(L=L, B=B, b=b, n=n, s=s, K=K))
    descent = 16 * (L * lr * K * B) ** 2 + 4 * L * s * lr * b * B**2 / (n + 1)
    descent += 2880 * (L * s * lr * B) ** 2 * b
    slack = [4 * L * K**2 * lr, 4 * descent]
    assert max(slack) <= 1 + 1e-9
    assert max(slack) >= 1 - 1e-9
    assert lr <= (n + 1) / (2 * s * L * b)  # Equation 208
    contracts = n * float(contraction(n=n, s=s)) - 48 * (s * L * lr) ** 2 * b
    assert contracts >= 0.2  # Lemma B.4, for s = 1 and s = n, too


def test_printed_rate_does_not_suffice_for_few_local_steps():
    """Equation 216 needs 16 (L K B eta)^2 + .. <= 1/4; at K = B = b = 1 its last term is 7.2."""
    few = {"L": 1.0, "B": 1.0, "b": 1.0, "n": 100, "s": 20}
    for K, larger in ((1, False), (5, False), (7, True), (20, True)):
        printed, proof = 1 / (20 * 20 * K), largest_lr(**few, K=K)
        assert (float(proof) > float(printed)) == larger


noise = st.just(0.0) | constants


@jax.jit
def tuning(constants, T, eps):
    """Bounds and numbers of steps at the rates that are prescribed for them."""
    enough = lemma_steps(eps=eps, **constants)
    fewest, lr = fewest_steps(eps=eps, **constants)
    limit = largest_lr(**{name: constants[name] for name in ("L", "B", "b", "n", "s", "K")})
    # The smallest bound over a grid of rates with fewer steps.
    grid = jnp.minimum(limit, lr * jnp.geomspace(0.1, 10, 41))
    return {
        "value": mean_gradient_bound(lr=tuned_lr(T=T, **constants), T=T, **constants),
        "bound": tuned_bound(T=T, **constants),
        "enough": enough,
        "reached": mean_gradient_bound(lr=tuned_lr(T=enough, **constants), T=enough, **constants),
        "fewest": fewest,
        "lr": lr,
        "limit": limit,
        "at fewest": mean_gradient_bound(lr=lr, T=fewest, **constants),
        "below": mean_gradient_bound(lr=grid, T=0.999 * fewest, **constants).min(),
    }


@given(
    L=constants, B=st.floats(1, 5), b=st.floats(1, 20), n=counts, s=counts, K=counts, sigma=noise,
    G=noise, F=constants, a=constants, T=st.integers(1, 10**6), eps=st.floats(1e-3, 10),
)  # fmt: skip
def test_tuning(L, B, b, n, s, K, sigma, G, F, a, T, eps):
    """The tuned bound is one, the lemma's steps suffice, and fewest_steps is the fewest."""
    given_ = {"L": L, "sigma": sigma, "G": G, "B": B, "F": F, "a": a, "b": b, "n": n,
              "s": min(s, n), "K": K}  # fmt: skip
    with jax.debug_nans(False):  # the smallest of an empty rate's NaNs
        found = {name: float(value) for name, value in tuning(given_, T, eps).items()}
    # Terms are counted once or twice, of three.
    assert found["bound"] / 5 <= found["value"] <= found["bound"] * (1 + 1e-9)
    assert found["reached"] <= eps * (1 + 1e-9)
    assert found["enough"] / 18 <= found["fewest"] <= found["enough"] * (1 + 1e-9)
    assert found["lr"] <= found["limit"] * (1 + 1e-12)
    # The bound is eps at that T, and above it with fewer steps.
    CLOSE(found["at fewest"], eps, rtol=1e-9)
    assert found["below"] > eps


def test_printed_theorem_has_fewer_terms_than_its_proof():
    """At a rate that both allow, by a factor that grows as K does past s."""
    lr, L, sigma, B, F, b, n, s, T = 1e-6, 1.0, 1.0, 1.0, 1e-12, 1.0, 100, 1, 10**9
    given_ = {"lr": lr, "L": L, "sigma": sigma, "G": 0.0, "B": B, "F": F, "b": b, "n": n, "s": s,
              "T": T}  # fmt: skip
    for K, a, low, high in ((1, 1.0, 1.0, 1.02), (400, 1e-2, 1e3, np.inf)):
        printed = 2 * (n + 1) * F / (T * s * lr) + L * s / (n + 1) * a * sigma**2 * lr
        printed += L**2 * s**2 * 720 * a * sigma**2 * lr**2
        assert low < float(mean_gradient_bound(K=K, a=a, **given_)) / printed < high


def test_printed_tuned_bound_lacks_a_factor(x64):
    """Equation 47's middle term at the rate of Equation 45: twice the printed one.

    At eta = (start / (quadratic T))^(1/3), start / (eta T) and quadratic eta^2 are both
    quadratic^(1/3) (start / T)^(2/3).
    """
    start, quadratic, T = 3.0, 5.0, 7.0
    eta = (start / (quadratic * T)) ** (1 / 3)
    once = quadratic ** (1 / 3) * (start / T) ** (2 / 3)
    CLOSE(start / (eta * T) + quadratic * eta**2, 2 * once)


REFUSED = {
    "largest rate": (
        lambda lr: mean_gradient_bound(lr=lr, T=9, **SIZES, **NOISE),
        lambda: largest_lr(**SIZES),
        "lr <= largest_lr",
    ),
    "potential": (
        lambda lr: next_potential_bound(
            potential=1.0,
            squared_gradient=1.0,
            lr=lr,
            L=2.0,
            sigma=0.0,
            G=0.0,
            B=1.0,
            a=1.0,
            b=3.0,
            n=11,
            s=4,
            K=1,
        ),
        lambda: 1 / (20 * 4 * 2.0 * 3.0),
        r"lr <= 1 / \(20 s L b\)",
    ),
}


@pytest.mark.parametrize("bound", REFUSED)
def test_nan_beyond_the_largest_rate(bound):
    value, limit, text = REFUSED[bound]
    largest = float(limit())
    assert np.isfinite(value(largest))
    with pytest.warns(UserWarning, match=f"the condition {text}"), jax.debug_nans(False):
        assert np.isnan(value(1.01 * largest))


def test_nan_where_assumptions_fail():
    few = SIZES | NOISE
    cases = [
        lambda: mean_gradient_bound(lr=1e-6, T=9, **(few | {"B": 0.5})),
        lambda: mean_gradient_bound(lr=1e-6, T=9, **(few | {"s": 12})),
        lambda: tuned_bound(T=9, **(few | {"s": 12})),
        lambda: lemma_steps(eps=0.1, **(few | {"s": 12})),
        lambda: fewest_steps(eps=0.1, **(few | {"s": 12})).steps,
        lambda: potential_bound(potential=1.0, squared_progress=1.0, lr=0.1, n=3, s=4),
        # below 1 / (20 s L b), above 1 / (4 L K^2)
        lambda: next_potential_bound(
            potential=1.0, squared_gradient=1.0, lr=1e-3, L=1.0, sigma=0.0, G=0.0, B=1.0, a=1.0,
            b=1.0, n=9, s=2, K=20,
        ),
    ]  # fmt: skip
    for case in cases:
        with pytest.warns(UserWarning, match="the bound is NaN"), jax.debug_nans(False):
            assert np.isnan(case())


LAW = geometric(0.5, 4)
NEVER = geometric(1.0, 4, first=0)  # no step at all


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: progress_constants(LAW, local_steps=4, version="x"), "version is 'x'"),
        (lambda: progress_constants(LAW, local_steps=1), "local_steps is 1; expected the cap"),
        (lambda: progress_constants(LAW, local_steps=0), "local_steps is 0; expected the cap"),
        (lambda: progress_constants(NEVER, local_steps=4), r"steps\.p_active is"),
        (lambda: reweighting_variance(NEVER, mean=1.0, variance=1.0), r"steps\.p_active is"),
        (lambda: reweighting_variance(LAW, mean=1.0, variance=-1.0), r"variance is -1\.0"),
        (
            lambda: reweighting_variance(LAW, mean=1.0, variance=1.0, version="x"),
            "version is 'x'",
        ),
        (lambda: mean_gradient_bound(lr=0.0, T=9, **SIZES, **NOISE), r"lr is 0\.0"),
        (
            lambda: mean_gradient_bound(lr=0.1, T=9, **SIZES, **NOISE | {"G": -1.0}),
            r"dissimilarity is -1\.0",
        ),
        (lambda: largest_lr(**SIZES | {"K": 0}), "local_steps is 0; expected a positive number"),
        (lambda: quantization_floor(L=1.0, error=-1.0), r"error is -1\.0"),
        (lambda: lemma_steps(eps=0.0, **SIZES, **NOISE), r"eps is 0\.0"),
        (lambda: corollary_steps(eps=0.1, **SIZES, F=1.0, a=1.0), r"constants\.sigma is None"),
        (lambda: contraction(n=3, s=0), "cohort_size is 0"),
        (
            lambda: potential_bound(potential=-1.0, squared_progress=0.0, lr=0.1, n=3, s=1),
            r"potential is -1\.0",
        ),
    ],
)  # fmt: skip
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
