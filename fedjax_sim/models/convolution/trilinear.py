"""Convolution, its input gradient and its kernel gradient as three bilinear primitives.

The form  T(x, w, z) = <conv(x, w), z>  is linear in each argument, and its three partial gradients

    conv(x, w) = dT/dz,    input_grad(z, w) = dT/dx,    kernel_grad(x, z) = dT/dw

are bilinear maps, each of which is the transpose of the others.  With these rules JAX derives every
derivative (forward, reverse, any mixture and order) in terms of the three maps, and each map is
computed in one of three ways:

* ``gemm``: patches times a matrix, batched GEMMs under ``vmap`` over kernels (``patches.py``);
* ``blocks``: patches of blocks of output pixels times a matrix (``blocks.py``);
* ``conv``: an ordinary convolution NHWC x HWIO -> NHWC.  JAX itself writes the two
  gradients in other layouts, which XLA runs as scalar loops on CPU inside ``scan`` or ``while``.

``jax.custom_vjp`` excludes forward mode and ``jax.custom_batching.custom_vmap`` excludes reverse
mode, so they are primitives (https://docs.jax.dev/en/latest/jax-primitives.html).
Layouts: x ``[B, H, W, C]``, w ``[kh, kw, C, O]``, z ``[B, Ho, Wo, O]``.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_sim.models.convolution.blocks import (
    blockable,
    conv_blocks,
    input_grad_blocks,
    kernel_grad_blocks,
)
from fedjax_sim.models.convolution.geometry import Form, Geometry, Operation, Setting
from fedjax_sim.models.convolution.patches import conv_gemm, input_grad_gemm, kernel_grad_gemm


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
    # `pad` inserts zeros between the entries, since XLA:CPU is slow on dilated inputs.
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
    # Channels act as the batch and examples as the features; stride and dilation are swapped.
    lhs, rhs = x.transpose(3, 1, 2, 0), z.transpose(1, 2, 0, 3)
    kernel = _plain_conv(lhs, rhs, g.dilation, g.padding, g.strides, g.precision)
    # If the stride does not divide the size, the last rows belong to no output.
    kernel = kernel[:, : g.kernel_size[0], : g.kernel_size[1]]
    return kernel.transpose(1, 2, 0, 3)


_FORMS: dict[Form, dict[Operation, Callable[[Array, Array, Geometry], Array]]] = {
    "gemm": {
        "conv": conv_gemm,
        "input_grad": input_grad_gemm,
        "kernel_grad": kernel_grad_gemm,
    },
    "conv": {
        "conv": _conv_conv,
        "input_grad": _input_grad_conv,
        "kernel_grad": _kernel_grad_conv,
    },
    "blocks": {
        "conv": conv_blocks,
        "input_grad": input_grad_blocks,
        "kernel_grad": kernel_grad_blocks,
    },
}


def _zero(x: Array) -> Array:
    return jnp.zeros((), x.dtype)


def _compute(
    a: Array, b: Array, *, operation: Operation, geometry: Geometry, platform: str | None = None
) -> Array:
    form = _form(a.shape, b.shape, a.dtype.itemsize, operation, geometry, platform)
    return _FORMS[form][operation](a, b, geometry)


def _form(a, b, itemsize: int, operation: Operation, geometry: Geometry, platform=None) -> Form:
    """The form of an operation on arrays of shapes ``a`` and ``b``."""
    if platform is None:
        platform = "cpu" if jax.default_backend() == "cpu" else "accelerator"
    # Channels of x are rows of the kernel, except if x itself is the first argument.
    channels = b[2] if operation == "input_grad" else a[3]
    patch_size = geometry.kernel_size[0] * geometry.kernel_size[1] * channels
    rows = a[0] * geometry.output_size[0] * geometry.output_size[1]
    form = geometry.choose(
        Setting(operation, platform, patch_size, rows * patch_size * itemsize, outputs=b[3])
    )
    if form not in _FORMS:
        raise ValueError(f"choose returned {form!r}; expected one of {sorted(_FORMS)}")
    return "gemm" if form == "blocks" and not blockable(geometry) else form


def _batch(args, dims, *, primitive, operation: Operation, geometry: Geometry):
    (a, b), (a_dim, b_dim) = args, dims
    if operation != "kernel_grad" and b_dim is None:
        # With a shared kernel, the batch is more images of the same convolution.
        a = jnp.moveaxis(a, a_dim, 0)
        out = primitive.bind(a.reshape(-1, *a.shape[2:]), b, geometry=geometry)
        return out.reshape(*a.shape[:2], *out.shape[1:]), 0
    one_a, one_b = (
        x.shape if dim is None else x.shape[:dim] + x.shape[dim + 1 :]
        for x, dim in zip(args, dims, strict=True)
    )
    form = _form(one_a, one_b, a.dtype.itemsize, operation, geometry)
    compute = _FORMS["gemm" if form == "conv" else form][operation]
    # If the images are not batched, their patches are gathered once.
    return jax.vmap(lambda a, b: compute(a, b, geometry), in_axes=(a_dim, b_dim))(a, b), 0


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
    # Inside shard_map the operands of a primitive must vary over the same mesh axes; JAX's own
    # operations ensure this themselves.
    axes = _varying_axes(x) | _varying_axes(w)
    x, w = (
        lax.pcast(a, tuple(sorted(axes - _varying_axes(a))), to="varying")
        if axes - _varying_axes(a)
        else a
        for a in (x, w)
    )
    return _conv_p.bind(x, w, geometry=geometry)
