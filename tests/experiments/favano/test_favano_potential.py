"""The potential's contraction by brute force, and simulated runs of FAVANO below its bounds."""

import itertools

import numpy as np
import pytest
from favano_runs import LAW, simulate
from symbols import FAVANO, by_symbols

from experiments.favano.lemmas import potential
from fedjax_sim.theory.favano import rates
from fedjax_sim.theory.favano.progress import progress_constants

pytestmark = pytest.mark.usefixtures("x64")


largest_lr = by_symbols(rates.largest_lr, FAVANO)
mean_gradient_bound = by_symbols(rates.mean_gradient_bound, FAVANO)
contraction = by_symbols(potential.contraction, FAVANO)
contraction_at_rest = by_symbols(potential.contraction_at_rest, FAVANO)
contraction_margin = by_symbols(potential.contraction_margin, FAVANO)
potential_bound = by_symbols(potential.potential_bound, FAVANO)
next_potential_bound = by_symbols(potential.next_potential_bound, FAVANO)
cumulative_potential_bound = by_symbols(potential.cumulative_potential_bound, FAVANO)


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


@pytest.mark.slow
@pytest.mark.parametrize("version", ["stochastic", "deterministic"])
@pytest.mark.parametrize("s", [1, 2, 5])
def test_simulated_runs_stay_below(version, s):
    """300 repetitions: the means' relative standard errors are some percent, the bounds' slack is
    a factor, except for Equation 6 near the start, where it is the 3 / (2 + ..) of its proof."""
    a, b, _ = progress_constants(LAW, local_steps=4, version=version)
    lr = float(largest_lr(L=1.0, B=1.0, b=b, n=5, s=s, K=4))
    run, problem, F = simulate(np.random.default_rng(s), lr, s, 80, 300, version)
    squares, phi = run.gradient, run.potential
    value = mean_gradient_bound(lr=lr, F=F, a=a, b=b, T=80, **problem)
    assert 0 < squares.mean() < float(value)
    following = potential_bound(potential=phi[:-1], squared_progress=run.progress, lr=lr, n=5, s=s)
    assert np.all(phi[1:] <= np.asarray(following))
    if lr <= 1 / (20 * s * b):  # Lemma B.4 has a smaller rate than the theorem needs
        given_ = problem | {"lr": lr, "a": a, "b": b}
        limit = next_potential_bound(potential=phi[:-1], squared_gradient=squares, **given_)
        assert np.all(phi[1:] <= np.asarray(limit))
        total = cumulative_potential_bound(squared_gradients=squares.sum(), T=80, **given_)
        assert phi.sum() <= float(total)
    assert phi[0] == 0
    assert (phi[-1] > 1e-12) == (s < 5)  # all contacted: equal up to rounding


def test_cumulative_potential_sums_the_lemma():
    """Its right side again and again, from any start; the printed one has no initial potential."""
    known = {"L": 1.0, "sigma": 0.5, "G": 0.4, "B": 1.1, "n": 6, "s": 3, "K": 2}
    known |= {"lr": 1e-3, "a": 0.7, "b": 1.5}
    rng = np.random.default_rng(0)
    probes = {"potential": np.array([0.0, 1.0, 0.0]), "squared_gradient": np.array([0.0, 0.0, 1.0])}
    noise, kept, drive = np.asarray(next_potential_bound(**probes, **known))
    for initial in (0.0, 2.0):
        squares, phi = rng.exponential(size=400), [initial]
        for squared in squares:
            phi.append((kept - noise) * phi[-1] + (drive - noise) * squared + noise)
        total = float(
            cumulative_potential_bound(
                squared_gradients=squares.sum(), T=400, initial_potential=initial, **known
            )
        )
        # Equations 168 to 171 by hand.
        n, s, lr, a, b = (known[name] for name in ("n", "s", "lr", "a", "b"))
        printed = 120 * n * 1.1**2 * s**2 * b * lr**2 * squares.sum()
        printed += 15 * 400 * s**2 * lr**2 * (0.5**2 * n * a + 8 * n * b * 0.4**2)
        np.testing.assert_allclose(total, printed + 5 * n * initial, rtol=1e-12)
        assert np.sum(phi) <= total
        # 400 steps are 13 times the 5 n = 30 in which a start is forgotten.
        assert np.sum(phi) > 0.9 * total


def test_potential_of_a_start_from_several_models():
    """Equation 175 has the initial potential with the wrong sign: without gradients and noise the
    printed sum is 0, while clients that start apart approach each other step by step."""
    n, s, T = 6, 2, 30
    phi = (1 - float(contraction_at_rest(n=n, s=s))) ** np.arange(T + 1)  # from Phi_0 = 1
    at_rest = {"L": 1.0, "sigma": 0.0, "G": 0.0, "B": 1.0, "n": n, "s": s, "K": 2}
    at_rest |= {"lr": 1e-3, "b": 1.0, "squared_gradients": 0.0, "T": T}
    assert float(cumulative_potential_bound(**at_rest)) == 0 < phi.sum()
    assert phi.sum() <= float(cumulative_potential_bound(initial_potential=1.0, **at_rest))
