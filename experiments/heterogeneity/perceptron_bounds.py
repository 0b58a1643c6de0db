"""Losses, constants and bounds of the perceptron, functions of one number b."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

import fedjax_sim as fs
from experiments.heterogeneity import limits
from experiments.heterogeneity.perceptron_problem import CLIENTS, LR, OUTLIER, Points

GRID = np.linspace(-12.0, 8.0, 4001)  # of b, for suprema


def loss(points: Points, b: Any) -> np.ndarray:
    """The mean logistic loss over the last axis of the points, for every b ``[...]``."""
    z = points.x + np.asarray(b)[..., None]
    return (np.logaddexp(0, z) - points.y * z).mean(-1)


def slope(points: Points, b: Any) -> np.ndarray:
    """The derivative of :func:`loss`."""
    return (expit(points.x + np.asarray(b)[..., None]) - points.y).mean(-1)


def gap(points: Points, b: Any, optimum: float) -> np.ndarray:
    """The loss above its minimum."""
    return loss(points, b) - loss(points, optimum)


def minimiser(*parts: Points) -> float:
    """The minimiser of the mean of the parts' losses."""
    total: Any = brentq(lambda b: sum(float(slope(part, b)) for part in parts), -60.0, 60.0)
    return float(total)


class Constants(NamedTuple):
    """The constants in the bounds, for the projected points of one seed."""

    optimum: float  # b*, of all train points
    test_optimum: float
    L: float  # sup F''
    client_L: float  # of all clients, as the bound asks for
    zeta: float  # sup over clients and b of |F_m' - F'|
    B: float  # |b_0 - b*|, D in the report
    optima: np.ndarray  # [M] of the clients
    pair_optimum: float  # of the mean of the normal clients' objective and the outlier's


def constants(train: Points, test: Points, start: float) -> Constants:
    """The constants of one seed; suprema are over a grid of b with spacing 0.005."""
    clients = [Points(x, y) for x, y in zip(train.x, train.y, strict=True)]
    second = [(s * (1 - s)).mean(-1) for s in (expit(c.x + GRID[:, None]) for c in clients)]
    slopes = np.stack([slope(client, GRID) for client in clients])
    optimum = minimiser(train.pooled)
    return Constants(
        optimum,
        minimiser(test.pooled),
        float(np.mean(second, 0).max()),
        float(np.max(second)),
        float(np.abs(slopes - slopes.mean(0)).max()),
        abs(start - optimum),
        np.array([minimiser(client) for client in clients]),
        minimiser(Points(train.x[:OUTLIER], train.y[:OUTLIER]).pooled, clients[OUTLIER]),
    )


def shadow_gap(train: Points, server: np.ndarray, start: float, tau: int) -> float:
    """The left side of the report's Equation 1 for full participation.

    It is the mean over rounds and local steps 1 .. tau of ``F(shadow) - F*``.

    Args:
        server: b after every round.
    """
    b = np.repeat(np.concatenate([[start], server[:-1]])[:, None], CLIENTS, axis=1)
    pooled, total = train.pooled, 0.0
    for _ in range(tau):
        b = b - LR * slope(train, b)
        total += loss(pooled, b.mean(1)).mean()
    return float(total / tau - loss(pooled, minimiser(pooled)))


def ends(train: Points, known: Constants) -> tuple[float, float, float]:
    """Limits of the train gap for many rounds.

    Returns:
        for rounds of two clients with few and with infinitely many local steps, and for rounds of
        all clients with infinitely many.
    """

    def objective(b: Any) -> Any:
        return loss(train.pooled, b)

    with jax.enable_x64(True):
        optima, optimum = jnp.asarray(known.optima), jnp.asarray(known.optimum)
        drawn = [
            limits.saturated_gap(objective, optima[jnp.array([m, OUTLIER])], optimum)
            for m in range(OUTLIER)
        ]
        pair, full = (
            np.mean(drawn),
            limits.saturated_gap(objective, optima, optimum),
        )
    few = gap(train.pooled, known.pair_optimum, known.optimum)
    return float(few), float(pair), float(full)


def bound(L: float, zeta: float, B: float, tau: int, rounds: int) -> float:
    """The report's Equation 1 without noise."""
    constants = fs.theory.ProblemConstants(L=L, sigma=0.0, zeta=zeta, B=B)
    return float(
        fs.theory.fedavg.bound(
            constants, "convex", lr=LR, local_steps=tau, rounds=rounds, clients=CLIENTS
        )
    )
