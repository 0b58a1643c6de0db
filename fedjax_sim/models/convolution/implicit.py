"""Convolutions of many clients on GPUs as products of patches that are not in memory.

Each program of a kernel computes a tile of one client's product.  Its loop over taps and channels
loads the pixels that the tap reads straight from the image, so that patches exist as tiles in fast
memory only:

    out[p, o]     = sum_{k, c} x[p + k, c] w[k, c, o]     tiles of output pixels and outputs
    x'[q, c]      = sum_{k, o} z[q - k, o] w[k, c, o]     tiles of input pixels and channels
    w'[k, c, o]   = sum_p      x[p + k, c] z[p, o]        tiles of channels and outputs, per tap k

With a stride s, input pixels are in s x s phases, each of which has taps of its own.  Operands in
float32 are rounded to TF32, products are exact and added in float32.

The kernels are written in Pallas and compiled by Triton.  Their tiles have powers of two as sides.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedjax_sim.models.convolution.geometry import Geometry, Operation

_PROGRAMS = 528  # that fill a GPU: four on each of 132 multiprocessors


class Tiles(NamedTuple):
    """Sizes of the tiles of a product, and the resources of a program."""

    rows: int  # pixels, or channels of a kernel gradient
    columns: int  # outputs, or channels of an input gradient
    inner: int  # channels, outputs or pixels per step of the loop
    warps: int = 4
    stages: int = 3  # steps of the loop whose loads are under way
    parts: int = 1  # of the sum over pixels of a kernel gradient
    taps: int = 1  # of one program of a kernel gradient


def default_tiles(
    operation: Operation, rows: int, columns: int, inner: int, num_products: int, dtype: Any
) -> Tiles:
    """Returns tiles for ``num_products`` products ``[rows, inner] x [inner, columns]``.

    Args:
        inner: channels, outputs, or for kernel gradients pixels per client.
        num_products: clients, or clients times taps for kernel gradients.
    """
    step = 128 // jnp.dtype(dtype).itemsize  # a line of the cache
    if operation == "kernel_grad":
        side = min(_power(rows), 128), min(_power(columns), 128)
        programs = num_products * (rows // side[0]) * (columns // side[1])
        parts = min(-(-_PROGRAMS // programs), max(inner // (8 * step), 1))
        return Tiles(*side, step, warps=8 if math.prod(side) > 2**13 else 4, parts=parts)
    side = 128, min(_power(columns), 128)
    return Tiles(*side, min(_power(inner), step), warps=8 if math.prod(side) > 2**13 else 4)


def conv_clients(
    x: Array, w: Array, g: Geometry, tiles: Tiles | None = None, interpret: bool = False
) -> Array:
    """Returns the convolution ``[N, B, Ho, Wo, O]`` of every client's images and kernel.

    Args:
        x: ``[N, B, H, W, C]``, or ``[1, ...]`` for the same images.
        w: ``[N, kh, kw, C, O]``, or ``[1, ...]`` for the same kernel.
        interpret: computes with JAX's operations, on any device.
    """
    clients = max(x.shape[0], w.shape[0])
    batch, height, width, channels = x.shape[1:]
    (kh, kw), (out_height, out_width), outputs = g.kernel_size, g.output_size, w.shape[4]
    num_pixels = batch * out_height * out_width
    t = tiles or default_tiles("conv", num_pixels, outputs, channels, clients, x.dtype)
    across, along = outputs // t.columns, channels // t.inner
    turned = _turned(x.dtype)
    w = w.reshape(w.shape[0], kh * kw, channels, outputs)
    w = w.swapaxes(2, 3) if turned else w

    def program(x_ref, w_ref, out_ref):
        number, client = pl.program_id(0), pl.program_id(1)
        number, column = _divmod(number, across)
        first = column * t.columns
        pixel, image, i, j = _pixels(number * t.rows, t.rows, out_height, out_width)
        top, left = i * g.strides[0] - g.padding[0][0], j * g.strides[1] - g.padding[1][0]
        corner = (image * height + top) * width + left
        channel, output = _range(t.inner), _range(t.columns)

        def add(step, total):
            tap, start = _divmod(step, along)
            start, (k, l) = start * t.inner, _divmod(tap, kw)
            inside = (pixel < num_pixels) & _inside(top + k, height) & _inside(left + l, width)
            images = _tile(x_ref, client, corner + (k * width + l), start + channel)
            sides = _turn((start + channel, first + output), turned)
            kernel = triton.load(_tile(w_ref, client, tap, *sides))
            return total + _dot(_masked(images, inside[:, None]), kernel, (1, int(turned)))

        total = _loop(kh * kw * along, add, _zeros(t.rows, t.columns))
        _store(out_ref, client, pixel, first + output, total, pixel < num_pixels)

    grid = -(-num_pixels // t.rows) * across, clients
    shape = clients, num_pixels, outputs
    out = _call(program, grid, shape, x.dtype, t, interpret, "conv")(_flat(x), w)
    return out.reshape(clients, batch, out_height, out_width, outputs)


def input_grad_clients(
    z: Array, w: Array, g: Geometry, tiles: Tiles | None = None, interpret: bool = False
) -> Array:
    """The transpose of :func:`conv_clients` in ``x``: ``[N, B, H, W, C]``."""
    clients = max(z.shape[0], w.shape[0])
    batch, out_height, out_width, outputs = z.shape[1:]
    (height, width), (kh, kw), (sh, sw), channels = *g[:3], w.shape[3]
    high, wide = -(-height // sh), -(-width // sw)  # pixels of a phase
    num_pixels = batch * high * wide
    t = tiles or default_tiles("input_grad", num_pixels, channels, outputs, clients, z.dtype)
    across, along = channels // t.columns, outputs // t.inner

    def taps(phase, side: int, stride: int, pad: int):
        # Pixel s q + r reads output q + shift - t through tap a + s t, where r + p = s shift + a.
        if stride == 1:
            return 0, side, pad
        shift, a = _divmod(phase + pad % stride, stride)
        return a, _divmod(side - a + stride - 1, stride)[0], pad // stride + shift

    def program(z_ref, w_ref, x_ref):
        number, phase, client = (pl.program_id(axis) for axis in range(3))
        phase_h, phase_w = (0, 0) if sh * sw == 1 else _divmod(phase, sw)
        number, column = _divmod(number, across)
        first = column * t.columns
        pixel, image, q, r = _pixels(number * t.rows, t.rows, high, wide)
        row, column = q * sh + phase_h, r * sw + phase_w
        first_k, num_k, shift_h = taps(phase_h, kh, sh, g.padding[0][0])
        first_l, num_l, shift_w = taps(phase_w, kw, sw, g.padding[1][0])
        bottom, right = q + shift_h, r + shift_w
        corner = (image * out_height + bottom) * out_width + right
        valid = pixel < num_pixels
        channel, output = _range(t.columns), _range(t.inner)

        def add(step, total):
            tap, start = _divmod(step, along)
            start, (k, l) = start * t.inner, _divmod(tap, num_l)
            inside = valid & _inside(bottom - k, out_height) & _inside(right - l, out_width)
            place = corner - (k * out_width + l)
            gradients = _tile(z_ref, client, place, start + output)
            tap = (first_k + k * sh) * kw + first_l + l * sw
            kernel = triton.load(_tile(w_ref, client, tap, first + channel, start + output))
            return total + _dot(_masked(gradients, inside[:, None]), kernel, (1, 1))

        total = _loop(num_k * num_l * along, add, _zeros(t.rows, t.columns))
        place = (image * height + row) * width + column
        valid = valid & (row < height) & (column < width)
        _store(x_ref, client, place, first + channel, total, valid)

    grid = -(-num_pixels // t.rows) * across, sh * sw, clients
    shape = clients, batch * height * width, channels
    w = w.reshape(w.shape[0], kh * kw, channels, outputs)
    x = _call(program, grid, shape, z.dtype, t, interpret, "input_grad")(_flat(z), w)
    return x.reshape(clients, batch, height, width, channels)


def kernel_grad_clients(
    x: Array, z: Array, g: Geometry, tiles: Tiles | None = None, interpret: bool = False
) -> Array:
    """The transpose of :func:`conv_clients` in ``w``: ``[N, kh, kw, C, O]``."""
    clients = max(x.shape[0], z.shape[0])
    batch, height, width, channels = x.shape[1:]
    out_height, out_width, outputs = z.shape[2:]
    kh, kw = g.kernel_size
    num_pixels = batch * out_height * out_width
    t = tiles or default_tiles(
        "kernel_grad", channels, outputs, num_pixels, clients * kh * kw, x.dtype
    )
    across, down = outputs // t.columns, channels // t.rows
    steps = -(-num_pixels // (t.inner * t.parts))
    turned = _turned(x.dtype)
    z = _flat(z).swapaxes(1, 2) if turned else _flat(z)

    def program(x_ref, z_ref, w_ref):
        number, part, client = (pl.program_id(axis) for axis in range(3))
        number, column = _divmod(number, across)
        group, row = _divmod(number, down)
        taps = [group * t.taps + i for i in range(t.taps)]
        channel, output = row * t.rows + _range(t.rows), column * t.columns + _range(t.columns)

        def add(step, totals):
            pixel, image, i, j = _pixels(
                (part * steps + step) * t.inner, t.inner, out_height, out_width
            )
            valid = pixel < num_pixels
            top, left = i * g.strides[0] - g.padding[0][0], j * g.strides[1] - g.padding[1][0]
            corner = (image * height + top) * width + left
            gradients = _masked(
                _tile(z_ref, client, *_turn((pixel, output), turned)),
                valid[None, :] if turned else valid[:, None],
            )
            sums = []
            for tap, total in zip(taps, totals, strict=True):
                k, l = _divmod(tap, kw)
                inside = valid & _inside(top + k, height) & _inside(left + l, width)
                images = _tile(x_ref, client, corner + (k * width + l), channel)
                images = _masked(images, inside[:, None])
                sums.append(total + _dot(gradients, images, (int(turned), 0)))
            return tuple(sums)

        totals = _loop(steps, add, (_zeros(t.columns, t.rows),) * t.taps)
        for tap, total in zip(taps, totals, strict=True):
            triton.store(_tile(w_ref, client, part * (kh * kw) + tap, channel, output), total.T)

    grid = kh * kw // t.taps * down * across, t.parts, clients
    shape = clients, t.parts * kh * kw, channels, outputs
    w = _call(program, grid, shape, jnp.float32, t, interpret, "kernel_grad")(_flat(x), z)
    w = w.reshape(clients, t.parts, kh, kw, channels, outputs)
    return w.sum(1).astype(x.dtype)


def _call(program, grid, shape, dtype, tiles: Tiles, interpret: bool, name: str):
    """Returns the kernel as a function of two arrays."""

    def call(a: Array, b: Array) -> Array:
        # The shape has the type of `a` inside shard_map: the axes over which it varies.
        out = jax.eval_shape(lambda a: jnp.full(shape, a[0, 0, 0], dtype), a)
        params = triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages)
        return pl.pallas_call(
            program, out, grid=grid, interpret=interpret, compiler_params=params,
            name=f"implicit_{name}",
        )(a, b)  # fmt: skip

    return call


def _loop(count, body, init):
    # A Python integer would be one of 64 bits under jax_enable_x64, and so would all places.
    count = np.int32(count) if isinstance(count, int) else count
    return lax.fori_loop(np.int32(0), count, body, init)


def _range(count: int):
    return jnp.arange(count, dtype=jnp.int32)


def _pixels(first, count: int, height: int, width: int):
    """Pixel numbers from ``first`` on, and their images, rows and columns."""
    pixel = first + _range(count)
    image, rest = _divmod(pixel, height * width)
    return pixel, image, *_divmod(rest, width)


def _divmod(number, divisor):
    """Quotient and remainder of numbers that are not negative."""
    # Without the corrections for other numbers, which `//` computes for every pixel and step.
    quotient = lax.div(number, jnp.full_like(number, divisor))
    return quotient, number - quotient * divisor


def _inside(place, size: int):
    return (place >= 0) & (place < size)


def _tile(ref, client, *places):
    """The view of a client's array at rows and columns; before them there may be a scalar place."""
    *tap, rows, columns = places
    # An array without the axis of clients is that of all of them.
    client = client if ref.shape[0] > 1 else 0
    return ref.at[client, *tap, rows[:, None], columns[None, :]]


