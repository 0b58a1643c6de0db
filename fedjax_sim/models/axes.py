"""Axes of kernels: their roles in the matrices of layers, from the definitions of the layers.

The role of an axis is "i" (inputs, which the layer sums over), "o" (outputs) or "s" (a stack of
matrices, none of which sees the inputs of another).  A layer's matrix is ``[outputs, inputs]``.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen, nnx
from flax.linen.recurrent import DenseParams
from jax import Array

from fedjax_sim.tree import Path

_ROLES = "soi"  # in the order of the axes of a stack of matrices


class Kernel(NamedTuple):
    """Roles of a layer's axes, and their sizes as far as the layer knows them."""

    roles: str
    shape: tuple[int, ...] | None


def as_matrices(x: Array, roles: str) -> Array:
    """Returns an array as a matrix ``[outputs, inputs]``, or as a stack of them ``[n, ., .]``."""
    shape = [1, 1, 1]
    for size, role in zip(x.shape, roles, strict=True):
        shape[_ROLES.index(role)] *= size
    return x.transpose(_order(roles)).reshape(shape if "s" in roles else shape[1:])


def from_matrices(x: Array, roles: str, shape: tuple[int, ...]) -> Array:
    """Returns the array of a shape of which :func:`as_matrices` makes ``x``."""
    order = _order(roles)
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.reshape([shape[axis] for axis in order]).transpose(back)


def _order(roles: str) -> list[int]:
    return sorted(range(len(roles)), key=lambda axis: _ROLES.index(roles[axis]))


def roles_of_nnx(module: nnx.Module) -> Callable[[Path, Any], str | None]:
    """Returns the function ``axis_roles`` of a model, from the layers of its module."""
    kernels = {}
    for path, layer in nnx.iter_graph(module):
        if isinstance(layer, nnx.Module):
            for name, kernel in _kernels(layer, None):
                kernels[*map(str, path), name] = kernel
    return _Found(kernels)


class LinenRoles:
    """Interceptor of the calls of a linen module, which notes the roles of its kernels' axes."""

    def __init__(self):
        self._kernels: dict[Path, Kernel | None] = {}

    def __call__(self, next_call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        result = next_call(*args, **kwargs)
        layer = context.module
        if context.method_name == "__call__":
            equation = kwargs.get("einsum_str", args[1] if len(args) > 1 else None)
            variables = layer.variables.get("params", {})
            for name, (roles, _) in _kernels(layer, equation):
                if name in variables:
                    # Lifted layers see one kernel of a stack.
                    kernel = Kernel(roles, jnp.shape(variables[name]))
                    path = (*layer.path, name)
                    same = self._kernels.get(path, kernel) == kernel
                    self._kernels[path] = kernel if same else None
        return result

    def roles(self, prefix: Path) -> Callable[[Path, Any], str | None]:
        """Returns the function ``axis_roles`` of a model whose parameters begin with a path."""
        return _Found({(*prefix, *path): found for path, found in self._kernels.items() if found})


class _Found:
    """Function ``axis_roles`` of kernels by path."""

    def __init__(self, kernels: dict[Path, Kernel]):
        self._kernels = kernels

    def __call__(self, path: Path, leaf: Any) -> str | None:
        if path not in self._kernels:
            return None
        roles, shape = self._kernels[path]
        actual = tuple(leaf.shape)
        if len(actual) == len(roles):
            return roles if shape in (None, actual) else None
        if len(actual) != len(roles) + 1:
            return None
        # A lifted layer has one more axis, whose place follows from the others if they differ.
        places = [p for p in range(len(actual)) if actual[:p] + actual[p + 1 :] == shape]
        return roles[: places[0]] + "s" + roles[places[0] :] if len(places) == 1 else None


def _kernels(layer: Any, equation: str | None) -> Iterator[tuple[str, Kernel]]:
    """Yields the names and the axes of a layer's kernels; none of an unknown layer."""
    own = getattr(type(layer), "axis_roles", None)
    if isinstance(own, dict):
        yield from ((name, Kernel(roles, None)) for name, roles in own.items())
        return
    shape = getattr(layer, "kernel_shape", None)
    match layer:
        case nnx.Linear():
            yield "kernel", Kernel("io", (layer.in_features, layer.out_features))
        case linen.Dense() | DenseParams():
            yield "kernel", Kernel("io", None)
        case nnx.LinearGeneral():
            sizes = tuple(layer.batch_axis.values()), layer.in_features, layer.out_features
            roles = "".join(role * len(size) for role, size in zip("sio", sizes, strict=True))
            yield "kernel", Kernel(roles, sum(sizes, ()))
        case linen.DenseGeneral():
            counts = map(_count, (layer.batch_dims, layer.axis, layer.features))
            roles = "".join(role * count for role, count in zip("sio", counts, strict=True))
            yield "kernel", Kernel(roles, None)
        case nnx.Einsum() | linen.Einsum():
            roles = _roles_of_equation(equation or layer.einsum_str)
            if roles is not None:
                yield "kernel", Kernel(roles, shape)
        case nnx.Embed():
            yield "embedding", Kernel("io", (layer.num_embeddings, layer.features))
        case linen.Embed():
            yield "embedding", Kernel("io", None)
        case nnx.Conv() | linen.Conv():
            # The matrix of the product with patches; grouped ones have no single matrix.
            if layer.feature_group_count == 1:
                yield "kernel", Kernel("i" * _count(layer.kernel_size) + "io", shape)
        case linen.ConvLocal():
            yield "kernel", Kernel("s" * _count(layer.kernel_size) + "io", None)
        case nnx.ConvTranspose() | linen.ConvTranspose():
            # The transpose of a convolution's matrix: outputs are patches.
            channels = "oi" if layer.transpose_kernel else "io"
            yield "kernel", Kernel("o" * _count(layer.kernel_size) + channels, shape)


def _count(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


def _roles_of_equation(equation: str | None) -> str | None:
    """Returns the roles of the second operand's axes, or None if it is no stack of matrices."""
    if equation is None:
        return None
    operands, result = equation.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    roles = ""
    for axis in kernel:
        if axis == "." or kernel.count(axis) > 1 or (axis not in inputs and axis not in result):
            return None
        roles += "o" if axis not in inputs else "s" if axis in result else "i"
    return roles if {"i", "o"} <= set(roles) else None
