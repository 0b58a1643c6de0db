r"""Rules by coordinate: median and trimmed mean.

References:
    Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates", 2018, https://arxiv.org/abs/1803.01498.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.types import PyTree, Upload, specified
from fedjax_sim.wrappers.robust.rules import (
    Points,
    Rule,
    ascending,
    average,
    check_f,
    majority,
    mean_over,
    per_slot,
)


@specified
def mean() -> Rule:
    """Weighted mean of the finite uploads, which one attacker moves without limit.

    For comparisons.  It stays so behind :func:`~fedjax_sim.wrappers.robust.nnm` and
    :func:`~fedjax_sim.wrappers.robust.bucketing`, which return the attackers' means, too.

    Example:
        >>> mean().weighted
        True
    """

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        return average(points.finite_weights, points.x)

    return Rule("mean()", aggregate, weighted=True)


@specified
def median(f: int | None = None) -> Rule:
    r"""Median of every coordinate.

    The mean of the two middle values if n is even.  With weights it is the smallest value whose
    cumulated weight reaches half of the total, or the mean of this and the next value if it is
    exactly half.

    Args:
        f: most attackers per round; requires n > 2 f.  None: any n.

    Raises:
        ValueError: a negative f.

    References:
        Yin et al., 2018, Algorithm 1, option I.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), median(f=2))
    """

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        return coordinate_median(points)

    return Rule(_named("median", f), aggregate, majority(f), f, weighted=True)


def coordinate_median(points: Points) -> Upload:
    """Returns the median of every coordinate, with the weights of uploads if there are some."""
    if points.weights is None:
        return jax.tree.map(lambda x: middle(_ordered(x, points), points.n), points.x)
    # Sums of ones are exact, and exactly half is a case of its own.
    weights = jnp.where(points.arrived, points.weights, 0)
    equal = ((weights == weights.max()) | (weights == 0)).all()
    weights = jnp.where(equal & (weights > 0), 1, weights)
    return jax.tree.map(lambda x: _weighted_median(x, weights, points), points.x)


@specified
def trimmed_mean(f: int) -> Rule:
    r"""Mean of every coordinate without its f smallest and f largest values.

    Args:
        f: most attackers per round; requires n > 2 f.

    Raises:
        ValueError: a negative f.

    References:
        Yin et al., 2018, Algorithm 1, option II.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), trimmed_mean(f=2))
    """
    f = check_f(f)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        place = jnp.arange(points.arrived.shape[0])
        kept = (place >= f) & (place < points.n - f)
        count = jnp.maximum(points.n - 2 * f, 1)

        def trimmed(x: Array) -> Array:
            ordered = _ordered(x, points)
            inside = per_slot(kept, x) & jnp.isfinite(ordered)
            return mean_over(jnp.where(inside, ordered, 0), count)

        return jax.tree.map(trimmed, points.x)

    return Rule(f"trimmed_mean(f={f})", aggregate, majority(f), f)


def _named(name: str, f: int | None) -> str:
    return f"{name}()" if f is None else f"{name}(f={f})"


def _ordered(x: Array, points: Points) -> Array:
    """Returns the values of every coordinate in ascending order; those not finite come last."""
    return ascending(jnp.where(per_slot(points.finite, x), x, jnp.inf))


def _finite_or_zero(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, 0)


def middle(ordered: Array, n: Array) -> Array:
    """Returns the median of the first n of ordered rows; infinite values enter as 0."""
    n = jnp.maximum(n, 1)
    lower, upper = ordered[(n - 1) // 2], ordered[n // 2]
    # Halves first: the sum of two large values may overflow.
    return _finite_or_zero(lower) / 2 + _finite_or_zero(upper) / 2


def _weighted_median(x: Array, weights: Array, points: Points) -> Array:
    x = jnp.where(per_slot(points.finite, x), x, jnp.inf)
    each = jnp.broadcast_to(weights.reshape(weights.shape + (1,) * (x.ndim - 1)), x.shape)
    ordered, each = jax.lax.sort((x, each), dimension=0, num_keys=1, is_stable=True)
    until = jnp.cumsum(each, axis=0)
    half = until[-1] / 2

    def first(reached: Array) -> Array:
        place = jnp.argmax(reached, axis=0)[None]
        return _finite_or_zero(jnp.take_along_axis(ordered, place, axis=0)[0])

    return first(until >= half) / 2 + first(until > half) / 2
