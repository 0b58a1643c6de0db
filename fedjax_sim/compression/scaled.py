"""Unbiased codecs with a grid that depends on the tensor and is sent with it.

They do not use ``near``.

References:
    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
        2017, https://arxiv.org/abs/1610.02132.
    Chmiel et al., "Logarithmic Unbiased Quantization: Simple 4-bit Training in Deep Learning",
        2021, https://arxiv.org/abs/2112.10769.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.compression.codec import Codec, Unbiased, code_bits, per_tensor
from fedjax_sim.compression.quantizers.logarithmic import luq
from fedjax_sim.compression.quantizers.rounding import stochastic_round
from fedjax_sim.tree import computed_bits, in_units, scalar_bits
from fedjax_sim.types import specified


@specified
def uniform(levels: int) -> Codec:
    r"""Stochastic rounding to k equidistant values from the tensor's smallest entry to its largest.

    .. math::
        \hat x = \min x + u \lfloor (x - \min x) / u + U[0, 1) \rfloor, \qquad
        u = \frac{\max x - \min x}{k - 1}

    Unbiased, with errors below u: an entry's variance is at most :math:`u^2 / 4`, and 0 for the
    smallest and the largest one, so :math:`\omega = (n - 2) / (2 (k - 1)^2)` for n entries, which
    (1, -1, 0, ..., 0) attains for k = 2. Sends ``ceil(log2 k)`` bits per entry and two numbers per
    tensor; ``uniform(2**b)`` sends b bits per entry. QuAFL's program calls this codec QSGD; the
    QSGD of the paper is :func:`qsgd`.

    Raises:
        ValueError: fewer than two ``levels``.

    Example:
        >>> import jax
        >>> x = jnp.array([-1.0, 0.0, 1.0, 0.25])
        >>> y = uniform(levels=3).through(jax.random.key(0), x, x)
        >>> y[:3].tolist(), float(y[3]) in (0.0, 1.0), uniform(levels=3).bits(x)
        ([-1.0, 0.0, 1.0], True, 72)
    """
    check_count(2, levels=levels)

    def through(key: Array, x: Array, near: Array) -> Array:
        # The range of entries near the largest number would overflow.
        x, power = in_units(x)
        lowest = x.min()
        unit = (x.max() - lowest) / (levels - 1)
        # The unit is 0 if all entries are equal.
        steps = stochastic_round(key, (x - lowest) / jnp.where(unit == 0, 1, unit))
        return power * (lowest + unit * jnp.minimum(steps, levels - 1))

    return per_tensor(
        through,
        lambda leaf: code_bits(levels) * leaf.size + 2 * scalar_bits(leaf),
        Unbiased(lambda leaf: max(leaf.size - 2, 0) / (2 * (levels - 1) ** 2)),
    )


@specified
def qsgd(levels: int) -> Codec:
    r"""QSGD: signs, and magnitudes rounded stochastically to multiples of :math:`\|x\|_2 / s`.

    .. math::
        \hat x = \frac{\|x\|_2}{s} \operatorname{sign}(x)
            \lfloor s |x| / \|x\|_2 + U[0, 1) \rfloor

    Unbiased, with :math:`\mathbb{E} \|\hat x - x\|^2 \le \min(n / s^2, \sqrt n / s) \|x\|^2` for n
    entries.  Bits are those of a code of fixed length for 2 s + 1 values, and of the norm, in
    single precision at least: the norm of a tensor in half precision may be beyond its range.
    Elias codes, as in the paper, are shorter where most entries become zero, but their length
    depends on the values.

    Args:
        levels: s.

    Raises:
        ValueError: fewer than one level.

    Source: Alistarh et al., 2017, section 3.1, Lemma 3.1.

    Example:
        >>> import jax
        >>> x = jnp.array([3.0, -4.0])
        >>> qsgd(levels=5).through(jax.random.key(0), x, x).tolist(), qsgd(levels=5).bits(x)
        ([3.0, -4.0], 40)
    """
    check_count(1, levels=levels)

    def through(key: Array, x: Array, near: Array) -> Array:
        # The squares of small or large entries would underflow or overflow.
        x, power = in_units(x)
        unit = jnp.sqrt(jnp.square(x).sum()) / levels
        steps = stochastic_round(key, jnp.abs(x) / jnp.where(unit == 0, 1, unit))
        return power * (unit * jnp.sign(x) * jnp.minimum(steps, levels))

    values = 2 * levels + 1
    return per_tensor(
        through,
        lambda leaf: code_bits(values) * leaf.size + computed_bits(leaf),
        Unbiased(lambda leaf: min(leaf.size / levels**2, math.sqrt(leaf.size) / levels)),
    )


@specified
def luq_codec(exponent_levels: int = 6) -> Codec:
    r""":func:`~fedjax_sim.compression.quantizers.luq` as a codec.

    Sends one of 2 J + 3 values per entry, and the largest magnitude per tensor.  Unbiased with the
    variance :math:`\omega = 1 / 8 + (n - 1) / 4^{J + 1}` for n entries: those below the threshold
    a, all but the largest at most, have :math:`a^2 / 4 \le \|x\|^2 / 4^{J + 1}`, the others an
    eighth of their squares, as in :func:`~fedjax_sim.compression.natural`.

    Raises:
        ValueError: a negative ``exponent_levels``.

    Example:
        >>> luq_codec().bits(jnp.ones(10)), luq_codec(exponent_levels=7).bits(jnp.ones(10))
        (72, 82)
    """
    check_count(exponent_levels=exponent_levels)

    def through(key: Array, x: Array, near: Array) -> Array:
        return luq(key, x, exponent_levels)

    values = 2 * exponent_levels + 3
    return per_tensor(
        through,
        lambda leaf: code_bits(values) * leaf.size + scalar_bits(leaf),
        Unbiased(lambda leaf: 1 / 8 + max(leaf.size - 1, 0) / 4 ** (exponent_levels + 1)),
    )
