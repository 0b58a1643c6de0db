r"""The variance of a client's reweighted progress (:mod:`fedjax_sim.theory.favano.progress`)."""

import numpy as np

from fedjax_sim.theory import CappedSteps, Version, check_choice, moments_of


def reweighting_variance(
    steps: CappedSteps, *, mean: float, variance: float, version: Version = "stochastic"
) -> np.ndarray:
    r"""Variance of ``(Y_1 + .. + Y_S) / alpha``, Y independent of each other and of S.

    .. math:: \frac{y^2 P (1 - P) + \mathrm{Var}(Y) E[1(S>0)/S]}{P^2} \quad\text{(stochastic)},
        \qquad \frac{y^2 \mathrm{Var}(S)}{E[S]^2} + \frac{\mathrm{Var}(Y)}{E[S]}
        \quad\text{(deterministic)}

    with ``P = P(S > 0)``; the mean is y in both versions.

    Args:
        steps: the law of S for each client.
        mean: y, the mean of every Y.
        variance: of every Y, not negative.
        version: the reweighting.

    Returns:
        The variance for each client.

    References:
        Equation 35.
    """
    check_choice("version", version, Version)
    if not variance >= 0:
        raise ValueError(f"variance is {variance}; expected a non-negative number")
    p, first, second, inverse = moments_of(steps)
    if version == "stochastic":
        return (mean**2 * p * (1 - p) + variance * inverse) / p**2
    return mean**2 * (second / first**2 - 1) + variance / first
