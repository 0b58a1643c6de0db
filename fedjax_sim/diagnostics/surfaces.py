"""Loss surfaces: the objective on a plane through a model.

Directions are random (:func:`filter_normalized`) or those in which models lie (:func:`plane`,
:func:`principal_plane`); :func:`surface` evaluates the grid.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AxisType, Mesh
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.execution.devices import workers
from fedjax_sim.execution.strategies import chunked, sharded
from fedjax_sim.types import Params, PyTree

Interval = tuple[float, float]


class Surface(NamedTuple):
    """Values on a grid: ``values[i, j]`` belongs to ``params + a[i] d1 + b[j] d2``."""

    a: Array  # [P]
    b: Array  # [P]
    values: PyTree  # [P, P], of every output of the loss


class Plane(NamedTuple):
    """Two orthonormal directions, and where models lie in the plane through the server's model."""

    d1: Params
    d2: Params
    coordinates: Array  # [k + 1, 2]: the server's model (0, 0), then the others

    def window(self, margin: float = 0.3) -> tuple[Interval, Interval]:
        """The ranges of both coordinates, widened on each side by this share of the larger one.

        An ``extent`` for :func:`surface` (host-side; not for use inside jit).

        Example:
            >>> Plane(None, None, jnp.array([[0.0, 0.0], [4.0, 0.0], [2.0, 1.0]])).window(0.5)
            ((-2.0, 6.0), (-2.0, 3.0))
        """
        low, high = np.min(self.coordinates, axis=0), np.max(self.coordinates, axis=0)
        wide = margin * float((high - low).max())
        (a0, b0), (a1, b1) = low.tolist(), high.tolist()
        return (a0 - wide, a1 + wide), (b0 - wide, b1 + wide)


def output_axis(leaf: Array) -> int:
    """The axis of a kernel's outputs in this library's models.

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

    where i runs over filters: the slices of a leaf along its output axis.  Leaves with fewer than
    two axes (biases, scales) get 0.  So surfaces of models that differ in the scale of their
    layers, which a normalised or ReLU network does not notice, can be compared.

    Args:
        key: the same key gives the same Gaussian for every model of one shape, in float32 and
            float64.
        params: the model.
        filter_axis: the output axis of a leaf; for ``nnx.Linear``'s ``[inputs, outputs]`` kernels
            pass ``lambda leaf: -1``.

    Source: Visualizing the Loss Landscape of Neural Nets, https://arxiv.org/abs/1712.09913.

    Example:
        >>> params = {"kernel": jnp.array([[3.0, 4.0], [0.0, 0.0]]), "bias": jnp.ones(2)}
        >>> d = filter_normalized(jax.random.key(0), params)
        >>> jnp.linalg.norm(d["kernel"], axis=1).round(4).tolist(), d["bias"].tolist()
        ([5.0, 0.0], [0.0, 0.0])
    """
    leaves, structure = jax.tree.flatten(params)

    def direction(number: int, leaf: Array) -> Array:
        if leaf.ndim < 2:
            return jnp.zeros_like(leaf)
        noise = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, jnp.float32)
        noise = noise.astype(leaf.dtype)
        axis = filter_axis(leaf) % leaf.ndim
        rest = tuple(i for i in range(leaf.ndim) if i != axis)

        def size(x: Array) -> Array:
            return jnp.sqrt(jnp.sum(x**2, axis=rest, keepdims=True))

        return noise * (size(leaf) / size(noise))

    return jax.tree.unflatten(structure, [direction(i, leaf) for i, leaf in enumerate(leaves)])


def plane(params_a: Params, params_b: Params, params_c: Params) -> Plane:
    """The plane through three models, such as the server's and two clients'.

    ``d1`` points from a to b, ``d2`` is the part of ``c - a`` orthogonal to it, both of length 1.

    Raises:
        ValueError: (concrete) models on one line, to rounding.

    Example:
        >>> corners = [jnp.array([0.0, 0.0, 1.0]), jnp.array([2.0, 0.0, 1.0])]
        >>> found = plane(*corners, jnp.array([1.0, 3.0, 1.0]))
        >>> found.coordinates.tolist(), found.d2.tolist()
        ([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]], [0.0, 1.0, 0.0])
    """
    first, second = tree.sub(params_b, params_a), tree.sub(params_c, params_a)
    d1 = tree.scale(tree.over_norm(1.0, first), first)
    along = _dot(second, d1)
    rest = tree.add_scale(second, -along, d1)
    # Once more: the first difference leaves rounding errors along d1, which would be scaled up.
    rest = tree.add_scale(rest, -_dot(rest, d1), d1)
    length, height = tree.norm(first), tree.norm(rest)
    names = "params_a, params_b and params_c"
    for across in (length, height):
        _check_rank(names, across, tree.norm(second), 100 * _epsilon(height))
    coordinates = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], length.dtype) * length
    coordinates = coordinates.at[2].set(jnp.stack([along, height]))
    return Plane(d1, tree.scale(tree.over_norm(1.0, rest), rest), coordinates)


