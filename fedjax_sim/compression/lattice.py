r"""The lattice codec of QuAFL's program: multiples of a cell, sent modulo a power of two.

The sender rounds x to a multiple of the cell d and sends the multiple modulo :math:`q = 2^b`. A
code stands for many multiples; the receiver chooses the multiple nearest to a vector y that it
holds. The error depends on d and not on the size of x. The difference x - y must be small.

References:
    Zakerinia et al., "QuAFL: Federated Averaging Can Be Both Asynchronous and
        Communication-Efficient", 2022, https://arxiv.org/abs/2206.10032, and its authors' program.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count, check_positive
from fedjax_sim.compression.codec import Codec, per_tensor
from fedjax_sim.compression.quantizers.rounding import stochastic_round
from fedjax_sim.types import Scalar, specified

_MAX_BITS = 24  # single precision represents integers of 24 bits exactly


@specified
def lattice(bits: int, cell: Scalar, stochastic: bool = False) -> Codec:
    r"""Sends b bits per entry: :math:`e = \operatorname{round}(x / d) \bmod q`, decoded near y.

    .. math::
        \hat x = d\, (q\, m + e), \qquad m = \operatorname{round}\!\big((y / d - e) / q\big)

    Where :math:`|x - y| < (q d - d) / 2`, the error is at most d / 2, up to rounding. Outside this
    radius the receiver chooses another point: the result is wrong by a multiple of q d and lies
    within q d / 2 of y, and the receiver cannot detect this. Therefore the models of a cohort must
    stay within the radius of each other; it is 0.82 for b = 14 and d = 1e-4, the examples in the
    authors' program. NaN and Inf, for which there is no code, arrive as NaN, so that divergence is
    visible.

    Args:
        bits: b, in 2 to 24.
        cell: d; may be traced.
        stochastic: rounds x / d to either neighbouring integer at random, with expectation x / d,
            instead of to the nearest integer. Where :math:`|x - y| < q d / 2 - d`, the errors have
            mean 0 and are below d.

    Raises:
        ValueError: ``bits`` outside 2 to 24; a ``cell`` that is not positive.

    Example:
        >>> import jax
        >>> codec, key = lattice(bits=4, cell=0.5), jax.random.key(0)  # radius 3.75
        >>> x = jnp.array([100.2, 7.9])
        >>> codec.through(key, x, jnp.array([98.0, 5.0])).tolist()
        [100.0, 8.0]
        >>> codec.through(key, x, jnp.array([98.0, 0.0])).tolist()  # wraps
        [100.0, 0.0]
        >>> codec.bits(x)
        8
    """
    check_count(bits=bits)
    if not 2 <= bits <= _MAX_BITS:
        raise ValueError(f"bits is {bits}; expected 2 to {_MAX_BITS}")
    check_positive(cell=cell)

    def through(key: Array, x: Array, near: Array) -> Array:
        return _decode(_encode(x, bits, cell, key if stochastic else None), near, bits, cell)

    return per_tensor(through, lambda leaf: bits * leaf.size)


# Codes are floating here, so that NaN passes; the arithmetic is exact.
def _encode(x: Array, bits: int, cell: Scalar, key: Array | None) -> Array:
    cells = x / jnp.asarray(cell).astype(x.dtype)
    multiple = jnp.round(cells) if key is None else stochastic_round(key, cells)
    return jnp.mod(multiple, 2**bits)


def _decode(code: Array, near: Array, bits: int, cell: Scalar) -> Array:
    unit = jnp.asarray(cell).astype(near.dtype)
    wraps = jnp.round((near / unit - code) / 2**bits)
    return unit * (2**bits * wraps + code)
