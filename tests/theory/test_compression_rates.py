"""Step sizes of methods with compressed messages: figures and limits."""

import itertools

import numpy as np
import pytest

from fedjax_sim.theory import compression

pytestmark = pytest.mark.usefixtures("x64")
SIZES = {"L": 3.5, "L_rms": 5.0, "alpha": 0.2}


def test_ef21():
    np.testing.assert_allclose(compression.ef21_lr(**SIZES), 0.0218051718, rtol=0, atol=5e-11)
    np.testing.assert_allclose(compression.ef21_lr(3.5, 5.0, 1.0), 1 / 3.5, rtol=1e-15)


@pytest.mark.slow
def test_ef21_pp(allow_nans):
    fixed = compression.ef21_pp_lr(**SIZES, probability=0.5, u=0.0536, rho=0.0536)
    np.testing.assert_allclose(fixed, 0.0104233, rtol=0, atol=2e-7)
    best = compression.ef21_pp_lr(**SIZES, probability=0.5)
    # By Nelder and Mead; near the optimum a grid with ratios of 1.05 loses below 1e-3.
    np.testing.assert_allclose(best, 0.0104238151, rtol=1e-3)
    assert best <= 0.0104238152
    # With p = 1 and rho -> 0 it is EF21's, at the best u.
    u = 1 / np.sqrt(1 - 0.2) - 1
    limit = compression.ef21_pp_lr(**SIZES, probability=1.0, u=u, rho=1e-9)
    np.testing.assert_allclose(limit, compression.ef21_lr(**SIZES), rtol=1e-8)
    with pytest.warns(UserWarning, match="rho p"):
        assert np.isnan(compression.ef21_pp_lr(**SIZES, probability=0.5, u=10.0, rho=1.0))


def test_limits_are_gradient_descent():
    assert compression.diana_lr(2.0, 0.0, 4) == 0.5
    assert compression.marina_lr(2.0, 3.0, 1.0, 4) == 0.5
    assert compression.marina_lr(2.0, 0.0, 0.5, 4) == 0.5
    assert compression.pp_marina_lr(2.0, 3.0, 1.0, 4) == 0.5
    # sqrt((1 - p) omega / (p M)) = sqrt(3 / 4 * 3 * 4 / 4) = 3 / 2
    np.testing.assert_allclose(compression.marina_lr(1.0, 3.0, 0.25, 4), 1 / 2.5, rtol=1e-15)
    assert compression.pp_marina_probability(3.0, 4, 4) == 0.25
    # d = 1000, k = 10, p = 1 / 100: twice the bits of random k but for one part in 100.
    np.testing.assert_allclose(compression.marina_bits(32_000, 320, 0.01), 636.8, rtol=1e-15)


def diana_potential(x, shifts, gradients_at_optimum, weight):
    return x @ x + weight * ((shifts - gradients_at_optimum) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize("seed", range(20))
def test_dianas_potential_falls_by_its_factor(seed):
    """Exact means: random 1 of 3 entries (omega = 2), two convex quadratics, optimum 0."""
    rng, M, d, omega = np.random.default_rng(seed), 2, 3, 2.0
    roots = rng.normal(size=(M, d, d)) * 10.0 ** rng.uniform(-2, 0, size=(M, 1, 1))
    hessians = roots @ roots.transpose(0, 2, 1)
    tilt = rng.normal(size=d)
    optimal = np.stack([tilt, -tilt])  # gradients of the clients at the optimum
    x, scale = rng.normal(size=d), 10.0 ** rng.uniform(-2, 2)
    shifts = optimal + scale * rng.normal(size=(M, d))
    L = np.linalg.eigvalsh(hessians).max()
    mu = np.linalg.eigvalsh(hessians.mean(axis=0)).min()
    four, six = float(compression.diana_lr(L, omega, M)), 1 / (L * (1 + 6 * omega / M))
    limit = 1 / (1 + omega)
    for lr, alpha, weight, factor in (
        (four, 0.75 * limit, 4.0, max(1 - four * mu, 1 - 0.75 * limit)),
        (four, limit, 2.0, 1.0),
        (six, limit, 4.0, max(1 - six * mu, 1 - limit / 2)),
    ):
        weight *= omega * lr**2 / (alpha * M)
        differences = hessians @ x + optimal - shifts
        after = []
        for kept in itertools.product(range(d), repeat=M):
            sent = d * differences * np.eye(d)[list(kept)]
            step = (shifts + sent).mean(axis=0)
            after.append(diana_potential(x - lr * step, shifts + alpha * sent, optimal, weight))
        before = diana_potential(x, shifts, optimal, weight)
        assert np.mean(after) <= factor * before * (1 + 1e-10)  # some hundred operations


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compression.ef21_lr(1.0, 1.0, 1.5), "alpha is 1.5"),
        (lambda: compression.ef21_lr(0.0, 1.0, 0.5), "L is 0.0"),
        (lambda: compression.ef21_pp_lr(1.0, 1.0, 0.5, 2.0), "probability is 2.0"),
        (lambda: compression.diana_lr(1.0, -1.0, 4), "omega is -1.0"),
        (lambda: compression.marina_lr(1.0, 1.0, 0.0, 4), "probability is 0.0"),
        (lambda: compression.marina_bits(1.0, 1.0, 1.1), "probability is 1.1"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
