"""Static description of a convolution, and of the settings that its form is chosen by."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from fedjax_sim.types.platforms import Platform

Operation: TypeAlias = Literal["conv", "input_grad", "kernel_grad"]
Form: TypeAlias = Literal["conv", "gemm", "blocks"]
Pair: TypeAlias = tuple[int, int]


class Setting(NamedTuple):
    """Properties of one operation when its form is chosen; for batched kernels, of one kernel."""

    operation: Operation
    platform: Platform  # where the program is lowered for
    patch_size: int  # kh * kw * C, the inner dimension of the matrix product
    patch_bytes: int  # size of all patches of the batch
    outputs: int  # O, the columns of the matrix product
    num_clients: int = 1  # kernels, or pairs of arguments, in one batch


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
