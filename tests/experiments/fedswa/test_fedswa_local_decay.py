"""Theorem H.1: drift at constant and decaying rates, measured on quadratics."""

import jax.numpy as jnp
import numpy as np
import pytest
from fedmoswa_runs import Start, random_problem, run, squares
from quadratics import CENTRES, HESSIANS, START, state_after

import fedjax_sim as fs
from experiments.fedswa.lemmas import local_decay
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.theory.fedswa import generalization

K = 50


def published_bound(beta, gap, client_lag, server_lag, sigma, lr, local_steps, alpha=1.0):
    """Theorem H.1's bound at a constant rate (Lemma G.12); it prints a third for decaying rates."""
    step = local_steps * alpha * lr
    lags = step / (9 * beta) * (client_lag + server_lag)
    return lags + gap / (75 * alpha**2 * beta) + step * sigma**2 / (3 * local_steps * beta)


def test_rates():
    np.testing.assert_allclose(
        local_decay.linear_rates(0.3, 7, rho=0.1).sum(),
        generalization.rate_sum(0.3, local_steps=7, rho=0.1),
        rtol=1e-6,
    )
    rates = local_decay.geometric_rates(0.3, K)
    np.testing.assert_allclose(rates[1:] / rates[:-1], (K - 2) / (K - 1), rtol=1e-5)
    assert local_decay.geometric_rates(1.0, 2).tolist() == [1.0, 0.0]
    np.testing.assert_allclose(local_decay.geometric_rates(1.0, 10_000)[-1], np.exp(-1), rtol=1e-3)


def test_bound_is_exact_for_opposite_clients_without_noise(x64):
    """Slopes V and -V: every client moves by V times the sum of its rates."""
    rates = local_decay.linear_rates(0.02, 5, rho=0.1)
    constants = ProblemConstants(L=1e-9, sigma=0.0)
    bounds = local_decay.visit_drift_bound(
        constants, rates, gap=0.0, client_lag=4 / 3, server_lag=0.0
    )
    sums = np.concatenate([[0], np.cumsum(rates)])
    np.testing.assert_allclose(bounds, 4 * sums**2, rtol=1e-12)


@pytest.mark.parametrize("sigma", [0.0, 1.5])
@pytest.mark.parametrize("decay", ["constant", "linear", "geometric"])
def test_measured_drift_is_below_the_bound(x64, sigma, decay):
    rng = np.random.default_rng(0)
    problem = random_problem(rng, sigma=sigma)
    lr, local_steps = 0.1, 12
    rates = {
        "constant": local_decay.linear_rates(lr, local_steps),
        "linear": local_decay.linear_rates(lr, local_steps, rho=0.1),
        "geometric": local_decay.geometric_rates(lr, local_steps),
    }[decay]
    start = Start(rng.normal(size=3), rng.normal(size=(6, 3)), rng.normal(size=3))
    result = run(problem, start, rng, rates=rates, rounds=4, cohort_size=3, runs=400)
    optimal = problem.gradients(np.repeat(problem.optimum[None], 6, axis=0))
    for t in range(4):
        bounds = local_decay.visit_drift_bound(
            ProblemConstants(L=problem.beta, sigma=sigma),
            rates,
            gap=problem.gap(result.before.params[t]).mean(),
            client_lag=squares(result.before.controls[t] - optimal).mean(),
            server_lag=squares(result.before.momentum[t]).mean(),
        )
        measured = result.drift[t].mean(axis=0)
        errors = result.drift[t].std(axis=0) / np.sqrt(400)
        assert (measured <= bounds + 4 * errors).all()
        assert measured[-1] > 0.05 * bounds[-1]  # far from vacuous


def small_step_drift(rates, noise):
    """Drift without curvature: a constant direction (0) or noise alone (1)."""
    rates = np.asarray(rates, np.float64)
    return np.mean(np.cumsum(rates**2) if noise else np.cumsum(rates) ** 2)


E1, E2 = np.exp([-1.0, -2.0])


def tenth(lr, local_steps):
    return local_decay.linear_rates(lr, local_steps, rho=0.1)


@pytest.mark.parametrize(
    ("decay", "noise", "limit"),
    [
        (local_decay.geometric_rates, False, 3 * (1 - 2 * (1 - E1) + (1 - E2) / 2)),
        (local_decay.geometric_rates, True, 1 - (1 - E2) / 2),
        (tenth, False, 1 - 3 * 0.9 / 4 + 3 * 0.81 / 20),
        (tenth, True, 1 - 2 * 0.9 / 3 + 0.81 / 6),
    ],
    ids=["geometric", "geometric-noise", "linear", "linear-noise"],
)
def test_printed_third_does_not_compare_the_drifts(x64, decay, noise, limit):
    """Decay leaves about half of the drift; a third of the published bound holds without decay."""
    steps = 2000
    constant = small_step_drift(local_decay.linear_rates(1e-5, steps), noise)
    decayed = small_step_drift(decay(1e-5, steps), noise)
    np.testing.assert_allclose(decayed / constant, limit, rtol=0.01)
    assert 1 / 3 < limit < 0.57
    # The same ratio from the function, and a third of the published bound at a constant rate.
    beta = 1.0
    lr = 1 / (81 * beta * K)
    values = {"gap": 0.0, "client_lag": 0.0 if noise else 1.0, "server_lag": 0.0}
    constants = ProblemConstants(L=beta, sigma=1.0 if noise else 0.0)
    drifts = [
        float(local_decay.visit_drift_bound(constants, rates, **values)[1:].mean())
        for rates in (local_decay.linear_rates(lr, K), decay(lr, K))
    ]
    np.testing.assert_allclose(drifts[1] / drifts[0], limit, rtol=0.05)
    published = published_bound(beta, sigma=constants.sigma, lr=lr, local_steps=K, **values)
    assert drifts[0] < published / 3


def test_runs_of_the_tests_are_runs_of_the_library():
    """The NumPy loop of these tests and fs.fedmoswa end at the same state."""
    problem = random_problem(np.random.default_rng(0))._replace(hessians=HESSIANS, centres=CENTRES)
    start = Start(START, np.zeros_like(CENTRES), np.zeros_like(START))
    rates = local_decay.linear_rates(0.05, 5, rho=0.1)
    result = run(
        problem, start, np.random.default_rng(0), rates=rates, rounds=4, cohort_size=6, gamma=0.3
    )
    state = state_after(fs.fedmoswa(0.05, rho=0.1, alpha=1.5, gamma=0.3), cohort_size=6)
    np.testing.assert_allclose(state.server.params, result.after.params[-1, 0], rtol=1e-4)
    np.testing.assert_allclose(state.server.control, result.after.momentum[-1, 0], rtol=1e-4)


def test_errors(allow_nans):
    values = {"gap": 0.0, "client_lag": 1.0, "server_lag": 0.0}
    constants = ProblemConstants(L=1.0, sigma=0.0)
    with pytest.raises(ValueError, match=r"rates has shape \(2, 3\); expected \[K\]"):
        local_decay.visit_drift_bound(constants, jnp.ones((2, 3)), **values)
    with pytest.raises(ValueError, match="local_steps is 1; expected at least 2"):
        local_decay.geometric_rates(0.1, 1)
    with pytest.warns(UserWarning, match="rates <= 2 / beta"):
        assert np.isnan(local_decay.visit_drift_bound(constants, jnp.full(3, 2.5), **values)).all()
