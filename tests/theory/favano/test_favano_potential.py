"""The potential's contraction by brute force, and simulated runs of FAVANO below its bounds."""

import itertools

import numpy as np
import pytest
from symbols import FAVANO, by_symbols

from fedjax_sim.theory.favano import potential, rates
from fedjax_sim.theory.favano.progress import progress_constants
from fedjax_sim.theory.step_counts import geometric

pytestmark = pytest.mark.usefixtures("x64")


largest_lr = by_symbols(rates.largest_lr, FAVANO)
mean_gradient_bound = by_symbols(rates.mean_gradient_bound, FAVANO)
contraction, contraction_at_rest, contraction_margin, potential_bound, next_potential_bound = (
    by_symbols(function, FAVANO)
    for function in (
        potential.contraction,
        potential.contraction_at_rest,
        potential.contraction_margin,
        potential.potential_bound,
        potential.next_potential_bound,
    )
)


def printed_contraction(n, s):
    """Equation 81: 0 where all clients are contacted, and agree afterwards."""
    return s * (n - s) / (2 * n * (n + 1) * (s + 1))


def test_contraction_over_all_cohorts():
    """Brute force: E Phi_{t+1} as a quadratic form of the n + 1 models, its largest eigenvalue."""
    for n in (1, 2, 5, 7):
        center = np.eye(n + 1) - 1 / (n + 1)
        for s in range(1, n + 1):
            form, cohorts = (
                np.zeros((n + 1, n + 1)),
                list(itertools.combinations(range(1, n + 1), s)),
            )
            for cohort in cohorts:
                step = np.eye(n + 1)
                step[[0, *cohort]] = np.isin(np.arange(n + 1), [0, *cohort]) / (s + 1)
                form += step.T @ center @ step / len(cohorts)
            worst = np.linalg.eigvalsh(center @ form @ center)[-1]
            np.testing.assert_allclose(1 - contraction_at_rest(n=n, s=s), worst, atol=1e-12)
            kappas = contraction(n=n, s=s), printed_contraction(n, s)
            assert worst <= 1 - kappas[0] <= 1 - kappas[1] <= 1
    tabulated = [0.93, 0.79, 0.64, 0.49, 0.32, 0.16, 0]
    at_rest = 1 - contraction_at_rest(n=7, s=np.arange(1, 8))
    np.testing.assert_allclose(at_rest, tabulated, atol=0.006)  # printed with two digits


@pytest.mark.parametrize(("b", "low", "high"), [(1.0, 2, 33), (2.0, 2, 46), (15.8, 1, 57)])
def test_range_of_the_printed_contraction(b, low, high):
    s = np.arange(1, 101)
    held = s[np.asarray(100 * printed_contraction(100, s) - 0.12 / b - 0.2) >= 0]
    assert (held.min(), held.max(), len(held)) == (low, high, high - low + 1)
    own = np.asarray(contraction_margin(n=100, s=s, b=b)) >= 0
    assert own[1:].all()
    assert own[0] == (b >= 2.4)


def simulate(rng, lr, s, T, repetitions, law, version):
    """FAVANO on clients f_i = x' A x / 2 + c_i' x, in the model of the analysis, in NumPy.

    Returns ||grad f(mu_t)||^2 [T], Phi_t [T + 1], the clients' progress [T], means over
    repetitions, and the constants of the problem.
    """
    n, d, K, sigma = 5, 3, 4, 0.5
    A, c = np.array([1.0, 0.6, 0.3]), rng.normal(size=(n, d))
    stop = np.array([0.5, 0.5, 0.2, 0.2, 0.2])
    shape = (repetitions, n, d)
    server, clients = np.full((repetitions, d), 2.0), np.full(shape, 2.0)
    gradients, potentials, progress = [], [], []

    def watch():
        mu = (server + clients.sum(1)) / (n + 1)
        phi = ((server - mu) ** 2).sum(-1) + ((clients - mu[:, None]) ** 2).sum((1, 2))
        potentials.append(phi.mean())
        return ((A * mu + c.mean(0)) ** 2).sum(-1).mean()

    for _ in range(T):
        gradients.append(watch())
        steps = np.minimum(rng.geometric(stop, (repetitions, n)), K)
        moved, total = clients.copy(), np.zeros(shape)
        for q in range(K):
            noise = sigma / d**0.5 * rng.normal(size=shape)
            used = (A * moved + c + noise) * (q < steps)[..., None]
            moved, total = moved - lr * used, total + used
        alpha = (
            law.p_active * steps
            if version == "stochastic"
            else np.broadcast_to(law.mean, steps.shape)
        )
        total /= alpha[..., None]
        progress.append((total**2).sum((1, 2)).mean())
        chosen = rng.permuted(np.tile(np.arange(n), (repetitions, 1)), axis=1) < s
        sent = np.where(chosen[..., None], clients - lr * total, 0).sum(1)
        server = (server + sent) / (s + 1)
        clients = np.where(chosen[..., None], server[:, None], clients)
    watch()
    spread = ((c - c.mean(0)) ** 2).sum(1).mean()  # mean ||grad f_i||^2 - ||grad f||^2, at all x
    start = 2 * np.ones(d)
    best = -c.mean(0) / A
    F = start @ (A * start) / 2 + c.mean(0) @ start - (best @ (A * best) / 2 + c.mean(0) @ best)
    constants_ = {"L": 1.0, "sigma": sigma, "G": spread**0.5, "B": 1.0, "n": n, "s": s, "K": K}
    return np.array(gradients), np.array(potentials), np.array(progress), constants_, F


@pytest.mark.slow
@pytest.mark.parametrize("version", ["stochastic", "deterministic"])
@pytest.mark.parametrize("s", [1, 2, 5])
def test_simulated_runs_stay_below(version, s):
    """300 repetitions: the means' relative standard errors are some percent, the bounds' slack is
    a factor, except for Equation 6 near the start, where it is the 3 / (2 + ..) of its proof."""
    law = geometric(np.array([0.5, 0.5, 0.2, 0.2, 0.2]), 4)
    a, b, _ = progress_constants(law, local_steps=4, version=version)
    lr = float(largest_lr(L=1.0, B=1.0, b=b, n=5, s=s, K=4))
    rng = np.random.default_rng(s)
    squares, phi, progress, problem, F = simulate(rng, lr, s, 80, 300, law, version)
    value = mean_gradient_bound(lr=lr, F=F, a=a, b=b, T=80, **problem)
    assert 0 < squares.mean() < float(value)
    following = potential_bound(potential=phi[:-1], squared_progress=progress, lr=lr, n=5, s=s)
    assert np.all(phi[1:] <= np.asarray(following))
    if lr <= 1 / (20 * s * b):  # Lemma B.4 has a smaller rate than the theorem needs
        given_ = problem | {"lr": lr, "a": a, "b": b}
        limit = next_potential_bound(potential=phi[:-1], squared_gradient=squares, **given_)
        assert np.all(phi[1:] <= np.asarray(limit))
    assert phi[0] == 0
    assert (phi[-1] > 1e-12) == (s < 5)  # all contacted: equal up to rounding
