"""FAVANO's constants and bounds against NumPy, published numbers and what their proofs need."""

import functools
import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from fedjax_sim.theory.favano import largest_lr, mean_gradient_bound, quantization_floor
from fedjax_sim.theory.favano_potential import contraction, next_potential_bound, potential_bound
from fedjax_sim.theory.favano_progress import progress_constants, reweighting_variance
from fedjax_sim.theory.favano_steps import (
    corollary_steps,
    fewest_steps,
    lemma_steps,
    tuned_bound,
    tuned_lr,
)
from fedjax_sim.theory.step_counts import CappedSteps, from_probabilities, geometric, renewal

pytestmark = pytest.mark.usefixtures("x64")

CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-12)  # float64, some ten operations
FORMS = ("corrected", "printed")
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


@pytest.mark.parametrize("table", TABLES)
def test_progress_constants_numbers(table):
    law, rows = TABLES[table]
    for i, (a, b, printed_a, printed_b) in enumerate(rows):
        one = CappedSteps(*(moment[i] for moment in law))
        found = progress_constants(one, 20), progress_constants(one, 20, "deterministic", "printed")
        expected = [a, b, printed_a, printed_b]
        np.testing.assert_allclose(
            [x for c in found for x in c[:2]], expected, rtol=1e-5, atol=6e-6
        )
        tight = progress_constants(one, 20, "deterministic")
        CLOSE(tight.b, found[1].b / one.mean)
        CLOSE(tight.a, 1 / one.mean + tight.b / 400)
    both = progress_constants(law, 20)
    assert both.clients.shape == (2,)
    CLOSE(both.a, both.clients.mean())
    CLOSE(both.b, max(1 / law.p_active))


laws = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9).map(lambda x: np.array(x) / sum(x))


@given(mass=laws, stochastic=st.booleans(), h=st.floats(-3, 3), sigma=st.floats(0, 3))
def test_progress_constants_bound_the_second_moment(mass, stochastic, h, sigma):
    """Of one client with gradients of one mean h and variance sigma^2, for B_t = h^2 + sigma^2/K^2.

    The second moment is exact, by conditioning on S.  Equality in b as K grows, hence 1e-9.
    """
    K = len(mass) - 1
    law, S = from_probabilities(mass, K), np.arange(K + 1)
    version = "stochastic" if stochastic else "deterministic"
    alpha = (1 - mass[0]) * np.maximum(S, 1) if stochastic else mass @ S
    moment = mass @ ((S * sigma**2 + (S * h) ** 2) / alpha**2)
    a, b, _ = progress_constants(law, K, version)
    assert moment <= (a * sigma**2 + b * h**2) * (1 + 1e-9)
    CLOSE(moment - h**2, reweighting_variance(law, h, sigma**2, version), rtol=1e-9, atol=1e-9)


