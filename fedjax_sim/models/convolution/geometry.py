"""Static description of a convolution, and of the settings that its form is chosen by."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from fedjax_sim.types.platforms import Platform

Operation: TypeAlias = Literal["conv", "input_grad", "kernel_grad"]
Form: TypeAlias = Literal["conv", "gemm", "blocks", "winograd", "implicit"]
Pair: TypeAlias = tuple[int, int]


class Setting(NamedTuple):
    """Properties of one operation when its form is chosen; for batched kernels, of one kernel."""

    operation: Operation
    platform: Platform  # where the program is lowered for
    channels: int  # C
    patch_size: int  # kh * kw * C, the inner dimension of the matrix product
    patch_bytes: int  # size of all patches of the batch
    outputs: int  # O, the columns of the matrix product
    num_clients: int = 1  # kernels, or pairs of arguments, in one batch
    padded: bool = False
    winograd: bool = False  # winograd.py computes it
    implicit: bool = False  # implicit.py has a kernel for it


class Geometry(NamedTuple):
    """Static parameters that a convolution and its two gradients share."""

    input_size: Pair
    kernel_size: Pair
    strides: Pair
    padding: tuple[Pair, Pair]
    dilation: Pair  # of the kernel
    precision: Any
    choose: Callable[[Setting], Form]  # called once per operation when it is lowered

    @property
    def output_size(self) -> Pair:
        height, width = (
            (n + sum(pad) - d * (k - 1) - 1) // s + 1
            for n, k, s, pad, d in zip(*self[:5], strict=True)
        )
        return height, width


# Matrix units take factors with sides of at least 16. The precisions of float32 that allow TF32:
_SIDE = 16
_TF32 = (None, "default", "high", "tensorfloat32", "fastest", "bfloat16", "bfloat16_3x")


def has_kernel(geometry: Geometry, channels: int, outputs: int, dtype: Any) -> bool:
    """Returns whether ``implicit.py`` computes the convolution in its precision."""
    precision = geometry.precision
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # pyright: ignore
    pair = precision if isinstance(precision, tuple) else (precision,)
    names = [None if p is None else getattr(p, "name", str(p)).lower() for p in pair]
    return (
        geometry.dilation == (1, 1)
        and channels % _SIDE == outputs % _SIDE == 0
        and jnp.dtype(dtype).name in ("bfloat16", "float32")
        and (jnp.dtype(dtype) != jnp.float32 or all(name in _TF32 for name in names))
    )
