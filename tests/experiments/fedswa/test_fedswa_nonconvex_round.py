"""Lemmas G.14 to G.17 against measured rounds on indefinite quadratics, and their printed forms."""

import numpy as np
import pytest
from fedmoswa_runs import Start, check_below, random_problem, run, squares

from experiments.fedswa.lemmas import nonconvex_round
from fedjax_sim.theory import ProblemConstants

CLIENTS, DIM, RUNS = 6, 3, 600
# sigma, K, s, alpha, gamma, beta step
SETTINGS = [
    (0.0, 3, 2, 1.5, 0.2, 1 / 24),
    (2.0, 5, 6, 1.0, 1.0, 1 / 24),
    (5.0, 2, 1, 2.0, 0.6, 1 / 100),
]


def measured(setting):
    sigma, K, s, alpha, gamma, x = setting
    rng = np.random.default_rng(0)
    problem = random_problem(rng, CLIENTS, DIM, sigma=sigma, convex=False)
    # One Hessian: gradients of different clients differ by constants.
    problem = problem._replace(hessians=np.repeat(problem.hessians[:1], CLIENTS, axis=0))
    start = Start(rng.normal(size=DIM), rng.normal(size=(CLIENTS, DIM)), rng.normal(size=DIM))
    lr = x / (problem.beta * K * alpha)
    result = run(
        problem, start, rng, rates=np.full(K, lr), rounds=5, cohort_size=s,
        alpha=alpha, gamma=gamma, runs=RUNS,
    )  # fmt: skip

    def lags(state):
        repeated = np.repeat(state.params[:, :, None], CLIENTS, axis=2)
        own = squares(state.controls - problem.gradients(repeated)).mean(axis=-1)
        return own, squares(state.momentum - problem.gradient(state.params))

    names = ("client_lag", "server_lag")
    values = dict(zip(names, lags(result.before), strict=True))
    values |= dict(zip(["next_" + name for name in names], lags(result.after), strict=True))
    values |= {
        "squared_gradient": squares(problem.gradient(result.before.params)),
        "drift": result.drift[..., :-1].mean(axis=-1),
        "later_drift": result.drift[..., 1:].mean(axis=-1),
        "move": result.move,
    }
    spread = problem.gradients(np.zeros((CLIENTS, DIM)))
    zeta = np.sqrt(squares(spread - spread.mean(axis=0)).mean())
    constants = ProblemConstants(L=problem.beta, sigma=sigma, zeta_mean=zeta)
    sizes = {"lr": lr, "local_steps": K, "alpha": alpha, "cohort_size": s, "clients": CLIENTS}
    return constants, sizes | {"gamma": gamma}, values, result


@pytest.mark.parametrize("setting", SETTINGS)
def test_measured_rounds_are_below_the_bounds(x64, setting):
    constants, sizes, values, result = measured(setting)

    def check(function, arguments, names, target, tightness):
        arguments = {name: sizes[name] for name in arguments}
        check_below(function, constants, arguments, values, names, target, tightness)

    state = {name: name for name in ("squared_gradient", "client_lag", "server_lag")}
    step = ["lr", "local_steps", "alpha"]

    def total(*args, **kwargs):
        return nonconvex_round.move_bounds(*args, **kwargs).total

    check(total, [*step, "cohort_size"], state | {"drift": "drift"}, "move", 0.1)
    for target in ("drift", "later_drift"):
        check(nonconvex_round.drift_bound, step, state, target, 1e-4)
    moved = {"drift": "drift", "move": "move"}
    cohort = ["local_steps", "clients", "cohort_size"]
    check(
        nonconvex_round.client_lag_bound, cohort, moved | {"lag": "client_lag"},
        "next_client_lag", 0.3,
    )  # fmt: skip
    check(
        nonconvex_round.server_lag_bound, [*cohort, "gamma"], moved | {"lag": "server_lag"},
        "next_server_lag", 0.3,
    )  # fmt: skip
    # The first round starts at one state: the mean of its runs is the conditional mean.
    mean = result.after.params[0].mean(axis=0) - result.before.params[0, 0]
    arguments = {name: sizes[name] for name in [*step, "cohort_size"]}
    means = {name: values[name][0].mean() for name in [*state, "drift"]}
    assert squares(mean) <= nonconvex_round.move_bounds(constants, **means, **arguments).mean


