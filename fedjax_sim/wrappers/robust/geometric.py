r"""Geometric median by the smoothed Weiszfeld algorithm: from the median, and from the mean (RFA).

References:
    Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", 2022,
        https://arxiv.org/abs/1912.13445.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count, check_positive
from fedjax_sim.types import PyTree, Scalar, Upload, specified
from fedjax_sim.wrappers.robust.coordinates import coordinate_median
from fedjax_sim.wrappers.robust.rules import Points, Rule, average, from_point, majority


@specified
def geometric_median(iterations: int = 32, nu: Scalar = 1e-5, f: int | None = None) -> Rule:
    r"""Point with the smallest mean distance from the uploads, approximately.

    From the median z of every coordinate, R times

    .. math::
        \beta_i = \frac{w_i}{\max(\nu, \lVert x_i - z \rVert)}, \qquad
        z \leftarrow \frac{\sum_i \beta_i x_i}{\sum_i \beta_i}

    The start is near the honest uploads however far the others are.  Up to the smoothing, which
    adds at most :math:`\nu n / (n - 2 f)`, the distance from the mean of the n - f honest uploads
    is at most :math:`2 (n - f) / (n - 2 f)` times their root mean squared distance from it.
    Distances far below nu do not count: uploads that all lie within nu are averaged.  From about
    ten uploads on, 32 passes are within 1e-4 of the limit for honest distances of about 1; with
    five the limit may be one of them, where passes are slow, and the error is a few hundredths.

    Args:
        iterations: passes R.
        nu: smoothing :math:`\nu`, a distance; may be traced.
        f: most attackers per round; requires n > 2 f.  None: any n; less than half of the total
            weight may be the attackers'.

    Raises:
        ValueError: fewer than 0 iterations, a ``nu`` that is not positive, a negative f.

    References:
        Pillutla et al., 2022, Algorithm 2, with another start.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), geometric_median())
    """
    return _weiszfeld("geometric_median", coordinate_median, iterations, nu, f)


@specified
def rfa(iterations: int = 4, nu: Scalar = 1e-5, f: int | None = None) -> Rule:
    r"""RFA: the passes of :func:`geometric_median` from the weighted mean.

    A pass reduces the error that far uploads cause by a factor of about f / (n - f) only, so with R
    passes the aggregate grows with their norm: the rule bounds no error.

    Args:
        iterations: passes R; the default is that of the authors' program.
        nu, f: as for :func:`geometric_median`.

    Raises:
        ValueError: as :func:`geometric_median`.

    References:
        Pillutla et al., 2022, Algorithm 2.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), rfa())
    """

    def start(points: Points) -> Upload:
        return average(points.finite_weights, points.x)

    return _weiszfeld("rfa", start, iterations, nu, f)


def _weiszfeld(
    name: str, start: Callable[[Points], Upload], iterations: int, nu: Scalar, f: int | None
) -> Rule:
    """Rule of a number of passes from a start."""
    check_count(iterations=iterations)
    check_positive(nu=nu)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        weights = points.finite_weights

        def step(z: Upload, _: None) -> tuple[Upload, None]:
            distances = from_point(points, z)
            return average(
                weights / jnp.maximum(distances, jnp.asarray(nu, weights.dtype)), points.x
            ), None

        return jax.lax.scan(step, start(points), None, length=iterations)[0]

    return Rule(f"{name}(iterations={iterations})", aggregate, majority(f), f, weighted=True)
