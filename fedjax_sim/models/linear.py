"""Products with kernels, and kernels with adapters of low rank beside them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.types import Described, Params

Rows = tuple[int, int]  # first row of a kernel, and the row after the last


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapted:
    """Kernel ``W [..., out, in]`` and adapters: on their rows ``W + scale B A``.

    A kernel in half precision has adapters in single precision.

    Attributes:
        kernel: W.
        adapters: for each block of rows ``{"a": [..., r, in], "b": [..., rows, r]}``.
        scale: factor of the products B A, ``[...]``, of the adapters' dtype.
        rows: blocks of rows, one per adapter; static.
    """

    kernel: Array
    adapters: tuple[Params, ...]
    scale: Array
    rows: tuple[Rows, ...] = dataclasses.field(metadata={"static": True})

    def merged(self) -> Array:
        """Returns the sum as one array ``[..., out, in]``, of the adapters' dtype."""
        result = self.kernel.astype(self.scale.dtype)
        for rows, factors in zip(self.rows, self.adapters, strict=True):
            change = self.scale[..., None, None] * (factors["b"] @ factors["a"])
            result = result + _placed(change, rows, result.shape[-2], axis=-2)
        return result


def product(kernel: Array | Adapted, x: Array) -> Array:
    """Returns ``W x``, ``[..., in] -> [..., out]``, adapters included, in the dtype of ``W x``."""
    # The products B A of adapters are not formed: clients with adapters of their own and one common
    # kernel need no kernels of their own.
    if not isinstance(kernel, Adapted):
        return jnp.einsum("...i,oi->...o", x, kernel)
    result = product(kernel.kernel, x)
    for rows, factors in zip(kernel.rows, kernel.adapters, strict=True):
        inputs = x.astype(kernel.scale.dtype)
        change = kernel.scale * product(factors["b"], product(factors["a"], inputs))
        result = result + _placed(change.astype(result.dtype), rows, result.shape[-1], axis=-1)
    return result


def takes_adapters(apply: Callable[[Params, Any], Any]) -> Callable[[Params, Any], Any]:
    """Returns a function ``apply`` whose kernels may be :class:`Adapted`, as one that says so."""
    return Described.of(apply, takes_adapters=True)


def _placed(x: Array, rows: Rows, size: int, axis: int) -> Array:
    """Returns zeros of a size along an axis, with ``x`` in the given rows."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (rows[0], size - rows[1])
    return jnp.pad(x, widths) if any(widths[axis]) else x
