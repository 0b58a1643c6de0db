r"""Scores for the recovery of known sparse or low-rank weights.

The functions take arrays and work under ``jit`` and ``vmap``. An entry or a singular value counts
as zero if its magnitude is at most a cutoff: averages of sparse models have small entries instead
of zeros, so densities and ranks depend on the cutoff. NaN counts as zero, too.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from fedjax_sim import tree
from fedjax_sim.prox import like
from fedjax_sim.tree import singular_values
from fedjax_sim.types import Scalar, shown

CUTOFF = 1e-2


@shown
class SupportScores(NamedTuple):
    """Scores of a support, in [0, 1]; 1 is perfect."""

    precision: Array  # share of the support that is in the true support
    recall: Array  # share of the true support that is in the support
    f1: Array  # their harmonic mean


def support(x: Array, cutoff: Scalar = CUTOFF) -> Array:
    r"""``|x| > cutoff``, a bool per entry.

    Example:
        >>> support(jnp.array([0.5, -0.02, 0.01, 0.0])).tolist()
        [True, True, False, False]
    """
    return jnp.abs(x) > like(x, cutoff)


def density(x: Array, cutoff: Scalar = CUTOFF) -> Array:
    """Share of the entries that are not zero.

    Example:
        >>> float(density(jnp.array([0.5, -0.02, 0.01, 0.0])))
        0.5
    """
    return jnp.mean(support(x, cutoff), dtype=jnp.result_type(float)).astype(_scores_of(x))


def support_scores(x: Array, truth: Array, cutoff: Scalar = CUTOFF) -> SupportScores:
    r"""Precision, recall and F1 of the support S of x, given the true support :math:`S^*`.

    .. math:: p = |S \cap S^*| / |S|, \qquad r = |S \cap S^*| / |S^*|, \qquad
        F_1 = 2 |S \cap S^*| / (|S| + |S^*|)

    If both supports are empty, all scores are 1; if one support is empty, all are 0.

    Args:
        x: any shape.
        truth: the same shape; its support consists of the entries other than 0 or False.

    Raises:
        ValueError: different shapes.

    Example:
        >>> scores = support_scores(jnp.array([2.0, 0.3, 0.0, 0.1]), jnp.array([1, 0, 1, 1]))
        >>> [round(float(score), 4) for score in scores]
        [0.6667, 0.6667, 0.6667]
    """
    if x.shape != jnp.shape(truth):
        raise ValueError(f"truth has shape {jnp.shape(truth)}; expected {x.shape}, the shape of x")
    predicted, true = support(x, cutoff), jnp.asarray(truth).astype(bool)
    # Counts leave the range of half precision.
    full = jnp.result_type(float)
    counts = (jnp.sum(where, dtype=full) for where in (predicted & true, predicted, true))
    hits, num_predicted, num_true = counts
    both_empty = num_predicted + num_true == 0

    def share(part: Array, whole: Array) -> Array:
        score = jnp.where(both_empty, 1, part / jnp.where(whole > 0, whole, 1))
        return score.astype(_scores_of(x))

    return SupportScores(
        share(hits, num_predicted), share(hits, num_true), share(2 * hits, num_predicted + num_true)
    )


def _scores_of(x: Array) -> DTypeLike:
    """Type of scores: that of a floating x, else that of the run."""
    return x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)


def numerical_rank(x: Array, cutoff: Scalar = CUTOFF) -> Array:
    """Number of singular values above the cutoff, for matrices ``[..., m, n]``: int ``[...]``.

    Raises:
        ValueError: fewer than two axes.

    Example:
        >>> int(numerical_rank(jnp.diag(jnp.array([3.0, 0.02, 0.005]))))
        2
    """
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; expected a matrix")
    values = singular_values(tree.wide(x))
    return jnp.sum(values > like(values, cutoff), axis=-1, dtype=jnp.int32)


def recovery_error(x: Array, truth: Array) -> Array:
    r"""The distance :math:`\|x - x^*\|_2`, in at least float32; for matrices the Frobenius norm.

    Raises:
        ValueError: different shapes.

    Example:
        >>> float(recovery_error(jnp.array([[3.0, 1.0], [0.0, 5.0]]), jnp.eye(2)))
        4.582575798034668
    """
    if x.shape != jnp.shape(truth):
        raise ValueError(f"truth has shape {jnp.shape(truth)}; expected {x.shape}, the shape of x")
    x = tree.wide(x.astype(_scores_of(x)))
    return jnp.linalg.norm((x - jnp.asarray(truth).astype(x.dtype)).ravel())
