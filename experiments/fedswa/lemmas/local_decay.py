r"""Client drift within a visit whose learning rates decay: Theorem H.1.

Source: Equation 3, Lemma G.12 and Theorem H.1 (see :mod:`fedjax_sim.theory.fedswa`).  Theorem H.1
bounds the drift at decaying rates by a third of Lemma G.12's bound at a constant rate.  The third
also bounds the drift at a constant rate, so it does not compare the two: for many small steps,
the rates of Theorem H.1 multiply the drift by 0.50 (without noise) to 0.57 (noise alone), and
those of Equation 3 with rho = 0.1 by 0.45 to 0.54 (see the errata).  :func:`visit_drift_bound` is
the recursion of the proof for any rates, which distinguishes them.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory import ProblemConstants, Scalar, at_most, non_negative, positive, where_valid


def linear_rates(lr: Scalar, local_steps: int, rho: Scalar = 1.0) -> Array:
    """``[K]`` rates ``lr (1 - k / K) + rho lr k / K``, k = 0 .. K - 1 (Equation 3)."""
    lr, K = positive(lr=lr, local_steps=local_steps)
    (rho,) = non_negative(rho=rho)
    return lr * (1 - (1 - rho) * jnp.arange(local_steps, dtype=K.dtype) / K)


def geometric_rates(lr: Scalar, local_steps: int) -> Array:
    """``[K]`` rates ``lr ((K - 2) / (K - 1))^k``, k = 0 .. K - 1: the decay of Theorem H.1.

    The last rate tends to ``lr / e`` as K grows.
    """
    (lr,) = positive(lr=lr)
    if local_steps < 2:
        raise ValueError(f"local_steps is {local_steps}; expected at least 2")
    ratio = jnp.asarray((local_steps - 2) / (local_steps - 1), lr.dtype)
    return lr * ratio ** jnp.arange(local_steps, dtype=lr.dtype)


def visit_drift_bound(
    constants: ProblemConstants,
    rates: Array,  # [K], those of the visit's steps
    *,
    gap: Scalar,  # ``E F(theta) - F*``
    client_lag: Scalar,  # C, the mean over clients of ``E||c_i - grad F_i(theta*)||^2``
    server_lag: Scalar,  # D, ``E||m||^2``
) -> Array:
    r"""Drift of the clients' iterates within one visit of FedMoSWA, for any rates.

    .. math:: e_{k+1} = (\sqrt{e_k} + \eta_k V)^2 + \eta_k^2 \sigma^2, \quad e_0 = 0, \qquad
        V^2 = 3 (C + D) + 6 \beta (F(\theta) - F^*)

    bounds the mean over clients of ``E||theta_ik - theta||^2``, where ``theta`` is the model that
    they received.  For FedSWA and FedAvg, which have no controls, C is ``zeta_star^2`` and D is 0.

    Needs L (beta), sigma; objectives are convex.  NaN with a warning where a rate exceeds
    ``2 / beta``.

    Returns:
        [K + 1] bounds, after k = 0 .. K steps.  Their mean from k = 1 on bounds the drift E_t of
        Lemma G.12 and Theorem H.1.

    References:
        Equations 70 to 72; the recursion replaces Equations 73 to 76, in which every step has the
        factor K.
    """
    if jnp.ndim(rates) != 1:
        raise ValueError(f"rates has shape {jnp.shape(rates)}; expected [K]")
    (beta,) = positive(constants, "L")
    sigma, rates, gap = non_negative(constants, "sigma", rates=rates, gap=gap)
    client_lag, server_lag = non_negative(client_lag=client_lag, server_lag=server_lag)
    speed = jnp.sqrt(3 * (client_lag + server_lag) + 6 * beta * gap)  # V, Eq. (72)

    def one_step(drift: Array, rate: Array) -> tuple[Array, Array]:
        # Eq. (70): gradient steps on F_i do not expand, Eq. (71); Minkowski's inequality for V.
        drift = (jnp.sqrt(drift) + rate * speed) ** 2 + (rate * sigma) ** 2
        return drift, drift

    start = jnp.zeros_like(speed)
    _, drifts = jax.lax.scan(one_step, start, rates)
    drifts = jnp.concatenate([start[None], drifts])
    return where_valid(drifts, at_most(rates.max(), 2 / beta), "rates <= 2 / beta")
