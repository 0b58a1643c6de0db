"""Convolution by Winograd's minimal filtering: fewer multiplications over small tiles of pixels.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks (2016),
https://arxiv.org/abs/1509.09308. Along one axis, ``m`` outputs of a kernel ``g`` with ``r`` taps
read ``n = m + r - 1`` inputs ``d`` and take ``n`` products instead of ``m r``:

    y = A^T ((G g) * (B^T d))                                                              # Eq. (5)

The matrices are those of the Toom-Cook algorithm: two polynomials are multiplied by their values at
``n`` points, and filtering is the transpose of that product. For images, every place of a tile
``B^T d B`` (Eq. (8)) is one matrix product over all tiles, of channels with outputs (Eq. (12)). A
3 x 3 kernel takes 16 products for 2 x 2 outputs instead of 36, and its tiles have 4 numbers per
pixel and channel where patches have 9; a 5 x 5 kernel takes 36 instead of 100, for 9 and 25.

The map is linear in images and in kernels, so its gradients are the transposes of the same steps
with as many products. Both share the tiles of the outputs' gradients, and the gradient in the
kernel shares those of the images with the convolution.
"""

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.models.convolution.blocks import stored
from fedjax_sim.models.convolution.geometry import Geometry, Pair

OUTPUTS = 2  # m, along each axis
# Finite points by taps; the last point is infinity. With 3 taps, rounding is that of a sum of
# products. With 5, these points round least of a dozen sets that were tried: 2 to 4 times as much.
_POINTS = {
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    5: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
_Matrix: TypeAlias = tuple[tuple[float, ...], ...]
_Grid: TypeAlias = Sequence[Sequence[Array]]  # by place in the height and the width of a tile


class Matrices(NamedTuple):
    """The transformations of one axis."""

    outputs: _Matrix  # A^T [m, n]
    kernel: _Matrix  # G [n, r]
    inputs: _Matrix  # B^T [n, n]


@functools.cache
def matrices(taps: int) -> Matrices:
    """Returns the matrices of a kernel with 3 or 5 taps."""
    points = _POINTS[taps]

    def values(degree: int) -> list[list[Fraction]]:
        """Powers below the degree at the points; at infinity only the highest one counts."""
        finite = [[p**k for k in range(degree)] for p in points]
        return [*finite, [Fraction(k == degree - 1) for k in range(degree)]]

    # Lagrange's polynomials without their denominators, by which rows of the kernel are divided.
    inputs, kernel = [], []
    for p, powers in zip(points, values(taps), strict=False):
        others = [q for q in points if q != p]
        inputs.append([*_with_roots(others), Fraction(0)])
        scale = functools.reduce(lambda product, q: product * (p - q), others, Fraction(1))
        kernel.append([power / scale for power in powers])
    inputs.append(_with_roots(points))
    kernel.append(values(taps)[-1])
    return Matrices(*map(_floats, (_transposed(values(OUTPUTS)), kernel, inputs)))


def filterable(geometry: Geometry, dtype: Any) -> bool:
    """Returns whether this module computes the convolution in its precision."""
    # The tiles of bfloat16 would be rounded before their products.
    return (
        geometry.strides == geometry.dilation == (1, 1)
        and all(taps in _POINTS for taps in geometry.kernel_size)
        and jnp.dtype(dtype).name in ("float32", "float64")
    )


def conv_winograd(x: Array, w: Array, g: Geometry) -> Array:
    """Returns ``conv(x, w)`` for a geometry that is :func:`filterable`."""
    product = functools.partial(jnp.matmul, precision=g.precision)
    products = _by_place(product, _images(x, g), _kernels(w))
    out = _joined(_along_axes([matrices(taps).outputs for taps in g.kernel_size], products))
    return out[:, : g.output_size[0], : g.output_size[1]]


def input_grad_winograd(z: Array, w: Array, g: Geometry) -> Array:
    """The transpose of :func:`conv_winograd` in ``x``."""
    products = _by_place(
        lambda y, u: jnp.matmul(y, u.T, precision=g.precision), _gradients(z, g), _kernels(w)
    )
    transforms = [_transposed(matrices(taps).inputs) for taps in g.kernel_size]
    x = _joined(_along_axes(transforms, products))
    return _resized(x, [-low for low, _ in g.padding], g.input_size)


def kernel_grad_winograd(x: Array, z: Array, g: Geometry) -> Array:
    """The transpose of :func:`conv_winograd` in ``w``."""

    def product(v: Array, y: Array) -> Array:
        v, y = v.reshape(-1, v.shape[3]), y.reshape(-1, y.shape[3])
        return jnp.matmul(v.T, y, precision=g.precision)

    products = _by_place(product, _images(x, g), _gradients(z, g))
    taps = _along_axes([_transposed(matrices(taps).kernel) for taps in g.kernel_size], products)
    return jnp.stack([jnp.stack(row) for row in taps])


def _images(x: Array, g: Geometry) -> _Grid:
    """Tiles of the images, ``B^T d B``: arrays ``[B, Th, Tw, C]``."""
    sizes = [OUTPUTS * n + taps - 1 for n, taps in zip(_tiles(g), g.kernel_size, strict=True)]
    x = _resized(x, [low for low, _ in g.padding], sizes)
    return _split(x, _tiles(g), [matrices(taps).inputs for taps in g.kernel_size])


def _gradients(z: Array, g: Geometry) -> _Grid:
    """Tiles of the outputs' gradients, ``A z A^T``: arrays ``[B, Th, Tw, O]``."""
    z = _resized(z, (0, 0), [OUTPUTS * n for n in _tiles(g)])
    return _split(z, _tiles(g), [_transposed(matrices(taps).outputs) for taps in g.kernel_size])


def _kernels(w: Array) -> _Grid:
    """The kernel, ``G g G^T``: arrays ``[C, O]``."""
    taps = [[w[i, j] for j in range(w.shape[1])] for i in range(w.shape[0])]
    return _along_axes([matrices(n).kernel for n in w.shape[:2]], taps)


def _tiles(g: Geometry) -> Pair:
    """Numbers of tiles along height and width."""
    height, width = (-(-n // OUTPUTS) for n in g.output_size)
    return height, width


def _resized(x: Array, low: Sequence[int], sizes: Sequence[int]) -> Array:
    """Images with zeros before and after them, up to sizes; negative numbers crop."""
    config = [
        (start, size - n - start, 0)
        for start, size, n in zip(low, sizes, x.shape[1:3], strict=True)
    ]
    if not any(map(any, config)):
        return x
    # With fusion, every tile would pad the image again.
    return stored(lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *config, (0, 0, 0)]))


def _split(x: Array, tiles: Pair, transforms: Sequence[_Matrix]) -> _Grid:
    """Overlapping tiles, transformed along both axes; every matrix has a column per pixel."""

    def split(x: Array, axis: int) -> list[Array]:
        transform, last = transforms[axis - 1], OUTPUTS * (tiles[axis - 1] - 1) + 1
        pixels = range(len(transform[0]))
        parts = [lax.slice_in_dim(x, k, k + last, OUTPUTS, axis) for k in pixels]
        return _combined(transform, parts)

    return [split(rows, 2) for rows in split(x, 1)]


def _joined(grid: _Grid) -> Array:
    """The transpose of cutting into tiles: pixels side by side, sums where tiles overlap."""

    def joined(parts: Sequence[Array], axis: int) -> Array:
        beyond = -(-len(parts) // OUTPUTS) - 1  # tiles that reach into the next ones
        phases = []
        for phase in range(OUTPUTS):
            shifted = []
            for tile, part in enumerate(parts[phase::OUTPUTS]):
                config = [(0, 0, 0)] * 4
                config[axis] = (tile, beyond - tile, 0)
                shifted.append(lax.pad(part, jnp.zeros((), part.dtype), config))
            phases.append(functools.reduce(jnp.add, shifted))
        # A concatenation copies long runs; a stack would choose a phase for each number.
        shape = phases[0].shape
        runs = lax.concatenate([lax.collapse(part, axis + 1) for part in phases], axis + 1)
        return runs.reshape(*shape[:axis], OUTPUTS * shape[axis], *shape[axis + 1 :])

    return joined([joined(row, 2) for row in grid], 1)


def _by_place(product: Callable[[Array, Array], Array], left: _Grid, right: _Grid) -> _Grid:
    return [list(map(product, *rows)) for rows in zip(left, right, strict=True)]


def _along_axes(transforms: Sequence[_Matrix], grid: _Grid) -> _Grid:
    """``L X R^T`` for a grid ``X`` of arrays and the transforms ``L, R`` of height and width."""
    columns = [_combined(transforms[0], column) for column in zip(*grid, strict=True)]
    return [_combined(transforms[1], row) for row in zip(*columns, strict=True)]


def _combined(matrix: _Matrix, parts: Sequence[Array]) -> list[Array]:
    """The linear combinations of arrays by the rows of a matrix."""

    def combination(row: Sequence[float]) -> Array:
        terms = [x if c == 1 else c * x for c, x in zip(row, parts, strict=True) if c]
        return functools.reduce(jnp.add, terms)

    return [combination(row) for row in matrix]


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of ``(t - r_1) (t - r_2) ...``, the constant first."""
    found = [Fraction(1)]
    for root in roots:
        higher, same = [Fraction(0), *found], [*found, Fraction(0)]
        found = [a - root * b for a, b in zip(higher, same, strict=True)]
    return found


def _transposed(matrix: Sequence[Sequence]) -> tuple[tuple, ...]:
    return tuple(zip(*matrix, strict=True))


def _floats(matrix: Sequence[Sequence[Fraction]]) -> _Matrix:
    return tuple(tuple(map(float, row)) for row in matrix)
