r"""Two families of clients with every constant known: quadratics and logistic regression.

Every client belongs to one of two types, :math:`s_i = \pm 1`, alternately.  A stochastic gradient
is the exact one plus ``sigma / sqrt(d)`` times random signs, so its error has the norm sigma
always: sigma bounds the second and the fourth moment with equality, at every model.

* ``quadratic``: :math:`\nabla F_i(x) = h (1 + \tau s_i) x + \zeta s_i u` with curvatures h from mu
  to :math:`1 / (1 + \tau)`.  The optimum of the mean is 0, L = 1, Q = 0.  With
  :math:`\tau > 0` clients differ in curvature and :math:`\|\nabla F_i - \nabla F\|` has no bound;
  with :math:`\tau = 0` it is zeta everywhere.
* ``logistic``: 16 rows that all clients share, weight decay mu, and a tilt of client i's labels,
  :math:`\zeta s_i \langle u, x \rangle`.  :math:`\|\nabla F_i - \nabla F\|` is zeta everywhere, and
  the Hessian is not constant.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim.diagnostics.optimum import optimum
from fedjax_sim.theory import ProblemConstants

DIMENSION, ROWS = 8, 16  # at most 32 dimensions: a gradient draws one word, a bit per sign
DIFFERENT_CURVATURE = 0.5  # tau

Family = Literal["quadratic", "logistic"]


class Problem(NamedTuple):
    """Numbers of a problem; arrays of one length are as many problems."""

    noise: Array | np.ndarray | float  # sigma / (L B)
    heterogeneity: Array | np.ndarray | float  # zeta / (L B)
    condition: Array | np.ndarray | float  # L / mu
    curvature: Array | np.ndarray | float  # tau, of quadratics


class Clients(NamedTuple):
    """Arrays that the gradients of all clients follow from."""

    slopes: Array  # h, or mu repeated [d]
    tau: Array
    sigma: Array
    zeta: Array
    direction: Array  # u [d], of norm 1
    x: Array  # [ROWS, d]; no rows for quadratics
    y: Array  # [ROWS]


def constants(family: Family, problem: Problem) -> ProblemConstants:
    """Constants of one problem or of several, arrays that broadcast.

    zeta is not among them: it is ``zeta_star``, but infinite for quadratics with ``tau > 0``.
    """
    noise, heterogeneity, condition, _ = (np.asarray(value, np.float64) for value in problem)
    mu = 1 / condition
    if family == "quadratic":
        L, B, Q = 1.0, 1.0, 0.0
    else:
        distances = {value: np.linalg.norm(minimiser(value)) for value in set(condition.flat)}
        B = np.vectorize(distances.get, otypes=[float])(condition)
        L = 1 + mu
        Q = 4 / (6 * np.sqrt(3)) * float(np.linalg.norm(rows()[0], axis=1).max())
    sigma, zeta = noise * L * B, heterogeneity * L * B
    known: dict[str, Any] = {"L": L, "mu": mu, "sigma": sigma, "sigma4": sigma, "Q": Q, "B": B}
    known["zeta_star"] = zeta
    return ProblemConstants(**known)


def make_clients(family: Family, problem: Problem) -> Clients:
    """One problem, in float32."""
    known: Any = constants(family, problem)
    tau = float(problem.curvature)
    if family == "quadratic":
        x, y = np.zeros((0, DIMENSION)), np.zeros(0)
        slopes = np.geomspace(float(known.mu), 1 / (1 + tau), DIMENSION)
    else:
        (x, y), slopes = rows(), np.full(DIMENSION, float(known.mu))
    # Signs alternate: a client's own optimum lies on no particular side of the initial model.
    direction = np.resize([1.0, -1.0], DIMENSION) / np.sqrt(DIMENSION)
    values = (slopes, tau, known.sigma, known.zeta_star, direction, x, y)
    return Clients(*(jnp.asarray(value, jnp.float32) for value in values))


@functools.cache
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels of the logistic regression; the largest eigenvalue of ``x^T x / n`` is 4."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, DIMENSION)) * np.geomspace(1, 0.1, DIMENSION)
    x *= 2 / np.linalg.norm(x / np.sqrt(ROWS), 2)
    return x, (rng.random(ROWS) < 1 / (1 + np.exp(-2 * x.sum(1)))).astype(float)


@functools.cache
def minimiser(condition: float) -> np.ndarray:
    """The optimum of the logistic regression by Newton's method in double precision."""
    loss = Partial(_logistic, *rows(), 1 / condition)
    return np.asarray(optimum(loss, jnp.zeros(DIMENSION)).params, np.float64)