def _masked(tile, valid):
    """Loads a tile; entries that are not valid are zero."""
    return triton.load(tile, mask=jnp.broadcast_to(valid, tile.shape), other=0.0)


def _store(ref, client, rows, columns, total, valid) -> None:
    # The interpreter writes old values where the mask is false, which must be no one's places.
    rows = jnp.where(valid, rows, ref.shape[1])
    mask = jnp.broadcast_to(valid[:, None], total.shape)
    triton.store(_tile(ref, client, rows, columns), total.astype(ref.dtype), mask=mask)


def _dot(a, b, inner: tuple[int, int]):
    """The product of two tiles along an axis of each, added in float32."""
    axes = ((inner[:1], inner[1:]), ((), ()))
    return lax.dot_general(
        a, b, axes, precision=lax.Precision.DEFAULT, preferred_element_type=jnp.float32
    )


def _zeros(rows: int, columns: int):
    return jnp.zeros((rows, columns), jnp.float32)


def _flat(x: Array) -> Array:
    """``[N, B, H, W, C] -> [N, B H W, C]``."""
    return x.reshape(x.shape[0], -1, x.shape[4])


def _turned(dtype: Any) -> bool:
    """Returns whether factors are stored with the inner axis of the product last."""
    # Tensor cores read those of a TF32 product along it; other types can be in either order.
    return dtype == jnp.float32


def _turn(pair, turned: bool):
    return tuple(pair[::-1]) if turned else tuple(pair)


def _power(size: int) -> int:
    """The largest power of two that divides the size."""
    return size & -size
