r"""A smooth, strongly convex function on which Nesterov's method separates two close initial
points.

The function has one dimension. Its curvature is mu, except near certain points, where it is L;
the method evaluates the gradient at such a point in every third step:

.. math:: F'(x) = \mu x - (L - \mu) \sum_k \mathrm{clip}(c_k + e - x,\ 0,\ 2 e)

All computations are in double precision, independent of JAX's setting.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, Theorem 3.8.
    The construction is simpler than the theorem's: running the method gives the centres.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.algorithms.fedac import Coupling, accelerated, coupling, middle_of
from fedjax_sim.checks import check_at_least, check_count, check_positive


class Bumps(NamedTuple):
    """The function, by its intervals of curvature L."""

    centres: Array | np.ndarray  # [K] decreasing, float64
    half_width: float  # e
    mu: float
    smoothness: float  # L


def gradient(x: Array, bumps: Bumps) -> Array:
    """F'(x), for a number x."""
    inside = jnp.clip(bumps.centres + bumps.half_width - x, 0, 2 * bumps.half_width)
    return bumps.mu * x - (bumps.smoothness - bumps.mu) * inside.sum()


def construct(condition: float, num_bumps: int, half_width: float) -> Bumps:
    """Returns the function of condition number kappa, with L = 1, for the initial x = x_ag = 1.

    The k-th centre is the point at which the method evaluates the gradient in step 3 k + 1 when it
    runs on the function with the earlier centres. These points decrease, and a bump changes F' only
    to its left, so a bump changes no earlier step.

    Args:
        condition: kappa, at least 25.
        num_bumps: K.
        half_width: e, less than half the spacing of the points.
    """
    check_at_least(25, condition=condition)
    check_count(1, num_bumps=num_bumps)
    check_positive(half_width=half_width)
    with jax.enable_x64(True):
        pair = coupling(1.0, 1 / condition, 1, "vanilla")
        empty = jnp.full(num_bumps, -jnp.inf)  # bumps without effect

        def step(carry: tuple, t: Array) -> tuple[tuple, Array]:
            (aggregate, main), centres = carry
            middle = middle_of(aggregate, main, pair.beta)
            centres = jnp.where(t % 3 == 1, centres.at[t // 3].set(middle), centres)
            bumps = Bumps(centres, half_width, 1 / condition, 1.0)
            after = accelerated((aggregate, main), lambda x: gradient(x, bumps), 1.0, pair)
            return (after, centres), middle

        one = jnp.array(1.0)
        (_, centres), middles = jax.lax.scan(
            step, ((one, one), empty), jnp.arange(3 * num_bumps, dtype=jnp.int32)
        )
    gap = float(-np.diff(middles).max())
    if not gap > 2 * half_width:
        raise ValueError(
            f"half_width is {half_width}; expected below {gap / 2:.3g}, half the least spacing of "
            f"the points at condition {condition} with {num_bumps} bumps"
        )
    return Bumps(np.asarray(centres), half_width, 1 / condition, 1.0)


class Trajectory(NamedTuple):
    """Iterates of steps 0 .. T."""

    aggregate: np.ndarray  # [T + 1]
    main: np.ndarray  # [T + 1]


def accelerated_descent(
    bumps: Bumps, init: float, num_steps: int, local_steps: int | None = None
) -> Trajectory:
    r"""Nesterov's method without noise, or FedAc-I with one client; eta = 1 / L.

    Args:
        bumps: the function.
        init: initial value of both iterates.
        num_steps: T.
        local_steps: None for Nesterov's method, :math:`\gamma = \sqrt{\eta / \mu}`; K for FedAc-I,
            :math:`\gamma = \max(\sqrt{\eta / (\mu K)}, \eta)`.
    """
    eta = 1 / bumps.smoothness
    with jax.enable_x64(True):
        if local_steps is None:
            pair = coupling(eta, bumps.mu, 1, "vanilla")
        else:
            pair = coupling(eta, bumps.mu, local_steps, "I")
        return _run(bumps, eta, pair, init, num_steps)


def gradient_descent(bumps: Bumps, init: float, num_steps: int) -> Trajectory:
    """Gradient descent with learning rate 1 / L; both iterates are equal."""
    eta = 1 / bumps.smoothness
    with jax.enable_x64(True):
        # With gamma = eta and equal iterates every step is a gradient step, for any alpha and beta.
        return _run(bumps, eta, Coupling(eta, 1.0, 1.0), init, num_steps)


def separation(
    method: Callable[[Bumps, float, int], Trajectory], bumps: Bumps, distance: float
) -> Trajectory:
    """``|difference| / distance`` between the iterates from the initial points 1 and 1 - distance.

    ``distance`` is far above 1e-16, and so small that the differences stay below the half width.
    """
    if not 0 < distance < bumps.half_width:
        raise ValueError(f"distance is {distance}; expected in (0, {bumps.half_width})")
    num_steps = 3 * len(bumps.centres)
    runs = [method(bumps, x, num_steps) for x in (1.0, 1.0 - distance)]
    rounded = 1.0 - (1.0 - distance)  # the distance after rounding
    return Trajectory(*(np.abs(a - b) / rounded for a, b in zip(*runs, strict=True)))


def predicted_separation(
    condition: float, num_bumps: np.ndarray | float
) -> tuple[np.ndarray | float, np.ndarray | float]:
    r"""The theorem's ratios for aggregate and main iterates, after 3 K steps of Nesterov's method.

    .. math::
        \tfrac12 \big(2 (1 - \kappa^{-1/2})^3\big)^K (1 + \kappa^{-1/2}) \qquad\text{and}\qquad
        \tfrac12 \big(2 (1 - \kappa^{-1/2})^3\big)^K (\sqrt\kappa + 1)
    """
    root = condition**0.5
    growth = (2 * (1 - 1 / root) ** 3) ** num_bumps / 2
    return growth * (1 + 1 / root), growth * (root + 1)


def _run(bumps: Bumps, lr: float, pair: Coupling, init: float, num_steps: int) -> Trajectory:
    bumps = bumps._replace(centres=jnp.asarray(bumps.centres))

    def step(iterates: tuple, _: None) -> tuple[tuple, tuple]:
        after = accelerated(iterates, lambda x: gradient(x, bumps), lr, pair)
        return after, after

    x = jnp.asarray(init, jnp.float64)
    _, later = jax.lax.scan(step, (x, x), None, length=num_steps)
    return Trajectory(*(np.concatenate([[init], np.asarray(part)]) for part in later))
