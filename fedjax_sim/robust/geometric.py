r"""Geometric median by the smoothed Weiszfeld algorithm (RFA).

References:
    Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", 2022,
        https://arxiv.org/abs/1912.13445.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count, check_positive
from fedjax_sim.robust.rules import Points, Rule, average, from_point, majority
from fedjax_sim.types import PyTree, Scalar, Upload


def geometric_median(iterations: int = 4, nu: Scalar = 1e-5, f: int | None = None) -> Rule:
    r"""Point with the smallest mean distance from the uploads, approximately.

    From the weighted mean z, R times

    .. math::
        \beta_i = \frac{w_i}{\max(\nu, \lVert x_i - z \rVert)}, \qquad
        z \leftarrow \frac{\sum_i \beta_i x_i}{\sum_i \beta_i}

    A pass reduces the error that far uploads cause by a factor of about f / (n - f) only, so with R
    passes the aggregate grows with their norm.  Against large uploads raise R.

    Args:
        iterations: passes R; the default is that of the authors' program.
        nu: smoothing :math:`\nu`, a distance; may be traced.
        f: most attackers per round; requires n > 2 f.  None: any n; less than half of the total
            weight may be the attackers'.

    Raises:
        ValueError: fewer than 0 iterations, a ``nu`` that is not positive, a negative f.

    References:
        Pillutla et al., 2022, Algorithm 2.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.robust.aggregate(fs.fedavg(0.1), geometric_median())
    """
    check_count(iterations=iterations)
    check_positive(nu=nu)

    def aggregate(points: Points, previous: PyTree, key: Array) -> Upload:
        del previous, key
        weights = points.finite_weights

        def step(z: Upload, _: None) -> tuple[Upload, None]:
            distances = from_point(points, z)
            return average(
                weights / jnp.maximum(distances, jnp.asarray(nu, weights.dtype)), points.x
            ), None

        return jax.lax.scan(step, average(weights, points.x), None, length=iterations)[0]

    name = f"geometric_median(iterations={iterations})"
    return Rule(name, aggregate, majority(f), f, weighted=True)