def test_printed_deterministic_constants_fail_below_one_step():
    """P(E > 0) = 1/10, one step then: E||h / alpha||^2 = 10 h^2, and the printed b is 1."""
    law = from_probabilities([0.9, 0.1], 1)
    assert math.isclose(progress_constants(law, 1, "deterministic").b, 10)
    assert math.isclose(progress_constants(law, 1, "deterministic", "printed").b, 1)


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
    exact = float(reweighting_variance(law, y, sd**2, version))
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
    for form, last in zip(FORMS, (corrected, printed), strict=True):
        CLOSE(mean_gradient_bound(lr=lr, T=T, **SIZES, **NOISE, form=form), shared + last)
    CLOSE(largest_lr(**SIZES, form="printed"), 1 / (20 * B**2 * b * K * L * s))
    CLOSE(quantization_floor(L=L, error=0.1), 12 * 4 * 0.1)
    eps = 0.01
    lemma = 72 * F * L * (sigma**2 * a + 8 * G**2 * b) / eps**2
    lemma += 30 * 12 * F * L * math.sqrt(720 * sigma**2 * a + 5600 * b * G**2) / eps**1.5
    lemma += 120 * 12 * F * B**2 * b * K * L / eps
    CLOSE(lemma_steps(eps, **SIZES, **NOISE, form="printed"), lemma)
    for form, power, slip in (("printed", 2, L**2), ("corrected", 1, 1)):
        root = K**2 * sigma**2 + slip * K**2 * G**2 + s**2 * (sigma**2 * a + G**2 * b)
        order = F * L * (sigma**2 * a + 8 * G**2 * b) / eps**2
        order += (
            F * L**power * math.sqrt(root) / (eps**1.5 * s / n) + F * B**2 * K * L * b / eps * n
        )
        CLOSE(corollary_steps(eps, **SIZES, **NOISE, form=form), order)
    CLOSE(potential_bound(5.0, 2.0, lr=0.1, n=11, s=4), (1 - 4 / 110) * 5 + 3 * 16 / 11 * 0.01 * 2)
    value = (1 - 1 / 55) * 5 + 3 * 16 * lr**2 * (sigma**2 * a + 8 * b * G**2)
    value += 24 * B**2 * 16 * lr**2 * b * 0.3
    given_ = SIZES | {"sigma": sigma, "G": G, "a": a}
    for form in FORMS:
        CLOSE(next_potential_bound(5.0, 0.3, lr=lr, **given_, form=form), value)


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
        printed, proof = (largest_lr(**few, K=K, form=form) for form in ("printed", "corrected"))
        assert (float(proof) > float(printed)) == larger


noise = st.just(0.0) | constants


@pytest.mark.parametrize("form", FORMS)
@given(
    L=constants, B=st.floats(1, 5), b=st.floats(1, 20), n=counts, s=counts, K=counts, sigma=noise,
    G=noise, F=constants, a=constants, T=st.integers(1, 10**6), eps=st.floats(1e-3, 10),
)  # fmt: skip
def test_tuning(form, L, B, b, n, s, K, sigma, G, F, a, T, eps):
    """The tuned bound is one, the lemma's steps suffice, and fewest_steps is the fewest."""
    given_ = {"L": L, "sigma": sigma, "G": G, "B": B, "F": F, "a": a, "b": b, "n": n,
              "s": min(s, n), "K": K, "form": form}  # fmt: skip
    limit = float(largest_lr(L=L, B=B, b=b, n=n, s=min(s, n), K=K, form=form))
    value = float(mean_gradient_bound(lr=tuned_lr(T=T, **given_), T=T, **given_))
    bound = float(tuned_bound(T=T, **given_))
    assert bound / 5 <= value <= bound * (1 + 1e-9)  # terms counted once or twice, of three
    enough = float(lemma_steps(eps, **given_))
    reached = mean_gradient_bound(lr=tuned_lr(T=enough, **given_), T=enough, **given_)
    assert float(reached) <= eps * (1 + 1e-9)
    steps, lr = (float(x) for x in fewest_steps(eps, **given_))
    assert enough / 18 <= steps <= enough * (1 + 1e-9)
    assert lr <= limit * (1 + 1e-12)
    # The smallest bound over a grid of rates: eps at that T, and above it with fewer steps.
    CLOSE(mean_gradient_bound(lr=lr, T=steps, **given_), eps, rtol=1e-9)
    grid = jnp.minimum(limit, lr * jnp.geomspace(0.1, 10, 41))
    assert float(mean_gradient_bound(lr=grid, T=0.999 * steps, **given_).min()) > eps


def test_printed_theorem_has_fewer_terms_than_its_proof():
    """At a rate that both allow, by a factor that grows as K does past s."""
    given_ = {"lr": 1e-6, "L": 1.0, "sigma": 1.0, "G": 0.0, "B": 1.0, "F": 1e-12, "b": 1.0,
              "n": 100, "s": 1, "T": 10**9}  # fmt: skip
    for K, a, low, high in ((1, 1.0, 1.0, 1.01), (400, 1e-2, 1e3, np.inf)):
        both = [float(mean_gradient_bound(K=K, a=a, **given_, form=form)) for form in FORMS]
        assert low < both[0] / both[1] < high


