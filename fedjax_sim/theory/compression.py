r"""Step sizes and costs of methods with compressed messages.

A codec C is a contraction with the constant alpha if
:math:`\mathbb{E} \|C(v) - v\|^2 \le (1 - \alpha) \|v\|^2`; a codec Q is unbiased with the variance
omega if :math:`\mathbb{E} Q(v) = v` and :math:`\mathbb{E} \|Q(v) - v\|^2 \le \omega \|v\|^2`.
Top-k of d entries has alpha = k / d, random k has omega = d / k - 1, natural compression has
omega = 1 / 8.

Numbers that are not positive (omega: negative), and shares above 1, raise a ValueError.

The objectives of the M clients have the smoothness constants :math:`L_i`, their mean has L.

References:
    Mishchenko et al., "Distributed Learning with Compressed Gradient Differences", 2019 (DIANA).
    Richtarik, Sokolov, Fatkhullin, "EF21", 2021.
    Fatkhullin et al., "EF21 with Bells & Whistles", 2021 (EF21-PP).
    Gorbunov, Hanzely, Richtarik, "A Unified Theory of SGD: Variance Reduction, Sampling,
        Quantization and Coordinate Descent", 2020 (DIANA).
    Gorbunov et al., "MARINA: Faster Non-Convex Distributed Learning with Compression", 2021.
    Burlachenko, Horvath, Richtarik, "FL_PyTorch: Optimization Research Simulator for Federated
        Learning", 2021 (the step sizes, as its program computes them).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.theory.conditions import non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import Scalar

__all__ = [
    "diana_lr",
    "ef21_lr",
    "ef21_pp_lr",
    "marina_bits",
    "marina_lr",
    "pp_marina_lr",
    "pp_marina_probability",
]


def ef21_lr(L: Scalar, L_rms: Scalar, alpha: Scalar) -> Array:
    r"""Step size of EF21 with full participation.

    .. math:: \gamma = \Bigl(L + \tilde L \sqrt{\beta / \theta}\Bigr)^{-1}, \qquad
        \theta = 1 - \sqrt{1 - \alpha}, \qquad \beta = \frac{1 - \alpha}{\theta}

    Args:
        L: smoothness of the mean objective.
        L_rms: root mean square of the clients' smoothness constants, :math:`\tilde L`.
        alpha: constant of the contraction, in (0, 1].

    Source: Richtarik et al., 2021, Theorem 1.

    Raises:
        ValueError: a number that is not positive, or an ``alpha`` above 1.

    Example:
        >>> round(float(ef21_lr(L=3.5, L_rms=5.0, alpha=0.2)), 6)
        0.021805
    """
    _check_shares(alpha=alpha)
    L, L_rms, alpha = positive(L=L, L_rms=L_rms, alpha=alpha)
    theta = alpha / (1 + jnp.sqrt(1 - alpha))  # 1 - sqrt(1 - alpha), without cancellation
    beta = (1 - alpha) / theta
    return 1 / (L + L_rms * jnp.sqrt(beta / theta))


def ef21_pp_lr(
    L: Scalar,
    L_rms: Scalar,
    alpha: Scalar,
    probability: Scalar,
    u: Scalar | None = None,
    rho: Scalar | None = None,
) -> Array:
    r"""Step size of EF21 with partial participation (EF21-PP).

    .. math:: \gamma = \Bigl(L + \sqrt{B / \theta_p}\Bigr)^{-1}, \qquad
        B = \bigl(\beta p + (1 + 1 / \rho)(1 - p)\bigr) \tilde L^2, \qquad
        \theta_p = \rho p + \theta p - \rho \\
        \theta = 1 - (1 + u)(1 - \alpha), \qquad \beta = (1 + 1 / u)(1 - \alpha)

    for any positive u and :math:`\rho` with a positive :math:`\theta_p`; NaN with a warning for
    others.

    Args:
        L, L_rms, alpha: as for :func:`ef21_lr`.
        probability: p, with which a client takes part in a round.
        u, rho: default: the best ones of a grid with ratios of 1.05.

    Source: Fatkhullin et al., 2021, EF21-PP.

    Raises:
        ValueError: a number that is not positive; an ``alpha`` or ``probability`` above 1.

    Example:
        >>> sizes = {"L": 3.5, "L_rms": 5.0, "alpha": 0.2, "probability": 0.5}
        >>> round(float(ef21_pp_lr(**sizes, u=0.0536, rho=0.0536)), 6)
        0.010423
        >>> round(float(ef21_pp_lr(**sizes)), 6)
        0.010423
    """
    _check_shares(alpha=alpha, probability=probability)
    L, L_rms, alpha, p = positive(L=L, L_rms=L_rms, alpha=alpha, probability=probability)
    grid = 1.05 ** jnp.arange(-400.0, 201.0)  # 3e-9 .. 2e4
    (u_values,) = positive(u=grid if u is None else u)
    (rho_values,) = positive(rho=grid if rho is None else rho)
    rho_values = jnp.atleast_1d(rho_values)[:, None]
    # Sums in this order keep their digits where alpha is small or rho is large.
    theta = alpha - u_values * (1 - alpha)
    beta = (1 + 1 / u_values) * (1 - alpha)
    theta_p = theta * p - rho_values * (1 - p)
    total = (beta * p + (1 + 1 / rho_values) * (1 - p)) * L_rms**2
    valid = theta_p > 0
    ratio = jnp.where(valid, total / jnp.where(valid, theta_p, 1), jnp.inf)
    smallest = ratio.min()
    return where_valid(
        1 / (L + jnp.sqrt(smallest)), jnp.isfinite(smallest), "rho p + theta p > rho"
    )


def diana_lr(L_max: Scalar, omega: Scalar, clients: Scalar) -> Array:
    r"""Step size of DIANA, :math:`\gamma = 1 / (L_{\max} (1 + 4 \omega / M))`.

    For convex :math:`F_i`, a mu-strongly convex F, full gradients and all clients, the mean of

    .. math:: V = \|x - x^*\|^2 + \frac{4 \omega \gamma^2}{\alpha M} \frac{1}{M}
        \sum_i \|h_i - \nabla F_i(x^*)\|^2

    falls by the factor :math:`\max(1 - \gamma \mu, 1 - \alpha)` per round if the rate of the shifts
    is :math:`\alpha \le 3 / (4 (1 + \omega))`.  Proof: with the means over clients H of
    :math:`\|h_i - \nabla F_i(x^*)\|^2`, D of :math:`\|\nabla F_i(x) - \nabla F_i(x^*)\|^2` and E of
    :math:`\|\nabla F_i(x) - h_i\|^2`, the step's second moment is at most
    :math:`\|\nabla F(x)\|^2 + \omega E / M`, and the next H at most
    :math:`(1 - \alpha) H + \alpha D - \alpha (1 - \alpha (1 + \omega)) E`, whose last term cancels
    the step's variance.  The rest is :math:`D \le 2 L_{\max} (F(x) - F^*)`.

    For :math:`\alpha` up to :math:`1 / (1 + \omega)` the last term may be 0.  With
    :math:`E \le 2 D + 2 H` and half the weight of the shifts, V does not increase; it falls by
    :math:`\max(1 - \gamma \mu, 1 - \alpha / 2)` with 6 for 4 in the step size (Gorbunov et al.,
    2020, have this number).

    Args:
        L_max: largest smoothness constant of the clients.
        omega: variance of the codec.
        clients: M.

    Source: Burlachenko et al., 2021, without a proof.

    Example:
        >>> float(diana_lr(L_max=1.0, omega=3.0, clients=4))
        0.25
    """
    L_max, M = positive(L_max=L_max, clients=clients)
    (omega,) = non_negative(omega=omega)
    return 1 / (L_max * (1 + 4 * omega / M))


def marina_lr(L: Scalar, omega: Scalar, probability: Scalar, clients: Scalar) -> Array:
    r"""Step size of MARINA for general smooth objectives.

    .. math:: \gamma = \Bigl(L \bigl(1 + \sqrt{(1 - p)\, \omega / (p M)}\bigr)\Bigr)^{-1}

    Args:
        L: smoothness constant, the root mean square of the clients' constants.
        omega: variance of the codec.
        probability: p, of whole uploads; the theorems have :math:`1 / (1 + \omega)`.
        clients: M.

    Source: Gorbunov et al., 2021, Theorem 2.1.

    Raises:
        ValueError: a negative ``omega``, another number that is not positive, or a ``probability``
            above 1.

    Example:
        >>> float(marina_lr(L=1.0, omega=3.0, probability=1.0, clients=4))
        1.0
    """
    _check_shares(probability=probability)
    L, p, M = positive(L=L, probability=probability, clients=clients)
    (omega,) = non_negative(omega=omega)
    return 1 / (L * (1 + jnp.sqrt((1 - p) * omega / (p * M))))


def pp_marina_lr(L: Scalar, omega: Scalar, probability: Scalar, cohort_size: Scalar) -> Array:
    r"""Step size of PP-MARINA with r clients in compressed rounds.

    .. math:: \gamma = \Bigl(L \bigl(1 + \sqrt{(1 - p)(1 + \omega) / (p r)}\bigr)\Bigr)^{-1}

    Args:
        L, omega: as for :func:`marina_lr`.
        probability: p, of rounds with all clients; see :func:`pp_marina_probability`.
        cohort_size: r.

    Source: Gorbunov et al., 2021, Theorem 4.1.

    Raises:
        ValueError: as :func:`marina_lr`.

    Example:
        >>> float(pp_marina_lr(L=1.0, omega=3.0, probability=0.5, cohort_size=4))
        0.5
    """
    _check_shares(probability=probability)
    L, p, r = positive(L=L, probability=probability, cohort_size=cohort_size)
    (omega,) = non_negative(omega=omega)
    return 1 / (L * (1 + jnp.sqrt((1 - p) * (1 + omega) / (p * r))))


def pp_marina_probability(omega: Scalar, clients: Scalar, cohort_size: Scalar) -> Array:
    r"""Probability of a round with all clients in PP-MARINA, :math:`r / (M (1 + \omega))`.

    With it both kinds of rounds send equally many numbers on average if a codec sends the share
    :math:`1 / (1 + \omega)` of them.

    Source: Gorbunov et al., 2021, Theorem 4.1.

    Example:
        >>> float(pp_marina_probability(omega=3.0, clients=8, cohort_size=2))
        0.0625
    """
    M, r = positive(clients=clients, cohort_size=cohort_size)
    (omega,) = non_negative(omega=omega)
    return r / (M * (1 + omega))


def marina_bits(full: Scalar, compressed: Scalar, probability: Scalar) -> Array:
    r"""Expected bits of an upload of MARINA after the first, p full + (1 - p) compressed.

    Args:
        full: bits of a whole upload, for d floats 32 d.
        compressed: bits of a compressed one.
        probability: p, of whole uploads.

    Raises:
        ValueError: a number that is not positive, or a ``probability`` above 1.

    Example:
        >>> float(marina_bits(full=32_000, compressed=320, probability=0.5))
        16160.0
    """
    _check_shares(probability=probability)
    full, compressed, p = positive(full=full, compressed=compressed, probability=probability)
    return p * full + (1 - p) * compressed


def _check_shares(**numbers: Any) -> None:
    for name, value in numbers.items():
        if not isinstance(value, Tracer) and not np.all(np.asarray(value) <= 1):
            raise ValueError(f"{name} is {value}; expected a number in (0, 1]")
