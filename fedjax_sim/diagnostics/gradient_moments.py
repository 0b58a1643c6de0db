"""Moments of gradient noise: exact for finite data, estimated for other oracles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count, check_key
from fedjax_sim.data import FederatedData, Objective, empirical_task, full_batch
from fedjax_sim.diagnostics.heterogeneity import check_points
from fedjax_sim.types import Params, Task, shown

__all__ = ["Moments", "batch_moments", "sampled_moments"]

_BATCH = 8  # clients evaluated at once


@shown
class Moments(NamedTuple):
    """Moments of the noise ``g - grad F_m(x)`` of M clients' stochastic gradients at P points."""

    variance: Array  # [P, M] E||g - grad F_m||^2
    fourth: Array  # [P, M] E||g - grad F_m||^4
    largest: Array  # [P, M] max ||g||

    @property
    def sigma(self) -> float:
        """Square root of the largest variance."""
        return float(np.sqrt(np.max(self.variance)))

    @property
    def sigma4(self) -> float:
        """Fourth root of the largest fourth moment, at least sigma."""
        return float(np.max(self.fourth) ** 0.25)


def batch_moments(
    objective: Objective,
    data: FederatedData,
    points: Params,
    batch_size: int,
    *,
    block: int = 64,
) -> Moments:
    r"""Exact moments for minibatches of b examples that are drawn with replacement.

    With ``z_j = grad l(x; xi_j) - grad F_m(x)``, ``m_2`` and ``m_4`` the means of ``||z_j||^2`` and
    ``||z_j||^4`` over the client's n examples, and S the covariance of z:

    .. math:: E\|g - \nabla F_m\|^2 = \frac{m_2}{b}, \qquad
        E\|g - \nabla F_m\|^4 = \frac{m_4 + (b - 1) (m_2^2 + 2\, \mathrm{tr} S^2)}{b^3}, \qquad
        \mathrm{tr} S^2 = \frac{1}{n^2} \sum_{j,k} \langle z_j, z_k \rangle^2

    ``largest`` is the largest norm of a single example's gradient. The gradients of ``block``
    examples of 8 clients are stored at once; the gradients of a client with more examples are
    recomputed for every block.

    Args:
        objective: see :func:`fedjax_sim.data.task.empirical_task`; without randomness.
        data: the clients' examples.
        points: models, leaves ``[P, ...]``.
        batch_size: b.
        block: number of examples per client whose gradients are stored at once.

    Raises:
        ValueError: see :func:`fedjax_sim.diagnostics.heterogeneity.heterogeneity`; batch_size or
            block below 1.

    Example:
        >>> data = FederatedData({"x": np.array([1.0, -1.0], np.float32)}, np.array([0, 2]))
        >>> loss = lambda w, batch, key: batch["x"] * w
        >>> moments = batch_moments(loss, data, jnp.zeros(1), batch_size=2)
        >>> moments.variance.tolist(), moments.fourth.tolist()  # the mean of two signs
        ([[0.5]], [[0.5]])
    """
    check_count(1, batch_size=batch_size, block=block)
    points = check_points(empirical_task(objective, data, full_batch(1)), points)
    max_size = int(np.asarray(data.sizes).max())
    block = min(block, max_size)
    firsts = jnp.arange(0, max_size, block, dtype=jnp.int32)

    def one_client(data: FederatedData, x: Params, client: Array) -> Moments:
        offsets = data.offsets.astype(jnp.int32)
        start, size = offsets[client], offsets[client + 1] - offsets[client]

        def gradients(first: Array) -> tuple[Array, Array]:
            """Flat gradients of a block of examples [block, d], and its mask [block, 1]."""
            rows = first + jnp.arange(block, dtype=jnp.int32)
            valid = rows < size

            def one(row: Array) -> Array:
                example = jax.tree.map(lambda leaf: leaf[row][None], data.examples)
                gradient = jax.grad(lambda x: objective(x, example, jax.random.key(0))[0])(x)
                return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(gradient)])

            return jax.vmap(one)(start + jnp.where(valid, rows, 0)), valid[:, None]

        def centred(first: Array, centre: Array) -> Array:
            g, valid = gradients(first)
            return jnp.where(valid, g - centre, 0)

        def products(z: Array, centre: Array) -> Array:
            """Sum of <z_j, z_k>^2 over examples j of a block and k of the client."""

            def with_block(first: Array) -> Array:
                # The gradients of a client with one block are z.
                other = z if len(firsts) == 1 else centred(first, centre)
                return jnp.sum(jnp.matmul(z, other.T, precision=jax.lax.Precision.HIGHEST) ** 2)

            return jax.lax.map(with_block, firsts).sum()

        def powers(first: Array, centre: Array) -> tuple[Array, ...]:
            z = centred(first, centre)
            squares = jnp.sum(z**2, axis=1)
            return squares.sum(), jnp.sum(squares**2), products(z, centre)

        def summed(first: Array) -> tuple[Array, Array]:
            g, valid = gradients(first)
            g = jnp.where(valid, g, 0)
            return g.sum(axis=0), jnp.sum(g**2, axis=1).max()

        sums, largest = jax.lax.map(summed, firsts)
        count = size.astype(sums.dtype)
        mean = sums.sum(axis=0) / count
        second, fourth, pairs = jax.lax.map(lambda first: powers(first, mean), firsts)
        m2, m4, traced = second.sum() / count, fourth.sum() / count, pairs.sum() / count**2
        b = float(batch_size)
        fourth = (m4 + (b - 1) * (m2**2 + 2 * traced)) / b**3
        return Moments(m2 / b, fourth, jnp.sqrt(largest.max()))

    @jax.jit
    def everything(data: FederatedData, points: Params) -> Moments:
        return _mapped(functools.partial(one_client, data), data.num_clients, points)

    return everything(jax.tree.map(jnp.asarray, data), points)


