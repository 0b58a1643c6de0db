"""Times per server step against enumerations and simulated rounds; Table 1 and its units."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from hypothesis import given

from fedjax_sim.theory.favano_step_times import (
    async_sgd_step_time,
    clocked_step_time,
    fedavg_step_time,
)
from fedjax_sim.theory.favano_units import (
    async_sgd_units,
    favano_units,
    fedavg_units,
    fedbuff_units,
    quafl_units,
)

pytestmark = pytest.mark.usefixtures("x64")

L, SIGMA, G, B, F, EPS = 2.0, 0.7, 0.4, 1.5, 2.5, 0.03
NOISE = {"L": L, "sigma": SIGMA, "G": G, "F": F}
SIZES = {"n": 11, "s": 4, "K": 5}


@pytest.mark.parametrize(
    ("slow", "fedavg", "gradient"), [(34, 418.9, 0.0285), (89, 461.4, 1 / (11 / 2 + 89 / 16))]
)
def test_reference_times(slow, fedavg, gradient):
    """n = 100, s = 20, K = 20; steps of mean 2 and 16: published to these digits."""
    durations = np.repeat([2.0, 16.0], [100 - slow, slow])
    assert abs(fedavg_step_time(1 / durations, s=20, K=20) - fedavg) < 0.05
    assert abs(async_sgd_step_time(durations) - gradient) < 5e-5
    assert clocked_step_time(4, 3) == 7


def test_fedavg_time_by_scipy_and_the_hypergeometric_law():
    """Two speeds: a cohort has k slow clients; the sums of durations are negative binomial."""
    n, slow, s, K, times = 9, 4, 3, 5, np.arange(1500)
    cdf = [scipy.stats.nbinom.cdf(times - K, K, rate) for rate in (1 / 2, 1 / 16)]
    number = np.arange(s + 1)
    weights = scipy.stats.hypergeom.pmf(number, n, slow, s)
    done = sum(w * cdf[0] ** (s - k) * cdf[1] ** k for w, k in zip(weights, number, strict=True))
    success = np.repeat([1 / 2, 1 / 16], [n - slow, slow])
    value = fedavg_step_time(success, s=s, K=K, interaction=0)
    np.testing.assert_allclose(value, np.sum(1 - done), rtol=1e-11)  # 1500 differences to 1


@given(
    success=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5),
    s=st.integers(1, 5),
    K=st.integers(1, 6),
)
def test_fedavg_time_over_all_cohorts(success, s, K):
    """All speeds different: the mean over every cohort, in any order of the clients."""
    s, times = min(s, len(success)), np.arange(3000)
    cdf = np.stack([scipy.stats.nbinom.cdf(times - K, K, rate) for rate in success])
    cohorts = itertools.combinations(range(len(success)), s)
    expected = 1.5 + np.mean([np.sum(1 - np.prod(cdf[list(c)], axis=0)) for c in cohorts])
    value = fedavg_step_time(success, s=s, K=K, interaction=1.5)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(
        fedavg_step_time(success[::-1], s=s, K=K, interaction=1.5), value, rtol=1e-12
    )


def test_fedavg_time_against_simulated_rounds():
    """Four standard errors of the mean of 20,000 rounds."""
    rng, rounds, n, s, K = np.random.default_rng(0), 20_000, 6, 3, 4
    success = np.array([0.5, 0.5, 0.5, 0.5, 0.1, 0.1])
    cohorts = rng.permuted(np.tile(np.arange(n), (rounds, 1)), axis=1)[:, :s]
    spent = rng.geometric(success[cohorts][..., None], (rounds, s, K)).sum(-1).max(-1) + 3
    error = 4 * spent.std() / rounds**0.5
    assert abs(spent.mean() - fedavg_step_time(success, s=s, K=K)) < error


def test_async_sgd_time_against_a_simulated_clock():
    """Arrivals of three renewal processes in 100,000 units; their number varies by 0.2 %."""
    rng, durations, horizon = np.random.default_rng(0), np.array([2.0, 5.0, 16.0]), 100_000
    arrivals = sum(
        int(np.sum(np.cumsum(rng.geometric(1 / mean, horizon)) <= horizon)) for mean in durations
    )
    np.testing.assert_allclose(horizon / arrivals, async_sgd_step_time(durations), rtol=0.01)


def test_table_1():
    n, s, K, a, b, E, C = 11, 4, 5, 1.2, 3.0, 2.2, 7.0
    time = {"time_per_step": C}
    noise, root, slow = EPS**-2, EPS**-1.5, 1 / EPS
    share = (1 - s / n) * K * G**2
    fedavg = {
        "corrected": F * L * (SIGMA**2 + share) / (s * K) * noise + F * L * G * root,
        "printed": (F * L * SIGMA**2 + share) / (s * K) * noise + F * L**0.5 * G * root,
    }
    sgd = F * L * (3 * SIGMA**2 + 4 * G**2) * noise + F * L * G * (s * 3) ** 0.5 * root
    last = {"corrected": F * L * (s * 8) ** 0.5, "printed": (s * 8 * F) ** 0.5}
    middle = {"corrected": (L, 1), "printed": (L**2, L**2)}
    for form in ("corrected", "printed"):
        value = fedavg_units(EPS, **NOISE, **SIZES, **time, B=B, form=form)
        np.testing.assert_allclose(value, (fedavg[form] + L * F * B**2 * slow) * C, rtol=1e-12)
        value = async_sgd_units(EPS, **NOISE, **time, s=s, tau_avg=3, tau_max=8, form=form)
        np.testing.assert_allclose(value, (sgd + last[form] * slow) * C, rtol=1e-12)
        power, slip = middle[form]
        drift = K**2 * SIGMA**2 + slip * K**2 * G**2 + s**2 * SIGMA**2 * a + s**2 * G**2 * b
        favano = F * L * (SIGMA**2 * a + 8 * G**2 * b) * noise + n * F * B**2 * K * L * b * slow
        favano += n / s * F * power * drift**0.5 * root
        value = favano_units(EPS, **NOISE, **SIZES, **time, B=B, a=a, b=b, form=form)
        np.testing.assert_allclose(value, favano * C, rtol=1e-12)
    fedbuff = F * L * (SIGMA**2 + G**2) * noise + F * L * slow
    fedbuff += F * L * ((8**2 / s**2 + 1) * (SIGMA**2 + n * G**2)) ** 0.5 * root
    value = fedbuff_units(EPS, **NOISE, **time, n=n, s=s, tau_max=8)
    np.testing.assert_allclose(value, fedbuff * C, rtol=1e-12)
    each = SIGMA**2 + 2 * K * G**2
    quafl = F * L * K * each / E**2 * noise + n**1.5 * F * B * K**2 * L / (E * s**0.5) * slow
    quafl += n**1.5 / (E * (E * s) ** 0.5) * F * K * L * each**0.5 * root
    value = quafl_units(EPS, **NOISE, **SIZES, **time, B=B, mean_steps=E)
    np.testing.assert_allclose(value, quafl * C, rtol=1e-12)


# method -> of eps, L, sigma, G, F
ROWS = {
    "fedavg": lambda form: lambda eps, **p: fedavg_units(eps, **p, **SIZES, B=B, form=form),
    "async_sgd": lambda form: (
        lambda eps, **p: async_sgd_units(eps, **p, s=4, tau_avg=3, tau_max=8, form=form)
    ),
    "favano": lambda form: (
        lambda eps, **p: favano_units(eps, **p, **SIZES, B=B, a=1.2, b=3.0, form=form)
    ),
    "fedbuff": lambda form: lambda eps, **p: fedbuff_units(eps, **p, n=11, s=4, tau_max=8),
    "quafl": lambda form: lambda eps, **p: quafl_units(eps, **p, **SIZES, B=B, mean_steps=2.2),
}


@pytest.mark.parametrize("method", ROWS)
@given(value=st.floats(0.1, 10), slope=st.floats(0.1, 10))
def test_numbers_of_steps_have_no_unit(method, value, slope):
    """Measuring f in other units, and models in others, changes no number of steps."""
    rescaled = {"L": L * slope**2 / value, "sigma": SIGMA * slope, "G": G * slope, "F": F * value}
    row = ROWS[method]("corrected")
    np.testing.assert_allclose(row(EPS * slope**2, **rescaled), row(EPS, **NOISE), rtol=1e-11)


@pytest.mark.parametrize("method", ["fedavg", "async_sgd", "favano"])
def test_printed_rows_have_units(method):
    doubled = {"L": L / 2, "sigma": SIGMA, "G": G, "F": F * 2}  # f in units half as large
    row = ROWS[method]("printed")
    assert abs(row(EPS, **doubled) / row(EPS, **NOISE) - 1) > 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clocked_step_time(-1.0, 3.0), r"waiting is -1\.0; expected a non-negative time"),
        (lambda: clocked_step_time(1.0, float("nan")), "interaction is nan"),
        (lambda: async_sgd_step_time([]), r"durations is \[\]"),
        (lambda: async_sgd_step_time([1.0, 0.0]), r"durations is \[1\.0, 0\.0\]"),
        (lambda: fedavg_step_time(0.5, s=1, K=1), r"success is 0\.5"),
        (lambda: fedavg_step_time([0.5, 1.5], s=1, K=1), r"success is \[0\.5, 1\.5\]"),
        (lambda: fedavg_step_time([0.5], s=2, K=1), r"s is 2; expected 1\.\.1"),
        (lambda: fedavg_step_time([0.5], s=1, K=0), "K is 0; expected at least 1 local step"),
        (lambda: fedavg_step_time([0.5], s=1, K=1, interaction=-1.0), r"interaction is -1\.0"),
        (lambda: fedavg_units(EPS, **NOISE, **SIZES, B=B, form="x"), "form is 'x'"),
        (lambda: fedavg_units(0.0, **NOISE, **SIZES, B=B), r"eps is 0\.0"),
        (lambda: fedbuff_units(EPS, **NOISE, n=3, s=2, tau_max=-1), "tau_max is -1"),
        (
            lambda: async_sgd_units(EPS, **NOISE, s=3, tau_avg=1, tau_max=2, form="x"),
            "form is 'x'",
        ),
        (lambda: quafl_units(EPS, **NOISE, **SIZES, B=B, mean_steps=0), "mean_steps is 0"),
        (
            lambda: favano_units(EPS, **NOISE, **SIZES, B=B, a=1.0, b=1.0, time_per_step=0),
            "time_per_step is 0",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
