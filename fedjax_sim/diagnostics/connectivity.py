r"""Loss along segments between models, and barriers: linear mode connectivity.

J. Frankle, G. K. Dziugaite, D. M. Roy, M. Carbin, "Linear mode connectivity and the lottery ticket
hypothesis", ICML 2020 (https://arxiv.org/abs/1912.05671).  R. Entezari, H. Sedghi, O. Saukh, B.
Neyshabur, "The role of permutation invariance in linear mode connectivity of neural networks",
ICLR 2022 (https://arxiv.org/abs/2110.06296).

The models may be those of clients (:func:`~fedjax_sim.diagnostics.client_updates.client_models`),
of seeds or of algorithms.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.checks import check_count, seeded
from fedjax_sim.diagnostics.surfaces import scalars
from fedjax_sim.types import Params, PyTree, shown


@shown
class Segments(NamedTuple):
    """Values of a loss at K points on each of P segments from ``x`` to ``y``."""

    pairs: np.ndarray  # [P, 2] numbers of the models x and y; -1 is the mean of the models
    shares: Array  # [K] t of the points (1 - t) x + t y, from 0 to 1
    values: PyTree  # [P, K] for every output of the loss

    @property
    def barriers(self) -> PyTree:
        r"""Barriers ``[P]``, largest values above the linear interpolation (Entezari et al.).

        .. math:: \max_t F((1 - t) x + t y) - (1 - t) F(x) - t F(y)

        They are never negative, since the ends count.  For an accuracy take its negative as the
        loss.
        """
        t = self.shares
        return jax.tree.map(lambda v: (v - (1 - t) * v[:, :1] - t * v[:, -1:]).max(1), self.values)

    @property
    def heights(self) -> PyTree:
        r"""Error barrier heights ``[P]``: largest values above the mean of both ends.

        .. math:: \max_t F((1 - t) x + t y) - \tfrac12 (F(x) + F(y))

        Frankle et al. call models linearly connected if the height of the test error is below 2 %.
        """
        return jax.tree.map(lambda v: v.max(1) - (v[:, 0] + v[:, -1]) / 2, self.values)


def segments(
    loss: Callable[[Params], PyTree],
    models: Params,
    pairs: Sequence[tuple[int, int]] | np.ndarray | None = None,
    *,
    points: int = 11,
    chunk: int = 8,
) -> Segments:
    """Returns the loss along the segments between pairs of n models, as one compiled program.

    The loss of every model is evaluated once, and ``points - 2`` times per pair.  The memory is
    that of ``chunk`` models besides the n models.

    Args:
        loss: ``params -> scalar``, or to a pytree of scalars.  Pass a loss with data as a
            ``jax.tree_util.Partial``, such as an evaluator; its data are then arguments of the
            program.
        models: leaves ``[n, ...]``.
        pairs: numbers of models; -1 is the mean of the n models.  Default: all pairs.  See
            :func:`random_pairs` and :func:`to_mean`.
        points: K, with both ends.
        chunk: points that are evaluated at once.

    Raises:
        ValueError: fewer than three points, leaves without a common leading axis, a pair of other
            numbers, no pairs, a loss that is no scalar.

    Example:
        >>> double_well = lambda x: (x**2 - 1) ** 2
        >>> result = segments(double_well, jnp.array([-1.0, 1.0, 3.0]), points=5)
        >>> result.pairs.tolist(), result.values[0].tolist()
        ([[0, 1], [0, 2], [1, 2]], [0.0, 0.5625, 1.0, 0.5625, 0.0])
        >>> result.barriers.tolist()  # between the wells and uphill
        [1.0, 0.0, 0.0]
    """
    check_count(3, points=points)
    check_count(1, chunk=chunk)
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(models)]
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
        raise ValueError(f"models has leaves of shapes {shapes[:3]}; expected [n, ...] with one n")
    count = shapes[0][0]
    chosen = np.array(list(itertools.combinations(range(count), 2)) if pairs is None else pairs)
    valid = chosen.ndim == 2 and chosen.shape[1] == 2 and len(chosen) > 0
    valid = valid and chosen.dtype.kind in "iu"
    if not valid or chosen.min() < -1 or chosen.max() >= count:
        raise ValueError(
            f"pairs is {chosen.tolist()}; expected pairs of numbers from -1 to {count - 1}"
        )
    loss = loss if isinstance(loss, Partial) else Partial(loss)
    shares = jnp.linspace(0, 1, points, dtype=jnp.result_type(float))
    numbers = jnp.asarray(np.where(chosen < 0, count, chosen), jnp.int32)
    values = _values(loss, models, numbers, shares, chunk)
    return Segments(chosen, shares, values)


def random_pairs(num_models: int, count: int, seed: int = 0) -> np.ndarray:
    """Returns ``count`` different pairs of models, drawn uniformly; all if there are fewer.

    Raises:
        ValueError: fewer than two models, or a count below 1.

    Example:
        >>> random_pairs(1000, 3).shape, random_pairs(3, 10).tolist()
        ((3, 2), [[0, 1], [0, 2], [1, 2]])
    """
    check_count(2, num_models=num_models)
    check_count(1, count=count)
    total = num_models * (num_models - 1) // 2
    numbers = seeded(seed).choice(total, min(count, total), replace=False)
    # Pair number k is (i, j) with i < j and k = j (j - 1) / 2 + i.
    j = np.floor((1 + np.sqrt(1 + 8 * np.sort(numbers))) / 2).astype(int)
    i = np.sort(numbers) - j * (j - 1) // 2
    pairs = np.stack([i, j], axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def to_mean(num_models: int) -> np.ndarray:
    """Returns the pairs of every model and the mean of the models.

    Example:
        >>> to_mean(2).tolist()
        [[0, -1], [1, -1]]
    """
    return np.stack([np.arange(num_models), np.full(num_models, -1)], axis=1)


@functools.partial(jax.jit, static_argnames="chunk")
def _values(loss: Partial, models: Params, pairs: Array, shares: Array, chunk: int) -> PyTree:
    def with_mean(x: Array) -> Array:
        return jnp.concatenate([x, x.mean(axis=0, keepdims=True)])

    models = jax.tree.map(with_mean, models)

    def between(point: tuple[Array, Array]) -> PyTree:
        pair, share = point
        x, y = tree.take(models, pair[0]), tree.take(models, pair[1])
        return scalars(loss, tree.add_scale(tree.scale(1 - share, x), share, y))

    inner = shares[1:-1]
    points = jnp.repeat(pairs, len(inner), axis=0), jnp.tile(inner, len(pairs))
    ends = jax.lax.map(functools.partial(scalars, loss), models, batch_size=chunk)
    middle = jax.lax.map(between, points, batch_size=chunk)

    def joined(ends: Array, middle: Array) -> Array:
        first, last = ends[pairs[:, 0], None], ends[pairs[:, 1], None]
        return jnp.concatenate([first, middle.reshape(len(pairs), -1), last], axis=1)

    return jax.tree.map(joined, ends, middle)
