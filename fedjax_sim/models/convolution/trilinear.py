"""Convolution, its input gradient and its kernel gradient as three bilinear primitives.

The form  T(x, w, z) = <conv(x, w), z>  is linear in each argument, and its three partial gradients

    conv(x, w) = dT/dz,    input_grad(z, w) = dT/dx,    kernel_grad(x, z) = dT/dw

are bilinear maps, each of which is the transpose of the others.  With these rules JAX derives every
derivative (forward, reverse, any mixture and order) in terms of the three maps, and each map is
computed in one of five ways:

* ``gemm``: patches times a matrix, batched GEMMs under ``vmap`` over kernels (``patches.py``);
* ``blocks``: patches of blocks of output pixels times a matrix (``blocks.py``);
* ``conv``: an ordinary convolution NHWC x HWIO -> NHWC; with a kernel per client, one convolution
  over the clients as well on TPUs (``tpu.py``), and ``gemm`` elsewhere.  JAX itself writes the two
  gradients in other layouts, which XLA runs as scalar loops on CPU inside ``scan`` or ``while``;
* ``winograd``: products of small tiles with fewer multiplications (``winograd.py``);
* ``implicit``: products of patches that are not in memory, on GPUs (``implicit.py``).

``jax.custom_vjp`` excludes forward mode and ``jax.custom_batching.custom_vmap`` excludes reverse
mode, so they are primitives (https://docs.jax.dev/en/latest/jax-primitives.html).
Layouts: x ``[B, H, W, C]``, w ``[kh, kw, C, O]``, z ``[B, Ho, Wo, O]``.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_sim.models.convolution import blocks, patches, tpu, winograd
from fedjax_sim.models.convolution.geometry import (
    Form,
    Geometry,
    Operation,
    Setting,
    has_kernel,
)
from fedjax_sim.types.platforms import Platform

_Computations: TypeAlias = dict[Operation, Callable[[Array, Array, Geometry], Array]]


def _plain_conv(x, w, strides, padding, dilation, precision) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=layout, precision=precision
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


def _by_operation(*compute: Callable[[Array, Array, Geometry], Array]) -> _Computations:
    return dict(zip(("conv", "input_grad", "kernel_grad"), compute, strict=True))


_FORMS: dict[Form, _Computations] = {
    "gemm": _by_operation(patches.conv_gemm, patches.input_grad_gemm, patches.kernel_grad_gemm),
    "conv": _by_operation(_conv_conv, _input_grad_conv, _kernel_grad_conv),
    "blocks": _by_operation(
        blocks.conv_blocks, blocks.input_grad_blocks, blocks.kernel_grad_blocks
    ),
    "winograd": _by_operation(
        winograd.conv_winograd, winograd.input_grad_winograd, winograd.kernel_grad_winograd
    ),
}
_CONV_CLIENTS = _by_operation(tpu.conv_clients, tpu.input_grad_clients, tpu.kernel_grad_clients)
_GEMM_GPU = _by_operation(patches.conv_gpu, patches.input_grad_gpu, patches.kernel_grad_gpu)


def _zero(x: Array) -> Array:
    return jnp.zeros((), x.dtype)


class _Batched(NamedTuple):
    """Marks of the arguments that have a leading axis of clients; the result has one if any has."""

    a: bool
    b: bool


def _compute(
    a: Array,
    b: Array,
    *,
    operation: Operation,
    geometry: Geometry,
    batched: _Batched,
    platform: Platform,
) -> Array:
    one_a, one_b = (
        x.shape[1:] if has_axis else x.shape for x, has_axis in zip((a, b), batched, strict=True)
    )
    num_clients = a.shape[0] if batched.a else b.shape[0] if batched.b else 1
    form = _form(one_a, one_b, a.dtype, operation, geometry, platform, num_clients)
    if form == "implicit":
        a, b = (x if has_axis else x[None] for x, has_axis in zip((a, b), batched, strict=True))
        out = _by_kernel(operation)(a, b, geometry, interpret=platform == "cpu")
        return out if any(batched) else out[0]
    if not any(batched):
        return _FORMS[form][operation](a, b, geometry)
    if form == "conv" and platform == "tpu":
        a, b = (
            x if has_axis else jnp.broadcast_to(x, (num_clients, *x.shape))
            for x, has_axis in zip((a, b), batched, strict=True)
        )
        return _CONV_CLIENTS[operation](a, b, geometry)
    form = "gemm" if form == "conv" else form
    forms = _GEMM_GPU if form == "gemm" and platform == "gpu" else _FORMS[form]
    compute = forms[operation]
    # If the images are not batched, their patches are gathered once.
    in_axes = tuple(0 if has_axis else None for has_axis in batched)
    return jax.vmap(lambda a, b: compute(a, b, geometry), in_axes)(a, b)


def _by_kernel(operation: Operation) -> Callable[..., Array]:
    # Pallas takes long to import, and later versions of JAX may come without its Triton part.
    from fedjax_sim.models.convolution import implicit

    return {
        "conv": implicit.conv_clients,
        "input_grad": implicit.input_grad_clients,
        "kernel_grad": implicit.kernel_grad_clients,
    }[operation]


def _form(
    a,
    b,
    dtype: Any,
    operation: Operation,
    geometry: Geometry,
    platform: Platform,
    num_clients: int,
) -> Form:
    """The form of an operation on arrays of shapes ``a`` and ``b``."""
    # Channels of x are rows of the kernel, except if x itself is the first argument.
    channels = b[2] if operation == "input_grad" else a[3]
    patch_size = geometry.kernel_size[0] * geometry.kernel_size[1] * channels
    rows = a[0] * geometry.output_size[0] * geometry.output_size[1]
    patch_bytes = rows * patch_size * dtype.itemsize
    filterable = winograd.filterable(geometry, dtype)
    kernel = platform != "tpu" and has_kernel(geometry, channels, b[3], dtype)
    form = geometry.choose(
        Setting(
            operation, platform, channels, patch_size, patch_bytes, b[3], num_clients,
            padded=any(map(any, geometry.padding)), winograd=filterable, implicit=kernel,
        )
    )  # fmt: skip
    if form not in get_args(Form):
        raise ValueError(f"choose returned {form!r}; expected one of {sorted(get_args(Form))}")
    fits = {
        "blocks": blocks.blockable(geometry), "winograd": filterable, "implicit": kernel,
    }  # fmt: skip
    return form if fits.get(form, True) else "gemm"


def _batch(args, dims, *, primitive, operation: Operation, geometry: Geometry, batched: _Batched):
    a, b = (
        x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(args, dims, strict=True)
    )
    if not any(batched):
        if operation != "kernel_grad" and dims[1] is None:
            # With a shared kernel, the batch is more images of the same convolution.
            out = primitive.bind(a.reshape(-1, *a.shape[2:]), b, geometry=geometry, batched=batched)
            return out.reshape(*a.shape[:2], *out.shape[1:]), 0
        axes = _Batched(*(dim is not None for dim in dims))
        return primitive.bind(a, b, geometry=geometry, batched=axes), 0
    # Both axes become one. An argument that has one of them is repeated along the other.
    outer = next(x.shape[0] for x, dim in zip((a, b), dims, strict=True) if dim is not None)
    inner = next(
        x.shape[0 if dim is None else 1]
        for x, dim, has_axis in zip((a, b), dims, batched, strict=True)
        if has_axis
    )

    def merged(x: Array, dim: int | None, has_axis: bool) -> Array:
        if dim is None and not has_axis:
            return x
        x = x[None] if dim is None else x
        x = x if has_axis else x[:, None]
        return lax.collapse(jnp.broadcast_to(x, (outer, inner, *x.shape[2:])), 0, 2)

    a, b = (merged(*each) for each in zip((a, b), dims, batched, strict=True))
    axes = _Batched(
        *(dim is not None or has_axis for dim, has_axis in zip(dims, batched, strict=True))
    )
    out = primitive.bind(a, b, geometry=geometry, batched=axes)
    return out.reshape(outer, inner, *out.shape[1:]), 0


def _define(operation: Operation, shape: Callable[[Any, Any, Geometry], tuple]) -> Primitive:
    primitive = Primitive(f"federated_{operation}")

    compiled = jax.jit(primitive.bind, static_argnames=("geometry", "batched"))

    def implementation(a: Array, b: Array, **params) -> Array:
        # Compiled even under jax.disable_jit: the form is chosen by the lowering rules below.
        with jax.disable_jit(False):
            return compiled(a, b, **params)

    def abstract(a, b, *, geometry: Geometry, batched: _Batched):
        one_a, one_b = a.shape[int(batched.a) :], b.shape[int(batched.b) :]
        lead = a.shape[:1] if batched.a else b.shape[:1] if batched.b else ()
        # `update` keeps the dtype and, inside shard_map, the axes over which the value varies.
        return a.update(shape=(*lead, *shape(one_a, one_b, geometry)), weak_type=False)

    primitive.def_impl(implementation)
    primitive.def_abstract_eval(abstract)
    # Rules are chosen where a program is lowered, which may be for a device that is not here.
    names: dict[str | None, Platform] = {None: "gpu", "cpu": "cpu", "tpu": "tpu"}
    for name, platform in names.items():
        compute = functools.partial(_compute, operation=operation, platform=platform)
        rule = mlir.lower_fun(compute, multiple_results=False)
        mlir.register_lowering(primitive, rule, platform=name)
    batching.primitive_batchers[primitive] = functools.partial(
        _batch, primitive=primitive, operation=operation
    )
    return primitive


_conv_p = _define("conv", lambda x, w, g: (x[0], *g.output_size, w[3]))
_input_grad_p = _define("input_grad", lambda z, w, g: (z[0], *g.input_size, w[2]))
_kernel_grad_p = _define("kernel_grad", lambda x, z, g: (*g.kernel_size, x[3], z[3]))


def _define_transposes(
    primitive: Primitive, for_a: Primitive, for_b: Primitive, swap: tuple
) -> None:
    """Registers a map's transposes in a and b; ``swap`` marks those with the cotangent second."""

    def transposed(rule: Primitive, swap: bool, ct, other, mine: bool, theirs: bool, geometry):
        # The cotangent has the axis of clients if an argument has it.
        args, axes = (ct, other), _Batched(mine or theirs, theirs)
        if swap:
            args, axes = args[::-1], _Batched(*axes[::-1])
        out = rule.bind(*args, geometry=geometry, batched=axes)
        return out.sum(0) if theirs and not mine else out

    ad.defbilinear(
        primitive,
        lambda ct, a, b, geometry, batched: transposed(
            for_a, swap[0], ct, b, batched.a, batched.b, geometry
        ),
        lambda ct, a, b, geometry, batched: transposed(
            for_b, swap[1], ct, a, batched.b, batched.a, geometry
        ),
    )


# conv(x, w): input_grad(ct, w) and kernel_grad(x, ct)
_define_transposes(_conv_p, _input_grad_p, _kernel_grad_p, (False, True))
# input_grad(z, w): conv(ct, w) and kernel_grad(ct, z)
_define_transposes(_input_grad_p, _conv_p, _kernel_grad_p, (False, False))
# kernel_grad(x, z): input_grad(z, ct) and conv(x, ct)
_define_transposes(_kernel_grad_p, _input_grad_p, _conv_p, (True, True))


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
    return _conv_p.bind(x, w, geometry=geometry, batched=_Batched(False, False))
