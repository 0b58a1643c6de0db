r"""What the law of FAVANO's local steps does to its bounds: constants a and b, and variances.

A client that does ``S = E ^ K`` steps between two contacts
(:mod:`fedjax_sim.theory.step_counts`) has its progress divided by alpha, so that fast and slow
clients count alike.  Bounds with a and b: :mod:`fedjax_sim.theory.favano`.

Slips of "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099:

* For the deterministic reweighting the proof yields ``b = max_i E[S^2] / E[S]^2`` (Equation 148);
  Theorem 1 has ``E[S^2] / E[S]``, an upper bound only if ``E[S] >= 1``.  So for ``a``.
* Equations 139 to 148 apply the variance of independent draws of one mean to the gradients of a
  moving model.  Conditioning on S and bounding how much a gradient depends on earlier noise,
  ``E||h||^2 <= S^2 B_t / 2 + S sigma^2 + S (sigma^2 + B_t / 4) / 12`` if ``eta <= 1 / (4 L K^2)``:
  the theorem is proven with 13/12 of ``sigma^2``.  The functions leave that to the caller.
"""

from typing import Literal, NamedTuple

import numpy as np

from fedjax_sim.theory.constants import check_choice
from fedjax_sim.theory.step_counts import CappedSteps

Version = Literal["stochastic", "deterministic"]
Constant = Literal["tight", "printed"]


class Progress(NamedTuple):
    """``mean_i E||h_i / alpha_i||^2 <= a sigma^2 + b (16 L^2 Phi / n + 8 G^2 + 8 B^2 g^2)``.

    In double precision; g is the length of the gradient at ``mu_t``.
    """

    a: float  # mean of a_i
    b: float
    clients: np.ndarray  # a_i


def progress_constants(
    steps: CappedSteps, K: int, version: Version = "stochastic", const: Constant = "tight"
) -> Progress:
    r"""What the law of the local steps does to the bounds.

    Stochastic, :math:`\alpha_i = P_i S_i` with :math:`P_i = P(S_i > 0)`:

    .. math:: a_i = \frac{1}{K^2 P_i} + \frac{1}{P_i^2} E\Bigl[\frac{1(S_i > 0)}{S_i}\Bigr],
        \qquad b = \max_i \frac{1}{P_i}

    Deterministic, :math:`\alpha_i = E[S_i]`:

    .. math:: a_i = \frac{1}{E[S_i]} + \frac{E[S_i^2]}{K^2 E[S_i]^2},
        \qquad b = \max_i \frac{E[S_i^2]}{E[S_i]^2}

    Args:
        steps: the law of S for each client.
        K: the cap it was computed with.
        version: of the reweighting.
        const: ``"printed"`` has ``E[S]`` for ``E[S]^2`` in the deterministic version: larger by
            that factor, and no bound for clients that do less than one step on average.

    Raises:
        ValueError: a client that never does a step, ``K`` below 1 or below ``E[S]``, an unknown
            version or const.

    References:
        Equations 9, 10 and 148.

    Example:
        >>> from fedjax_sim.theory.step_counts import geometric
        >>> slow = geometric(1 / 16, cap=20)
        >>> round(progress_constants(slow, 20, "deterministic").b, 3)
        1.364
        >>> round(progress_constants(slow, 20, "deterministic", "printed").b, 3)
        15.823
    """
    check_choice("version", version, Version)
    check_choice("const", const, Constant)
    p, mean, second, inverse = (np.asarray(x, np.float64) for x in steps)
    if not np.all(p > 0):
        raise ValueError(f"steps.p_active is {p}; expected clients that do steps")
    if K < 1 or np.any(mean > K * (1 + 1e-12)):
        raise ValueError(f"K is {K}; expected the cap of steps, whose mean is {mean}")
    if version == "stochastic":
        a, b = 1 / (K**2 * p) + inverse / p**2, 1 / p
    else:
        b = second / mean**2 if const == "tight" else second / mean
        a = 1 / mean + b / K**2
    return Progress(float(a.mean()), float(b.max()), a)


def reweighting_variance(
    steps: CappedSteps, mean: float, variance: float, version: Version = "stochastic"
) -> np.ndarray:
    r"""Variance of ``(Y_1 + .. + Y_S) / alpha``, Y independent of each other and of S.

    .. math:: \frac{y^2 P (1 - P) + \mathrm{Var}(Y) E[1(S>0)/S]}{P^2} \quad\text{(stochastic)},
        \qquad \frac{y^2 \mathrm{Var}(S)}{E[S]^2} + \frac{\mathrm{Var}(Y)}{E[S]}
        \quad\text{(deterministic)}

    with ``P = P(S > 0)``; the mean is y in both versions.

    Args:
        steps: the law of S for each client.
        mean: y, of every Y.
        variance: of every Y, not negative.
        version: of the reweighting.

    Returns:
        The variance for each client.

    Raises:
        ValueError: a client that never does a step, a negative variance, an unknown version.

    References:
        Equation 35.

    Example:
        >>> from fedjax_sim.theory.step_counts import geometric
        >>> float(reweighting_variance(geometric(1.0, cap=5), mean=3.0, variance=2.0))  # S = 1
        2.0
    """
    check_choice("version", version, Version)
    if not variance >= 0:
        raise ValueError(f"variance is {variance}; expected a non-negative number")
    p, first, second, inverse = (np.asarray(x, np.float64) for x in steps)
    if not np.all(p > 0):
        raise ValueError(f"steps.p_active is {p}; expected clients that do steps")
    if version == "stochastic":
        return (mean**2 * p * (1 - p) + variance * inverse) / p**2
    return mean**2 * (second / first**2 - 1) + variance / first
