"""Minimisers of smooth convex losses to machine precision, by Newton's method.

Suboptimalities ``F(x) - F*`` and distances ``||x_0 - x*||`` are only as accurate as the optimum.
About a dozen Newton steps in double precision compute it. Models with up to a few thousand
parameters use the Hessian; larger models use conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from fedjax_sim.checks import check_count, check_positive
from fedjax_sim.data import FederatedData, Objective
from fedjax_sim.diagnostics.generalization import metric
from fedjax_sim.diagnostics.sharpness import check_no_statistics, hessian_product
from fedjax_sim.engine import evaluator
from fedjax_sim.objectives import statistics_of
from fedjax_sim.types import Params, PyTree, shown

_COLUMNS = 128  # Hessian-vector products at once
_SUFFICIENT = 1e-4  # Armijo: required share of the predicted decrease
_HALVINGS = 60
_ITERATIONS = 1000  # of conjugate gradients
# Steps towards a minimum at infinity all have the same length, at least 1 / max_steps of the
# distance so far. If the minimum is attained, the last step is far shorter.
_LAST_STEP = 1e-3


@shown
class Optimum(NamedTuple):
    """A minimiser, with the norm of the gradient."""

    params: Params  # NumPy, float64
    value: float  # the loss there, F*
    gradient_norm: float
    steps: int  # Newton steps done


def optimum(
    loss: Callable[[Params], Array],
    params: Params,
    *,
    tolerance: float = 1e-12,
    max_steps: int = 50,
    max_dense: int = 2000,
) -> Optimum:
    r"""Returns the minimiser of a smooth convex loss, by damped Newton steps in double precision.

    .. math:: x \leftarrow x - t\, \nabla^2 F(x)^{+}\, \nabla F(x)

    t starts at 1 and is halved until the loss decreases by ``1e-4`` of the decrease that the
    gradient predicts (Armijo). A singular Hessian is replaced by its pseudo-inverse: if the
    minimisers form an affine set (softmax regression without l2), the result is the minimiser
    nearest to the initial model.

    Args:
        loss: ``params -> scalar``. A loss with data should be a ``jax.tree_util.Partial``, such as
            the result of :func:`mean_loss`: its floating leaves are converted to double precision,
            and equal functions are not recompiled.
        params: initial model; floating leaves.
        tolerance: largest accepted norm of the gradient.
        max_steps: largest number of Newton steps.
        max_dense: models with at most this number of parameters form and factor the Hessian; for
            larger models conjugate gradients compute the Newton steps, with a precision that
            depends on the norm of the gradient, and find negative curvature along their
            directions only.

    Raises:
        ValueError: tolerance or max_steps not positive, parameters that are not floating.
        FloatingPointError: a gradient whose norm is above the tolerance after the last step, a
            Hessian that is not positive semidefinite, a minimum that is not attained (separable
            data without l2).

    Source: Boyd and Vandenberghe (2004), Convex Optimization, Section 9.5.

    Example:
        >>> x, y = np.array([[1.0], [2.0]]), np.array([1.0, 3.0])
        >>> loss = Partial(lambda x, y, w: jnp.mean((x @ w - y) ** 2) / 2, x, y)
        >>> result = optimum(loss, jnp.zeros(1))
        >>> round(float(result.params[0]), 12), round(result.value, 12), result.steps
        (1.4, 0.05, 1)
    """
    check_positive(tolerance=tolerance)
    check_count(1, max_steps=max_steps)
    kinds = sorted({np.asarray(leaf).dtype.name for leaf in jax.tree.leaves(params)})
    if not kinds or not all(jnp.issubdtype(kind, jnp.floating) for kind in kinds):
        raise ValueError(f"params has leaves of dtypes {kinds}; expected floating leaves")
    carried = loss if isinstance(loss, Partial) else Partial(loss)
    with jax.enable_x64(True):
        carried, start = double(carried), double(params)
        flat, unravel = ravel_pytree(start)
        x = np.asarray(flat)

        newton = _dense_step if x.size <= max_dense else _conjugate_step
        done, largest = 0, 0.0
        while True:
            at = unravel(jnp.asarray(x))
            value, gradient = map(np.asarray, _value_and_gradient(carried, at))
            norm = float(np.linalg.norm(gradient))
            if not np.isfinite(value + norm):
                raise FloatingPointError(f"loss has the value {value} after {done} Newton steps")
            if norm > tolerance and done == max_steps:
                raise FloatingPointError(
                    f"loss has a gradient of norm {norm:.3g} after {done} Newton steps; expected "
                    f"at most the tolerance {tolerance:.3g}"
                )
            step, largest = newton(carried, at, gradient, largest)
            if norm <= tolerance:
                _check_attained(step, x, done)
                return Optimum(jax.tree.map(np.asarray, at), float(value), norm, done)
            along = float(gradient @ step)
            x = x + step * _length(
                lambda length, x=x, step=step: float(
                    _value(carried, unravel(jnp.asarray(x + length * step)))
                ),
                float(value),
                along,
            )
            done += 1


def mean_loss(objective: Objective, data: FederatedData, batch_size: int = 1000) -> Partial:
    r"""Mean objective of the clients: the objective of FedAvg with uniform weights.

    .. math:: F(x) = \frac{1}{M} \sum_{m=1}^M \frac{1}{n_m} \sum_{j=1}^{n_m} \ell(x; \xi_{mj})

    Clients without examples are excluded.

    Args:
        objective: see :func:`fedjax_sim.data.task.empirical_task`; without randomness.
        data: the clients' examples.
        batch_size: examples evaluated at once.

    Returns:
        ``Partial``: ``params -> scalar``.

    Raises:
        ValueError: an objective of a model with running statistics.

    Example:
        >>> data = FederatedData({"x": jnp.array([1.0, 3.0, 8.0])}, np.array([0, 2, 3]))
        >>> loss = mean_loss(lambda w, batch, key: w * batch["x"], data)
        >>> float(loss(jnp.array(1.0)))  # (2 + 8) / 2
        5.0
    """
    check_no_statistics(statistics_of(objective), "objective")
    sizes = np.asarray(data.sizes)
    # Integers, which the evaluator does not round to single precision.
    weighted = {"example": data.examples, "size": np.repeat(sizes, sizes).astype(np.int32)}
    mean_size = int(sizes.sum()) / np.count_nonzero(sizes)
    return metric(evaluator(_Weighted(objective, mean_size), weighted, batch_size), "loss")


class _Weighted(NamedTuple):
    """Static part of a mean loss. Hashable by value."""

    objective: Objective
    mean_size: float  # of clients with examples

    def __call__(self, params: Params, examples: PyTree) -> dict[str, Array]:
        losses = self.objective(params, examples["example"], jax.random.key(0))
        sizes = jnp.maximum(examples["size"], 1).astype(losses.dtype)  # padding has size 0
        return {"loss": losses * self.mean_size / sizes}


def double(x: PyTree) -> PyTree:
    """Converts floating leaves to double precision; requires ``jax.enable_x64``.

    Example:
        >>> with jax.enable_x64(True):
        ...     double({"x": jnp.ones(1, jnp.float32), "y": jnp.ones(1, jnp.int32)})["x"].dtype
        dtype('float64')
    """

    def cast(leaf: PyTree) -> Array:
        leaf = jnp.asarray(leaf)
        return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, x)


@jax.jit
def _value(loss: Partial, params: Params) -> Array:
    return loss(params)


@jax.jit
def _value_and_gradient(loss: Partial, params: Params) -> tuple[Array, Array]:
    value, gradient = jax.value_and_grad(loss)(params)
    return value, ravel_pytree(gradient)[0]


def _dense_step(
    loss: Partial, params: Params, gradient: np.ndarray, largest: float
) -> tuple[np.ndarray, float]:
    """Newton step, and the largest entry of all Hessians so far."""
    hessian = np.asarray(_hessian(loss, params))
    largest = max(largest, float(np.abs(hessian).max()))
    return -_solve((hessian + hessian.T) / 2, gradient, largest), largest


@jax.jit
def _hessian(loss: Partial, params: Params) -> Array:
    flat, unravel = ravel_pytree(params)
    product = hessian_product(jax.grad(loss), params)
    basis = jnp.eye(flat.size, dtype=flat.dtype)
    return jax.lax.map(lambda v: ravel_pytree(product(unravel(v)))[0], basis, batch_size=_COLUMNS)


def _conjugate_step(
    loss: Partial, params: Params, gradient: np.ndarray, largest: float
) -> tuple[np.ndarray, float]:
    """Newton step, and the largest curvature along all directions so far."""
    step, lowest, highest = map(np.asarray, _conjugate(loss, params, jnp.asarray(-gradient)))
    largest = max(largest, float(highest))
    if lowest < -_rounding(len(gradient), largest):
        raise FloatingPointError(
            f"loss has a Hessian with the curvature {lowest:.3g} along a direction; expected a "
            "convex loss"
        )
    return step, largest


@jax.jit
def _conjugate(loss: Partial, params: Params, target: Array) -> tuple[Array, Array, Array]:
    """Solution of ``H s = target``, with the smallest and the largest curvature on the way."""
    _, unravel = ravel_pytree(params)
    product = hessian_product(jax.grad(loss), params)
    # As precise as the quadratic model, which preserves the fast convergence of Newton's method.
    precision = 0.1 * jnp.minimum(1.0, jnp.linalg.norm(target))
    least = jnp.square(precision) * jnp.vdot(target, target)

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, square, lowest, _, count = state
        # Without positive curvature there is no further step; JAX's solver would take one upwards.
        return (square > least) & (lowest > 0) & (count < _ITERATIONS)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        solution, residual, direction, square, lowest, highest, count = state
        image = ravel_pytree(product(unravel(direction)))[0]
        along = jnp.vdot(direction, image)
        curvature = along / jnp.vdot(direction, direction)
        length = jnp.where(along > 0, square / jnp.where(along > 0, along, 1), 0)
        solution, residual = solution + length * direction, residual - length * image
        after = jnp.vdot(residual, residual)
        direction = residual + after / square * direction
        bounds = jnp.minimum(lowest, curvature), jnp.maximum(highest, curvature)
        return solution, residual, direction, after, *bounds, count + 1

    zeros, infinite = jnp.zeros_like(target), jnp.full((), jnp.inf, target.dtype)
    count = jnp.zeros((), jnp.int32)
    state = zeros, target, target, jnp.vdot(target, target), infinite, -infinite, count
    solution, _, _, _, lowest, highest, _ = jax.lax.while_loop(unfinished, step, state)
    return solution, lowest, highest


def _solve(hessian: np.ndarray, gradient: np.ndarray, largest: float) -> np.ndarray:
    """Solution of ``H s = g`` with the smallest norm."""
    rounding = _rounding(len(gradient), largest)
    try:
        factor = np.linalg.cholesky(hessian)
        if (np.diag(factor) ** 2).min() > rounding:
            return np.linalg.solve(factor.T, np.linalg.solve(factor, gradient))
    except np.linalg.LinAlgError:
        pass  # singular, or not convex
    values, vectors = np.linalg.eigh(hessian)
    if values[0] < -rounding:
        raise FloatingPointError(
            f"loss has a Hessian with the eigenvalue {values[0]:.3g}; expected a convex loss"
        )
    inverse = np.where(values > rounding, 1 / np.where(values > rounding, values, 1), 0)
    return vectors @ (inverse * (vectors.T @ gradient))


def _rounding(size: int, largest: float) -> float:
    """Error of a Hessian's entries and curvatures."""
    # Entries are differences of larger numbers: small entries have errors of the same size.
    return 100 * size * np.finfo(np.float64).eps * largest


def _length(value_at: Callable[[float], float], value: float, slope: float) -> float:
    """First of 1, 1/2, 1/4, ... for which the loss decreases enough."""
    rounding = 10 * np.finfo(np.float64).eps * abs(value)  # near the optimum all values are equal
    length = 1.0
    for _ in range(_HALVINGS):
        if value_at(length) <= value + _SUFFICIENT * length * slope + rounding:
            return length
        length /= 2
    raise FloatingPointError(
        f"loss does not decrease along the Newton step, slope {slope:.3g}; expected a smooth loss"
    )


def _check_attained(step: np.ndarray, x: np.ndarray, done: int) -> None:
    length, size = np.linalg.norm(step), np.linalg.norm(x)
    if length > _LAST_STEP * max(1.0, float(size)):
        raise FloatingPointError(
            f"loss does not attain its minimum: after {done} Newton steps the model has norm "
            f"{size:.3g} and the next step {length:.3g}; expected a minimum (add l2 regularisation)"
        )
