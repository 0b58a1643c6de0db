"""Minimisers of a smooth convex loss plus a regulariser, by accelerated proximal gradient steps.

They are the reference points for composite methods, in double precision.
:mod:`fedjax_sim.diagnostics.optimum` computes minimisers of smooth losses.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim.checks import check_count
from fedjax_sim.prox import Where
from fedjax_sim.types import Params

_SHORTEST = 1e-30  # steps are not halved further
_ROUNDING = 1e-13  # relative error of a sum, with room for a few thousand terms


class CompositeOptimum(NamedTuple):
    """A minimiser of F + psi, with its residual."""

    params: Params  # NumPy, float64
    value: float  # F + psi there
    residual: float  # norm of the gradient mapping there
    steps: int  # proximal gradient steps done


class _State(NamedTuple):
    x: Params
    y: Params  # extrapolated point, at which the next gradient is evaluated
    momentum: Array  # t_k of Beck and Teboulle
    step: Array
    residual: Array  # at the previous y
    steps: Array


def composite_optimum(
    loss: Callable[[Params], Array],
    composite: fs.prox.Composite,
    params: Params,
    *,
    tolerance: float = 1e-9,
    max_steps: int = 10_000,
    smoothness: float | None = None,
) -> CompositeOptimum:
    r"""Returns the minimiser of F + psi, by FISTA with restarts in double precision.

    .. math::
        x_{k+1} = P_t(y_k - t\, \nabla F(y_k)), \qquad
        y_{k+1} = x_{k+1} + \tfrac{m_k - 1}{m_{k+1}} (x_{k+1} - x_k), \qquad
        m_{k+1} = \tfrac{1 + \sqrt{1 + 4 m_k^2}}2

    with P the proximal operator of t psi. t starts at 1 and is halved until F lies below its
    quadratic model, :math:`F(x) \le F(y) + \langle \nabla F(y), x - y\rangle + \|x - y\|^2 / (2
    t)`. The momentum is reset whenever a step turns back, :math:`\langle y_k - x_{k+1}, x_{k+1} -
    x_k \rangle > 0`. The residual is the norm of the gradient mapping, :math:`\|x - P_t(x - t
    \nabla F(x))\| / t`; without psi this is the norm of the gradient.

    Args:
        loss: F, ``params -> scalar``, see :func:`fedjax_sim.diagnostics.optimum.optimum`; for
            instance :func:`~fedjax_sim.diagnostics.optimum.mean_loss`.
        composite: psi, a pytree, with a Euclidean h; see :func:`fedjax_sim.prox.composite`.
        params: initial model; floating leaves.
        tolerance: largest accepted residual.
        max_steps: largest number of steps.
        smoothness: a Lipschitz constant L of F's gradient. If given, t is 1 / L.

    Raises:
        ValueError: tolerance, max_steps or smoothness not positive, parameters that are not
            floating, a geometry other than Euclidean.
        FloatingPointError: a loss that is not finite or not smooth, a residual above the tolerance
            after the last step.

    References:
        Beck and Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse
            Problems", 2009.
        O'Donoghue and Candes, "Adaptive Restart for Accelerated Gradient Schemes", 2015.
    """
    for name, value in (("tolerance", tolerance), ("smoothness", smoothness)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; expected a positive number")
    check_count(1, max_steps=max_steps)
    if not isinstance(composite.mirror, fs.prox.Euclidean):
        raise ValueError(f"composite has mirror {composite.mirror}; expected Euclidean")
    kinds = sorted({np.asarray(leaf).dtype.name for leaf in jax.tree.leaves(params)})
    if not kinds or not all(jnp.issubdtype(kind, jnp.floating) for kind in kinds):
        raise ValueError(f"params has leaves of dtypes {kinds}; expected floating leaves")
    with jax.enable_x64(True):
        carried = fs.diagnostics.optimum.double(
            loss if isinstance(loss, Partial) else Partial(loss)
        )
        first = 1.0 if smoothness is None else 1 / smoothness
        numbers = jnp.asarray([first, tolerance], jnp.float64), jnp.asarray(max_steps)
        x, value, residual, steps = _solve(
            carried,
            fs.diagnostics.optimum.double(composite.psi),
            fs.diagnostics.optimum.double(params),
            *numbers,
            where=composite.where,
            search=smoothness is None,
        )
        result = CompositeOptimum(
            jax.tree.map(np.asarray, x), float(value), float(residual), int(steps)
        )
    if not math.isfinite(result.value + result.residual):
        raise FloatingPointError(
            f"loss plus psi has the value {result.value} after {result.steps} proximal steps; "
            "expected a smooth loss and, if smoothness is given, one that bounds its curvature"
        )
    if result.residual > tolerance:
        raise FloatingPointError(
            f"loss has a residual of {result.residual:.3g} after {result.steps} proximal steps; "
            f"expected at most the tolerance {tolerance:.3g}"
        )
    return result


@functools.partial(jax.jit, static_argnames=("where", "search"))
def _solve(
    loss: Partial,
    psi: fs.prox.Regularizer,
    start: Params,
    numbers: Array,
    max_steps: Array,
    *,
    where: Where,
    search: bool,
) -> tuple[Params, Array, Array, Array]:
    first, tolerance = numbers
    regular = fs.prox.composite(psi, where=where)

    def shrunk(y: Params, gradient: Params, step: Array) -> Params:
        return regular.argmin(fs.tree.add_scale(y, -step, gradient), step)

    def forward(y: Params, step: Array) -> tuple[Params, Array]:
        """The next x, and the step size: the previous one, halved until the loss allows it."""
        value, gradient = jax.value_and_grad(loss)(y)
        if not search:
            return shrunk(y, gradient, step), step

        def too_long(tried: tuple[Array, Params]) -> Array:
            step, x = tried
            moved = fs.tree.sub(x, y)
            square = fs.tree.vdot(moved, moved) / (2 * step)
            reached, model = loss(x), value + fs.tree.vdot(gradient, moved) + square

            def bent() -> Array:
                """True if gradients violate the model; more precise than nearly equal values.

                F(x) - F(y) - <gradient, moved> is at most ``turn`` by convexity, and half of it if
                F is quadratic, which counts where the values differ by their rounding only.
                """
                turn = fs.tree.vdot(fs.tree.sub(jax.grad(loss)(x), gradient), moved)
                rounding = _ROUNDING * jnp.maximum(jnp.abs(reached), jnp.abs(value))
                equal = reached - model <= rounding
                fits = (turn <= square) | (equal & (turn <= 2 * square * (1 + _ROUNDING)))
                return ~fits

            return jax.lax.cond(reached <= model, lambda: jnp.array(False), bent) & (
                step > _SHORTEST
            )

        def halved(tried: tuple[Array, Params]) -> tuple[Array, Params]:
            step = tried[0] / 2
            return step, shrunk(y, gradient, step)

        step, x = jax.lax.while_loop(too_long, halved, (step, shrunk(y, gradient, step)))
        return x, step

    def body(state: _State) -> _State:
        x, step = forward(state.y, state.step)
        back, ahead = fs.tree.sub(state.y, x), fs.tree.sub(x, state.x)
        again = fs.tree.vdot(back, ahead) > 0
        momentum = jnp.where(again, 1, (1 + jnp.sqrt(1 + 4 * state.momentum**2)) / 2)
        y = fs.tree.add_scale(x, jnp.where(again, 0, (state.momentum - 1) / momentum), ahead)
        return _State(x, y, momentum, step, fs.tree.norm(back) / step, state.steps + 1)

    def unfinished(state: _State) -> Array:
        # A residual of NaN ends the search, too.
        return (state.residual > tolerance) & (state.steps < max_steps)

    infinite = jnp.asarray(jnp.inf, first.dtype)
    state = _State(start, start, jnp.ones_like(first), first, infinite, jnp.zeros_like(max_steps))
    state = jax.lax.while_loop(unfinished, body, state)
    # A proximal step does not increase the residual, so x meets the tolerance if y does.
    x, step = state.x, state.step
    again = shrunk(x, jax.grad(loss)(x), step)
    residual = fs.tree.norm(fs.tree.sub(x, again)) / step
    return x, loss(x) + regular.value(x), residual, state.steps
