r"""A problem in four dimensions on which FedAvg is slow for every learning rate.

.. math::
    f(x; \xi) &= \tfrac L{24} \psi(x_1) + \xi x_1 + \tfrac\mu2 x_2^2 + \tfrac L2 x_3^2
    + f^{(4)}(x_4) \\
    \psi(u) &= u^2\ (u \ge 0),\ \tfrac12 u^2\ (u < 0)

with :math:`\xi \sim N(0, \sigma^2)`; :math:`f^{(4)}` is :math:`\frac L8 x^2 - \zeta_* x` for the
first, third, ... client and :math:`\frac L{16} x^2 + \zeta_* x` for the others. The optimum is 0.
Coordinate 1 has iterate bias, coordinate 2 is slow for small learning rates, coordinate 3 diverges
for rates above 2 / L, and coordinate 4 has the drift of heterogeneous clients.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, section 2.3.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim.checks import check_at_least, check_count, check_positive
from fedjax_sim.types import Scalar, Step


class Instance(NamedTuple):
    """Numbers that define the problem."""

    smoothness: Scalar  # L
    mu: Scalar  # curvature of coordinate 2
    std: Scalar  # sigma
    zeta_star: Scalar  # the mean over clients of |grad F_m|^2 at 0 is zeta_star^2


def hard_instance(
    distance: float,  # B
    std: float,  # sigma
    zeta_star: float,  # 0 for homogeneous clients
    num_steps: int,  # K
    num_rounds: int,  # R
    smoothness: float = 1.0,  # L
) -> Instance:
    r"""Instance with the mu for which the lower bound is proved.

    .. math::
        \mu = \frac1{2 B^2} \max\Big\{
        \min\{\tfrac{\sigma B}{\sqrt{KR}}, \tfrac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}},
        L B^2\},\
        \min\{\tfrac{\zeta_*^2}L, \tfrac{L^{1/3} \zeta_*^{2/3} B^{4/3}}{R^{2/3}}, L B^2\},\
        \tfrac{L B^2}{KR}\Big\}

    For every learning rate, E F after R rounds is at least :math:`c \mu B^2` with an absolute
    constant c.
    """
    check_positive(distance=distance, smoothness=smoothness)
    check_count(1, num_steps=num_steps, num_rounds=num_rounds)
    check_at_least(0, std=std, zeta_star=zeta_star)
    b, sigma, zeta, k, r, l = distance, std, zeta_star, num_steps, num_rounds, smoothness
    most = l * b**2
    noise = min(
        sigma * b / (k * r) ** 0.5,
        l ** (1 / 3) * sigma ** (2 / 3) * b ** (4 / 3) / (k ** (1 / 3) * r ** (2 / 3)),
        most,
    )
    drift = min(zeta**2 / l, l ** (1 / 3) * zeta ** (2 / 3) * b ** (4 / 3) / r ** (2 / 3), most)
    return Instance(l, max(noise, drift, most / (k * r)) / (2 * b**2), sigma, zeta)


def initial_model(distance: Scalar) -> Array:
    """The initial model ``(0, B/2, B/2, 0)``."""
    return jnp.asarray(distance, jnp.result_type(float)) * jnp.array([0.0, 0.5, 0.5, 0.0])


def lower_bound_task(instance: Instance, num_clients: int, num_steps: int) -> fs.Task:
    """Task of an instance, for models ``[4]``; the visit's key determines the noise of a step.

    Args:
        instance: numbers or traced values; they are leaves of the task.
        num_clients: M, even.
        num_steps: K, local steps per visit.
    """
    if num_clients < 2 or num_clients % 2:
        raise ValueError(f"num_clients is {num_clients}; expected an even number")
    check_count(1, num_steps=num_steps)
    real = jnp.result_type(float)
    leaves = Instance(*(jnp.asarray(value, real) for value in instance))
    ones = np.ones(num_clients, np.int32)
    return fs.Task(Partial(_oracle, leaves), ones, num_steps * ones)


def _oracle(instance: Instance, client: Array, key: Array, max_steps: int) -> fs.Oracle:
    del max_steps
    l, mu, std, zeta = instance
    first = client % 2 == 0
    curvature, slope = jnp.where(first, l / 4, l / 8), jnp.where(first, -zeta, zeta)

    def noise(step: Step) -> Array:
        # Draws 32 bits, so runs in single and in double precision have the same noise.
        draw = jax.random.normal(jax.random.fold_in(key, step), (), jnp.float32)
        return std * draw.astype(jnp.result_type(std))

    def full_grad(x: Array) -> Array:
        return jnp.stack(
            [
                fs.problems.asymmetric.piecewise_quadratic(x[0], l / 12, l / 24),
                mu * x[1],
                l * x[2],
                curvature * x[3] + slope,
            ]
        )

    def full_loss(x: Array) -> Array:
        fourth = curvature / 2 * x[3] ** 2 + slope * x[3]
        return coordinate_losses(x, instance)[:3].sum() + fourth

    return fs.Oracle(
        grad=lambda x, step: full_grad(x).at[0].add(noise(step)),
        loss=lambda x, step: full_loss(x) + noise(step) * x[0],
        full_grad=full_grad,
        full_loss=full_loss,
    )


def coordinate_losses(x: Array, instance: Instance) -> Array:
    r"""The four terms of F, one per coordinate; :math:`F^{(4)} = \frac3{32} L x_4^2`.

    Args:
        x: models ``[..., 4]``.
        instance: numbers of the problem.

    Returns:
        ``[..., 4]``.
    """
    l, mu = instance.smoothness, instance.mu
    x1, x2, x3, x4 = jnp.moveaxis(x, -1, 0)
    parts = [
        fs.problems.asymmetric.piecewise_quadratic(x1, l / 12, l / 24) * x1 / 2,
        mu / 2 * x2**2,
        l / 2 * x3**2,
        3 * l / 32 * x4**2,
    ]
    return jnp.stack(parts, -1)


def noiseless_coordinates(
    instance: Instance, lr: Scalar, distance: Scalar, num_steps: int, num_rounds: int
) -> Array:
    r"""Closed form of coordinates 2, 3 and 4 of FedAvg's model after R rounds of K steps.

    .. math::
        x_2 &= (1 - \eta \mu)^{KR} \tfrac B2, \qquad x_3 = (1 - \eta L)^{KR} \tfrac B2, \qquad
        x_4 = \tfrac{1 - a^R}{1 - a}\, b\, \zeta_* \\
        a &= \tfrac12 [p^K + q^K], \quad b = \tfrac2L [1 - p^K] - \tfrac4L [1 - q^K], \quad
        p = 1 - \tfrac{\eta L}4, \quad q = 1 - \tfrac{\eta L}8

    Args:
        instance: numbers of the problem.
        lr: eta, positive.
        distance: B.
        num_steps: K.
        num_rounds: R.

    Returns:
        ``[3]``.
    """
    l, mu, _, zeta = instance
    total = num_steps * num_rounds
    p, q = (1 - lr * l / 4) ** num_steps, (1 - lr * l / 8) ** num_steps
    a, b = (p + q) / 2, 2 / l * (1 - p) - 4 / l * (1 - q)
    fourth = (1 - a**num_rounds) / (1 - a) * b * zeta
    halves = [(1 - lr * curvature) ** total * distance / 2 for curvature in (mu, l)]
    return jnp.stack([jnp.asarray(x, jnp.result_type(float)) for x in (*halves, fourth)])
