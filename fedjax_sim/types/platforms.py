"""Choices by platform, in one table; docs/performance.md has the measurements behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from jax import lax

Platform = Literal["cpu", "tpu", "gpu"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)


class Choice(NamedTuple):
    """Forms of a program on one platform."""

    # What limits the clients that `execution.auto` runs together.
    clients: Literal["cache", "pairs", "memory"]
    # Convolutions with one kernel and with a kernel per client: always ordinary ones, or by sizes.
    one_kernel: Literal["conv", "cpu sizes"]
    own_kernels: Literal["conv", "cpu sizes", "gpu sizes"]
    # Whole stacks of convolutions in blocks of 2 x 2 pixels, where they fit; None: layer by layer.
    stack: Literal["channels first", "channels last"] | None
    # Heads of attention: a product each, or one for all where a token fits two registers.
    heads: Literal["apart", "joint"]
    # Biases of a linear layer's outputs that are read in parts: added before or after the split.
    part_biases: Literal["joined", "apart"]
    # Means over the channels of a group: a reduction, or a product with a matrix of zeros and ones.
    group_means: Literal["reduced", "product"]
    # Sums over images in gradients of normalisation: a reduction, or additions of an image each.
    image_sums: Literal["reduced", "added"]
    # Examples per batch of an evaluation of models with convolutions.
    evaluation_batch: int


CHOICES: dict[Platform, Choice] = {
    "cpu": Choice(
        "cache", "cpu sizes", "cpu sizes", "channels first", "apart", "joined", "reduced",
        "reduced", 32,
    ),
    "tpu": Choice(
        "pairs", "conv", "conv", "channels last", "joint", "apart", "product", "reduced", 1000
    ),
    "gpu": Choice(
        "memory", "conv", "gpu sizes", None, "apart", "joined", "reduced", "added", 1000
    ),
}  # fmt: skip


def by_platform(branches: Mapping[str, Callable], *args: Any) -> Any:
    """Calls the branch of the platform that the program is lowered for.

    All but CPUs and TPUs count as GPUs.  Equal branches are traced once.
    """
    default = branches["gpu"]
    others = {name: branch for name, branch in branches.items() if branch != default}
    return lax.platform_dependent(*args, **others, default=default) if others else default(*args)
