"""Step sizes of methods with compressed messages: figures and limits."""

import jax
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


@pytest.mark.parametrize("alpha", [1e-2, 1e-5, 1e-8])
def test_small_contractions_keep_their_digits_in_single_precision(alpha):
    expected = compression.ef21_lr(1.0, 1.0, alpha), compression.ef21_pp_lr(1.0, 1.0, alpha, 0.5)
    with jax.enable_x64(False):
        found = compression.ef21_lr(1.0, 1.0, alpha), compression.ef21_pp_lr(1.0, 1.0, alpha, 0.5)
    # The grid's ends are powers of 400, with 400 roundings of 6e-8.
    np.testing.assert_allclose(found, expected, rtol=3e-5)


def test_full_participation_is_ef21_in_single_precision():
    with jax.enable_x64(False):
        full = compression.ef21_pp_lr(1.0, 1.0, 1e-3, 1.0)
        # The grid of u loses below 1e-3, and never gains.
        np.testing.assert_allclose(full, compression.ef21_lr(1.0, 1.0, 1e-3), rtol=1e-3)


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
