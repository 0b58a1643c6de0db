"""Convolution, its input gradient and its kernel gradient as three bilinear primitives.

The form  T(x, w, z) = <conv(x, w), z>  is linear in each argument, and its three partial gradients

    conv(x, w) = dT/dz,    input_grad(z, w) = dT/dx,    kernel_grad(x, z) = dT/dw

are bilinear maps of which each is the transpose of the others.  Told so, JAX derives every
derivative (forward, reverse, any mixture and order) in terms of these three, and each of them is
computed in one of two ways:

* ``gemm``: patches times a matrix, batched GEMMs under ``vmap`` over kernels;
* ``conv``: an ordinary convolution NHWC x HWIO -> NHWC.  Left to itself, JAX writes the two
  gradients in other layouts, which XLA runs as scalar loops on CPU inside ``scan`` or ``while``.

``jax.custom_vjp`` would rule out forward mode and ``jax.custom_batching.custom_vmap`` reverse mode,
hence primitives (https://docs.jax.dev/en/latest/jax-primitives.html).
Layouts: x ``[B, H, W, C]``, w ``[kh, kw, C, O]``, z ``[B, Ho, Wo, O]``.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Operation: TypeAlias = Literal["conv", "input_grad", "kernel_grad"]
Pair: TypeAlias = tuple[int, int]


class Setting(NamedTuple):
    """What the compiler sees of one operation with unbatched kernels."""

    operation: Operation
    platform: str  # "cpu", or "accelerator"
    patch_size: int  # kh * kw * C, the inner dimension of the matrix product
    patch_bytes: int  # size of all patches of the batch


class Geometry(NamedTuple):
    """Static parameters that the three primitives share."""

    input_size: Pair
    kernel_size: Pair
    strides: Pair
    padding: tuple[Pair, Pair]
    dilation: Pair  # of the kernel
    precision: Any
    use_gemm: Callable[[Setting], bool]  # asked once per operation when it is lowered

    @property
    def output_size(self) -> Pair:
        height, width = (
            (n + sum(pad) - d * (k - 1) - 1) // s + 1
            for n, k, s, pad, d in zip(*self[:5], strict=True)
        )
        return height, width


def _stages(channels: int) -> tuple[tuple[int, ...], ...]:
    """The spatial axes along which patches are gathered, in order.

    Few channels: one axis after the other, width first. That is kh + kw slices instead of
    kh * kw, and the second concatenation, which writes most, copies runs of kw * C numbers. Many
    channels: both at once, without an array in between.
    """
    return ((1,), (0,)) if channels < 16 else ((0, 1),)


def _patches(x: Array, geometry: Geometry) -> Array:
    """[B, H, W, C] -> [B, Ho, Wo, kh * kw * C], in the order of the rows of a reshaped kernel."""
    if any(any(pair) for pair in geometry.padding):
        config = [(0, 0, 0), *((low, high, 0) for low, high in geometry.padding), (0, 0, 0)]
        x = lax.pad(x, _zero(x), config)
    for axes in _stages(x.shape[3]):
        slices = []
        for offset in np.ndindex(*(geometry.kernel_size[axis] for axis in axes)):
            start, stop, strides = [0] * 4, list(x.shape), [1] * 4
            for axis, k in zip(axes, offset, strict=True):
                strides[axis + 1] = geometry.strides[axis]
                start[axis + 1] = k * geometry.dilation[axis]
                span = (geometry.output_size[axis] - 1) * geometry.strides[axis] + 1
                stop[axis + 1] = start[axis + 1] + span
            slices.append(lax.slice(x, start, stop, strides))
        # Fused, one concatenation would be recomputed by every slice of the next.
        x = lax.optimization_barrier(lax.concatenate(slices, 3))
    return x


def _add_patches(columns: Array, geometry: Geometry) -> Array:
    """The transpose of :func:`_patches`: [B, Ho, Wo, kh * kw * C] -> [B, H, W, C]."""
    channels = columns.shape[3] // (geometry.kernel_size[0] * geometry.kernel_size[1])
    for axes in reversed(_stages(channels)):
        offsets = list(np.ndindex(*(geometry.kernel_size[axis] for axis in axes)))
        width = columns.shape[3] // len(offsets)
        total = None
        for number, offset in enumerate(offsets):
            config = [(0, 0, 0)] * 4
            for axis, k in zip(axes, offset, strict=True):
                stride = geometry.strides[axis]
                low = k * geometry.dilation[axis] - geometry.padding[axis][0]
                span = (geometry.output_size[axis] - 1) * stride + 1
                # Negative amounts crop what came from the padding.
                config[axis + 1] = (low, geometry.input_size[axis] - low - span, stride - 1)
            part = lax.slice_in_dim(columns, number * width, (number + 1) * width, axis=3)
            part = lax.pad(part, _zero(part), config)
            total = part if total is None else total + part
        # Fused into what follows, the sum would be recomputed by each of its uses.
        columns = lax.optimization_barrier(total)
    return columns


def _conv_gemm(x: Array, w: Array, g: Geometry) -> Array:
    return jnp.matmul(_patches(x, g), w.reshape(-1, w.shape[-1]), precision=g.precision)


def _input_grad_gemm(z: Array, w: Array, g: Geometry) -> Array:
    columns = jnp.matmul(z, w.reshape(-1, w.shape[-1]).T, precision=g.precision)
    return _add_patches(columns, g)


def _kernel_grad_gemm(x: Array, z: Array, g: Geometry) -> Array:
    rows = _patches(x, g)
    rows = rows.reshape(-1, rows.shape[-1])
    product = jnp.matmul(rows.T, z.reshape(-1, z.shape[-1]), precision=g.precision)
    return product.reshape(*g.kernel_size, x.shape[-1], z.shape[-1])


def _plain_conv(x, w, strides, padding, dilation, precision) -> Array:
    return lax.conv_general_dilated(
        x,
        w,
        strides,
        padding,
        rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision,
    )


def _conv_conv(x: Array, w: Array, g: Geometry) -> Array:
    return _plain_conv(x, w, g.strides, g.padding, g.dilation, g.precision)


def _input_grad_conv(z: Array, w: Array, g: Geometry) -> Array:
    # Zeros between the entries by `pad`, since XLA:CPU is slow on dilated inputs.
    config = [(0, 0, 0)]
    for axis in (0, 1):
        reach = (g.kernel_size[axis] - 1) * g.dilation[axis]
        low = reach - g.padding[axis][0]
        span = (g.output_size[axis] - 1) * g.strides[axis] + 1
        config.append((low, g.input_size[axis] + reach - low - span, g.strides[axis] - 1))
    config.append((0, 0, 0))
    mirrored = jnp.flip(w, (0, 1)).swapaxes(2, 3)
    return _plain_conv(
        lax.pad(z, _zero(z), config), mirrored, (1, 1), "VALID", g.dilation, g.precision
    )


def _kernel_grad_conv(x: Array, z: Array, g: Geometry) -> Array:
    # Channels act as the batch and examples as the features; stride and dilation change places.
    lhs, rhs = x.transpose(3, 1, 2, 0), z.transpose(1, 2, 0, 3)
    kernel = _plain_conv(lhs, rhs, g.dilation, g.padding, g.strides, g.precision)
    # A stride that does not divide leaves input rows, hence kernel rows, that no output used.
    kernel = kernel[:, : g.kernel_size[0], : g.kernel_size[1]]
    return kernel.transpose(1, 2, 0, 3)


_GEMM = {
    "conv": _conv_gemm,
    "input_grad": _input_grad_gemm,
    "kernel_grad": _kernel_grad_gemm,
}
_CONV = {
    "conv": _conv_conv,
    "input_grad": _input_grad_conv,
    "kernel_grad": _kernel_grad_conv,
}


def _zero(x: Array) -> Array:
    return jnp.zeros((), x.dtype)


def _compute(
    a: Array, b: Array, *, operation: Operation, geometry: Geometry, platform: str | None = None
) -> Array:
    if platform is None:
        platform = "cpu" if jax.default_backend() == "cpu" else "accelerator"
    # Channels of x: the kernel's rows, except where x itself is the first argument.
    channels = b.shape[2] if operation == "input_grad" else a.shape[3]
    patch_size = geometry.kernel_size[0] * geometry.kernel_size[1] * channels
    rows = a.shape[0] * geometry.output_size[0] * geometry.output_size[1]
    setting = Setting(operation, platform, patch_size, rows * patch_size * a.dtype.itemsize)
    form = _GEMM if geometry.use_gemm(setting) else _CONV
    return form[operation](a, b, geometry)


def _batch(args, dims, *, primitive, operation: Operation, geometry: Geometry):
    (a, b), (a_dim, b_dim) = args, dims
    if operation != "kernel_grad" and b_dim is None:
        # A shared kernel: more images of the same convolution.
        a = jnp.moveaxis(a, a_dim, 0)
        out = primitive.bind(a.reshape(-1, *a.shape[2:]), b, geometry=geometry)
        return out.reshape(*a.shape[:2], *out.shape[1:]), 0
    form = functools.partial(_GEMM[operation], g=geometry)
    return jax.vmap(form, in_axes=(a_dim, b_dim))(a, b), 0


def _define(operation: Operation, shape: Callable[[Any, Any, Geometry], tuple]) -> Primitive:
    primitive = Primitive(f"federated_{operation}")
    compute = functools.partial(_compute, operation=operation)
    primitive.def_impl(jax.jit(compute, static_argnames=("geometry",)))
    # `update` keeps the dtype and, inside shard_map, the axes over which the value varies.
    primitive.def_abstract_eval(
        lambda a, b, *, geometry: a.update(shape=shape(a, b, geometry), weak_type=False)
    )
    for platform in ("cpu", None):
        lowered = functools.partial(compute, platform=platform or "accelerator")
        rule = mlir.lower_fun(lowered, multiple_results=False)
        mlir.register_lowering(primitive, rule, platform=platform)
    batching.primitive_batchers[primitive] = functools.partial(
        _batch, primitive=primitive, operation=operation
    )
    return primitive


_conv_p = _define("conv", lambda x, w, g: (x.shape[0], *g.output_size, w.shape[3]))
_input_grad_p = _define("input_grad", lambda z, w, g: (z.shape[0], *g.input_size, w.shape[2]))
_kernel_grad_p = _define("kernel_grad", lambda x, z, g: (*g.kernel_size, x.shape[3], z.shape[3]))

# Each transpose rule: the cotangent takes the place of the output in T(x, w, z).
ad.defbilinear(
    _conv_p,
    lambda ct, x, w, geometry: _input_grad_p.bind(ct, w, geometry=geometry),
    lambda ct, x, w, geometry: _kernel_grad_p.bind(x, ct, geometry=geometry),
)
ad.defbilinear(
    _input_grad_p,
    lambda ct, z, w, geometry: _conv_p.bind(ct, w, geometry=geometry),
    lambda ct, z, w, geometry: _kernel_grad_p.bind(ct, z, geometry=geometry),
)
ad.defbilinear(
    _kernel_grad_p,
    lambda ct, x, z, geometry: _input_grad_p.bind(z, ct, geometry=geometry),
    lambda ct, x, z, geometry: _conv_p.bind(x, ct, geometry=geometry),
)


def _varying_axes(x: Array) -> frozenset[str]:
    aval = jax.typeof(x)  # the attribute's name depends on the version of JAX
    return getattr(getattr(aval, "mat", None), "varying", getattr(aval, "vma", frozenset()))


def convolve(x: Array, w: Array, geometry: Geometry) -> Array:
    """``conv(x, w)`` for checked arguments: ``[B, H, W, C], [kh, kw, C, O] -> [B, Ho, Wo, O]``."""
    # Inside shard_map a primitive's operands must vary over the same mesh axes; JAX's own
    # operations see to that themselves.
    axes = _varying_axes(x) | _varying_axes(w)
    x, w = (
        lax.pcast(a, tuple(sorted(axes - _varying_axes(a))), to="varying")
        if axes - _varying_axes(a)
        else a
        for a in (x, w)
    )
    return _conv_p.bind(x, w, geometry=geometry)
