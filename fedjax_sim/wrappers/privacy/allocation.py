r"""Privacy loss of clients that take part in one round of a pass, drawn at random.

References:
    Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang, "Balls-and-Bins Sampling
        for DP-SGD", 2024, https://arxiv.org/abs/2412.16802.
    Feldman, Shenfeld, "Privacy Amplification by Random Allocation", 2025,
        https://arxiv.org/abs/2502.08202.
    Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
        Distributions", 2022, https://arxiv.org/abs/2207.04380.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.wrappers.privacy.fixed_size import gaussian_profile, largest_loss

_CELLS = 2**14  # of the grid of sums, up to the largest strike of a level
_LEVEL = 4.0  # ratio of the strikes that share a grid
_FURTHEST = 12.0  # largest |log strike| with amplification
_ROUNDING = 1e-11  # of sums of probabilities


def profiles(
    epsilons: np.ndarray, num_rounds: int, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns hockey-stick divergences with the client from without it, and the reverse.

    With :math:`Q = N(0, \sigma^2 I)` and P its mixture over the t rounds that have the client's
    upload of norm 1, the density ratio under Q is :math:`\bar X`, the mean of t independent
    :math:`X_j = \exp(\xi_j / \sigma - 1 / (2 \sigma^2))` with standard normal :math:`\xi_j`, and

    .. math::
        H_\alpha(P \| Q) = 1 - \alpha + E[(\alpha - \bar X)_+], \qquad
        H_\alpha(Q \| P) = \alpha E[(1 / \alpha - \bar X)_+].

    Both grow if each :math:`X_j` is spread to the ends of its cell of a grid, without a change of
    its mean, since :math:`(\alpha - x)_+` is convex.  So they are upper bounds.

    Args:
        epsilons: logarithms of :math:`\alpha`, increasing and symmetric about 0.
        num_rounds: t, rounds of a pass.
        noise_multiplier: :math:`\sigma`, per unit of one client's upload.
    """
    plain = gaussian_profile(epsilons, noise_multiplier)
    near = np.abs(epsilons) < _FURTHEST
    # The strikes of other losses may overflow; these count without amplification.
    logarithms = np.where(near, epsilons, 0.0)
    strikes = np.exp(logarithms)
    puts = np.full(len(epsilons), np.inf)
    width = math.log(_LEVEL)
    for level in range(-math.ceil(_FURTHEST / width), math.ceil(_FURTHEST / width)):
        inside = near & (epsilons >= level * width) & (epsilons < (level + 1) * width)
        if inside.any():
            top = _LEVEL ** (level + 1)
            puts[inside] = _puts(strikes[inside], top, num_rounds, noise_multiplier)
    puts += _ROUNDING * (1 + strikes)
    least = np.maximum(-np.expm1(logarithms), 0.0)
    present = np.maximum(1 - strikes + puts, least)
    absent = np.maximum(strikes * puts[::-1], least)
    present, absent = np.minimum(present, plain), np.minimum(absent, plain)
    return np.where(near, present, plain), np.where(near, absent, plain)


def loss_distribution(num_rounds: int, noise_multiplier: float, interval: float) -> Any:
    """Returns dp-accounting's loss distributions of one pass, for both directions."""
    pmfs = import_extra("dp_accounting.pld.pld_pmf", "privacy")
    losses = import_extra("dp_accounting.pld.privacy_loss_distribution", "privacy")
    last = math.ceil(largest_loss(noise_multiplier) / interval)
    present, absent = (
        pmfs.create_pmf_pessimistic_connect_dots_fixed_gap(
            interval, -last, last, np.clip(np.minimum.accumulate(values), 0.0, 1.0)
        )
        for values in profiles(np.arange(-last, last + 1) * interval, num_rounds, noise_multiplier)
    )
    return losses.PrivacyLossDistribution(present, absent)


def _puts(strikes: np.ndarray, top: float, num_rounds: int, sigma: float) -> np.ndarray:
    r"""Returns :math:`E[(k - \bar X)_+]` of the spread :math:`X_j`, for strikes k up to ``top``."""
    step = num_rounds * top / _CELLS
    points = np.arange(_CELLS + 1) * step
    # Chords of E[(k - X)_+] in k below 1, and of E[(X - k)_+] above, whose slopes are less by 1:
    # the law on the grid with the same values at its points. Neither of them cancels there.
    puts, calls = _options(points, sigma)
    above = points[:-1] >= 1
    slopes = np.where(above, np.diff(calls), np.diff(puts)) / step
    law = np.diff(slopes, prepend=0.0)
    law[np.flatnonzero(above)[:1]] += 1
    law = np.maximum(law, 0.0)
    # Sums beyond twice the grid alias to small ones, reduced by exp(-2 exponent); rounding errors
    # of 1e-16 grow by exp(exponent - exponent / top), since tilted probabilities have a small sum.
    exponent = 14.0 if top <= 1 else 5.0
    tilt = np.exp(-exponent / _CELLS * np.arange(_CELLS))
    sums = np.fft.irfft(np.fft.rfft(law * tilt, 2 * _CELLS) ** num_rounds)[:_CELLS] / tilt
    below = np.concatenate([[0.0], np.cumsum(sums)])
    means = np.concatenate([[0.0], np.cumsum(sums * points[:-1] / num_rounds)])
    number = np.minimum(np.ceil(strikes * num_rounds / step).astype(int), _CELLS)
    return strikes * below[number] - means[number]


def _options(strikes: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns E[(k - X)_+] and E[(X - k)_+] of the log-normal X (Black and Scholes, 1973)."""
    ndtr = import_extra("scipy.special", "privacy").ndtr
    puts, calls = np.zeros(len(strikes)), np.ones(len(strikes))
    positive = strikes > 0
    k = strikes[positive]
    near, far = -np.log(k) * sigma + 0.5 / sigma, -np.log(k) * sigma - 0.5 / sigma
    puts[positive] = np.maximum(k * ndtr(-far) - ndtr(-near), 0.0)
    calls[positive] = np.maximum(ndtr(near) - k * ndtr(far), 0.0)
    return puts, calls
