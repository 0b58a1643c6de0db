r"""Privacy loss of cohorts of fixed size, drawn without replacement, under replacement of a client.

References:
    Balle, Barthe, Gaboardi, "Privacy Amplification by Subsampling: Tight Analyses via Couplings and
        Divergences", 2018, https://arxiv.org/abs/1807.01647.
    Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", 2022,
        https://arxiv.org/abs/2106.08567.
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete Approximations
        of Privacy Loss Distributions", 2022, https://arxiv.org/abs/2207.04380.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra


def profile(epsilons: np.ndarray, share: float, noise_multiplier: float) -> np.ndarray:
    r"""Returns the largest hockey-stick divergences of one round, at :math:`\alpha = e^\epsilon`.

    With the share :math:`q = S / M` of sampled clients and :math:`D_\alpha` the divergence of
    :math:`N(1, \sigma^2)` from :math:`N(0, \sigma^2)`,

    .. math::
        H(\alpha) = q D_{1 + (\alpha - 1) / q} \text{ for } \alpha \ge 1, \qquad
        H(\alpha) = 1 - \alpha + \alpha H(1 / \alpha) \text{ for } \alpha < 1.

    Args:
        epsilons: any finite numbers.
        share: q, in (0, 1].
        noise_multiplier: :math:`\sigma`, per unit of the sensitivity to a replacement, which is
            twice the clip.
    """
    size = np.abs(epsilons)
    # Balle, Barthe, Gaboardi, sampling without replacement: log(1 + (alpha - 1) / q), in two forms.
    small, large = np.minimum(size, 1.0), np.maximum(size, 1.0)
    inner = np.where(
        size < 1,
        np.log1p(np.expm1(small) / share),
        large + np.log1p(-(1 - share) * np.exp(-large)) - math.log(share),
    )
    above = share * gaussian_profile(inner, noise_multiplier)
    return np.where(epsilons >= 0, above, -np.expm1(-size) + np.exp(-size) * above)


def loss_distribution(share: float, noise_multiplier: float, interval: float) -> Any:
    """Returns dp-accounting's loss distribution of one round, whose pair dominates all neighbours.

    A profile that is convex, falls and starts at 1 is that of a pair of distributions, which
    dominates every pair with smaller divergences also under adaptive composition (Zhu, Dong,
    Wang).  Between the multiples of ``interval`` the chords lie above it.
    """
    pmfs = import_extra("dp_accounting.pld.pld_pmf", "privacy")
    losses = import_extra("dp_accounting.pld.privacy_loss_distribution", "privacy")
    s = noise_multiplier
    largest = largest_loss(s)
    largest = np.logaddexp(math.log1p(-share), math.log(share) + largest) if share < 1 else largest
    last = math.ceil(largest / interval)
    values = profile(np.arange(-last, last + 1) * interval, share, s)
    values = np.clip(np.minimum.accumulate(values), 0.0, 1.0)
    pmf = pmfs.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, values)
    return losses.PrivacyLossDistribution(pmf)


def largest_loss(noise_multiplier: float) -> float:
    """Returns a privacy loss that the Gaussian mechanism exceeds with a probability of 1e-23.

    Larger ones count as infinite.
    """
    return (0.5 / noise_multiplier + 10.0) / noise_multiplier


def gaussian_profile(epsilons: np.ndarray, sigma: float) -> np.ndarray:
    """Returns the hockey-stick divergences of N(1, sigma^2) from N(0, sigma^2).

    Balle and Wang, 2018, Theorem 8, as a product without cancellation of its tails.
    """
    log_ndtr = import_extra("scipy.special", "privacy").log_ndtr
    first = log_ndtr(0.5 / sigma - epsilons * sigma)
    second = epsilons + log_ndtr(-0.5 / sigma - epsilons * sigma)
    return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
