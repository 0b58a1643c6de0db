"""Lojasiewicz families of losses: quadratics, powers, logistic losses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.lojasiewicz.family import Family, FamilyConstants, with_data
from fedjax_sim.checks import check_at_least, check_count, check_positive


def quadratic(matrix: np.ndarray, centres: np.ndarray) -> Family:
    r""":math:`f_c(x) = \frac12 (x - b_c)^\top A (x - b_c)`: alpha = 1; the mean does not drift.

    :math:`\mu = 2 \lambda^+_{\min}(A)`, :math:`L = \lambda_{\max}(A)`,
    :math:`\zeta^2 = \frac1M \sum \|A (b_c - \bar b)\|^2`, :math:`f_c^* = 0`.

    Args:
        matrix: A ``[d, d]``, symmetric, positive semidefinite; it may be singular.
        centres: ``[M, d]``.
    """
    a, b = np.asarray(matrix, np.float64), np.asarray(centres, np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or b.ndim != 2 or b.shape[1] != len(a):
        raise ValueError(
            f"matrix and centres have shapes {a.shape} and {b.shape}; expected [d, d] and [M, d]"
        )
    spectrum = np.linalg.eigvalsh(a)
    tiny = 1e-10 * abs(spectrum).max()  # smaller eigenvalues are rounding errors of 0
    if not np.allclose(a, a.T) or spectrum[0] < -tiny or spectrum[-1] <= 0:
        raise ValueError(
            f"matrix has eigenvalues {spectrum}; expected a symmetric positive semidefinite matrix "
            "other than 0"
        )
    away = b - b.mean(axis=0)
    constants = FamilyConstants(
        alpha=1.0,
        mu=float(2 * spectrum[spectrum > tiny].min()),
        L=float(spectrum[-1]),
        zeta=float(np.sqrt(np.mean(np.sum((away @ a) ** 2, axis=1)))),
        infima=np.zeros(len(b)),
        minimum=float(np.mean(np.sum(away @ a * away, axis=1)) / 2),
    )
    return Family(*with_data(_quadratic_value, _quadratic_gradient, a, b), constants)


def softplus_tilted(curvature: float, tilt: float, num_clients: int) -> Family:
    r""":math:`f_c(x) = \frac m2 x^2 + s_c \delta \log(1 + e^x)` with alternating signs: alpha = 1.

    :math:`F = \frac m2 x^2`; the curvatures differ, so the clients drift.
    :math:`\mu = 2 (m - \frac\delta4)`, :math:`L = m + \frac\delta4`, :math:`\zeta = \delta`.

    Args:
        curvature: m.
        tilt: delta, below 4 m.
        num_clients: M, even.
    """
    check_positive(curvature=curvature)
    if not 0 <= tilt < 4 * curvature:
        raise ValueError(f"tilt is {tilt}; expected 0 <= tilt < 4 curvature = {4 * curvature}")
    if num_clients < 2 or num_clients % 2:
        raise ValueError(f"num_clients is {num_clients}; expected an even number")
    slopes = np.where(np.arange(num_clients) % 2 == 0, tilt, -tilt)
    # The gradient increases; bisection finds its root to the last bit.
    low, high = -np.abs(slopes) / curvature, np.abs(slopes) / curvature
    for _ in range(100):
        middle = (low + high) / 2
        below = curvature * middle + slopes / (1 + np.exp(-middle)) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    infima = curvature / 2 * low**2 + slopes * np.logaddexp(0, low)
    constants = FamilyConstants(
        1.0, 2 * (curvature - tilt / 4), curvature + tilt / 4, tilt, infima, minimum=0.0
    )
    return Family(
        *with_data(_softplus_tilted_value, _softplus_tilted_gradient, curvature, slopes), constants
    )


def sine_quadratic(num_clients: int) -> Family:
    r""":math:`f(x) = x^2 + 3 \sin^2 x` for every client, nonconvex: alpha = 1, L = 8, zeta = 0.

    ``mu`` is the infimum of :math:`f'^2 / f`, computed numerically.
    """
    check_count(1, num_clients=num_clients)

    def ratio(x: np.ndarray) -> np.ndarray:
        return (2 * x + 3 * np.sin(2 * x)) ** 2 / (x**2 + 3 * np.sin(x) ** 2)

    # Beyond 10 the ratio is at least (2 x - 3)^2 / (x^2 + 3) > 2.
    mu = -largest(lambda x: -ratio(x), 1e-3, 10.0)
    return Family(
        *with_data(_sine_quadratic_value, _sine_quadratic_gradient),
        FamilyConstants(1.0, mu, 8.0, 0.0, np.zeros(num_clients), minimum=0.0),
    )


def power(degree: float, radius: float, num_clients: int) -> Family:
    r""":math:`f(x) = \frac1p \|x\|^p` for every client: the inequality is an equality.

    :math:`\alpha = 2 - \frac2p`, :math:`\mu = p^\alpha`, :math:`L = (p - 1) \rho^{p-2}` on
    :math:`\|x\| \le \rho`. Iterates stay in this ball if the learning rate is at most 1 / L and the
    noise is :func:`~experiments.lojasiewicz.family.sphere` with :math:`\sigma \le
    \rho^{p-1}`.

    Args:
        degree: p, at least 2.
        radius: rho, positive.
        num_clients: M.
    """
    check_at_least(2, degree=degree)
    check_positive(radius=radius)
    check_count(1, num_clients=num_clients)
    alpha = 2 - 2 / degree
    constants = FamilyConstants(
        alpha,
        degree**alpha,
        (degree - 1) * radius ** (degree - 2),
        0.0,
        np.zeros(num_clients),
        minimum=0.0,
    )
    return Family(*with_data(_power_value, _power_gradient, degree), constants)


def logistic(slopes: np.ndarray, low: float = 0.0) -> Family:
    r""":math:`f_c(x) = \log(1 + e^{-a_c x})` on :math:`x \ge` ``low``: alpha = 2.

    The infima are 0 and are not attained. From :math:`|f_c'| = a_c (1 - e^{-f_c})`:
    :math:`\mu = \min_c a_c^2 ((1 - e^{-u_c}) / u_c)^2` with :math:`u_c = f_c(low)`.
    :math:`L = \max_c a_c^2 / 4`; zeta is the largest spread, computed numerically.

    Args:
        slopes: a ``[M]``, positive.
        low: the smallest model visited.
    """
    a = np.asarray(slopes, np.float64)
    if a.ndim != 1 or not (a > 0).all():
        raise ValueError(f"slopes is {slopes}; expected a vector of positive numbers")
    level = np.logaddexp(0, -a * low)

    def spread(x: np.ndarray) -> np.ndarray:
        return np.std(a / 2 * (1 - np.tanh(a * x[:, None] / 2)), axis=1)

    constants = FamilyConstants(
        alpha=2.0,
        mu=float(np.min((a * -np.expm1(-level) / level) ** 2)),
        L=float(np.max(a) ** 2 / 4),
        # At 30 / a above 0 the derivatives are e^-30 times those at 0.
        zeta=largest(spread, low, max(low, 0.0) + 30 / a.min()),
        infima=np.zeros(len(a)),
        minimum=0.0,
    )
    return Family(*with_data(_logistic_value, _logistic_gradient, a), constants)


def largest(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """Largest value of a smooth function on an interval, by two nested grids."""
    coarse = np.linspace(low, high, 20_001)
    best = int(np.argmax(function(coarse)))
    around = coarse[max(best - 1, 0) : best + 2]
    return float(np.max(function(np.linspace(around[0], around[-1], 20_001))))


def _quadratic_value(a: Array, b: Array, client: Array, x: Array) -> Array:
    return (x - b[client]) @ a @ (x - b[client]) / 2


def _quadratic_gradient(a: Array, b: Array, client: Array, x: Array) -> Array:
    return a @ (x - b[client])


def _softplus_tilted_value(m: Array, slopes: Array, client: Array, x: Array) -> Array:
    return m / 2 * x**2 + slopes[client] * jax.nn.softplus(x)


def _softplus_tilted_gradient(m: Array, slopes: Array, client: Array, x: Array) -> Array:
    return m * x + slopes[client] * jax.nn.sigmoid(x)


def _sine_quadratic_value(client: Array, x: Array) -> Array:
    return x**2 + 3 * jnp.sin(x) ** 2


def _sine_quadratic_gradient(client: Array, x: Array) -> Array:
    return 2 * x + 3 * jnp.sin(2 * x)


def _power_value(p: Array, client: Array, x: Array) -> Array:
    return jnp.square(x).sum() ** (p / 2) / p


def _power_gradient(p: Array, client: Array, x: Array) -> Array:
    return jnp.square(x).sum() ** (p / 2 - 1) * x


def _logistic_value(a: Array, client: Array, x: Array) -> Array:
    return jax.nn.softplus(-a[client] * x)


def _logistic_gradient(a: Array, client: Array, x: Array) -> Array:
    return -a[client] * jax.nn.sigmoid(-a[client] * x)