def _logistic(x: Array, y: Array, mu: float, w: Array) -> Array:
    z = x @ w
    return jnp.mean(jax.nn.softplus(z) - y * z) + mu / 2 * w @ w


def initial(family: Family) -> np.ndarray:
    """The initial model, at the distance B from the optimum."""
    value = DIMENSION**-0.5 if family == "quadratic" else 0.0
    return np.full(DIMENSION, value, np.float32)


def gaps(family: Family, problem: Problem, models: np.ndarray) -> np.ndarray:
    """F - F* in double precision, of models ``[..., d]``; infinite where one is not finite.

    Of logistic regression relative to an optimum that is exact to about 1e-12.
    """
    w = models.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if family == "quadratic":
            slopes = np.geomspace(1 / problem.condition, 1 / (1 + problem.curvature), DIMENSION)
            values = np.square(w) @ slopes / 2
        else:
            values = _logistic_loss(w, problem.condition)
            values -= _logistic_loss(minimiser(float(problem.condition)), problem.condition)
    return np.where(np.isfinite(values), np.maximum(values, 0), np.inf)


def _logistic_loss(w: np.ndarray, condition: Array | np.ndarray | float) -> np.ndarray:
    x, y = rows()
    z = w @ x.T
    return (np.logaddexp(0, z) - y * z).mean(-1) + np.square(w).sum(-1) / (2 * condition)


def make_task(clients: Clients, num_clients: int, num_steps: int) -> fs.Task:
    """The task of M clients, M even, or of the first client alone."""
    if num_clients > 1 and num_clients % 2:
        raise ValueError(f"num_clients is {num_clients}; expected an even number, or 1")
    ones = np.ones(num_clients, np.int32)
    return fs.Task(Partial(_oracle, clients), ones, num_steps * ones)


def _oracle(clients: Clients, client: Array, key: Array, max_steps: int) -> fs.Oracle:
    del max_steps
    sign = jnp.where(client % 2 == 0, 1.0, -1.0)
    shift = clients.zeta * sign * clients.direction
    slopes = clients.slopes * (1 + clients.tau * sign)
    scale = clients.sigma * DIMENSION**-0.5
    places = jnp.arange(DIMENSION, dtype=jnp.uint32)

    def full_grad(w: Array) -> Array:
        value = slopes * w + shift
        if len(clients.y):
            residuals = jax.nn.sigmoid(clients.x @ w) - clients.y
            value += residuals @ clients.x / ROWS
        return value

    def grad(w: Array, step: Array | int = 0) -> Array:
        # The key does not depend on rates and problems, so all of them share one draw.
        word = jax.random.bits(jax.random.fold_in(key, step), (), jnp.uint32)
        signs = 2.0 * ((word >> places) & 1).astype(jnp.float32) - 1
        return full_grad(w) + scale * signs

    def full_loss(w: Array, step: Array | int = 0) -> Array:
        del step
        value = jnp.square(w) @ slopes / 2 + w @ shift
        if len(clients.y):
            z = clients.x @ w
            value += jnp.mean(jax.nn.softplus(z) - clients.y * z)
        return value

    return fs.Oracle(grad, full_loss, full_grad)
