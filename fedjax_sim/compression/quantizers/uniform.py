r"""Uniform quantisation of weights and activations, with straight-through gradients.

References:
    Choi et al., "Accurate and Efficient 2-bit Quantized Neural Networks", 2019 (SAWB).
    Chmiel et al., "Logarithmic Unbiased Quantization: Simple 4-bit Training in Deep Learning",
        2021, https://arxiv.org/abs/2112.10769, and its authors' program.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from fedjax_sim import tree
from fedjax_sim.checks import check_at_most, check_count, is_concrete
from fedjax_sim.compression.quantizers.rounding import check_floating
from fedjax_sim.tree import in_units, max_magnitude
from fedjax_sim.types import Scalar, specified


class Levels(NamedTuple):
    """Integers ``low .. high``; the values of a uniform quantiser are their multiples.

    Only ``share`` of the tensor's entries count in means over it; the others are zeros.
    """

    low: Scalar
    high: Scalar
    share: Scalar = 1


Clip: TypeAlias = Callable[[Array, Levels], Array]  # (tensor, levels) -> clip, see `symmetric`


def check_bits(least: int, /, **values: int) -> None:
    """Refuses numbers of bits below a bound, and those whose integers have more than 32 bits."""
    check_count(least, **values)
    check_at_most(31, **values)


def signed(bits: int) -> Levels:
    """``-(2^(b-1) - 1) .. 2^(b-1) - 1``: the largest symmetric range that fits in b bits.

    It has 2^b - 1 integers.

    Example:
        >>> signed(3)
        Levels(low=-3, high=3, share=1)
    """
    check_bits(2, bits=bits)
    return Levels(1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)


def non_negative(bits: int) -> Levels:
    """``0 .. 2^b - 1``, for tensors without negative entries (after ReLU).

    Example:
        >>> non_negative(3)
        Levels(low=0, high=7, share=1)
    """
    check_bits(1, bits=bits)
    return Levels(0, 2**bits - 1)


def by_sign(x: Array, bits: int) -> Levels:
    """:func:`signed` for a tensor with a negative entry, else :func:`non_negative`.

    The levels may be traced.

    Example:
        >>> levels = by_sign(jnp.array([0.0, 2.0]), 3)
        >>> int(levels.low), int(levels.high)
        (0, 7)
    """
    negative = (x < 0).any()
    two_sided, one_sided = signed(bits), non_negative(bits)
    return Levels(
        jnp.where(negative, two_sided.low, one_sided.low),
        jnp.where(negative, two_sided.high, one_sided.high),
    )


# Neighbours have the ratio 2^(1/4); near its minimum the error hardly changes.
_FRACTIONS = tuple(2 ** (-k / 4) for k in range(16))


@specified
def mse_clip(candidates: Sequence[float] = _FRACTIONS) -> Clip:
    """Returns a clip rule that minimises the mean squared error.

    The candidates are fractions of the smallest clip that changes no entry's range.

    Args:
        candidates: the fractions, in (0, 1]; may be traced.

    Raises:
        ValueError: no candidate, or one outside (0, 1].

    Example:
        >>> x = jnp.array([3.0, -1.0, 2.0, 0.0])
        >>> float(mse_clip()(x, signed(3)))  # already on a grid of unit spacing
        3.0
    """
    candidates = tuple(candidates)
    if not candidates or not all(map(_may_be_fraction, candidates)):
        raise ValueError(f"candidates is {candidates}; expected numbers in (0, 1], at least one")

    def clip(x: Array, levels: Levels) -> Array:
        x, unit = in_units(x)
        widest, fractions = _widest(x, levels), jnp.asarray(candidates, x.dtype)
        # One pass, with the candidates in a register: 9 times faster than a pass each on a CPU.
        # A column of all entries would be 12 times faster, but TPUs pad its axis of one to 128.
        each = x[..., None]
        square = jnp.square(_nearest(each, fractions * widest, levels) - each)
        errors = square.mean(axis=tuple(range(x.ndim)))
        return unit * (widest * fractions[jnp.argmin(errors)])

    return clip


@specified
def sawb_clip(c1: Scalar = 12.1, c2: Scalar = 12.2) -> Clip:
    r"""Statistics-aware clipping: :math:`c_1 \sqrt{\mathbb{E} x^2} - c_2 \mathbb{E} |x|`.

    The defaults are the constants of LUQ's program for 4 bits; other numbers of bits need other
    constants. The result can be negative if all magnitudes are similar; :func:`symmetric` then
    does not clip.

    Example:
        >>> round(float(sawb_clip()(jnp.array([3.0, -1.0, 2.0, 0.0]), signed(4))), 4)
        4.337
    """

    def clip(x: Array, levels: Levels) -> Array:
        x, unit = in_units(x)
        a, b = (jnp.asarray(c).astype(x.dtype) for c in (c1, c2))
        share = jnp.asarray(levels.share).astype(x.dtype)
        means = jnp.sqrt(jnp.square(x).mean() / share), jnp.abs(x).mean() / share
        # XLA would join constants with the factor of a mean, and round otherwise than traced ones.
        root, mean = jax.lax.optimization_barrier(means)
        return unit * (a * root - b * mean)

    return clip


def symmetric(x: Array, levels: Levels, clip: Clip | None = None) -> Array:
    r"""Rounds to the nearest point of a uniform grid, with the straight-through gradient 1.

    .. math::
        Q(x) = \Delta \operatorname{round}\!\big(\min(\max(x / \Delta, l), h)\big), \qquad
        \Delta = \frac{2\, \text{clip}}{h - l}

    The values are in [-clip, clip] if l = -h, and in [0, 2 clip] if l = 0. A tensor of zeros is
    returned unchanged.

    Args:
        x: tensor of any shape.
        levels: the integers l, h, e.g. ``signed(3)``.
        clip: ``(x, levels) -> clip``, default :func:`mse_clip`. If its result is not positive,
            ``Delta = max |x| / h``.

    Raises:
        ValueError: a tensor that is not floating.

    Example:
        >>> symmetric(jnp.array([3.0, -1.2, 2.4, 0.0]), signed(3)).tolist()
        [3.0, -1.0, 2.0, 0.0]
        >>> jax.grad(lambda x: symmetric(x, signed(3)).sum())(jnp.array([3.0, -1.2])).tolist()
        [1.0, 1.0]
    """
    check_floating(x)
    fixed = tree.wide(jax.lax.stop_gradient(x))
    width = (clip or mse_clip())(fixed, levels)
    quantised = _nearest(fixed, jnp.where(width > 0, width, _widest(fixed, levels)), levels)
    return _straight_through(x, quantised.astype(x.dtype))


def _may_be_fraction(x: Any) -> bool:
    """Returns True for numbers in (0, 1] and for traced values."""
    return isinstance(x, Tracer) or (is_concrete(x) and 0 < float(x) <= 1)


@jax.custom_jvp
def _straight_through(x: Array, quantised: Array) -> Array:
    # x + stop_gradient(quantised - x) would be off the grid by rounding.
    return quantised


@_straight_through.defjvp
def _straight_through_jvp(primals, tangents):
    # Calls the function itself, so that second derivatives are straight-through, too.
    return _straight_through(*primals), tangents[0]


def _widest(x: Array, levels: Levels) -> Array:
    """The clip for which the largest magnitude is the highest level."""
    low, high = _as(x, levels)
    largest, unit = in_units(max_magnitude(x))
    return unit * (largest * (high - low) / (2 * high))


def _nearest(x: Array, clip: Array, levels: Levels) -> Array:
    low, high = _as(x, levels)
    # The spacing itself may be subnormal.
    clip, power = in_units(clip)
    unit = 2 * clip / (high - low)
    # The unit is 0 for a tensor of zeros.
    multiples = x * (1 / power) / jnp.where(unit > 0, unit, 1)
    return power * (unit * jnp.round(jnp.clip(multiples, low, high)))


def _as(x: Array, levels: Levels) -> tuple[Array, Array]:
    return jnp.asarray(levels.low).astype(x.dtype), jnp.asarray(levels.high).astype(x.dtype)
