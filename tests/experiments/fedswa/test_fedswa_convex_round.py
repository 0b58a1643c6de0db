"""Lemmas G.9 to G.12 against measured rounds on convex quadratics, and where they fail in print."""

import functools
import itertools

import numpy as np
import pytest
from fedmoswa_runs import Start, check_below, random_problem, run, squares

from experiments.fedswa.lemmas import convex_round, local_decay
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.theory.fedswa.convergence import cohort_variance

CLIENTS, DIM, RUNS = 6, 3, 600
# sigma, K, s, alpha, gamma, beta step
SETTINGS = [
    (0.0, 3, 2, 1.5, 0.2, 1 / 81),
    (2.0, 5, 6, 1.0, 1.0, 1 / 81),
    (5.0, 2, 1, 2.0, 0.6, 1 / 100),
]


def measured(setting, rounds=5, scale=1.0, seed=0):
    """A run with its constants, the sizes of the setting, and values by round and run."""
    sigma, K, s, alpha, gamma, x = setting
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, CLIENTS, DIM, sigma=sigma)
    start = Start(
        problem.optimum + scale * rng.normal(size=DIM),
        rng.normal(size=(CLIENTS, DIM)),
        scale * rng.normal(size=DIM),
    )
    lr = x / (problem.beta * K * alpha)
    result = run(
        problem, start, rng, rates=np.full(K, lr), rounds=rounds, cohort_size=s,
        alpha=alpha, gamma=gamma, runs=RUNS,
    )  # fmt: skip
    optimal = problem.gradients(np.repeat(problem.optimum[None], CLIENTS, axis=0))
    constants = ProblemConstants(
        L=problem.beta, sigma=sigma, zeta_star=np.sqrt(squares(optimal).mean())
    )
    values = {
        "gap": problem.gap(result.before.params),
        "client_lag": squares(result.before.controls - optimal).mean(axis=-1),
        "server_lag": squares(result.before.momentum),
        "drift": result.drift[..., :-1].mean(axis=-1),
        "move": result.move,
        "later_drift": result.drift[..., 1:].mean(axis=-1),
        "next_client_lag": squares(result.after.controls - optimal).mean(axis=-1),
        "next_server_lag": squares(result.after.momentum),
    }
    sizes = {"lr": lr, "local_steps": K, "alpha": alpha, "cohort_size": s, "clients": CLIENTS}
    return constants, sizes | {"gamma": gamma}, values


@pytest.mark.parametrize("setting", SETTINGS)
def test_measured_rounds_are_below_the_bounds(x64, setting):
    constants, sizes, values = measured(setting)
    only = lambda *names: {name: sizes[name] for name in names}  # noqa: E731
    check = functools.partial(check_below, constants=constants, values=values)
    state = {name: name for name in ("gap", "client_lag", "server_lag")}
    step = only("lr", "local_steps", "alpha")
    check(
        convex_round.move_bound, arguments=step | only("cohort_size"),
        names=state | {"drift": "drift"}, target="move", tightness=0.1,
    )  # fmt: skip
    for target in ("drift", "later_drift"):
        check(convex_round.drift_bound, arguments=step, names=state, target=target, tightness=1e-4)
    lag = {"gap": "gap", "drift": "drift"}
    cohort = only("local_steps", "clients", "cohort_size")
    check(
        convex_round.client_lag_bound, arguments=cohort,
        names=lag | {"lag": "client_lag"}, target="next_client_lag", tightness=0.3,
    )  # fmt: skip
    check(
        convex_round.server_lag_bound, arguments=cohort | only("gamma"),
        names=lag | {"lag": "server_lag"}, target="next_server_lag", tightness=0.25,
    )  # fmt: skip
    # Lemma G.12 is looser than the recursion behind it.
    rates = local_decay.linear_rates(sizes["lr"], sizes["local_steps"])
    means = {name: values[name][0].mean() for name in state}
    recursion = local_decay.visit_drift_bound(constants, rates, **means)[1:].mean()
    assert recursion < convex_round.drift_bound(constants, **means, **step)