REFUSED = {
    "largest rate": (
        lambda lr: mean_gradient_bound(lr=lr, T=9, **SIZES, **NOISE),
        lambda: largest_lr(**SIZES),
        r"lr <= largest_lr\(form='corrected'\)",
    ),
    "printed rate": (
        lambda lr: mean_gradient_bound(lr=lr, T=9, **SIZES, **NOISE, form="printed"),
        lambda: largest_lr(**SIZES, form="printed"),
        r"lr <= largest_lr\(form='printed'\)",
    ),
    "potential": (
        lambda lr: next_potential_bound(
            1.0, 1.0, lr=lr, L=2.0, sigma=0.0, G=0.0, B=1.0, a=1.0, b=3.0, n=11, s=4, K=1
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
        lambda: lemma_steps(0.1, **(few | {"s": 12})),
        lambda: fewest_steps(0.1, **(few | {"s": 12})).steps,
        lambda: potential_bound(1.0, 1.0, lr=0.1, n=3, s=4),
        # below 1 / (20 s L b), above 1 / (4 L K^2)
        lambda: next_potential_bound(
            1.0, 1.0, lr=1e-3, L=1.0, sigma=0.0, G=0.0, B=1.0, a=1.0, b=1.0, n=9, s=2, K=20
        ),
        # the printed contraction of s = n
        lambda: next_potential_bound(
            1.0, 1.0, lr=1e-9, L=1.0, sigma=0.0, G=0.0, B=1.0, a=1.0, b=1.0, n=9, s=9, K=1,
            form="printed",
        ),
    ]  # fmt: skip
    for case in cases:
        with pytest.warns(UserWarning, match="the bound is NaN"), jax.debug_nans(False):
            assert np.isnan(case())


LAW = geometric(0.5, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: progress_constants(LAW, 4, "other"), "version is 'other'"),
        (lambda: progress_constants(LAW, 4, "stochastic", "exact"), "const is 'exact'"),
        (lambda: progress_constants(LAW, 1), "K is 1; expected the cap"),
        (lambda: progress_constants(LAW, 0), "K is 0; expected the cap"),
        (lambda: progress_constants(geometric(1.0, 4, first=0), 4), "steps.p_active is"),
        (lambda: reweighting_variance(geometric(1.0, 4, first=0), 1.0, 1.0), "steps.p_active is"),
        (lambda: reweighting_variance(LAW, 1.0, -1.0), r"variance is -1\.0"),
        (lambda: reweighting_variance(LAW, 1.0, 1.0, "other"), "version is 'other'"),
        (lambda: mean_gradient_bound(lr=0.0, T=9, **SIZES, **NOISE), r"lr is 0\.0"),
        (lambda: mean_gradient_bound(lr=0.1, T=9, **SIZES, **NOISE | {"G": -1.0}), r"G is -1\.0"),
        (lambda: mean_gradient_bound(lr=0.1, T=9, **SIZES, **NOISE, form="x"), "form is 'x'"),
        (lambda: largest_lr(**SIZES | {"K": 0}), "K is 0; expected a positive number"),
        (lambda: quantization_floor(L=1.0, error=-1.0), r"error is -1\.0"),
        (lambda: lemma_steps(0.0, **SIZES, **NOISE), r"eps is 0\.0"),
        (lambda: corollary_steps(0.1, **SIZES, **NOISE, form="x"), "form is 'x'"),
        (lambda: contraction(n=3, s=0), "s is 0"),
        (lambda: potential_bound(-1.0, 0.0, lr=0.1, n=3, s=1), r"potential is -1\.0"),
    ],
)  # fmt: skip
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
