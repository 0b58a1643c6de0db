r"""Pre-aggregation: nearest-neighbour mixing and bucketing, in front of a rule.

References:
    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by Mixing: A Recipe for Optimal
        Byzantine ML under Heterogeneity", 2023, https://arxiv.org/abs/2302.01772.
    Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
        2022, https://arxiv.org/abs/2006.09365.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.types import PyTree, Upload, specified
from fedjax_sim.wrappers.robust.rules import (
    Points,
    Rule,
    check_f,
    check_rule,
    majority,
    mixed,
    per_slot,
    ranks,
    shares,
    squared_distances,
)


@specified
def nnm(rule: Rule, f: int | None = None) -> Rule:
    """Nearest-neighbour mixing: a rule receives the means of neighbours instead of the uploads.

    Every upload is replaced by the mean of its n - f nearest uploads, itself included.  Uploads
    that are not finite stay so.

    Args:
        rule: the rule that receives the means.
        f: most attackers per round; requires n > 2 f.  None: the rule's.

    Raises:
        ValueError: no rule, no f in either place, or a negative one.

    References:
        Allouah et al., 2023, Algorithm 2.

    Example:
        >>> import fedjax_sim as fs
        >>> rule = nnm(fs.robust.trimmed_mean(f=3))
        >>> rule.name
        'nnm(trimmed_mean(f=3), f=3)'
    """
    check_rule(rule)
    f = rule.f if f is None else f
    if f is None:
        raise ValueError(f"f is None; expected a number of attackers, since {rule.name} has none")
    kept = f = check_f(f)

    def neighbour_means(points: Points) -> Points:
        count = jnp.maximum(points.n - kept, 1)
        near = ranks(squared_distances(points), points.arrived) < count
        means = mixed(shares(near, count), points.x)
        finite = jax.tree.map(lambda x: jnp.where(per_slot(points.finite, x), x, 0), means)
        return points._replace(x=finite)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        return rule.aggregate(neighbour_means(points), previous, key)

    return rule._replace(
        name=f"nnm({rule.name}, f={f})",
        aggregate=aggregate,
        smallest=max(rule.smallest, majority(f)),
        f=f if rule.f is None else min(f, rule.f),
        weighted=False,
        distances=True,
        change=None,
    )


@specified
def bucketing(rule: Rule, size: int = 2) -> Rule:
    """Bucketing: a rule receives the weighted means of random buckets instead of the uploads.

    The n uploads, in random order, are divided into buckets of ``size``; the last one may be
    shorter.  The rule counts the buckets: with f attackers up to f of the ceil(n / size) buckets
    are attackers'.  Weights count within buckets.  The order depends on the round and the clients
    only.  A non-finite upload counts in its bucket with weight 0.

    Args:
        rule: the rule that receives the means.
        size: uploads per bucket.

    Raises:
        ValueError: no rule, or a size below 1.

    References:
        Karimireddy et al., 2022, Algorithm 1.

    Example:
        >>> import fedjax_sim as fs
        >>> rule = bucketing(fs.robust.krum(f=2))
        >>> rule.name, rule.smallest
        ('bucketing(krum(f=2), size=2)', 13)
    """
    check_rule(rule)
    check_count(1, size=size)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        order_key, rule_key = jax.random.split(key)

        def draw(client: Array) -> Array:
            return jax.random.bits(jax.random.fold_in(order_key, client))

        # 32 bits: ties are rare, and broken by slot.
        order = jnp.argsort(jax.vmap(draw)(points.clients), stable=True)
        return rule.aggregate(buckets(points, order, size), previous, rule_key)

    return rule._replace(
        name=f"bucketing({rule.name}, size={size})",
        aggregate=aggregate,
        smallest=(rule.smallest - 1) * size + 1,
        weighted=True,
        change=None,
    )


def buckets(points: Points, order: Array, size: int) -> Points:
    """Returns the weighted means of consecutive uploads, in the order of given slots."""
    slots = order.shape[0]
    number = -(-slots // size)
    arrived = points.arrived[order]
    place = jnp.cumsum(arrived) - 1  # among the uploads
    bucket = jnp.zeros(slots, place.dtype).at[order].set(jnp.where(arrived, place // size, number))
    inside = bucket == jnp.arange(number)[:, None]  # [buckets, S]
    weights = jnp.where(inside, points.finite_weights, 0)
    total = weights.sum(1)
    weights = weights / jnp.where(total > 0, total, 1)[:, None]
    return Points(
        x=mixed(weights, points.x),
        weights=None,
        arrived=inside.any(1),
        finite=total > 0,
        clients=jnp.arange(number),
    )
