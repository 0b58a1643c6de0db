r"""Centred clipping: the distance of every upload from the previous aggregate is bounded.

References:
    Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", 2021,
        https://arxiv.org/abs/2012.10333.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count, check_positive
from fedjax_sim.types import PyTree, Scalar, Upload, specified
from fedjax_sim.wrappers.robust.rules import (
    Points,
    Rule,
    average,
    from_point,
    length,
    majority,
    per_slot,
)


@specified
def centred_clipping(tau: Scalar = 100.0, iterations: int = 1, f: int | None = None) -> Rule:
    r"""Mean of the uploads, clipped to a ball around the previous aggregate.

    From the previous aggregate v (0 in the first round), L times

    .. math::
        v \leftarrow v + \operatorname{mean}_i (x_i - v)
        \min\Bigl(1, \frac{\tau}{\lVert x_i - v \rVert}\Bigr)

    One upload moves the aggregate by at most :math:`\tau w_i / \sum_j w_j` per pass: f attackers
    among n by at most :math:`f \tau / n`.  This is no multiple of the distances between the honest
    uploads: a radius far above these does not protect, one far below needs many rounds to reach the
    honest mean.  The paper
    combines the rule with :func:`~fedjax_sim.wrappers.robust.worker_momentum`.  With L = 1 the
    aggregate is
    a weighted mean of transformed uploads: the clients of a round need not be in memory together,
    in chunks or on several devices.

    Args:
        tau: radius :math:`\tau`, in the units of an upload; may be traced.  The paper has
            10 / (1 - beta) for a momentum beta, 100 for beta = 0.9.
        iterations: passes L.
        f: most attackers per round; requires n > 2 f.  None: any n.

    Raises:
        ValueError: a ``tau`` that is not positive, fewer than 1 iteration, a negative f.

    References:
        Karimireddy et al., 2021, Algorithm 2.

    Example:
        >>> import fedjax_sim as fs
        >>> momentum = fs.robust.worker_momentum(fs.fedavg(0.1), beta=0.9)
        >>> algorithm = fs.robust.aggregate(momentum, centred_clipping(tau=1.0))
    """
    check_positive(tau=tau)
    check_count(1, iterations=iterations)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:

        def step(v: Upload, _: None) -> tuple[Upload, None]:
            factors = _factor(from_point(points, v))

            def change(x: Array, v: Array) -> Array:
                return jnp.where(per_slot(points.finite, x), per_slot(factors, x) * (x - v), 0)

            changes = jax.tree.map(change, points.x, v)
            return tree.add(v, average(points.finite_weights, changes)), None

        return jax.lax.scan(step, previous, None, length=iterations)[0]

    def change(previous: Upload, upload: Upload) -> Upload:
        difference = tree.sub(upload, previous)
        return tree.scale(_factor(length(difference)), difference)

    def _factor(distance: Array) -> Array:
        radius = jnp.asarray(tau, distance.dtype)
        return jnp.where(distance > radius, radius / jnp.where(distance > 0, distance, 1), 1)

    return Rule(
        f"centred_clipping(iterations={iterations})",
        aggregate,
        majority(f),
        f,
        weighted=True,
        change=change if iterations == 1 else None,
        remembers=True,
    )
