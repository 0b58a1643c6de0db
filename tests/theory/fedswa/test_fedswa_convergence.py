"""Optimisation errors against loops in NumPy, Table 1 by hand, and runs on quadratics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fedmoswa_runs import Start, random_problem, run, squares
from symbols import FEDSWA, by_symbols

from fedjax_sim.theory import ProblemConstants
from fedjax_sim.theory.fedswa import convergence, table_1

CONSTANTS = {
    "beta": 2.0, "mu": 0.5, "sigma": 0.7, "m": 20, "s": 5, "K": 4, "alpha": 1.5, "zeta_star": 0.3,
}  # fmt: skip
NONCONVEX = {k: v for k, v in CONSTANTS.items() if k not in ("mu", "zeta_star")}
NONCONVEX |= {"F": 3.0, "zeta_mean": 0.3}
LR = 1e-4
SAMPLING = 0.3**2 * 15 / (5 * 19)
strongly_convex_descent, nonconvex_descent, strongly_convex_rate = (
    by_symbols(function, FEDSWA)
    for function in (
        convergence.strongly_convex_descent,
        convergence.nonconvex_descent,
        convergence.strongly_convex_rate,
    )
)
nonconvex_rate = by_symbols(table_1.nonconvex_rate, FEDSWA)
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, a few hundred terms


def virtual(state, step, gamma, share):
    """z = theta + step / p mean c - step / gamma m."""
    return state.params + step / share * state.controls.mean(-2) - step / gamma * state.momentum


@pytest.mark.parametrize("cohort_size", [1, 2, 6])
def test_virtual_iterates_take_the_steps_of_fedavg(x64, cohort_size):
    rng = np.random.default_rng(0)
    problem = random_problem(rng, sigma=0.5)
    start = Start(rng.normal(size=3), rng.normal(size=(6, 3)), rng.normal(size=3))
    result = run(
        problem, start, rng, rates=np.full(4, 0.05), rounds=5, cohort_size=cohort_size, gamma=0.3
    )
    step = 4 * 1.5 * 0.05
    z = [virtual(state, step, 0.3, cohort_size / 6) for state in (result.before, result.after)]
    CLOSE(z[1], z[0] - step * result.descent)


def test_noise_of_one_small_step_keeps_its_digits():
    """In single precision ``1 - r`` has no digits of a step of 1e-5."""
    few = CONSTANTS | {"mu": 1e-3, "zeta_star": 0.0}
    found = strongly_convex_descent(potential=0.0, **few, T=1, lr=LR / 10).potential
    with jax.enable_x64(True):
        expected = float(strongly_convex_descent(potential=0.0, **few, T=1, lr=LR / 10).potential)
    assert expected > 0
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # some tens of operations of 6e-8


def test_strongly_convex_descent_is_the_recursion_unrolled(x64):
    """Any gaps that the recursion allows: the largest weighted mean and the largest end."""
    T, step, gamma = 40, 4 * 1.5 * LR, 0.2
    bounds = strongly_convex_descent(potential=2.0, **CONSTANTS, T=T, lr=LR, gamma=gamma)
    x = 2.0 * step
    factor = 2 + 100 * x / gamma**2 + 50 * x * 5 / 0.25**2 + 4.2 * x * 5 / 1.5**2
    noise = step**2 * ((3 + 50 * x / gamma) * SAMPLING + factor * 0.7**2 / 20)
    r = 1 - 0.5 * step / 2
    potential = 2.0
    for _ in range(T):
        potential = r * potential + noise
    CLOSE(bounds.potential, potential)
    # All gaps equal to the bound end at potential 0 exactly.
    potential = 2.0
    for _ in range(T):
        potential = r * potential - 1.5 * step * float(bounds.gap) + noise
    np.testing.assert_allclose(potential, 0, atol=1e-12)


def test_nonconvex_descent_by_hand(x64):
    T, step, gamma = 40, 4 * 1.5 * LR, 0.2
    x, q = 2.0 * step, 0.2
    noise = (1 + 48 * x * gamma**2 / q**3) * (SAMPLING + 0.7**2 / 20)
    noise += x * 0.7**2 / 4 * (48 * 0.25 / q**3 + 2 / (q * 1.5**2) + 1 / (10 * q**2))
    CLOSE(
        nonconvex_descent(**NONCONVEX, T=T, lr=LR, gamma=gamma),
        6.6 * 3 / (step * T) + 6 * x * noise,
    )


def test_coefficients_of_the_proofs(x64):
    """The lags' weights and the conditions on the step suffice for any gamma and p.

    Every inequality is monotone in x = beta step, so that its largest value decides.
    """
    gamma, p = np.meshgrid(10 ** np.linspace(-4, 0, 81), 10 ** np.linspace(-4, 0, 81))
    q = np.minimum(gamma, p)
    # Lemma G.13: coefficients of D and C after all substitutions, and of the gap.
    x = q / 48
    drift = 2 * x + 3 * x**2
    fresh = 25 * x * (2 / gamma**2 + 1 / p**2)
    for share in (gamma, p):
        lags = 2 * drift * (3 + 2 * (1 + 6 * x**2) / share**2)
        lags += fresh * x**2 * ((8 + 24 * x**2) / share**2 + 6)
        assert (lags <= 25 * x / share**3 * (share - x / 2)).all()  # mu <= beta
    assert (2 - 6 * x - 24 * x * drift - fresh * x * (8 + 24 * x**2) >= 1.5).all()
    # The drift's noise, in units of step^2 sigma^2 / (K alpha^2).
    assert (2 * drift + 2 * fresh * x**2 <= 4.2 * x).all()
    # Lemma G.18: coefficients of the lags and of the squared gradient.
    x = q / 24
    weight = 16 * x**2 / q**3
    moved = weight * x**2 * (2.2 * (3 * p + 4.5 * gamma) + (3 / p + 3 / gamma) * (4 + 8.8 * x**2))
    assert (4.5 * x**2 / q**2 + 2.2 * (1 + x) * x**2 + moved <= weight * q / 2).all()
    slope = 1 / 4 - x - 2.2 * (1 + x) * x**2 - 4.5 * x**2 / q**2 - moved
    assert (slope >= 1 / 6).all()
    # Noise beside the explicit terms: of the drift, and of the movement in units of 1 / s.
    of_drift = 1.1 * (1 + x) * x + weight * (1.1 * (3 * p + 4.5 * gamma) * x)
    of_drift += weight * (3 / p + 3 / gamma) * x * 4.4 * x**2
    assert (of_drift <= 2 * x / q).all()
    assert (weight * (3 / p + 3 / gamma) * 2 * x <= x / (2 * q**2)).all()


CASES = [(6, 1.0, 1.0), (6, 0.1, 0.0), (2, 0.3, 0.0), (1, 1.0, 2.0)]  # s, gamma, sigma


@pytest.mark.parametrize(("cohort_size", "gamma", "sigma"), CASES)
def test_measured_runs_are_below_the_strongly_convex_bounds(x64, cohort_size, gamma, sigma):
    rng = np.random.default_rng(0)
    problem = random_problem(rng, sigma=sigma, smallest=0.5)
    share, alpha, K, T = cohort_size / 6, 1.5, 3, 300
    step = min(share, gamma) / (48 * problem.beta)
    lr = step / (K * alpha)
    optimal = problem.gradients(np.repeat(problem.optimum[None], 6, axis=0))
    start = Start(problem.optimum + 1, optimal + 1, np.full(3, 0.5))
    result = run(
        problem, start, rng, rates=np.full(K, lr), rounds=T, cohort_size=cohort_size,
        alpha=alpha, gamma=gamma, runs=20,
    )  # fmt: skip

    def potential(state):
        z = virtual(state, step, gamma, share)
        lag = squares(state.controls - optimal).mean(-1) / share**3
        lag += squares(state.momentum) / gamma**3
        return squares(z - problem.optimum) + 25 * problem.beta * step**3 * lag

    mu = np.linalg.eigvalsh(problem.hessians).min()  # of every client
    constants = ProblemConstants(
        L=problem.beta, mu=mu, sigma=sigma, zeta_star=np.sqrt(squares(optimal).mean())
    )
    bounds = convergence.strongly_convex_descent(
        constants, potential=potential(result.before)[0].mean(), lr=lr, local_steps=K, rounds=T,
        clients=6, cohort_size=cohort_size, alpha=alpha, gamma=gamma,
    )  # fmt: skip
    assert potential(result.after)[-1].mean() < bounds.potential
    weights = (1 - mu * step / 2) ** -np.arange(T)
    gaps = problem.gap(virtual(result.before, step, gamma, share)).mean(axis=1)
    average = np.average(gaps, weights=weights)
    assert 0.02 * bounds.gap < average < bounds.gap


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.2, 1.0])
def test_partial_participation_leaves_an_optimum_without_noise(x64, gamma):
    """Lemma G.13, Lemma G.18 and Theorem 5.2 are false in print: with sigma = 0 errors fall to 0.

    Every client starts at the optimum with the right control.  FedMoSWA settles where FedAvg with
    the same step does: at step zeta_S^2 / (2 h), zeta_S^2 the variance of a cohort's mean.
    """
    rng = np.random.default_rng(0)
    problem = random_problem(rng, dim=20)._replace(hessians=np.repeat(np.eye(20)[None], 6, axis=0))
    optimal = problem.gradients(np.repeat(problem.optimum[None], 6, axis=0))
    step = 1 / 50
    result = run(
        problem, Start(problem.optimum, optimal, np.zeros(20)), rng, rates=[step / 1.5],
        rounds=300, cohort_size=2, gamma=gamma, runs=40,
    )  # fmt: skip
    distance = squares(result.after.params[-50:] - problem.optimum).mean()
    sampling = squares(optimal).mean() * 4 / (2 * 5)
    np.testing.assert_allclose(distance, step * sampling / 2, rtol=0.15)


def test_slow_momentum_overshoots_with_all_clients(x64):
    """Lemma G.13 with the lag 9 step^2 / gamma D added to its potential is false for small gamma.

    From the optimum, a momentum m moves the model by step m / gamma before it has decayed.
    """
    problem = random_problem(np.random.default_rng(0), dim=1, smallest=0.9)
    optimal = problem.gradients(np.repeat(problem.optimum[None], 6, axis=0))
    gamma, step = 0.02, 2e-4
    mu = np.linalg.eigvalsh(problem.hessians).min()
    assert step <= min(3 / (250 * problem.beta), 1 / (15 * mu), 2 * gamma / (27 * mu))
    start = Start(problem.optimum, optimal, np.ones(1))
    result = run(
        problem, start, np.random.default_rng(0), rates=[step / 1.5], rounds=200, cohort_size=6,
        gamma=gamma,
    )  # fmt: skip
    distance = squares(result.after.params - problem.optimum)[-1, 0]
    assert distance > 2 * 9 * step**2 / gamma * 1.0
    bounds = convergence.strongly_convex_descent(
        ProblemConstants(L=problem.beta, mu=mu, sigma=0.0, zeta_star=1.0), lr=step / 1.5,
        potential=(step / gamma) ** 2 + 25 * problem.beta * (step / gamma) ** 3,
        local_steps=1, rounds=200, clients=6, cohort_size=6, alpha=1.5, gamma=gamma,
    )  # fmt: skip
    final = jax.tree.map(lambda x: x[-1], result.after)
    assert squares(virtual(final, step, gamma, 1.0) - problem.optimum)[0] < bounds.potential


@pytest.mark.parametrize(("cohort_size", "gamma", "sigma"), CASES)
def test_measured_runs_are_below_the_nonconvex_bound(x64, cohort_size, gamma, sigma):
    """Quadratics whose mean is convex, with indefinite clients: F is bounded below."""
    rng = np.random.default_rng(0)
    problem = random_problem(rng, sigma=sigma, convex=False)
    problem = problem._replace(
        hessians=problem.hessians - problem.hessians.mean(axis=0) + 0.5 * np.eye(3)
    )
    share, alpha, K, T = cohort_size / 6, 1.5, 3, 200
    step = min(share, gamma) / (24 * problem.beta)
    lr = step / (K * alpha)
    params = np.ones(3)
    gradients = problem.gradients(np.repeat(params[None], 6, axis=0))
    result = run(
        problem, Start(params, gradients, gradients.mean(axis=0)), rng, rates=np.full(K, lr),
        rounds=T, cohort_size=cohort_size, alpha=alpha, gamma=gamma, runs=20,
    )  # fmt: skip
    models = result.before.params
    own = problem.gradients(np.repeat(models[:, :, None], 6, axis=2))
    zeta = np.sqrt(squares(own - own.mean(axis=2, keepdims=True)).mean(axis=2).max())
    constants = ProblemConstants(
        L=problem.beta, sigma=sigma, Delta=problem.gap(params), zeta_mean=zeta
    )
    bound = convergence.nonconvex_descent(
        constants, lr=lr, local_steps=K, rounds=T, clients=6, cohort_size=cohort_size,
        alpha=alpha, gamma=gamma,
    )  # fmt: skip
    assert 0.001 * bound < squares(problem.gradient(models)).mean() < bound


@pytest.mark.parametrize(
    ("lr", "options", "match"),
    [
        (0.0005, {}, r"min\(s / m, gamma\) / \(48 beta\)"),  # 0.003 > 0.0026
        (0.0003, {"gamma": 0.1}, r"min\(s / m, gamma\) / \(48 beta\)"),  # 0.0018 > 0.001
        (1e-5, {"alpha": 0.9}, "alpha >= 1"),
        (1e-5, {"gamma": 1.1}, "gamma <= 1"),
    ],
)
def test_conditions_of_the_descents(allow_nans, lr, options, match):
    constants = {**CONSTANTS, **options}
    with pytest.warns(UserWarning, match=match):
        bounds = strongly_convex_descent(potential=1.0, **constants, T=10, lr=lr)
    assert np.isnan(bounds).all()
    match = match.replace("48", "24")
    with pytest.warns(UserWarning, match=match):
        assert np.isnan(nonconvex_descent(**{**NONCONVEX, **options}, T=10, lr=2 * lr))


def test_strongly_convex_rate_by_hand(x64):
    T = 100
    noise = 0.7**2 / 20 * (1 + 5 / 1.5**2)
    front = 0.5 * 1.1**2
    rate = functools.partial(strongly_convex_rate, **CONSTANTS, D=1.1, T=T)
    expected = (noise + SAMPLING) / (0.5 * T)
    CLOSE(rate(), expected + front * np.exp(-0.25 * 0.25 * T))  # mu / beta = s / m = 1 / 4
    CLOSE(rate(gamma=0.2), expected + front * np.exp(-0.25 * 0.2 * T))
    # With all clients the variance of cohorts is 0, as in print.
    everyone = functools.partial(rate, s=20)
    CLOSE(everyone(zeta_star=0.0), everyone(zeta_star=9.0))


def test_table_1_by_hand(x64):
    beta, sigma, m, s, K, alpha = 2.0, 0.7, 20, 5, 4, 1.5
    T, F, g, L = 49, 3.0, 0.6, 1.2
    rate = functools.partial(
        nonconvex_rate, beta=beta, sigma=sigma, m=m, s=s, K=K, alpha=alpha, T=T, F=F,
        sigma_g=g, lipschitz=L,
    )  # fmt: skip
    root = np.sqrt(T * K * s)
    CLOSE(
        rate("fedsam"),
        beta * F / root + 2 * g**2 / np.sqrt(T * s) + L**2 * sigma**2 / (343 * K) + L**2 / 49**2,
    )
    CLOSE(
        rate("mofedsam"),
        beta * L * F / root
        + beta * 2 * g**2 / np.sqrt(T * s)
        + L**2 * sigma**2 / (343 * K)
        + 2 * L**2 / (343 * np.sqrt(s)),
    )
    CLOSE(
        rate("fedswa"),
        beta * (sigma + 2 * g) * np.sqrt(F) / root
        + np.cbrt(F**2 * beta * g**2 / T**2)
        + beta * F / T,
    )
    rest = beta * F / T * np.cbrt((m / s) ** 2)
    # Theorem 5.2 prints m for s, Table 1 and Lemma G.18 have s.
    for method, variance in (("fedmoswa", 1 + s / alpha**2), ("scaffold", 1 + s)):
        CLOSE(rate(method), sigma * np.sqrt(F * variance) / root + rest)


def test_limits():
    rates = {"beta": 1.0, "sigma": 1.0, "F": 1.0, "s": 10, "K": 5, "m": 100, "lipschitz": 0.0}
    # FedMoSWA's printed rate does not see heterogeneity, FedSWA's grows with it.
    for method, grows in (("fedmoswa", False), ("fedswa", True), ("fedsam", True)):
        low, high = (nonconvex_rate(method, **rates, T=100, sigma_g=g) for g in (0.0, 10.0))
        assert (high > low) == grows
    # Without noise the error falls as 1 / T, with noise alone as 1 / sqrt(T).
    quiet = {**rates, "sigma": 0.0}
    ratio = nonconvex_rate("fedmoswa", **quiet, T=100) / nonconvex_rate("fedmoswa", **quiet, T=400)
    np.testing.assert_allclose(ratio, 4, rtol=1e-5)
    noisy = {**rates, "beta": 1e-9}
    ratio = nonconvex_rate("fedmoswa", **noisy, T=100) / nonconvex_rate("fedmoswa", **noisy, T=400)
    np.testing.assert_allclose(ratio, 2, rtol=1e-5)
    larger = nonconvex_rate("fedmoswa", **rates, T=100, alpha=1000.0)
    smaller = nonconvex_rate("scaffold", **rates, T=100)
    assert larger < smaller


def test_vmap_over_rounds(allow_nans):
    rounds = jnp.array([2.0, 20.0, 50.0])
    rates = jax.vmap(lambda T: strongly_convex_rate(**CONSTANTS, D=1.0, T=T))(rounds)
    assert np.isnan(rates).tolist() == [True, False, False]  # T >= 16
    with pytest.warns(UserWarning, match=r"T >= beta / \(mu min\(s / m, gamma\)\) does not hold"):
        strongly_convex_rate(**CONSTANTS, D=1.0, T=2)


def test_errors():
    with pytest.raises(ValueError, match="method is 'fedavg'; expected one of"):
        nonconvex_rate("fedavg", beta=1.0, sigma=1.0, F=1.0, s=1, K=1, T=1, m=1)
    with pytest.raises(ValueError, match=r"constants\.sigma_g is None"):
        nonconvex_rate("fedswa", beta=1.0, sigma=1.0, F=1.0, s=1, K=1, T=1, m=1)
    with pytest.raises(ValueError, match=r"Delta is -1.0; expected a non-negative number"):
        nonconvex_descent(**{**NONCONVEX, "F": -1.0}, T=10, lr=LR)
    with pytest.raises(ValueError, match="clients is 0; expected a positive number"):
        strongly_convex_rate(**{**CONSTANTS, "m": 0}, D=1.0, T=10)
