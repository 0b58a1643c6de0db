"""Convolutions that stay fast under ``vmap`` over weights and inside loops.

Clients have their own weights, so ``vmap`` over clients turns an ordinary convolution into a
grouped one, which is slow on every backend; and inside ``scan`` XLA:CPU runs the gradients that JAX
derives for an ordinary convolution as scalar loops.  The functions here take the arguments of
``jax.lax.conv_general_dilated`` and compute the same numbers (up to rounding) by matrix products or
by convolutions in the one layout that is fast everywhere.  They are arguments of flax layers:
``nnx.Conv(..., conv_general_dilated=auto)``, also in ``flax.linen``.

All functions compose with ``jit``, ``grad`` and ``jvp`` of any order and mixture, ``vmap``,
``scan``, ``checkpoint`` and ``shard_map``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.models.convolution.geometry import Form, Geometry, Setting
from fedjax_sim.models.convolution.trilinear import convolve
from fedjax_sim.types.platforms import CHOICES


class Convolution(Protocol):
    """The signature of ``jax.lax.conv_general_dilated``."""

    def __call__(
        self,
        lhs: Array,
        rhs: Array,
        window_strides: Sequence[int],
        padding: str | Sequence[tuple[int, int]],
        lhs_dilation: Sequence[int] | None = None,
        rhs_dilation: Sequence[int] | None = None,
        dimension_numbers: Any = None,
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision: Any = None,
        preferred_element_type: Any = None,
        out_sharding: Any = None,
    ) -> Array: ...


def lowered(choose: Callable[[Setting], Form]) -> Convolution:
    """Convolution whose three operations are computed in the forms that ``choose`` returns.

    ``out[b, i, j, o] = sum_{k, l, c} lhs[b, s i + d k - p, s' j + d' l - p', c] rhs[k, l, c, o]``

    with strides s, s', kernel dilations d, d', leading paddings p, p' of height and width.

    ``choose`` is called once for each of the three operations (the convolution, its gradient in
    ``lhs``, its gradient in ``rhs``) when it is lowered for a platform, and returns

    * ``"gemm"``: patches times a matrix.  Patches are recomputed for the gradient in ``rhs``, not
      stored;
    * ``"blocks"``: patches of 2 x 2 output pixels, which form one pixel with four times as many
      channels, if strides and dilations are 1; otherwise ``"gemm"``.  Patches take
      (kh + 1) (kw + 1) / (4 kh kw) of the memory for (kh + 1) (kw + 1) / (kh kw) of the arithmetic;
    * ``"conv"``: an ordinary convolution NHWC x HWIO -> NHWC.  If ``vmap`` batches the kernels,
      it would be a grouped one; then it is ``"gemm"``, and on TPUs a convolution with the clients
      as a third spatial axis (``tpu.py``);
    * ``"winograd"``: products of tiles of 4 x 4 or 6 x 6 pixels with fewer multiplications, for
      kernels of 3 x 3 or 5 x 5 in single or double precision if strides and dilations are 1
      (``setting.winograd``); otherwise ``"gemm"``;
    * ``"implicit"``: products of patches that are not in memory, by kernels for GPUs
      (``implicit.py``; on CPUs an interpreter of these, for tests), if ``setting.implicit``;
      otherwise ``"gemm"``.

    Args:
        choose: function of a :class:`~fedjax_sim.models.convolution.geometry.Setting` (operation,
            platform, channels, size of one patch, bytes of all patches, columns of the product).
            Use a named function, not a new lambda per call, so that compiled programs are reused.

    Returns:
        A function with the arguments of ``jax.lax.conv_general_dilated``.  Supported: ``lhs``
        ``[B, H, W, C]``, ``rhs`` ``[kh, kw, C, O]`` of the same floating dtype, layouts
        ``("NHWC", "HWIO", "NHWC")``, any strides, any padding, kernel dilation.

    Raises:
        ValueError: when the function is called, for other layouts or ranks, ``lhs_dilation``,
            groups, ``preferred_element_type`` and ``out_sharding``, and for other values of
            ``choose``.

    Example:
        >>> conv = lowered(lambda setting: "gemm" if setting.patch_size <= 100 else "conv")
        >>> x, w = jnp.ones((2, 8, 8, 3)), jnp.ones((5, 5, 3, 4))
        >>> conv(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
        (2, 4, 4, 4)
    """

    def conv(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation=None,
        rhs_dilation=None,
        dimension_numbers=None,
        feature_group_count=1,
        batch_group_count=1,
        precision=None,
        preferred_element_type=None,
        out_sharding=None,
    ):
        _check_arrays(lhs, rhs)
        _check_layout(lhs, rhs, dimension_numbers)
        for name, value, expected in (
            ("feature_group_count", feature_group_count, 1),
            ("batch_group_count", batch_group_count, 1),
            ("preferred_element_type", preferred_element_type, None),
            ("out_sharding", out_sharding, None),
        ):
            if value != expected:
                raise ValueError(f"{name} is {value}; expected {expected}")
        if lhs_dilation is not None and tuple(lhs_dilation) != (1, 1):
            raise ValueError(f"lhs_dilation is {tuple(lhs_dilation)}; expected (1, 1)")
        kernel_size = rhs.shape[:2]
        strides = _positive_pair("window_strides", window_strides)
        dilation = _positive_pair("rhs_dilation", (1, 1) if rhs_dilation is None else rhs_dilation)
        pads = _pads(padding, lhs.shape[1:3], kernel_size, strides, dilation)
        geometry = Geometry(lhs.shape[1:3], kernel_size, strides, pads, dilation, precision, choose)
        if min(geometry.output_size) < 1:
            raise ValueError(
                f"lhs has spatial size {lhs.shape[1:3]}; expected at least the extent of rhs of "
                f"size {kernel_size} (dilation {dilation}, padding {pads})"
            )
        return convolve(lhs, rhs, geometry)

    return conv


def _check_arrays(lhs: Array, rhs: Array) -> None:
    for name, array in (("lhs", lhs), ("rhs", rhs)):
        if jnp.ndim(array) != 4:
            raise ValueError(f"{name} has shape {jnp.shape(array)}; expected 4 dimensions")
    if lhs.shape[3] != rhs.shape[2]:
        raise ValueError(
            f"rhs has {rhs.shape[2]} input channels; expected {lhs.shape[3]} as in lhs"
        )
    if lhs.dtype != rhs.dtype or not jnp.issubdtype(lhs.dtype, jnp.floating):
        raise ValueError(
            f"lhs and rhs have dtypes {lhs.dtype} and {rhs.dtype}; expected one floating dtype"
        )


def _check_layout(lhs: Array, rhs: Array, dimension_numbers: Any) -> None:
    expected = lax.conv_dimension_numbers(lhs.shape, rhs.shape, ("NHWC", "HWIO", "NHWC"))
    if lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers) != expected:
        raise ValueError(
            f"dimension_numbers is {dimension_numbers}; expected ('NHWC', 'HWIO', 'NHWC')"
        )


def _positive_pair(name: str, value: Sequence[int]) -> tuple[int, int]:
    if len(value) != 2 or min(value) < 1:
        raise ValueError(f"{name} is {value}; expected two positive integers")
    return int(value[0]), int(value[1])


def _pads(padding, input_size, kernel_size, strides, dilation):
    if isinstance(padding, str):
        if padding.upper() not in ("VALID", "SAME", "SAME_LOWER"):
            raise ValueError(
                f"padding is {padding!r}; expected 'VALID', 'SAME', 'SAME_LOWER' or two pairs"
            )
        extent = [d * (k - 1) + 1 for d, k in zip(dilation, kernel_size, strict=True)]
        padding = lax.padtype_to_pads(input_size, extent, strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    if len(pads) != 2:
        raise ValueError(f"padding is {padding}; expected a (low, high) pair for height and width")
    return pads


# On two x86 cores, milliseconds per client step inside a scan over clients: patches of 75 and 150
# (LeNet-5) 3.4 by GEMM against 5.7; of 9 and 288 (FEMNIST) 6.9 against 9.5; of 576 (residual block
# of 64 channels) 86 against 60.
_MAX_PATCH = 400
# Keeps evaluation batches (1,000 images: 660 MB of patches in the FEMNIST model's second layer)
# from needing more memory than training.
_MAX_PATCH_BYTES = 2**26
# Wider patches use a GEMM if there are few of them, as in 2 x 2 images: with 512
# channels (the end of VGG-11, batch 50) XLA:CPU's convolution takes 935 ms, its input gradient
# 926; GEMMs 9 and 5. At 4 x 4 both are equal.
_MAX_WIDE_PATCHES = 512
# On GPUs a kernel of blocks has 64 C O entries where one of 3 x 3 pixels has 9 C O, and patches of
# blocks 4 C per row where those of pixels have 9 C. So blocks move fewer bytes above 11 rows per
# output, up to which ResNet-18's last two stages are.
_MIN_ROWS = 11
# Blocks against pixels by GEMM, one layer with its gradients, ratio of CPU times: 0.37 (5 x 5, 3 to
# 6 channels), 0.51 (5 x 5, 6 to 16), 0.62 (3 x 3, 3 to 16); 1.66 for 5 x 5, 1 to 32: blocks save
# patches and cost a rearrangement of the outputs.
_MAX_OUTPUTS = 32
# From 16 channels on, an ordinary convolution is as fast or faster, cores of an EPYC with AVX-512:
# 0.58 of blocks (3 x 3, 16 to 16), 0.50 (32 to 32), 0.55 (5 x 5, 16 to 32, padded), 1.10 (the same
# without padding), 0.82 of patches (3 x 3, 32 to 64). A step of ResNet-20 takes 0.80.
_MIN_CHANNELS = 16
# Winograd's tiles against an ordinary convolution: 0.74 (3 x 3, 32 to 64), 0.56 (5 x 5, 64 to 64)
# of it; with padding 0.97 (both), 1.2 (3 x 3, 32 to 32). A layer takes 1.5 (3 x 3) and 6 s (5 x 5)
# of CPU time more to compile, so small products are not worth it: at least 2^28 operations.
_MIN_WINOGRAD_CHANNELS = 32
_MIN_WINOGRAD_WORK = 2**28


def automatic(setting: Setting) -> Form:
    """Returns the form of :data:`auto`."""
    choice = CHOICES[setting.platform]
    return _RULES[choice.own_kernels if setting.num_clients > 1 else choice.one_kernel](setting)


def _on_gpu(setting: Setting) -> Form:
    # On an H100, LeNet-5: 20 ms per round against 50; ResNet-18: 119 (blocks only), 139.
    return "blocks" if _num_patches(setting) > _MIN_ROWS * setting.outputs else "gemm"


def _on_cpu(setting: Setting) -> Form:
    if _worth_tiles(setting):
        return "winograd"
    if setting.patch_size > _MAX_PATCH:
        return "gemm" if _num_patches(setting) <= _MAX_WIDE_PATCHES else "conv"
    if setting.patch_bytes > _MAX_PATCH_BYTES:
        return "conv"
    if setting.num_clients == 1 and setting.channels >= _MIN_CHANNELS:
        return "conv"
    return "blocks" if setting.outputs <= min(_MAX_OUTPUTS, setting.patch_size) else "gemm"


def _worth_tiles(setting: Setting) -> bool:
    work = 2 * _num_patches(setting) * setting.patch_size * setting.outputs
    return (
        setting.winograd
        and setting.num_clients == 1
        and not setting.padded
        and min(setting.channels, setting.outputs) >= _MIN_WINOGRAD_CHANNELS
        and setting.patch_bytes <= _MAX_PATCH_BYTES
        and work >= _MIN_WINOGRAD_WORK
    )


def _implicit(setting: Setting) -> Form:
    own_kernels = setting.num_clients > 1 and setting.platform == "gpu"
    return "implicit" if own_kernels and setting.implicit else automatic(setting)


def _num_patches(setting: Setting) -> int:
    """Patches of a batch in single precision."""
    return setting.patch_bytes // (4 * setting.patch_size)


def _always(form: Form) -> Callable[[Setting], Form]:
    return lambda setting: form


_RULES: dict[str, Callable[[Setting], Form]] = {
    "conv": _always("conv"), "cpu sizes": _on_cpu, "gpu sizes": _on_gpu,
}  # fmt: skip

im2col: Convolution = lowered(_always("gemm"))
"""Patches times a matrix in all cases; needs kh kw times the input's memory temporarily."""

blocked: Convolution = lowered(_always("blocks"))
"""Patches of 2 x 2 output pixels times a matrix; :data:`im2col` for strides and dilations."""

canonical: Convolution = lowered(_always("conv"))
"""Ordinary convolutions and gradients; for batched kernels GEMMs, except on TPUs."""

winograd: Convolution = lowered(_always("winograd"))
"""Tiles with fewer multiplications; :data:`im2col` for other kernels than 3 x 3 and 5 x 5, strides,
dilations and half precision. An infinite number makes all outputs of its tiles NaN."""

implicit: Convolution = lowered(_implicit)
"""Batched kernels on GPUs: products of patches that are not in memory, where the channels are
multiples of 16 and products need not be exact; otherwise :data:`auto`."""

auto: Convolution = lowered(automatic)
"""The default.  CPU: an ordinary convolution; tiles if there is no padding, 32 or more channels and
outputs, 2^28 operations and at most 64 MiB of patches; a GEMM if there are fewer than 16 channels
and kh kw C <= 400 (by blocks if O <= min(32, kh kw C)), or if kh kw C > 400 and there are at most
512 patches.
Accelerators: ordinary convolutions.
Batched kernels: batched GEMMs, by blocks on CPUs with the same rule as above for any number of
channels, on GPUs if there are more than 11 O patches; one convolution on TPUs."""
