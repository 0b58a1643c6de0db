r"""Table 1's optimisation errors of FedSAM, MoFedSAM, FedSWA, FedMoSWA and SCAFFOLD.

Source: Table 1 and Theorem 5.2 (see :mod:`fedjax_sim.theory.fedswa`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import check_choice, non_negative, positive
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar

Method = Literal["fedsam", "mofedsam", "fedswa", "fedmoswa", "scaffold"]


def nonconvex_rate(
    constants: ProblemConstants,
    method: Method,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    alpha: Scalar = 1.0,
) -> Array:
    r"""Table 1's optimisation errors of non-convex objectives, their O() taken as 1.

    * ``"fedsam"``: ``beta Delta / sqrt(TKs) + sqrt(K) sigma_g^2 / sqrt(Ts)
      + L^2 sigma^2 / (T^{3/2} K) + L^2 / T^2``
    * ``"mofedsam"``: ``beta L Delta / sqrt(TKs) + beta sqrt(K) sigma_g^2 / sqrt(Ts)
      + L^2 sigma^2 / (T^{3/2} K) + sqrt(K) L^2 / (T^{3/2} sqrt(s))``
    * ``"fedswa"``: ``beta (sigma + sqrt(K) sigma_g) sqrt(Delta) / sqrt(TKs)
      + Delta^{2/3} (beta sigma_g^2)^{1/3} / T^{2/3} + beta Delta / T``
    * ``"fedmoswa"``: ``sigma sqrt(Delta) sqrt(1 + s / alpha^2) / sqrt(TKs)
      + beta Delta (m / s)^{2/3} / T`` (also Theorem 5.2; not proven, see the errata)
    * ``"scaffold"``: the same with alpha = 1

    Rates of different methods can be compared in how they change, not by their values.

    Needs L (beta), sigma, Delta; sigma_g except for the controlled methods; G (L) for the SAM
    methods.

    Args:
        method: the algorithm.

    Raises:
        ValueError: a missing or negative constant; an unknown method.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, Delta=1.0)
        >>> sizes = dict(local_steps=1, rounds=100, clients=8, cohort_size=1)
        >>> round(float(nonconvex_rate(constants, "fedmoswa", **sizes)), 4)  # sqrt(2) / 10 + 0.04
        0.1814
    """
    check_choice("method", method, Method)
    beta, K, T = positive(constants, "L", local_steps=local_steps, rounds=rounds)
    m, s, alpha = positive(clients=clients, cohort_size=cohort_size, alpha=alpha)
    sigma, Delta = non_negative(constants, "sigma", "Delta")
    root = jnp.sqrt(T * K * s)
    long = T * jnp.sqrt(T)

    def fedsam() -> Array:
        sigma_g, L = non_negative(constants, "sigma_g", "G")
        return (
            beta * Delta / root
            + jnp.sqrt(K) * sigma_g**2 / jnp.sqrt(T * s)
            + (L * sigma) ** 2 / (long * K)
            + (L / T) ** 2
        )

    def mofedsam() -> Array:
        sigma_g, L = non_negative(constants, "sigma_g", "G")
        return (
            beta * L * Delta / root
            + beta * jnp.sqrt(K) * sigma_g**2 / jnp.sqrt(T * s)
            + (L * sigma) ** 2 / (long * K)
            + jnp.sqrt(K) * L**2 / (long * jnp.sqrt(s))
        )

    def fedswa() -> Array:
        (sigma_g,) = non_negative(constants, "sigma_g")
        return (
            beta * (sigma + jnp.sqrt(K) * sigma_g) * jnp.sqrt(Delta) / root
            + Delta ** (2 / 3) * (beta * sigma_g**2) ** (1 / 3) / T ** (2 / 3)
            + beta * Delta / T
        )

    def controlled(alpha: Array) -> Array:
        variance = 1 + s / alpha**2
        return sigma * jnp.sqrt(Delta * variance) / root + beta * Delta / T * (m / s) ** (2 / 3)

    rates: dict[str, Callable[[], Array]] = {
        "fedsam": fedsam,
        "mofedsam": mofedsam,
        "fedswa": fedswa,
        "fedmoswa": lambda: controlled(alpha),
        "scaffold": lambda: controlled(jnp.ones_like(alpha)),
    }
    return rates[method]()
