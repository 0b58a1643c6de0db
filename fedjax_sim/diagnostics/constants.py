"""Measurement of the constants of convergence bounds on a task."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.diagnostics.gradient_moments import Moments
from fedjax_sim.diagnostics.heterogeneity import check_points, heterogeneity
from fedjax_sim.diagnostics.optimum import Optimum, double
from fedjax_sim.diagnostics.smoothness import Curvature, curvature, hessian_lipschitz
from fedjax_sim.engine import Execution
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import Params, PyTree, Task


def measure(
    task: Task,
    points: Params,
    key: Array,
    *,
    moments: Moments | None = None,
    found: Optimum | None = None,
    loss: Partial | None = None,
    bent: Curvature | None = None,
    iterations: int = 30,
    execution: Execution | None = None,
) -> ProblemConstants:
    r"""Constants of a task, measured at models that a run visited; the first one is its start.

    L, Q, G, sigma, zeta are maxima over points and clients, L of the Hessians' norms.  They are
    lower estimates of the suprema that theorems require, so bounds that use them hold along the
    trajectory at best ("trajectory constants").  mu is the smallest eigenvalue of F's Hessian at
    the points: an upper estimate, 0 where it is within rounding of 0, and unknown where F is not
    convex at some point.  Where bounds that hold everywhere are known
    (:mod:`fedjax_sim.diagnostics.linear_models`), insert them with ``_replace``.

    Args:
        task: the clients' objectives; F is their mean.
        points: models, leaves ``[P, ...]``, the first x_0.
        key: for the initial vectors of Lanczos and of the power method.
        moments: moments of the gradients' noise, from
            :func:`~fedjax_sim.diagnostics.gradient_moments.batch_moments` or ``sampled_moments``;
            without them sigma, sigma4 and G are unknown.
        found: the optimum of F; without it zeta_star and B are unknown.
        loss: F, for Delta.
        bent: curvature at the points, if the caller has it.
        iterations: number of iterations of Lanczos and of the power method.
        execution: strategy that executes the clients; default
            :func:`~fedjax_sim.engine.execution.strategies.auto` on one device.

    Raises:
        ValueError: as :func:`fedjax_sim.diagnostics.smoothness.curvature`.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> measure(task, jnp.array([0.0, 1.0]), jax.random.key(0)).known
        {'L': 1.0, 'mu': 1.0, 'Q': 0.0, 'zeta': 1.0, 'zeta_mean': 1.0}
    """
    points = check_points(task, points)
    eigen_key, power_key, oracle_key = jax.random.split(key, 3)
    if bent is None:
        bent = curvature(task, points, eigen_key, iterations=iterations, execution=execution)
    third = hessian_lipschitz(task, points, power_key, iterations=iterations, execution=execution)
    spread = heterogeneity(task, points, oracle_key, execution=execution)
    constants = ProblemConstants(
        L=bent.norm,
        mu=_convexity(np.asarray(bent.total.smallest), bent.norm),
        Q=float(np.max(third)),
        zeta=spread.zeta,
        zeta_mean=spread.mean_zeta,
    )
    if moments is not None:
        constants = constants._replace(
            sigma=moments.sigma, sigma4=moments.sigma4, G=float(np.max(moments.largest))
        )
    if found is None:
        return constants
    start = jax.tree.map(lambda x: np.asarray(x[0], np.float64), points)
    at_optimum = jax.tree.map(
        lambda x, like: jnp.asarray(x, like.dtype)[None], found.params, points
    )
    constants = constants._replace(
        B=distance(start, found.params),
        zeta_star=heterogeneity(task, at_optimum, oracle_key, execution=execution).mean_norm,
    )
    if loss is None:
        return constants
    return constants._replace(Delta=suboptimality(loss, start, found))


def distance(x: PyTree, y: PyTree) -> float:
    """``||x - y||`` in double precision.

    Example:
        >>> distance({"w": np.array([3.0, 0.0])}, {"w": np.array([0.0, 4.0])})
        5.0
    """
    squares = jax.tree.map(
        lambda a, b: float(np.sum((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2)),
        x,
        y,
    )
    return math.sqrt(sum(jax.tree.leaves(squares)))


def suboptimality(loss: Partial, params: Params, found: Optimum) -> float:
    """``F(x) - F*`` in double precision, because both values are almost equal near the optimum.

    Example:
        >>> loss = Partial(lambda c, x: jnp.sum((x - c) ** 2), np.ones(2))
        >>> suboptimality(loss, np.zeros(2), Optimum(np.ones(2), 0.0, 0.0, 1))
        2.0
    """
    with jax.enable_x64(True):
        return float(double(loss)(double(params))) - found.value


def _convexity(smallest: np.ndarray, norm: float) -> float | None:
    """The smallest eigenvalue; 0 within rounding of 0, None if it is negative, NaN if it is NaN."""
    rounding = 100 * float(jnp.finfo(smallest.dtype).eps) * norm
    eigenvalue = float(smallest.min())
    if eigenvalue < -rounding:
        return None
    return 0.0 if eigenvalue <= rounding else eigenvalue
