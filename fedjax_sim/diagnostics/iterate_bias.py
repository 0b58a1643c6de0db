r"""The iterate bias of SGD: the distance of the mean iterate from the gradient descent iterate.

.. math::
    x_{k+1} = x_k - \eta\,(F'(x_k) + \xi_k), \qquad z_{k+1} = z_k - \eta F'(z_k), \qquad
    x_0 = z_0, \qquad \text{bias}_k = \mathbb E[x_k] - z_k

With infinitely many homogeneous clients, a round of FedAvg with K local steps maps x to E[x_K].
The bias is often far below Monte Carlo errors; :func:`mean_iterates` computes it without sampling.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, check_counts, check_key, check_positive
from fedjax_sim.diagnostics.gradient_noise import Noise, Sampler
from fedjax_sim.types import Scalar, shown

Derivative = Callable[[Array], Array]  # x -> F'(x); elementwise for scalar x


@shown
class Bias(NamedTuple):
    """Result of :func:`mean_iterates`, in double precision, for k = 0 .. num_steps."""

    mean: np.ndarray  # [num_steps + 1, N] E[h(x_k) | x_0 = grid point]; h(x) = x by default
    descent: np.ndarray  # [num_steps + 1, N] h(z_k), of gradient descent

    @property
    def bias(self) -> np.ndarray:
        """``mean - descent``."""
        return self.mean - self.descent


def mean_iterates(
    gradient: Derivative,
    noise: Noise,
    lr: float,
    num_steps: int,
    grid: np.ndarray,
    observable: Derivative | None = None,
) -> Bias:
    r"""E[x_k | x_0 = x] for all x on a grid, computed without sampling.

    The backward recursion of :math:`u_k(x) = \mathbb E[h(x_k) | x_0 = x]`,

    .. math::
        u_0 = h, \qquad u_{k+1}(x) = \mathbb E_\xi\, u_k(x - \eta F'(x) - \eta \xi),

    is computed by quadrature over the noise and cubic interpolation on the grid, in double
    precision, independent of JAX's setting. The tabulated function is :math:`v_k(y) = \mathbb
    E[h(x_k) | x_0 - \eta F'(x_0) = y]`, which the noise makes smooth: kinks of F' are evaluated and
    not interpolated. Outside the grid v_k is linear.

    The grid must be so wide that errors at its ends do not reach the points of interest. Its
    spacing should be at most about half of ``lr * std``. Memory: a matrix ``[N, N]``.

    Args:
        gradient: F', elementwise.
        noise: noise of the gradient.
        lr: eta.
        num_steps: K.
        grid: ``[N]`` equally spaced points, increasing, at least 4.
        observable: h; default the identity. ``jnp.square`` gives the second moment.

    Raises:
        ValueError: a rate that is not positive, a number of steps that is no integer of at least
            1, a grid with other points.

    Example:
        >>> from functools import partial
        >>> from fedjax_sim.diagnostics.gradient_noise import gaussian
        >>> from fedjax_sim.problems.asymmetric import third_order_smooth
        >>> gradient = partial(third_order_smooth, smoothness=1.0, third=0.5)
        >>> result = mean_iterates(gradient, gaussian(1.0), 1e-3, 2, np.linspace(-0.1, 0.1, 401))
        >>> print(f"{result.bias[2, 200]:.4g}")  # - 1/4 eta^3 k (k - 1) F''' Var
        -2.5e-10
    """
    grid = equally_spaced(grid, 4)
    check_positive(lr=lr)
    check_count(1, num_steps=num_steps)
    h = observable or (lambda x: x)
    with jax.enable_x64(True):
        results = _recursion(
            jnp.asarray(grid), jnp.asarray(noise.nodes), jnp.asarray(noise.weights),
            jnp.asarray(lr, jnp.float64), gradient, h, num_steps,
        )  # fmt: skip
        return Bias(*(np.asarray(x) for x in results))


def equally_spaced(grid: np.ndarray, least: int) -> np.ndarray:
    """Checks a grid and returns it in double precision.

    Args:
        grid: ``[N]``.
        least: smallest N.

    Raises:
        ValueError: fewer points, points that do not increase in equal steps.

    Example:
        >>> equally_spaced(np.arange(3), 3).dtype.name
        'float64'
    """
    grid = np.asarray(grid, np.float64)
    spacing = np.diff(grid) if grid.ndim == 1 else np.zeros(0)
    # NaN is neither.
    even = len(spacing) > 0 and spacing[0] > 0 and np.ptp(spacing) <= 1e-6 * spacing[0]
    if len(spacing) + 1 < least or not even:
        raise ValueError(
            f"grid has shape {grid.shape}; expected at least {least} increasing, equally spaced "
            "points"
        )
    return grid


@functools.partial(jax.jit, static_argnames=("gradient", "observable", "num_steps"))
def _recursion(
    grid: Array,
    nodes: Array,
    weights: Array,
    lr: Array,
    gradient: Derivative,
    observable: Derivative,
    num_steps: int,
) -> tuple[Array, Array]:
    def descend(x: Array) -> Array:
        return x - lr * gradient(x)

    # v_{k+1} = A v_k: the matrix combines quadrature and interpolation, and is constant.
    arrivals = grid[:, None] - lr * nodes  # [N, Q]
    columns, shares = _interpolation(grid, descend(arrivals))
    rows = jnp.broadcast_to(jnp.arange(grid.size)[:, None, None], columns.shape)
    matrix = jnp.zeros((grid.size, grid.size), grid.dtype)
    matrix = matrix.at[rows, columns].add(weights[:, None] * shares)
    after, after_shares = _interpolation(grid, descend(grid))

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple]:
        v, z = carry
        mean = (v[after] * after_shares).sum(-1)
        return (matrix @ v, descend(z)), (mean, observable(z))

    start = (observable(arrivals) @ weights, descend(grid))
    _, (mean, descent) = jax.lax.scan(step, start, None, length=num_steps)
    first = observable(grid)[None]
    return jnp.concatenate([first, mean]), jnp.concatenate([first, descent])


def _interpolation(grid: Array, points: Array) -> tuple[Array, Array]:
    """Indices and weights ``[..., 4]`` of cubic interpolation, linear beyond the grid."""
    spacing = (grid[-1] - grid[0]) / (grid.size - 1)
    place = (points - grid[0]) / spacing
    low = jnp.clip(jnp.floor(place).astype(jnp.int32) - 1, 0, grid.size - 4)
    t = (points - grid[low]) / spacing  # in [1, 2] inside; precise at grid points
    # Lagrange polynomials of the nodes 0, 1, 2, 3.
    a, b, c, d = t, t - 1, t - 2, t - 3
    cubic = jnp.stack([-b * c * d / 6, a * c * d / 2, -a * b * d / 2, a * b * c / 6], -1)
    zero = jnp.zeros_like(t)
    left = jnp.stack([-b, a, zero, zero], -1)
    right = jnp.stack([zero, zero, -d, c], -1)
    shares = jnp.where((place < 0)[..., None], left, cubic)
    shares = jnp.where((place > grid.size - 1)[..., None], right, shares)
    return low[..., None] + jnp.arange(4, dtype=jnp.int32), shares


def simulate_paths(
    gradient: Derivative,
    sample: Sampler,
    lr: Scalar,
    init: Array | float,
    record_at: Sequence[int],
    num_paths: int,
    key: Array,
    antithetic: bool = False,
) -> Array:
    r"""SGD paths with additive noise, :math:`x_{k+1} = x_k - \eta\,(\nabla F(x_k) + \xi_k)`.

    This is also the Euler-Maruyama method with step eta for the equation
    :math:`dX = -F'(X)\,dt + \sqrt\eta\, \sigma\, dB_t`.

    Args:
        gradient: gradient of F at one point of the shape of ``init``; vmapped over paths.
        sample: ``(key, shape) -> xi``, for instance ``noise.sample``.
        lr: eta.
        init: x_0, a number or a vector ``[d]``.
        record_at: increasing numbers of steps after which the paths are recorded.
        num_paths: N.
        key: key of the noise.
        antithetic: path i + N / 2 has the negative noise of path i, so terms that are odd in the
            noise cancel in the mean.

    Returns:
        ``[len(record_at), N, *init.shape]``.

    Raises:
        ValueError: numbers of steps that are no integers, do not increase or are negative, no
            paths, an odd number of antithetic paths.

    Example:
        >>> paths = simulate_paths(lambda x: x, jax.random.normal, 0.1, 2.0, [0, 1], 4,
        ...     jax.random.key(0), antithetic=True)
        >>> paths.shape, [f"{x:.3f}" for x in paths.mean(1)]
        ((2, 4), ['2.000', '1.800'])
    """
    check_counts(record_at=record_at)
    check_count(num_paths=num_paths)
    record_at = [int(k) for k in record_at]
    if not record_at or record_at[0] < 0 or (np.diff(record_at) <= 0).any():
        raise ValueError(f"record_at is {record_at}; expected increasing numbers of steps >= 0")
    if num_paths < 1 or (antithetic and num_paths % 2):
        expected = "an even number" if antithetic else "at least 1"
        raise ValueError(f"num_paths is {num_paths}; expected {expected}")
    check_key(key)
    x0 = jnp.asarray(init, jnp.result_type(float))

    @jax.jit
    def paths(x0: Array, lr: Array, key: Array) -> Array:
        drawn = (num_paths // 2 if antithetic else num_paths, *x0.shape)

        def step(x: Array, k: Array) -> tuple[Array, None]:
            xi = sample(jax.random.fold_in(key, k), drawn)
            xi = jnp.concatenate([xi, -xi]) if antithetic else xi
            return x - lr * (jax.vmap(gradient)(x) + xi), None

        x, done, recorded = jnp.broadcast_to(x0, (num_paths, *x0.shape)), 0, []
        for k in record_at:
            x, _ = jax.lax.scan(step, x, jnp.arange(done, k, dtype=jnp.int32))
            done = k
            recorded.append(x)
        return jnp.stack(recorded)

    return paths(x0, jnp.asarray(lr, x0.dtype), key)
