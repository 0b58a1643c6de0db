"""Extreme eigenvalues and spectral densities of symmetric operators on pytrees, by Lanczos."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from fedjax_sim.checks import check_count, check_key
from fedjax_sim.types import Params, shown

Operator = Callable[[Params], Params]


@shown
class Ritz(NamedTuple):
    """Approximate eigenvalues of a symmetric operator."""

    values: Array  # [k], largest first
    residuals: Array  # [k]: an eigenvalue of the operator is at most this far away
    weights: Array  # [k]: squared first components; they sum to 1


def ritz(operator: Operator, like: Params, key: Array, iterations: int) -> Ritz:
    r"""Eigenvalues of ``Q^T A Q`` for an orthonormal basis Q of the Krylov space of A.

    Runs k Lanczos iterations from a Gaussian initial vector, with full reorthogonalisation (twice).
    If the space is invariant, the iterations continue with a new Gaussian vector; so multiple
    eigenvalues appear repeatedly, and k equal to the dimension d gives the whole spectrum.

    With eigenvectors y of the tridiagonal matrix the residuals are ``beta_k |y_k|``, and
    ``sum_i weights_i f(values_i)`` is the Gauss quadrature of ``v^T f(A) v`` for the normalised
    initial vector v. Its mean over initial vectors estimates ``tr f(A) / d`` (stochastic Lanczos
    quadrature).

    Works under ``jit`` and ``vmap`` (over keys and over values in the operator's closure). Memory:
    k + 1 vectors of length d.

    Args:
        operator: symmetric and linear, from pytrees like ``like`` to such pytrees.
        like: pytree of the operator's shapes and of one floating dtype; values in half precision
            have eigenvalues in single precision.
        key: key of the initial vector.
        iterations: k; at most d iterations run.

    Raises:
        ValueError: iterations below 1; ``like`` has no entries, or leaves that are not floating.

    Example:
        >>> scales = jnp.arange(1.0, 6.0)
        >>> result = ritz(lambda v: scales * v, jnp.zeros(5), jax.random.key(0), 5)
        >>> [round(float(value), 3) for value in result.values]
        [5.0, 4.0, 3.0, 2.0, 1.0]
    """
    check_key(key)
    check_count(1, iterations=iterations)
    kinds = sorted({jnp.result_type(leaf).name for leaf in jax.tree.leaves(like)})
    if not all(jnp.issubdtype(kind, jnp.floating) for kind in kinds):
        raise ValueError(f"like has leaves of dtypes {kinds}; expected floating leaves")
    flat, unravel = ravel_pytree(like)
    if not flat.size:
        raise ValueError("like has no entries; expected at least one")
    # Eigenvalues of the tridiagonal matrix need single precision.
    dim, dtype = flat.size, np.promote_types(flat.dtype, np.float32)
    k = min(iterations, dim)
    eps = jnp.finfo(dtype).eps
    # By default accelerators round the factors of float32 products.
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

    def gaussian(number: Array | int) -> Array:
        # Draws 32 bits, so single and double precision have the same initial vector.
        draw = jax.random.normal(jax.random.fold_in(key, number), (dim,), jnp.float32)
        return draw.astype(dtype)

    def orthogonal(v: Array, basis: Array) -> Array:
        for _ in range(2):
            v = v - product(product(basis, v), basis)
        return v

    def unit(v: Array) -> Array:
        return v / jnp.linalg.norm(v)

    def step(carry: tuple[Array, Array], j: Array) -> tuple[tuple[Array, Array], tuple]:
        basis, scale = carry  # rows above j are 0
        image = ravel_pytree(operator(unravel(basis[j].astype(flat.dtype))))[0].astype(dtype)
        alpha = product(basis[j], image)
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        rest = orthogonal(image, basis)
        beta = jnp.linalg.norm(rest)
        invariant = beta <= 10 * eps * jnp.sqrt(float(dim)).astype(dtype) * scale
        fresh = orthogonal(unit(gaussian(j + 1)), basis)
        following = jnp.where(invariant, fresh, rest)
        # For k = d the vector after the last step is 0; it is not used.
        length = jnp.linalg.norm(following)
        following = following / jnp.where(length > 0, length, 1)
        basis = basis.at[j + 1].set(orthogonal(following, basis))
        return (basis, scale), (alpha, jnp.where(invariant, 0, beta))

    basis = jnp.zeros((k + 1, dim), dtype).at[0].set(unit(gaussian(0)))
    zero = jnp.zeros((), dtype)
    _, (alphas, betas) = jax.lax.scan(step, (basis, zero), jnp.arange(k, dtype=jnp.int32))
    off = jnp.diag(betas[:-1], 1)
    values, vectors = jnp.linalg.eigh(jnp.diag(alphas) + off + off.T)
    values, vectors = values[::-1], vectors[:, ::-1]
    return Ritz(values, betas[-1] * jnp.abs(vectors[-1]), vectors[0] ** 2)
