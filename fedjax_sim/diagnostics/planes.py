"""Planes through models and random directions, for loss surfaces.

:func:`plane` and :func:`principal_plane` contain given models; :func:`filter_normalized` draws a
random direction. :func:`fedjax_sim.diagnostics.surfaces.surface` evaluates a loss on a plane.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_key, is_concrete
from fedjax_sim.types import Params, shown

Interval = tuple[float, float]


@shown
class Plane(NamedTuple):
    """Two orthonormal directions, and the coordinates of models in the plane."""

    d1: Params
    d2: Params
    coordinates: Array  # [k + 1, 2]: the server's model (0, 0), then the others

    def window(self, margin: float = 0.3) -> tuple[Interval, Interval]:
        """Ranges of both coordinates, extended on each side by ``margin`` times the larger range.

        It is an ``extent`` for :func:`~fedjax_sim.diagnostics.surfaces.surface` (host-side; not for
        use inside jit).

        Example:
            >>> Plane(None, None, jnp.array([[0.0, 0.0], [4.0, 0.0], [2.0, 1.0]])).window(0.5)
            ((-2.0, 6.0), (-2.0, 3.0))
        """
        low, high = np.min(self.coordinates, axis=0), np.max(self.coordinates, axis=0)
        wide = margin * float((high - low).max())
        (a0, b0), (a1, b1) = low.tolist(), high.tolist()
        return (a0 - wide, a1 + wide), (b0 - wide, b1 + wide)


def output_axis(leaf: Array) -> int:
    """Axis of the outputs in the kernels of this library's models.

    Dense kernels are ``[outputs, inputs]``, convolutions ``[..., inputs, outputs]``.

    Example:
        >>> output_axis(jnp.ones((10, 784))), output_axis(jnp.ones((5, 5, 3, 6)))
        (0, -1)
    """
    return 0 if leaf.ndim == 2 else -1


def filter_normalized(
    key: Array, params: Params, filter_axis: Callable[[Array], int] = output_axis
) -> Params:
    r"""A random direction with the norms of the model's filters (Li et al., 2018).

    .. math:: d_{i} = \frac{g_i}{\|g_i\|} \|\theta_i\|, \qquad g \sim N(0, I)

    where i runs over filters: the slices of a leaf along its output axis. The direction is 0 in
    leaves with fewer than two axes (biases, scales). The normalisation makes surfaces comparable
    between models that differ in the scale of their layers, to which normalised and ReLU networks
    are invariant.

    Args:
        key: determines the Gaussian, which is the same in float32 and float64.
        params: the model.
        filter_axis: returns the output axis of a leaf; for ``nnx.Linear`` with its ``[inputs,
            outputs]`` kernels pass ``lambda leaf: -1``.

    Source: Visualizing the Loss Landscape of Neural Nets, https://arxiv.org/abs/1712.09913.

    Raises:
        ValueError: ``key`` is not one key of JAX's default generator.

    Example:
        >>> params = {"kernel": jnp.array([[3.0, 4.0], [0.0, 0.0]]), "bias": jnp.ones(2)}
        >>> d = filter_normalized(jax.random.key(0), params)
        >>> jnp.linalg.norm(d["kernel"], axis=1).round(4).tolist(), d["bias"].tolist()
        ([5.0, 0.0], [0.0, 0.0])
    """
    check_key(key)
    leaves, structure = jax.tree.flatten(params)

    def direction(number: int, leaf: Array) -> Array:
        if leaf.ndim < 2:
            return jnp.zeros_like(leaf)
        noise = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, jnp.float32)
        # Squares of half precision leave its range.
        wide = tree.wide(leaf)
        noise = noise.astype(wide.dtype)
        axis = filter_axis(leaf) % leaf.ndim
        rest = tuple(i for i in range(leaf.ndim) if i != axis)

        def size(x: Array) -> Array:
            return jnp.sqrt(jnp.sum(x**2, axis=rest, keepdims=True))

        return (noise * (size(wide) / size(noise))).astype(leaf.dtype)

    return jax.tree.unflatten(structure, [direction(i, leaf) for i, leaf in enumerate(leaves)])


def plane(params_a: Params, params_b: Params, params_c: Params) -> Plane:
    """Plane through three models, such as the models of the server and two clients.

    ``d1`` points from a to b; ``d2`` is the part of ``c - a`` that is orthogonal to ``d1``. Both
    have length 1. Directions have the dtypes of the models, coordinates at least float32.

    Raises:
        ValueError: models on one line, up to rounding. Traced models are not checked.

    Example:
        >>> corners = [jnp.array([0.0, 0.0, 1.0]), jnp.array([2.0, 0.0, 1.0])]
        >>> result = plane(*corners, jnp.array([1.0, 3.0, 1.0]))
        >>> result.coordinates.tolist(), result.d2.tolist()
        ([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]], [0.0, 1.0, 0.0])
    """
    a, b, c = map(tree.wide, (params_a, params_b, params_c))
    first, second = tree.sub(b, a), tree.sub(c, a)
    d1 = tree.scale(tree.over_norm(1.0, first), first)
    along = tree.vdot(second, d1)
    rest = tree.add_scale(second, -along, d1)
    # Removes the rounding errors along d1 in the first difference, which would be scaled up.
    rest = tree.add_scale(rest, -tree.vdot(rest, d1), d1)
    length, height = tree.norm(first), tree.norm(rest)
    names = "params_a, params_b and params_c"
    for across in (length, height):
        _check_rank(names, across, tree.norm(second), 100 * _epsilon(height))
    coordinates = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], length.dtype) * length
    coordinates = coordinates.at[2].set(jnp.stack([along, height]))
    d2 = tree.scale(tree.over_norm(1.0, rest), rest)
    return Plane(tree.cast_like(d1, params_a), tree.cast_like(d2, params_a), coordinates)


def principal_plane(center: Params, models: Params) -> Plane:
    r"""Plane through the server's model that is closest to the clients' models.

    The directions are principal components of the differences ``D = models - center``. The mean is
    not subtracted, so the server's model lies in the plane. With the eigenvectors u_j of the Gram
    matrix ``G = D D^T [k, k]``, ``d_j = D^T u_j / sqrt(lambda_j)``. Directions have the dtypes of
    the center, coordinates at least float32.

    Args:
        center: the server's model.
        models: k of them, leaves ``[k, ...]``.

    Returns:
        A plane with the coordinates of the server's model, (0, 0), and of the projected models.

    Raises:
        ValueError: fewer than two models, models on one line through the center, up to rounding.
            Traced models are not checked.

    Example:
        >>> models = jnp.array([[3.0, 0.0, 0.1], [0.0, 2.0, 0.0], [-3.0, 0.0, 0.1]])
        >>> result = principal_plane(jnp.zeros(3), models)
        >>> jnp.abs(result.coordinates).round(2).tolist()
        [[0.0, 0.0], [3.0, 0.0], [0.0, 2.0], [3.0, 0.0]]
    """
    count = jax.tree.leaves(models)[0].shape[0]
    if count < 2:
        raise ValueError(f"models has {count} models; expected at least 2")
    offsets = jax.tree.map(
        lambda x, c: (x - c).reshape(count, -1), tree.wide(models), tree.wide(center)
    )
    gram = functools.reduce(jnp.add, (_product(x, x.T) for x in jax.tree.leaves(offsets)))
    eigenvalues, vectors = jnp.linalg.eigh(gram)
    roots = jnp.sqrt(jnp.maximum(eigenvalues[:-3:-1], 0))  # the two largest, largest first
    vectors = vectors[:, :-3:-1]
    # Eigenvalues are squares; all have the rounding error of the largest one.
    _check_rank("models", roots[1], roots[0], 2 * _epsilon(roots) ** 0.5)
    d1, d2 = (
        jax.tree.map(
            lambda x, c, j=j: (
                (_product(vectors[:, j], x) / roots[j]).reshape(c.shape).astype(c.dtype)
            ),
            offsets,
            center,
        )
        for j in range(2)
    )
    coordinates = jnp.pad(vectors * roots, ((1, 0), (0, 0)))
    return Plane(d1, d2, coordinates)


def _product(x: Array, y: Array) -> Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _epsilon(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps)


def _check_rank(name: str, smaller: Array, larger: Array, tolerance: float) -> None:
    if not (is_concrete(smaller) and is_concrete(larger)):
        return
    if not float(smaller) > tolerance * float(larger):
        raise ValueError(
            f"{name} lie on one line up to rounding (lengths {float(larger):.3g} along it, "
            f"{float(smaller):.3g} across); expected models that span a plane"
        )
