r"""SGD in continuous time: a stochastic differential equation and its backward equation.

With :math:`t = \eta k` and noise of variance :math:`\sigma^2`, SGD is the Euler-Maruyama scheme
with step eta of

.. math:: dX = -F'(X)\,dt + \sqrt\eta\, \sigma\, dB_t,

and :math:`u(t, x) = \mathbb E[X(t) | X(0) = x]` solves

.. math:: u_t = -F' u_x + \tfrac12 \eta \sigma^2 u_{xx}, \qquad u(0, x) = x .

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, section 2.4,
    which prints the equation without the factor 1/2.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from fedjax_sim.checks import check_count, check_key, check_positive, import_extra
from fedjax_sim.diagnostics import Derivative
from fedjax_sim.types import Scalar


def backward_equation(
    gradient: Derivative, variance: float, lr: float, num_steps: int, grid: np.ndarray
) -> np.ndarray:
    """Solution ``u(lr k, x)`` for k = 0 .. num_steps, by Crank-Nicolson finite differences.

    Inside the grid the differences are central. At the ends, where F' must point outwards, u_xx = 0
    and the differences are one-sided, into the grid. The time step is lr, so the errors are of
    second order in lr and in the spacing. Computations are in double precision, independent of
    JAX's setting.

    Args:
        gradient: F', elementwise.
        variance: sigma^2, the variance of the gradient noise.
        lr: eta.
        num_steps: K.
        grid: ``[N]`` equally spaced points, increasing, at least 3.

    Returns:
        ``[num_steps + 1, N]``.
    """
    check_positive(variance=variance, lr=lr, num_steps=num_steps)
    grid = fs.diagnostics.iterate_bias.equally_spaced(grid, 3)
    with jax.enable_x64(True):
        drift = -np.asarray(gradient(jnp.asarray(grid)))
        largest = lr * variance / max(np.abs(drift).max(), np.finfo(float).tiny)
        spacing = grid[1] - grid[0]
        if spacing > largest:
            raise ValueError(
                f"grid has spacing {spacing:.3g}; expected at most lr * variance / max |F'| = "
                f"{largest:.3g}"
            )
        return np.asarray(_crank_nicolson(grid, drift, lr * variance / 2, lr, num_steps))


@functools.partial(jax.jit, static_argnames="num_steps")
def _crank_nicolson(
    grid: Array, drift: Array, diffusivity: Scalar, dt: Scalar, num_steps: int
) -> Array:
    h = grid[1] - grid[0]
    # (1 - dt/2 A) u_new = (1 + dt/2 A) u, A tridiagonal.
    lower = diffusivity / h**2 - drift / (2 * h)
    upper = diffusivity / h**2 + drift / (2 * h)
    middle = jnp.full_like(grid, -2 * diffusivity / h**2)
    lower = lower.at[0].set(0).at[-1].set(-drift[-1] / h)
    upper = upper.at[-1].set(0).at[0].set(drift[0] / h)
    middle = middle.at[0].set(-drift[0] / h).at[-1].set(drift[-1] / h)
    half = dt / 2

    def step(u: Array, _: None) -> tuple[Array, Array]:
        below, above = jnp.roll(u, 1), jnp.roll(u, -1)  # entries that wrap around have weight 0
        right = u + half * (lower * below + middle * u + upper * above)
        u = jax.lax.linalg.tridiagonal_solve(
            -half * lower, 1 - half * middle, -half * upper, right[:, None]
        )[:, 0]
        return u, u

    _, later = jax.lax.scan(step, grid, None, length=num_steps)
    return jnp.concatenate([grid[None], later])


def diffusion_paths(
    gradient: Derivative,
    std: float,
    lr: float,
    init: float,
    record_at: Sequence[int] | np.ndarray,
    num_paths: int,
    key: Array,
    dt: float | None = None,
) -> Array:
    """Paths of the equation, by a Runge-Kutta scheme of strong order 1.5 for additive noise.

    If the gradient is smooth, the scheme (SRA1) can take much longer steps than SGD's eta. Requires
    diffrax, which the extra ``theory`` installs.

    Args:
        gradient: F' for a number x.
        std: sigma.
        lr: eta.
        init: x_0.
        record_at: increasing numbers of SGD steps; the times are ``lr * record_at``.
        num_paths: N.
        key: key of the Brownian motion.
        dt: step of the scheme; default ``4 lr``.

    Returns:
        ``[len(record_at), N]``.
    """
    diffrax = import_extra("diffrax", "theory")

    times = lr * np.asarray(record_at, float)
    if times.ndim != 1 or not len(times) or times[0] <= 0 or (np.diff(times) <= 0).any():
        raise ValueError(f"record_at is {record_at}; expected increasing positive numbers of steps")
    check_count(1, num_paths=num_paths)
    check_key(key)
    real = jnp.result_type(float)
    end, size = float(times[-1]), float(dt or 4 * lr)
    scale = jnp.asarray(lr**0.5 * std, real)

    def one(key: Array) -> Array:
        brownian = diffrax.VirtualBrownianTree(
            0.0, end, tol=size / 2, shape=(), key=key, levy_area=diffrax.SpaceTimeLevyArea
        )
        terms = diffrax.MultiTerm(
            diffrax.ODETerm(lambda t, x, args: -gradient(x)),
            diffrax.ControlTerm(lambda t, x, args: scale, brownian),
        )
        solution = diffrax.diffeqsolve(
            terms, diffrax.SRA1(), 0.0, end, size, jnp.asarray(init, real),
            saveat=diffrax.SaveAt(ts=jnp.asarray(times, real)),
            max_steps=int(np.ceil(end / size)) + 2,
        )  # fmt: skip
        return jnp.asarray(solution.ys)

    return jax.jit(jax.vmap(one, out_axes=1))(jax.random.split(key, num_paths))
