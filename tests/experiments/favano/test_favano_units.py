"""Times per server step against enumerations and simulated rounds; Table 1 and its units."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from symbols import FAVANO, by_symbols

from experiments.favano import units
from experiments.favano.step_times import (
    async_sgd_step_time,
    clocked_step_time,
    fedavg_step_time,
)

pytestmark = pytest.mark.usefixtures("x64")

L, SIGMA, G, B, F, EPS = 2.0, 0.7, 0.4, 1.5, 2.5, 0.03
NOISE = {"L": L, "sigma": SIGMA, "G": G, "F": F}
SIZES = {"n": 11, "s": 4, "K": 5}
fedavg_units, fedbuff_units, async_sgd_units, quafl_units, favano_units = (
    by_symbols(function, FAVANO)
    for function in (
        units.fedavg_units,
        units.fedbuff_units,
        units.async_sgd_units,
        units.quafl_units,
        units.favano_units,
    )
)


@pytest.mark.parametrize(
    ("slow", "fedavg", "gradient"), [(34, 418.9, 0.0285), (89, 461.4, 1 / (11 / 2 + 89 / 16))]
)
def test_reference_times(slow, fedavg, gradient):
    """n = 100, s = 20, K = 20; steps of mean 2 and 16: published to these digits."""
    durations = np.repeat([2.0, 16.0], [100 - slow, slow])
    assert abs(fedavg_step_time(1 / durations, cohort_size=20, local_steps=20) - fedavg) < 0.05
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
    value = fedavg_step_time(success, cohort_size=s, local_steps=K, interaction=0)
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
    value = fedavg_step_time(success, cohort_size=s, local_steps=K, interaction=1.5)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(
        fedavg_step_time(success[::-1], cohort_size=s, local_steps=K, interaction=1.5),
        value,
        rtol=1e-12,
    )


def test_fedavg_time_against_simulated_rounds():
    """Four standard errors of the mean of 20,000 rounds."""
    rng, rounds, n, s, K = np.random.default_rng(0), 20_000, 6, 3, 4
    success = np.array([0.5, 0.5, 0.5, 0.5, 0.1, 0.1])
    cohorts = rng.permuted(np.tile(np.arange(n), (rounds, 1)), axis=1)[:, :s]
    spent = rng.geometric(success[cohorts][..., None], (rounds, s, K)).sum(-1).max(-1) + 3
    error = 4 * spent.std() / rounds**0.5
    assert abs(spent.mean() - fedavg_step_time(success, cohort_size=s, local_steps=K)) < error


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
    fedavg = F * L * (SIGMA**2 + share) / (s * K) * noise + F * L * G * root + L * F * B**2 * slow
    value = fedavg_units(eps=EPS, **NOISE, **SIZES, **time, B=B)
    np.testing.assert_allclose(value, fedavg * C, rtol=1e-12)
    sgd = F * L * (3 * SIGMA**2 + 4 * G**2) * noise + F * L * G * (s * 3) ** 0.5 * root
    sgd += F * L * (s * 8) ** 0.5 * slow
    value = async_sgd_units(eps=EPS, **NOISE, **time, s=s, tau_avg=3, tau_max=8)
    np.testing.assert_allclose(value, sgd * C, rtol=1e-12)
    drift = K**2 * SIGMA**2 + K**2 * G**2 + s**2 * SIGMA**2 * a + s**2 * G**2 * b
    favano = F * L * (SIGMA**2 * a + 8 * G**2 * b) * noise + n * F * B**2 * K * L * b * slow
    favano += n / s * F * L * drift**0.5 * root
    value = favano_units(eps=EPS, **NOISE, **SIZES, **time, B=B, a=a, b=b)
    np.testing.assert_allclose(value, favano * C, rtol=1e-12)
    fedbuff = F * L * (SIGMA**2 + G**2) * noise + F * L * slow
    fedbuff += F * L * ((8**2 / s**2 + 1) * (SIGMA**2 + n * G**2)) ** 0.5 * root
    value = fedbuff_units(eps=EPS, **NOISE, **time, n=n, s=s, tau_max=8)
    np.testing.assert_allclose(value, fedbuff * C, rtol=1e-12)
    each = SIGMA**2 + 2 * K * G**2
    quafl = F * L * K * each / E**2 * noise + n**1.5 * F * B * K**2 * L / (E * s**0.5) * slow
    quafl += n**1.5 / (E * (E * s) ** 0.5) * F * K * L * each**0.5 * root
    value = quafl_units(eps=EPS, **NOISE, **SIZES, **time, B=B, mean_steps=E)
    np.testing.assert_allclose(value, quafl * C, rtol=1e-12)


# method -> its units as a function of eps, L, sigma, G, F
ROWS = {
    "fedavg": lambda **p: fedavg_units(**p, **SIZES, B=B),
    "async_sgd": lambda **p: async_sgd_units(**p, s=4, tau_avg=3, tau_max=8),
    "favano": lambda **p: favano_units(**p, **SIZES, B=B, a=1.2, b=3.0),
    "fedbuff": lambda **p: fedbuff_units(**p, n=11, s=4, tau_max=8),
    "quafl": lambda **p: quafl_units(**p, **SIZES, B=B, mean_steps=2.2),
}


def printed_fedavg(eps, L, sigma, G, F, n=11, s=4, K=5):
    """Without F L on K G^2, with the root of L in the second term."""
    noise = F * L * sigma**2 + (1 - s / n) * K * G**2
    return noise / (s * K * eps**2) + F * L**0.5 * G / eps**1.5 + L * F * B**2 / eps


def printed_async_sgd(eps, L, sigma, G, F, s=4, tau_avg=3, tau_max=8):
    """F under the root of the last term, which has no L."""
    drift = F * L * G * (s * tau_avg) ** 0.5 / eps**1.5
    noise = F * L * (3 * sigma**2 + 4 * G**2) / eps**2
    return noise + drift + (s * tau_max * F) ** 0.5 / eps


def printed_favano(eps, L, sigma, G, F, n=11, s=4, K=5, a=1.2, b=3.0):
    """L^2 for L in the middle term, and L^2 K^2 G^2 for K^2 G^2."""
    drift = K**2 * (sigma**2 + (L * G) ** 2) + s**2 * (sigma**2 * a + G**2 * b)
    noise = F * L * (sigma**2 * a + 8 * G**2 * b) / eps**2
    return noise + n / s * F * L**2 * drift**0.5 / eps**1.5 + n * F * B**2 * K * L * b / eps


@pytest.mark.slow
@pytest.mark.parametrize("method", ROWS)
@given(value=st.floats(0.1, 10), slope=st.floats(0.1, 10))
def test_numbers_of_steps_have_no_unit(method, value, slope):
    """Measuring f in other units, and models in others, changes no number of steps."""
    rescaled = {"L": L * slope**2 / value, "sigma": SIGMA * slope, "G": G * slope, "F": F * value}
    row = ROWS[method]
    found = row(eps=EPS * slope**2, **rescaled)
    np.testing.assert_allclose(found, row(eps=EPS, **NOISE), rtol=1e-11)


@pytest.mark.parametrize("printed", [printed_fedavg, printed_async_sgd, printed_favano])
def test_printed_rows_have_units(printed):
    doubled = {"L": L / 2, "sigma": SIGMA, "G": G, "F": F * 2}  # f in units half as large
    assert abs(printed(EPS, **doubled) / printed(EPS, **NOISE) - 1) > 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clocked_step_time(-1.0, 3.0), r"waiting is -1\.0; expected a non-negative time"),
        (lambda: clocked_step_time(1.0, float("nan")), "interaction is nan"),
        (lambda: async_sgd_step_time([]), r"durations is \[\]"),
        (lambda: async_sgd_step_time([1.0, 0.0]), r"durations is \[1\.0, 0\.0\]"),
        (lambda: fedavg_step_time(0.5, cohort_size=1, local_steps=1), r"success is 0\.5"),
        (
            lambda: fedavg_step_time([0.5, 1.5], cohort_size=1, local_steps=1),
            r"success is \[0\.5, 1\.5\]",
        ),
        (
            lambda: fedavg_step_time([0.5], cohort_size=2, local_steps=1),
            r"cohort_size is 2; expected 1 \.\. 1",
        ),
        (
            lambda: fedavg_step_time([0.5], cohort_size=1, local_steps=0),
            "local_steps is 0; expected at least 1",
        ),
        (
            lambda: fedavg_step_time([0.5], cohort_size=1, local_steps=1, interaction=-1.0),
            r"interaction is -1\.0",
        ),
        (lambda: fedavg_units(eps=0.0, **NOISE, **SIZES, B=B), r"eps is 0\.0"),
        (lambda: fedbuff_units(eps=EPS, **NOISE, n=3, s=2, tau_max=-1), "max_staleness is -1"),
        (
            lambda: async_sgd_units(eps=EPS, **NOISE, s=3, tau_avg=-1, tau_max=2),
            "mean_staleness is -1",
        ),
        (lambda: quafl_units(eps=EPS, **NOISE, **SIZES, B=B, mean_steps=0), "mean_steps is 0"),
        (
            lambda: favano_units(eps=EPS, **NOISE, **SIZES, B=B, a=1.0, b=1.0, time_per_step=0),
            "time_per_step is 0",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