def test_printed_lemmas_fail_with_cohorts(x64):
    """A start at a stationary point, controls at the gradients: Xi, G, drift and noise stay 0.

    In print the second round moves nothing (Lemma G.14), drifts nowhere (G.17) and leaves G
    (G.15) and Xi (G.16) at 0.  But the momentum of the first round's cohort moves the model.
    """
    rng = np.random.default_rng(0)
    problem = random_problem(rng, CLIENTS, DIM)
    optimal = problem.gradients(np.repeat(problem.optimum[None], CLIENTS, axis=0))
    result = run(
        problem, Start(problem.optimum, optimal, np.zeros(DIM)), rng, rates=np.full(2, 0.01),
        rounds=2, cohort_size=2, gamma=0.3, runs=50,
    )  # fmt: skip
    # After the first round: all models, those of visits and of the server, are the optimum.
    np.testing.assert_allclose(result.before.params[1], result.before.params[0], atol=1e-15)
    assert result.drift[0].max() < 1e-28
    assert squares(problem.gradient(result.before.params[1])).max() < 1e-28
    assert result.move[1].mean() > 1e-6  # Lemma G.14, and Xi_2, G_2 of Lemmas G.15 and G.16
    assert result.drift[1, :, 1].mean() > 1e-6  # Lemma G.17


def test_printed_mean_movement_needs_the_mean_of_the_controls(x64):
    """Lemma G.14's first bound, 2 step^2 (beta^2 E_t + ||grad F||^2), is 0 at a stationary point.

    The momentum differs from the mean of the controls as soon as gamma < 1, with all clients.
    """
    rng = np.random.default_rng(0)
    problem = random_problem(rng, CLIENTS, DIM)
    start = Start(problem.optimum, rng.normal(size=(CLIENTS, DIM)), np.zeros(DIM))
    result = run(problem, start, rng, rates=[0.01], rounds=1, cohort_size=CLIENTS)
    move = squares(0.015 * start.controls.mean(axis=0))  # lr alpha
    np.testing.assert_allclose(result.move[0, 0], move, rtol=1e-10)
    constants = ProblemConstants(L=problem.beta, sigma=0.0)
    bound = nonconvex_round.move_bounds(
        constants, squared_gradient=0.0, server_lag=0.0, drift=0.0, lr=0.01, local_steps=1,
        cohort_size=CLIENTS, alpha=1.5,
        client_lag=squares(start.controls - problem.gradients(
            np.repeat(problem.optimum[None], CLIENTS, axis=0)
        )).mean(),
    )  # fmt: skip
    assert 0 < move <= bound.mean == bound.total


def test_weights_of_the_lags_by_hand(x64):
    constants = ProblemConstants(L=2.0, sigma=0.7, zeta_mean=0.6)
    values = {"lag": 1.3, "drift": 0.4, "move": 0.1, "local_steps": 3}
    client = nonconvex_round.client_lag_bound(constants, **values, clients=20, cohort_size=5)
    fresh = 2 * (4 * 0.4 + 0.49 / 3)
    expected = 1.125 * (0.75 * 1.3 + 0.25 * fresh) + 9 * 4 * 0.1
    np.testing.assert_allclose(client, expected, rtol=1e-12)
    server = nonconvex_round.server_lag_bound(
        constants, **values, clients=20, cohort_size=5, gamma=0.25
    )
    fresh = 1.5 * 4 * 0.4 + 0.5 * (0.36 * 15 / (5 * 19) + 0.49 / 15)
    expected = 1.125 * (0.75 * 1.3 + 0.25 * fresh) + 9 * 4 * 0.1
    np.testing.assert_allclose(server, expected, rtol=1e-12)


def test_conditions(allow_nans):
    constants = ProblemConstants(L=1.0, sigma=0.0, zeta_mean=0.0)
    lags = {"squared_gradient": 0.0, "client_lag": 1.0, "server_lag": 0.0}
    for options in ({"lr": 0.05}, {"lr": 0.001, "alpha": 0.5}):
        with pytest.warns(UserWarning, match=r"alpha >= 1 and K alpha lr <= 1 / \(24 beta\)"):
            assert np.isnan(
                nonconvex_round.drift_bound(constants, **lags, **options, local_steps=1)
            )
    with pytest.warns(UserWarning, match="gamma <= 1"):
        nonconvex_round.server_lag_bound(
            constants, lag=1.0, drift=0.0, move=0.0, local_steps=1, clients=2, cohort_size=1,
            gamma=1.5,
        )  # fmt: skip
    with pytest.raises(ValueError, match="move is -1"):
        nonconvex_round.client_lag_bound(
            constants, lag=1.0, drift=0.0, move=-1, local_steps=1, clients=2, cohort_size=1
        )
