"""Layers as functions: token ids, standardisation, attention, and products with adapters."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_sim import tree
from fedjax_sim.models.recomputed import Recomputed, recomputed
from fedjax_sim.types import Described, Params
from fedjax_sim.types.platforms import CHOICES, by_platform

Apply = Callable[[Params, Any], Any]
# Entries of a token up to which one product may take all heads: two tiles of a TPU's 128 lanes.
_MAX_JOINT_WIDTH = 256
# Images whose additions may be operations of their own in a program.
_MAX_ADDED = 64
Rows = tuple[int, int]  # first row of a kernel, and the row after the last


def takes_tokens(apply: Apply, vocab_size: int | None) -> Apply:
    """Returns a function ``apply`` with the number of tokens that its inputs are ids of."""
    # Objectives refuse other ids before compilation; JAX would clamp them.
    return apply if vocab_size is None else Described.of(apply, vocab_size=vocab_size)


def check_sequences(x: Any) -> None:
    """Raises ValueError for inputs of a language model that are not integers ``[B, L]``."""
    if jnp.ndim(x) != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(
            f"x has shape {jnp.shape(x)} and dtype {x.dtype}; expected integer tokens [B, L]"
        )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def standardise(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    """Returns ``(x - mean) / sqrt(variance + epsilon)`` over axes, computed in at least float32."""
    return _standardised(x, axes, epsilon)[0].astype(x.dtype)


@standardise.defjvp
def _standardise_jvp(axes, epsilon, primals, tangents):
    # s (t - mean(t) - y mean(y t)) with y the result and s = 1 / sqrt(variance + epsilon). Its
    # transpose needs y and s only, and one pass for both means.
    (x,), (t,) = primals, tangents
    y, scale = _standardised(x, axes, epsilon)
    t = tree.wide(t) * scale
    t = t - t.mean(axis=axes, keepdims=True) - y * (y * t).mean(axis=axes, keepdims=True)
    return y.astype(x.dtype), t.astype(x.dtype)


def _standardised(x: Array, axes: Sequence[int], epsilon: float) -> tuple[Array, Array]:
    """The result of :func:`standardise` before it is rounded, and the factor."""
    wide = tree.wide(x)
    average = functools.partial(_mean, axes=axes)
    _, centred, variance = _centred(wide, average, wide.dtype != x.dtype)
    scale = lax.rsqrt(variance + epsilon)
    return centred * scale, scale


def _mean(x: Array, axes: Sequence[int]) -> Array:
    return x.mean(axis=axes, keepdims=True)


def _centred(
    wide: Array, average: Callable[[Array], Array], rounded: bool
) -> tuple[Array, Array, Array]:
    """The average, deviations from it, and their variance."""
    mean = average(wide)
    centred = wide - mean
    if rounded:
        # One pass for both means. What cancels is below the rounding of entries to half precision.
        return mean, centred, jnp.maximum(average(jnp.square(wide)) - jnp.square(mean), 0)
    # The difference of two means of squares would cancel where the mean is large.
    return mean, centred, average(jnp.square(centred))


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4, 5))
def normalise_groups(
    x: Array, scale: Array, bias: Array, groups: int, epsilon: float, outside: int = 0
) -> Array:
    """Returns images ``[B, H, W, C]`` standardised by groups of channels, scaled and shifted.

    The scales and biases belong to channels.  With k times as many channels as scales, these are
    those of k pixels.  Everything is computed in at least float32.  The given number of pixels at
    both ends of a row is outside of the image: they do not count, and their results are zero.
    """
    return _normalised(x, scale, bias, groups, epsilon, outside).out.astype(x.dtype)


@normalise_groups.defjvp
def _normalise_groups_jvp(groups, epsilon, outside, primals, tangents):
    # With y = (x - mean) r the tangent is r scale (t - mean(t) - y mean(y t)) + y dscale + dbias.
    # Written with y and 1 once, its transpose has two sums over pixels, which serve the gradients
    # of images, scales and biases.
    (x, scale, bias), (t, d_scale, d_bias) = primals, tangents
    out, y, _, factor, average, kept = _normalised(x, scale, bias, groups, epsilon, outside)
    t = tree.wide(t)
    along_y = _for_images(d_scale, x) - factor * average(y * t)
    along_ones = _for_images(d_bias, x) - factor * average(t)
    # Without the barrier XLA would add whole arrays once more for the gradients of the parameters.
    along_y, along_ones = lax.optimization_barrier((along_y, along_ones))
    return out.astype(x.dtype), kept(factor * t + along_y * y + along_ones).astype(x.dtype)


def normalise_groups_later(
    x: Array, scale: Array, bias: Array, groups: int, epsilon: float, outside: int = 0
) -> Recomputed:
    """Returns :func:`normalise_groups`, which readers compute from ``x`` and its statistics."""
    found = _normalised(x, scale, bias, groups, epsilon, outside)

    def out(mean: Array, stored: tuple[Array, Array, Array]) -> Array:
        x, factor, bias = stored
        scaled = (tree.wide(x) - mean) * factor + _by_channel(bias, x)
        return found.kept(scaled).astype(x.dtype)

    result = normalise_groups(x, scale, bias, groups, epsilon, outside)
    return recomputed(result, found.mean, (x, found.factor, bias), out)


class _Normalised(NamedTuple):
    """Images normalised by groups, and what their derivatives need."""

    out: Array
    standardised: Array
    mean: Array
    factor: Array  # from a deviation from the mean to the result, without the bias
    average: Callable[[Array], Array]  # over a group's pixels
    kept: Callable[[Array], Array]  # zeros for the pixels that are outside


def _normalised(
    x: Array, scale: Array, bias: Array, groups: int, epsilon: float, outside: int
) -> _Normalised:
    """The result of :func:`normalise_groups` before it is rounded, and its parts."""
    pixels = x.shape[3] // scale.size
    width = x.shape[2] * pixels - 2 * outside

    def kept(x: Array) -> Array:
        if outside == 0:
            return x
        place = np.arange(x.shape[2] * pixels).reshape(-1, pixels)
        inside = (place >= outside) & (place < outside + width)
        return jnp.where(np.repeat(inside, scale.size, axis=1), x, 0)

    def average(x: Array) -> Array:
        sums = kept(x).sum((1, 2), keepdims=True)
        forms = {"reduced": over_groups, "product": by_product}
        branches = {platform: forms[choice.group_means] for platform, choice in CHOICES.items()}
        return by_platform(branches, sums) / (x.shape[1] * width / pixels)

    def over_groups(sums: Array) -> Array:
        of_groups = sums.reshape(x.shape[0], pixels, groups, scale.size // groups).mean(
            (1, 3), keepdims=True
        )
        spread = jnp.broadcast_to(of_groups, (x.shape[0], pixels, groups, scale.size // groups))
        return spread.reshape(sums.shape)

    def by_product(sums: Array) -> Array:
        # A TPU takes thousands of cycles for every operation that changes the order of so few
        # entries, and hundreds for this product.
        group = np.arange(x.shape[3]) % scale.size * groups // scale.size
        same = jnp.asarray(group[:, None] == group, sums.dtype)
        return jnp.matmul(sums, same, precision="highest") / (x.shape[3] // groups)

    wide = tree.wide(x)
    mean, centred, variance = _centred(wide, average, wide.dtype != x.dtype)
    inverse = lax.rsqrt(variance + epsilon)
    factor = inverse * _by_channel(scale, x)
    out = kept(centred * factor + _by_channel(bias, x))
    return _Normalised(out, centred * inverse, mean, factor, average, kept)


def _by_channel(parameter: Array, x: Array) -> Array:
    """A parameter per channel for the channels of images, in at least float32."""
    return tree.wide(jnp.tile(parameter, x.shape[3] // parameter.size))


def _for_images(parameter: Array, x: Array) -> Array:
    """A parameter per channel for each image, ``[B, 1, 1, C]``; its transpose adds the images."""
    images = x.shape[0]

    def reduced(row: Array) -> Array:
        return jnp.broadcast_to(row, (images, 1, 1, *row.shape))

    def added(row: Array) -> Array:
        # XLA:GPU wants the images in the fastest axis for a reduction over them, and transposes
        # statistics and their gradients for it, in kernels of their own.
        return jnp.stack([row] * images)[:, None, None]

    forms = {"reduced": reduced, "added": added if 0 < images <= _MAX_ADDED else reduced}
    branches = {platform: forms[choice.image_sums] for platform, choice in CHOICES.items()}
    return by_platform(branches, _by_channel(parameter, x))


def gelu(x: Array) -> Array:
    """Returns ``x Phi(x)``, computed in at least float32."""
    # By erf, not erfc as in jax.nn: half of the arithmetic.
    wide = tree.wide(x)
    return (0.5 * wide * (1.0 + lax.erf(wide * 0.5**0.5))).astype(x.dtype)


def attend(queries: Array, keys: Array, values: Array, mask: Array | None = None) -> Array:
    """Returns ``softmax(Q K^T / sqrt(d)) V`` by heads, ``[B, T, heads, d]``.

    The mask ``[T, T]`` is True where the query of the row sees the key of the column.  The
    softmax is computed in at least float32.
    """
    apart = functools.partial(_attend_apart, mask=mask)
    joint = functools.partial(_attend_joint, mask=mask)
    if queries.shape[2] * queries.shape[3] > _MAX_JOINT_WIDTH:
        joint = apart
    forms = {"apart": apart, "joint": joint}
    branches = {platform: forms[choice.heads] for platform, choice in CHOICES.items()}
    return by_platform(branches, queries, keys, values)


def _attend_apart(queries: Array, keys: Array, values: Array, mask: Array | None) -> Array:
    """Attention with a batch of products for the heads."""
    queries = queries * queries.shape[-1] ** -0.5
    weights = _weights(jnp.einsum("bqhd,bkhd->bhqk", queries, keys), mask).astype(values.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


def _attend_joint(queries: Array, keys: Array, values: Array, mask: Array | None) -> Array:
    """Attention with the entries of all heads in one axis, for which others' entries are zero."""
    # Tiles of 128 lanes hold two heads of 64 entries. Taking heads apart would copy all arrays,
    # which costs a TPU more than products with zeros in tiles that one head does not fill.
    heads = queries.shape[2]
    q, k, v = (lax.collapse(x, 2) for x in (queries, keys, values))
    weights = _weights(_joint_scores(q, k, heads), mask).astype(v.dtype)
    return _joint_mean(weights, v).reshape(values.shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _joint_scores(queries: Array, keys: Array, heads: int) -> Array:
    """``Q K^T / sqrt(d)`` by heads, ``[B, T, heads d] -> [B, heads, T, T]``."""
    return jnp.einsum("bhqc,bkc->bhqk", _by_head(queries, heads, scaled=True), keys)


@_joint_scores.defjvp
def _joint_scores_jvp(heads, primals, tangents):
    # The zeros are in the other operand of each tangent: its transpose is then one product over
    # heads and tokens, not a sum of products by heads.
    (queries, keys), (d_queries, d_keys) = primals, tangents
    along_queries = jnp.einsum("bqc,bhkc->bhqk", d_queries, _by_head(keys, heads, scaled=True))
    along_keys = jnp.einsum("bhqc,bkc->bhqk", _by_head(queries, heads, scaled=True), d_keys)
    return _joint_scores(queries, keys, heads), along_queries + along_keys


@jax.custom_jvp
def _joint_mean(weights: Array, values: Array) -> Array:
    """Sums of values by heads with weights ``[B, heads, T, T]``, ``[B, T, heads d]``."""
    return jnp.einsum("bhqk,bhkc->bqc", weights, _by_head(values, weights.shape[1]))


@_joint_mean.defjvp
def _joint_mean_jvp(primals, tangents):
    (weights, values), (d_weights, d_values) = primals, tangents
    heads = weights.shape[1]
    # Zeros after the product: in the transpose, before it.
    mixed = jnp.einsum("bhqk,bkc->bhqc", weights, d_values)
    along_values = (mixed * _own(heads, values)).sum(1)
    return _joint_mean(weights, values), _joint_mean(d_weights, values) + along_values


def _by_head(x: Array, heads: int, scaled: bool = False) -> Array:
    """Entries of a head and zeros, ``[B, heads, T, heads d]``; scaled by ``1 / sqrt(d)``."""
    return x[:, None] * _own(heads, x, scaled)


def _own(heads: int, x: Array, scaled: bool = False) -> Array:
    """Ones, or ``1 / sqrt(d)``, for a head's entries and zeros for others'."""
    size = x.shape[-1] // heads
    ones = np.repeat(np.eye(heads), size, axis=1)[:, None]  # [heads, 1, heads d]
    return jnp.asarray(ones * size**-0.5 if scaled else ones, x.dtype)


def _weights(scores: Array, mask: Array | None) -> Array:
    """Softmax over the keys that the mask lets a query see, ``[B, heads, T, T]``."""
    scores = tree.wide(scores)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jax.nn.softmax(scores)


def causal(tokens: int) -> Array:
    """Returns the mask ``[tokens, tokens]`` with which a position sees itself and earlier ones."""
    return jnp.tril(jnp.ones((tokens, tokens), bool))


def rotary(x: Array, positions: Array, base: float = 10_000.0) -> Array:
    """Returns ``x [..., T, heads, d]`` with ``(x_j, x_{j + d/2})`` turned by ``p b^(-2j/d)``.

    Source: Su et al., 2021 (https://arxiv.org/abs/2104.09864), section 3.2, which pairs neighbours.
    """
    # The inner product of a rotated query and a rotated key depends on their positions p by the
    # difference only.
    half = x.shape[-1] // 2
    # Angles in at least float32: bfloat16 cannot distinguish positions above 256.
    wide = tree.wide(x)
    speeds = base ** (-jnp.arange(half, dtype=wide.dtype) / half)
    angles = positions.astype(wide.dtype)[:, None] * speeds  # [T, d / 2]
    cosines, sines = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]  # of every head
    first, second = wide[..., :half], wide[..., half:]
    rotated = (first * cosines - second * sines, first * sines + second * cosines)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapted:
    """Kernel ``W [..., out, in]`` and adapters: on their rows ``W + scale B A``."""

    kernel: Array  # in half precision its adapters are in single precision
    adapters: tuple[Params, ...]  # by block {"a": [..., r, in], "b": [..., rows, r]}
    scale: Array  # of the products B A, [...], of the adapters' dtype
    rows: tuple[Rows, ...] = dataclasses.field(metadata={"static": True})  # a block per adapter

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel, in whose place it stands."""
        return jnp.shape(self.kernel)

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


def product_in_parts(
    kernel: Array | Adapted, bias: Array, x: Array, number: int
) -> Sequence[Array]:
    """Returns ``W x + b`` in a number of equal parts of the outputs."""

    def split(x: Array) -> Sequence[Array]:
        # The transpose of a split is one concatenation; that of slices would be a sum of paddings.
        return lax.split(x, [x.shape[-1] // number] * number, axis=x.ndim - 1)

    def joined(result: Array, bias: Array) -> Sequence[Array]:
        return split(result + bias)

    def apart(result: Array, bias: Array) -> Sequence[Array]:
        # On a TPU the gradient of the joined bias is a sum over joined parts, in a pass of its own.
        # Sums for the biases of parts are in the products that give the parts' gradients.
        return [part + own for part, own in zip(split(result), split(bias), strict=True)]

    forms = {"joined": joined, "apart": apart}
    branches = {platform: forms[choice.part_biases] for platform, choice in CHOICES.items()}
    return by_platform(branches, product(kernel, x), bias)


def takes_adapters(apply: Apply) -> Apply:
    """Returns a function ``apply`` whose kernels may be :class:`Adapted`, as one that says so."""
    return Described.of(apply, takes_adapters=True)


def _placed(x: Array, rows: Rows, size: int, axis: int) -> Array:
    """Returns zeros of a size along an axis, with ``x`` in the given rows."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (rows[0], size - rows[1])
    return jnp.pad(x, widths) if any(widths[axis]) else x
