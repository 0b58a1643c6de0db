r"""Rules that select uploads by their distances: Krum, Multi-Krum and Bulyan.

References:
    Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
        Gradient Descent", 2017.
    El Mhamdi, Guerraoui, Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium",
        2018, https://arxiv.org/abs/1802.07927.
"""

from __future__ import annotations

import numbers
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.types import PyTree, Upload, specified
from fedjax_sim.wrappers.robust.coordinates import middle
from fedjax_sim.wrappers.robust.rules import (
    Points,
    Rule,
    ascending,
    check_f,
    mean_over,
    per_slot,
    ranks,
    shares,
    squared_distances,
    weighted_sum,
)


@specified
def krum(f: int) -> Rule:
    r"""Upload with the smallest sum of squared distances from its n - f - 2 nearest others.

    .. math:: s_i = \sum_{j \in N_i} \lVert x_i - x_j \rVert^2

    Args:
        f: most attackers per round; requires n > 2 f + 2.

    Raises:
        ValueError: a negative f.

    References:
        Blanchard et al., 2017, section 4.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), krum(f=2))
    """
    f = check_f(f)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        scores = krum_scores(squared_distances(points), points.n - f - 2)
        best = jnp.argmin(ranks(scores, points.arrived))
        return jax.tree.map(lambda x: x[best], points.x)

    return Rule(f"krum(f={f})", aggregate, 2 * f + 3, f, distances=True)


@specified
def multi_krum(f: int, m: int | Literal["n-f-2", "n-f"] = "n-f-2") -> Rule:
    """Mean of the m uploads with the smallest scores of :func:`krum`.

    Args:
        f: most attackers per round; requires n > 2 f + 2.
        m: number of uploads, at most n - f, or one of these expressions; the paper has n - f - 2.

    Raises:
        ValueError: a negative f, an m below 1 or another text.

    References:
        Blanchard et al., 2017, section 5.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), multi_krum(f=2, m=8))
    """
    f = check_f(f)
    whole = isinstance(m, numbers.Integral) and not isinstance(m, (bool, str))
    if m not in ("n-f-2", "n-f") and not (whole and int(m) >= 1):
        raise ValueError(f"m is {m!r}; expected an integer of at least 1, 'n-f-2' or 'n-f'")

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        n = points.n
        scores = krum_scores(squared_distances(points), n - f - 2)
        counts = {"n-f-2": n - f - 2, "n-f": n - f}
        count = jnp.maximum(counts[m] if isinstance(m, str) else m, 1)
        return weighted_sum(shares(ranks(scores, points.arrived) < count, count), points.x)

    smallest = 2 * f + 3 if isinstance(m, str) else max(2 * f + 3, int(m) + f)
    return Rule(f"multi_krum(f={f}, m={m})", aggregate, smallest, f, distances=True)


@specified
def bulyan(f: int) -> Rule:
    r"""Bulyan: a mean by coordinate of uploads that Krum selects one after the other.

    Krum selects :math:`\theta = n - 2f` uploads; each leaves the set before the next one is
    selected, with :math:`\max(n' - f - 2, 1)` neighbours among the n' that remain.  Every
    coordinate of the aggregate is the mean of the :math:`\theta - 2f` selected values that are
    nearest to their median.

    Args:
        f: most attackers per round; requires n >= 4 f + 3.

    Raises:
        ValueError: a negative f.

    References:
        El Mhamdi et al., 2018, section 4.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), bulyan(f=2))
    """
    f = check_f(f)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        n = points.n
        selected = bulyan_selection(points, f)
        theta, beta = jnp.maximum(n - 2 * f, 1), jnp.maximum(n - 4 * f, 1)

        def nearest(x: Array) -> Array:
            values = jnp.where(per_slot(selected & points.finite, x), x, jnp.inf)
            centre = middle(ascending(values), theta)
            far = jnp.where(jnp.isfinite(values), jnp.abs(x - centre), jnp.inf)
            _, ordered = jax.lax.sort((far, x), dimension=0, num_keys=1, is_stable=True)
            kept = per_slot(jnp.arange(x.shape[0]) < beta, x)
            return mean_over(jnp.where(kept, ordered, 0), beta)

        return jax.tree.map(nearest, points.x)

    return Rule(f"bulyan(f={f})", aggregate, 4 * f + 3, f, distances=True)


def krum_scores(distances: Array, neighbours: Array) -> Array:
    """Returns the sums of the squared distances ``[S, S]`` from the nearest others, ``[S]``."""
    itself = jnp.eye(distances.shape[0], dtype=bool)
    ordered = jnp.sort(jnp.where(itself, jnp.inf, distances), axis=1)
    near = jnp.arange(distances.shape[0]) < neighbours
    scores = jnp.where(near, ordered, 0).sum(1)
    return jnp.where(jnp.isfinite(jnp.diagonal(distances)), scores, jnp.inf)


def bulyan_selection(points: Points, f: int) -> Array:
    """Returns the n - 2 f slots that Bulyan selects, ``[S]`` bool."""
    n, slots = points.n, points.arrived.shape[0]
    distances = squared_distances(points)

    def select(count: int, selected: Array) -> Array:
        left = points.arrived & ~selected
        among = jnp.where(left[:, None] & left, distances, jnp.inf)
        scores = krum_scores(among, jnp.maximum(n - count - f - 2, 1))
        best = jnp.arange(slots) == jnp.argmin(ranks(scores, left))
        return selected | (best & (count < n - 2 * f))

    return jax.lax.fori_loop(0, max(slots - 2 * f, 0), select, jnp.zeros(slots, bool))