def test_inequalities_on_random_vectors(x64):
    """Exact gradients, one step, all clients: each lemma as an inequality between vectors."""
    rng = np.random.default_rng(1)
    constants = ProblemConstants(L=1.0, sigma=0.0, zeta_star=0.0)
    for _ in range(40):
        problem = random_problem(rng, 4, 2)
        x, momentum = rng.normal(size=(2, 2)) * 10 ** rng.uniform(-2, 1, size=(2, 1))
        controls = rng.normal(size=(4, 2)) * 10 ** rng.uniform(-2, 1)
        optimal = problem.gradients(np.repeat(problem.optimum[None], 4, axis=0))
        state = {
            "gap": problem.gap(x),
            "client_lag": squares(controls - optimal).mean(),
            "server_lag": squares(momentum),
        }
        gradients = problem.gradients(np.repeat(x[None], 4, axis=0))
        move = squares(0.3 * (gradients - controls + momentum).mean(axis=0))
        assert move <= convex_round.move_bound(
            constants, **state, drift=0.0, lr=0.3, local_steps=1, cohort_size=4
        )
        sizes = {"local_steps": 1, "clients": 4, "cohort_size": 4}
        fresh = {"drift": 0.0, "gap": state["gap"]}
        after = squares(0.7 * momentum + 0.3 * gradients.mean(axis=0))
        assert after <= convex_round.server_lag_bound(
            constants, lag=state["server_lag"], **fresh, **sizes, gamma=0.3
        )
        after = squares(gradients - optimal).mean()
        assert after <= convex_round.client_lag_bound(
            constants, lag=state["client_lag"], **fresh, **sizes
        )


def test_full_participation_without_noise_is_as_printed(x64):
    """Lemmas G.10 and G.11: (1 - share) lag + share (4 beta gap + 2 beta^2 drift)."""
    constants = ProblemConstants(L=2.0, sigma=0.0, zeta_star=5.0)
    values = {"lag": 1.3, "drift": 0.4, "gap": 0.7, "local_steps": 3}
    printed = 0.8 * 1.3 + 0.2 * (8 * 0.7 + 8 * 0.4)
    server = convex_round.server_lag_bound(
        constants, **values, clients=20, cohort_size=20, gamma=0.2
    )
    client = convex_round.client_lag_bound(constants, **values, clients=20, cohort_size=4)
    np.testing.assert_allclose([server, client], printed, rtol=1e-12)


def test_printed_server_lag_lacks_the_cohorts_variance(x64):
    """At the optimum, without noise: Lemma G.11 bounds D_1 by 0, but cohorts do not average to 0.

    The momentum after one round is gamma times the mean of a cohort's gradients.
    """
    problem = random_problem(np.random.default_rng(0), CLIENTS, DIM)
    optimal = problem.gradients(np.repeat(problem.optimum[None], CLIENTS, axis=0))
    start = Start(problem.optimum, optimal, np.zeros(DIM))
    result = run(
        problem, start, np.random.default_rng(0), rates=np.full(1, 0.01), rounds=1,
        cohort_size=2, gamma=0.3, runs=4000,
    )  # fmt: skip
    after = squares(result.after.momentum[0])
    constants = ProblemConstants(
        L=problem.beta, sigma=0.0, zeta_star=np.sqrt(squares(optimal).mean())
    )
    bound = convex_round.server_lag_bound(
        constants, lag=0.0, drift=0.0, gap=0.0, local_steps=1, clients=CLIENTS, cohort_size=2,
        gamma=0.3,
    )  # fmt: skip
    assert problem.gap(result.before.params).max() < 1e-20
    assert result.drift[..., :-1].max() == 0
    np.testing.assert_allclose(after.mean(), bound, rtol=0.05)  # exact, up to 4000 draws
    assert bound > 0.01


def test_cohort_variance_against_all_cohorts(x64):
    vectors = np.random.default_rng(0).normal(size=(6, 2))
    vectors -= vectors.mean(axis=0)
    for size in (1, 2, 5, 6):
        means = [vectors[list(c)].mean(axis=0) for c in itertools.combinations(range(6), size)]
        variance = cohort_variance(np.sqrt(squares(vectors).mean()), clients=6, cohort_size=size)
        np.testing.assert_allclose(squares(np.array(means)).mean(), variance, atol=1e-15)
    assert cohort_variance(1.0, clients=1, cohort_size=1) == 0


def test_errors(allow_nans):
    constants = ProblemConstants(L=1.0, sigma=0.0, zeta_star=0.0)
    with pytest.raises(ValueError, match=r"clients - cohort_size is -1.0"):
        cohort_variance(1.0, clients=2, cohort_size=3)
    with pytest.raises(ValueError, match="drift is -1"):
        convex_round.client_lag_bound(
            constants, lag=1.0, drift=-1, gap=0.0, local_steps=1, clients=2, cohort_size=1
        )
    with pytest.raises(ValueError, match=r"constants\.zeta_star is None"):
        convex_round.server_lag_bound(
            constants._replace(zeta_star=None), lag=1.0, drift=0.0, gap=0.0, local_steps=1,
            clients=2, cohort_size=1, gamma=0.5,
        )  # fmt: skip
    lags = {"gap": 0.0, "client_lag": 1.0, "server_lag": 0.0}
    for options in ({"lr": 0.02}, {"lr": 0.001, "alpha": 0.5}):
        with pytest.warns(UserWarning, match=r"alpha >= 1 and K alpha lr <= 1 / \(81 beta\)"):
            assert np.isnan(convex_round.drift_bound(constants, **lags, **options, local_steps=1))
