r"""Codecs that send every entry in a few bits: its sign, or its sign and its exponent.

They do not use ``near``.

References:
    Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
        Schemes", 2019, https://arxiv.org/abs/1901.09847 (the scaled sign).
    Horvath et al., "Natural Compression for Distributed Deep Learning", 2019,
        https://arxiv.org/abs/1905.10988.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.compression.codec import Codec, Unbiased, is_coded, per_tensor
from fedjax_sim.compression.quantizers.rounding import bernoulli
from fedjax_sim.tree import in_units, power_of_two_below, scalar_bits
from fedjax_sim.types import PyTree, specified


@specified
def scaled_sign() -> Codec:
    r"""Sends the signs of a tensor's entries and their mean magnitude.

    .. math:: C(v) = \frac{\|v\|_1}{d} \operatorname{sign}(v), \qquad \operatorname{sign}(0) = 1

    A contraction with the constant :math:`\alpha(v) = \|v\|_1^2 / (d \|v\|_2^2) \ge 1 / d`, which
    depends on the tensor.  Sends one bit per entry and one number per tensor.  A tensor of zeros
    arrives as zeros.

    Example:
        >>> import jax
        >>> x = jnp.array([1.0, -2.0, 3.0, 0.0])
        >>> scaled_sign().through(jax.random.key(0), x, x).tolist(), scaled_sign().bits(x)
        ([1.5, -1.5, 1.5, 1.5], 36)
    """

    def through(key: Array, x: Array, near: Array) -> Array:
        scaled, unit = in_units(x)  # the sum of large entries would overflow
        return unit * jnp.abs(scaled).mean() * jnp.where(x < 0, -1, 1).astype(x.dtype)

    return per_tensor(
        through, lambda leaf: math.prod(leaf.shape) + scalar_bits(leaf), "contraction"
    )


@specified
def natural() -> Codec:
    r"""Rounds every magnitude to a power of two, the one below or the one above, at random.

    .. math:: \mathbb{E}\, Q(v)_j = v_j, \qquad 2^e \le |v_j| < 2^{e + 1}
        \;\Rightarrow\; |Q(v)_j| \in \{2^e, 2^{e + 1}\}

    Unbiased with the variance :math:`\omega = 1 / 8`, which entries of the magnitude
    :math:`\tfrac43 2^e` attain.  Sends the sign and the exponent of every entry: 9 bits in single
    precision, and in half precision, whose subnormal entries have exponents, too.  Entries without
    a code (subnormal in single precision, NaN, infinite) arrive unchanged.  Magnitudes above the
    largest power of two of the dtype (:math:`2^{15}` in float16, :math:`2^{127}` in float32 and
    bfloat16) have no power above them and arrive as that power, with a bias.

    Example:
        >>> import jax
        >>> x = jnp.array([4.0, -0.5, 3.0])
        >>> y = natural().through(jax.random.key(0), x, x)
        >>> y[:2].tolist(), float(y[2]) in (2.0, 4.0), natural().bits(x)
        ([4.0, -0.5], True, 27)
    """

    def through(key: Array, x: Array, near: Array) -> Array:
        size = jnp.abs(x)
        coded = jnp.isfinite(x) & (size >= jnp.finfo(x.dtype).tiny)
        below = power_of_two_below(jnp.where(coded, size, 1))
        up = bernoulli(key, jnp.where(coded, size / below - 1, 0))
        return jnp.where(coded, jnp.sign(x) * below * (1 + up), x)

    def within_range(x: Array, decoded: Array) -> Array:
        """Returns decoded entries, with the largest power of the dtype of x for those above it."""
        if not is_coded(x):
            return decoded
        overflows = jnp.isinf(decoded) & jnp.isfinite(x)
        largest = 2.0 ** (jnp.finfo(x.dtype).maxexp - 1)
        return jnp.where(overflows, jnp.sign(x) * largest, decoded)

    def bits(leaf) -> int:
        # The exponents of the computation, which is in single precision at least.
        dtype = leaf.dtype if leaf.dtype.itemsize >= 4 else jnp.float32
        return (1 + int(jnp.finfo(dtype).nexp)) * math.prod(leaf.shape)

    codec = per_tensor(through, bits, Unbiased(lambda leaf: 1 / 8))

    def through_tree(key: Array, x: PyTree, near: PyTree) -> PyTree:
        return jax.tree.map(within_range, x, codec.through(key, x, near))

    return codec._replace(through=through_tree)