def sampled_moments(task: Task, points: Params, key: Array, *, num_samples: int = 256) -> Moments:
    """Estimated moments for any oracle: means over sampled gradients.

    ``||g - grad F_m||^2`` and its square are averaged over the first gradients of independent
    visits. Both moments are unbiased if ``full_grad`` is the mean of ``grad``; their maxima over
    clients and points are biased upwards. ``largest`` is the largest norm of a sampled gradient.

    Args:
        task: the clients' objectives.
        points: models, leaves ``[P, ...]``.
        key: determines the draws.
        num_samples: gradients per client and point.

    Raises:
        ValueError: see :func:`fedjax_sim.diagnostics.heterogeneity.heterogeneity`; num_samples
            below 1.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, -1.0], np.float32)}, np.array([0, 2]))
        >>> loss = lambda w, batch, key: batch["x"] * w
        >>> task = fs.empirical_task(loss, data, fs.with_replacement(1, 1))
        >>> moments = sampled_moments(task, jnp.zeros(1), jax.random.key(0))
        >>> moments.sigma, moments.sigma4  # the noise is a sign
        (1.0, 1.0)
    """
    check_key(key)
    points = check_points(task, points)
    check_count(1, num_samples=num_samples)

    @jax.jit
    def everything(task: Task, points: Params) -> Moments:
        def one_client(x: Params, client: Array) -> Moments:
            client_key = jax.random.fold_in(key, client)
            mean = task.oracle(client, client_key, 1).full_grad(x)

            def draw(number: Array) -> tuple[Array, Array]:
                g = task.oracle(client, jax.random.fold_in(client_key, number), 1).grad(x, 0)
                return tree.norm(tree.sub(g, mean), squared=True), tree.norm(g)

            numbers = jnp.arange(num_samples, dtype=jnp.int32)
            squares, norms = jax.lax.map(draw, numbers, batch_size=32)
            return Moments(squares.mean(), (squares**2).mean(), norms.max())

        return _mapped(one_client, task.num_clients, points)

    return everything(task, points)


def _mapped(
    one_client: Callable[[Params, Array], Moments], num_clients: int, points: Params
) -> Moments:
    """Returns the moments of every client at every point, ``[P, M]``."""
    clients = jnp.arange(num_clients, dtype=jnp.int32)

    def one_point(x: Params) -> Moments:
        return jax.lax.map(lambda client: one_client(x, client), clients, batch_size=_BATCH)

    return jax.lax.map(one_point, points)


def sample_variance(sample: Callable[[Array], Params], count: int, like: Params) -> Array:
    """Sample variance ``sum_j ||g_j - mean||^2 / (count - 1)``, with one gradient in memory."""
    # B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
    # Technometrics 4(3), 1962.

    def add(carry: tuple[Params, Array], number: Array) -> tuple[tuple[Params, Array], None]:
        mean, total = carry
        gradient = sample(number)
        before = tree.sub(gradient, mean)
        mean = tree.add_scale(mean, 1 / (number + 1), before)
        return (mean, total + tree.vdot(before, tree.sub(gradient, mean))), None

    zeros = tree.zeros_like(like)
    numbers = jnp.arange(count, dtype=jnp.int32)
    (_, total), _ = jax.lax.scan(add, (zeros, tree.vdot(zeros, zeros)), numbers)
    return total / (count - 1)