def principal_plane(center: Params, models: Params) -> Plane:
    r"""The plane through the server's model that is closest to the clients' models.

    Principal components of the differences ``D = models - center`` (not of those from their mean,
    so that the server's model lies in the plane), from the eigenvectors of the Gram matrix
    ``G = D D^T [k, k]``: ``d_j = D^T u_j / sqrt(lambda_j)``.

    Args:
        center: the server's model.
        models: k of them, leaves ``[k, ...]``.

    Returns:
        ``coordinates`` are the server's, (0, 0), then those of the models' projections.

    Raises:
        ValueError: fewer than two models; (concrete) models on one line through the center, to
            rounding.

    Example:
        >>> models = jnp.array([[3.0, 0.0, 0.1], [0.0, 2.0, 0.0], [-3.0, 0.0, 0.1]])
        >>> found = principal_plane(jnp.zeros(3), models)
        >>> jnp.abs(found.coordinates).round(2).tolist()
        [[0.0, 0.0], [3.0, 0.0], [0.0, 2.0], [3.0, 0.0]]
    """
    count = jax.tree.leaves(models)[0].shape[0]
    if count < 2:
        raise ValueError(f"models has {count} models; expected at least 2")
    offsets = jax.tree.map(lambda x, c: (x - c).reshape(count, -1), models, center)
    gram = functools.reduce(jnp.add, (_product(x, x.T) for x in jax.tree.leaves(offsets)))
    eigenvalues, vectors = jnp.linalg.eigh(gram)
    roots = jnp.sqrt(jnp.maximum(eigenvalues[:-3:-1], 0))  # the two largest, largest first
    vectors = vectors[:, :-3:-1]
    # Eigenvalues are squares: their rounding error is that of the largest one.
    _check_rank("models", roots[1], roots[0], 2 * _epsilon(roots) ** 0.5)
    d1, d2 = (
        jax.tree.map(
            lambda x, c, j=j: (_product(vectors[:, j], x) / roots[j]).reshape(c.shape),
            offsets,
            center,
        )
        for j in range(2)
    )
    coordinates = jnp.pad(vectors * roots, ((1, 0), (0, 0)))
    return Plane(d1, d2, coordinates)


def surface(
    loss: Callable[[Params], PyTree],
    params: Params,
    d1: Params,
    d2: Params,
    extent: float | tuple[Interval, Interval] = 1.0,
    points: int = 51,
    chunk: int = 8,
) -> Surface:
    """``loss(params + a d1 + b d2)`` on a grid of ``points x points``, as one compiled program.

    Divided among the host devices, if there are several (:mod:`fedjax_sim.execution.devices`).  LeNet-5 on
    10,000 CIFAR images, seconds of one x86 core a point: chunks of 1, 2, 4, 8 points take 1.08,
    0.72, 0.60, 0.39 in batches of 500 images, and 8 points 0.27 in batches of 250.

    Args:
        loss: ``params -> scalar``, or a pytree of scalars such as an evaluator's
            (:func:`fedjax_sim.evaluation.evaluator`), whose outputs then have a surface each.  A
            ``jax.tree_util.Partial``, as an evaluator is: its data are arguments of the program.
        params: the model at the origin.
        d1: first direction, a pytree like the model.
        d2: second direction.
        extent: both coordinates run from ``-extent`` to ``extent``; or ``((a0, a1), (b0, b1))``,
            for instance :meth:`Plane.window`.
        points: grid points in each direction.
        chunk: points evaluated at once on one device, each with its own weights; they share the
            examples, and the patches that a first convolution cuts from them.

    Raises:
        ValueError: points below 2, chunk below 1, an empty range.

    Example:
        >>> d1, d2 = jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0])
        >>> found = surface(lambda x: jnp.sum(x**2), jnp.zeros(2), d1, d2, points=3)
        >>> found.a.tolist(), found.values.tolist()
        ([-1.0, 0.0, 1.0], [[5.0, 1.0, 5.0], [4.0, 0.0, 4.0], [5.0, 1.0, 5.0]])
    """
    for name, value, least in (("points", points, 2), ("chunk", chunk, 1)):
        if value < least:
            raise ValueError(f"{name} is {value}; expected at least {least}")
    ranges = extent if isinstance(extent, tuple) else ((-extent, extent), (-extent, extent))
    for low, high in ranges:
        if not low < high:
            raise ValueError(f"extent is {extent}; expected a positive number or two (low, high)")
    a, b = (np.linspace(low, high, points) for low, high in ranges)
    loss = loss if isinstance(loss, Partial) else Partial(loss)
    dtype = jnp.result_type(float)
    a, b = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
    return Surface(a, b, _values(loss, params, d1, d2, a, b, min(chunk, points**2)))


@functools.partial(jax.jit, static_argnames="chunk")
def _values(
    loss: Partial, params: Params, d1: Params, d2: Params, a: Array, b: Array, chunk: int
) -> PyTree:
    grid = jnp.meshgrid(a, b, indexing="ij")
    points = tuple(x.ravel() for x in grid)

    def at(shared: tuple[Partial, Params, Params, Params], point: tuple[Array, Array]):
        loss, params, d1, d2 = shared
        return (), loss(tree.add_scale(tree.add_scale(params, point[0], d1), point[1], d2))

    # Points are executed as clients are: each has its own weights, and all see the same data.
    execute, devices = chunked(chunk), workers()[: a.size * b.size]
    if len(devices) > 1:
        mesh = Mesh(np.array(devices), ("clients",), axis_types=(AxisType.Auto,))
        execute = sharded(mesh, execute)
    _, values = execute(at, (loss, params, d1, d2), points, jnp.ones(a.size * b.size))
    return jax.tree.map(lambda v: v.reshape(grid[0].shape), values)


def _dot(x: PyTree, y: PyTree) -> Array:
    return functools.reduce(jnp.add, map(jnp.vdot, jax.tree.leaves(x), jax.tree.leaves(y)))


def _product(x: Array, y: Array) -> Array:
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _epsilon(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps)


def _check_rank(name: str, smaller: Array, larger: Array, tolerance: float) -> None:
    if any(isinstance(x, Tracer) for x in (smaller, larger)):
        return
    if not float(smaller) > tolerance * float(larger):
        raise ValueError(
            f"{name} lie on one line to rounding (lengths {float(larger):.3g} along it, "
            f"{float(smaller):.3g} across); expected models that span a plane"
        )
