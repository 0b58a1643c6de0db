r"""Objectives of clients that satisfy an alpha-Lojasiewicz inequality with known constants.

A family consists of the functions ``f_c(x)`` and their gradients, for every client c, and of the
constants of

.. math:: \|\nabla f_c(x)\|^2 \ge \mu\, (f_c(x) - f_c^*)^\alpha, \qquad
    \frac1M \sum_c \|\nabla f_c(x) - \nabla F(x)\|^2 \le \zeta^2, \qquad f_c\ L\text{-smooth.}

:func:`noisy_task` makes a family a task by adding noise of known variance. Module
:mod:`~experiments.lojasiewicz.families` has families of losses,
:mod:`~experiments.lojasiewicz.policies` has policies, whose constants depend on the visited
models, and :mod:`fedjax_sim.theory.lojasiewicz` has the bounds.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial
from jax.typing import ArrayLike

import fedjax_sim as fs
from fedjax_sim.checks import check_at_least, check_count
from fedjax_sim.types import Scalar, Step

Sampler = Callable[[Array, tuple[int, ...]], Array]  # (key, shape) -> noise, E ||noise||^2 = 1


class FamilyConstants(NamedTuple):
    """Constants of a family."""

    alpha: float
    mu: float
    L: float
    zeta: float
    infima: np.ndarray  # [M]  f_c^*
    minimum: float  # inf F, at least the mean of the infima

    @property
    def optimum(self) -> float:
        """``F*``, the mean of the clients' infima; the bounds are on ``F - F*``."""
        return float(np.mean(self.infima))

    @property
    def floor(self) -> float:
        """``inf F - F*``, a lower bound of every gap."""
        return self.minimum - self.optimum


class Family(NamedTuple):
    """Objectives of the clients; the functions are pytrees of their data."""

    value: Callable[[Array, Array], Array]  # (client, x) -> f_c(x)
    gradient: Callable[[Array, Array], Array]  # (client, x) -> gradient of f_c, x's shape
    constants: FamilyConstants

    @property
    def num_clients(self) -> int:
        return len(self.constants.infima)


def gap(family: Family, x: Array) -> Array:
    """``F(x) - F*``, the mean over clients of ``f_c(x) - f_c^*``."""
    values = jax.vmap(family.value, (0, None))(jnp.arange(family.num_clients), x)
    return (values - jnp.asarray(family.constants.infima, values.dtype)).mean()


def gradients(
    gradient: Callable[[Array, Array], Array], num_clients: int, x: Array
) -> tuple[Array, Array]:
    """``grad F(x)`` and the spread ``sqrt((1 / M) sum_c ||grad f_c(x) - grad F(x)||^2)``."""
    each = jax.vmap(gradient, (0, None))(jnp.arange(num_clients), x)
    mean = each.mean(axis=0)
    return mean, jnp.sqrt(jnp.square(each - mean).sum() / num_clients)


def sphere(key: Array, shape: tuple[int, ...]) -> Array:
    """Noise of norm 1; for scalars a random sign. It is bounded, so iterates stay in known sets."""
    draw = jax.random.normal(key, shape, jnp.float32)
    return draw / jnp.sqrt(jnp.square(draw).sum())


def gaussian(key: Array, shape: tuple[int, ...]) -> Array:
    """Independent normal entries of variance ``1 / size``."""
    return jax.random.normal(key, shape, jnp.float32) / math.prod(shape) ** 0.5


def noisy_task(family: Family, std: Scalar, num_steps: int, noise: Sampler = sphere) -> fs.Task:
    r"""Task of a family: the gradient of a step is :math:`\nabla f_c(x) + \sigma\, \xi`.

    Args:
        family: any family.
        std: sigma; ``sigma^2`` is the variance ``E||sigma xi||^2``.
        num_steps: K, local steps per visit.
        noise: law of xi, a function of a key and a shape; the visit's key and the step determine
            the key.
    """
    check_at_least(0, std=std)
    check_count(1, num_steps=num_steps)
    scale = jnp.asarray(std, jnp.result_type(float))
    oracle = Partial(_oracle, family.value, family.gradient, Partial(noise), scale)
    ones = np.ones(family.num_clients, np.int32)
    return fs.Task(oracle, ones, num_steps * ones)


def _oracle(
    value: Callable[[Array, Array], Array],
    gradient: Callable[[Array, Array], Array],
    noise: Sampler,
    std: Array,
    client: Array,
    key: Array,
    max_steps: int,
) -> fs.Oracle:
    del max_steps

    def draw(x: Array, step: Step) -> Array:
        # Draws 32 bits, so runs in single and in double precision have the same noise.
        return std.astype(x.dtype) * noise(jax.random.fold_in(key, step), x.shape).astype(x.dtype)

    return fs.Oracle(
        grad=lambda x, step: gradient(client, x) + draw(x, step),
        loss=lambda x, step: value(client, x) + (draw(x, step) * x).sum(),
        full_grad=lambda x: gradient(client, x),
        full_loss=lambda x: value(client, x),
    )


def with_data(value: Callable, gradient: Callable, *data: ArrayLike) -> tuple[Partial, Partial]:
    """Returns both functions as pytrees, with the data as their first arguments."""
    arrays = [jnp.asarray(x, jnp.result_type(float)) for x in data]
    return Partial(value, *arrays), Partial(gradient, *arrays)
