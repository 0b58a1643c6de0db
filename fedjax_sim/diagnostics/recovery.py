r"""How much of a known sparse or low-rank truth a model has recovered.

Functions of arrays that work under ``jit`` and ``vmap``.  An entry, or a singular value, counts as
zero if its size is at most a cutoff: averages of sparse models are small rather than zero, so
that densities and ranks depend on it.  What is not a number counts as zero, too.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.prox.base import like
from fedjax_sim.types import Scalar

CUTOFF = 1e-2


class SupportScores(NamedTuple):
    """How well a support is found; each in [0, 1], 1 is perfect."""

    precision: Array  # share of what was found that is true
    recall: Array  # share of what is true that was found
    f1: Array  # their harmonic mean


def support(x: Array, cutoff: Scalar = CUTOFF) -> Array:
    r"""Where ``|x| > cutoff``: bool, of the shape of x.

    Example:
        >>> support(jnp.array([0.5, -0.02, 0.01, 0.0])).tolist()
        [True, True, False, False]
    """
    return jnp.abs(x) > like(x, cutoff)


def density(x: Array, cutoff: Scalar = CUTOFF) -> Array:
    """The share of entries that are not zero.

    Example:
        >>> float(density(jnp.array([0.5, -0.02, 0.01, 0.0])))
        0.5
    """
    return jnp.mean(support(x, cutoff), dtype=x.dtype)


def support_scores(x: Array, truth: Array, cutoff: Scalar = CUTOFF) -> SupportScores:
    r"""Precision, recall and F1 of the support of x against that of the truth.

    With :math:`S` and :math:`S^*` the supports:

    .. math:: p = |S \cap S^*| / |S|, \qquad r = |S \cap S^*| / |S^*|, \qquad
        F_1 = 2 |S \cap S^*| / (|S| + |S^*|)

    If both are empty all three are 1; if one of them is, all are 0.

    Args:
        x: any shape, of which all entries are counted.
        truth: the same shape; its support is where it is not 0, also if it is bool.

    Raises:
        ValueError: different shapes.

    Example:
        >>> scores = support_scores(jnp.array([2.0, 0.3, 0.0, 0.1]), jnp.array([1, 0, 1, 1]))
        >>> [round(float(score), 4) for score in scores]
        [0.6667, 0.6667, 0.6667]
    """
    if x.shape != jnp.shape(truth):
        raise ValueError(f"truth has shape {jnp.shape(truth)}; expected that of x, {x.shape}")
    found, true = support(x, cutoff), jnp.asarray(truth).astype(bool)
    counts = (jnp.sum(where, dtype=x.dtype) for where in (found & true, found, true))
    hits, num_found, num_true = counts
    neither = num_found + num_true == 0

    def share(of: Array, among: Array) -> Array:
        return jnp.where(neither, 1, of / jnp.where(among > 0, among, 1)).astype(x.dtype)

    return SupportScores(
        share(hits, num_found), share(hits, num_true), share(2 * hits, num_found + num_true)
    )


def numerical_rank(x: Array, cutoff: Scalar = CUTOFF) -> Array:
    """How many singular values of the matrices ``[..., m, n]`` exceed the cutoff: int ``[...]``.

    Raises:
        ValueError: fewer than two axes.

    Example:
        >>> int(numerical_rank(jnp.diag(jnp.array([3.0, 0.02, 0.005]))))
        2
    """
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; expected a matrix")
    values = jnp.linalg.svd(x, compute_uv=False)
    return jnp.sum(values > like(values, cutoff), axis=-1, dtype=jnp.int32)


def recovery_error(x: Array, truth: Array) -> Array:
    r"""The distance :math:`\|x - x^*\|_2`; of matrices the Frobenius norm.

    Raises:
        ValueError: different shapes.

    Example:
        >>> float(recovery_error(jnp.array([[3.0, 1.0], [0.0, 5.0]]), jnp.eye(2)))
        4.582575798034668
    """
    if x.shape != jnp.shape(truth):
        raise ValueError(f"truth has shape {jnp.shape(truth)}; expected that of x, {x.shape}")
    return jnp.linalg.norm((x - jnp.asarray(truth).astype(x.dtype)).ravel())
