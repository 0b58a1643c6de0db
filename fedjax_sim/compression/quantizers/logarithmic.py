r"""Logarithmic unbiased quantisation (LUQ) of neural gradients.

Reference:
    Chmiel et al., "Logarithmic Unbiased Quantization: Simple 4-bit Training in Deep Learning",
        2021, https://arxiv.org/abs/2112.10769.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.compression.quantizers.rounding import bernoulli, max_magnitude, wide


def luq(
    key: Array,
    x: Array,
    exponent_levels: int = 6,
    repeat: int = 1,
    maximum: Callable[[Array], Array] = max_magnitude,
) -> Array:
    r"""Logarithmic unbiased quantisation: values :math:`0, \pm 2^j a`, with expectation x.

    With :math:`M = \max |x|` and the underflow threshold :math:`a = M / 2^J`,

    .. math::
        Q(x) = \operatorname{sign}(x)\, a \cdot \begin{cases}
            1 \text{ with probability } |x| / a, \text{ else } 0, & |x| < a \\
            2^{e+1} \text{ with probability } |x| / (2^e a) - 1, \text{ else } 2^e,
            & 2^e a \le |x| < 2^{e+1} a
        \end{cases}

    These are 2 J + 3 values: 15 for J = 6, which 4 bits can hold, and 17 for J = 7, as the first
    version of the authors' program has it, which they cannot.  A tensor of zeros stays as it is, as
    do tensors so small that a would be subnormal.

    Args:
        key: for the draws, one number per entry and repetition.
        x: tensor of any shape.
        exponent_levels: J; the largest exponent e.
        repeat: mean of so many independent draws, which divides the variance.
        maximum: gives M.  That program's is ``jnp.max``, without absolute value: entries below -M
            then go on to larger powers, and a tensor without positive entries stays as it is.

    Raises:
        ValueError: a negative ``exponent_levels``, or ``repeat`` below 1.

    Source: Chmiel et al., 2021, section 3.

    Example:
        >>> x = jnp.array([64.0, -2.0, 0.25, 0.0])
        >>> bool(jnp.isin(luq(jax.random.key(0), x)[2], jnp.array([0.0, 1.0])))
        True
        >>> luq(jax.random.key(0), x)[jnp.array([0, 1, 3])].tolist()  # on the grid already
        [64.0, -2.0, 0.0]
    """
    if exponent_levels < 0:
        raise ValueError(f"exponent_levels is {exponent_levels}; expected 0 or more")
    if repeat < 1:
        raise ValueError(f"repeat is {repeat}; expected at least 1")
    full = wide(x)
    threshold = maximum(full) * 2.0**-exponent_levels
    usable = threshold > 0
    ratio = jnp.abs(full) / jnp.where(usable, threshold, 1)
    _, exponent = jnp.frexp(ratio)  # exact, which the floor of a logarithm is not
    below = jnp.where(ratio < 1, 0, jnp.ldexp(jnp.ones_like(ratio), exponent - 1))
    gap = jnp.maximum(below, 1)
    p = (ratio - below) / gap
    if repeat == 1:
        up = bernoulli(key, p)
    else:
        up = jax.vmap(lambda key: bernoulli(key, p))(jax.random.split(key, repeat)).mean(axis=0)
    quantised = jnp.sign(full) * threshold * (below + gap * up)
    return jnp.where(usable, quantised, full).astype(x.dtype)


def luq_gradient(
    key: Array,
    x: Array,
    exponent_levels: int = 6,
    repeat: int = 1,
    maximum: Callable[[Array], Array] = max_magnitude,
) -> Array:
    """The identity, whose gradient is quantised: backwards the cotangent passes :func:`luq`.

    Reverse mode only: forward mode would need the transpose of a random rounding.

    Args:
        key, exponent_levels, repeat, maximum: of :func:`luq`.
        x: tensor of any shape, returned as it is.

    Example:
        >>> x, slope = jnp.ones(2), jnp.array([64.0, 2.5])
        >>> gradient = jax.grad(lambda x: luq_gradient(jax.random.key(0), x) @ slope)(x)
        >>> float(gradient[0]), float(gradient[1]) in (2.0, 4.0)
        (64.0, True)
    """
    return _luq_gradient(exponent_levels, repeat, maximum, key, x)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _luq_gradient(exponent_levels, repeat, maximum, key, x):
    del exponent_levels, repeat, maximum, key
    return x


def _keep_key(exponent_levels, repeat, maximum, key, x):
    del exponent_levels, repeat, maximum
    return x, key


def _quantise_cotangent(exponent_levels, repeat, maximum, key, cotangent):
    return None, luq(key, cotangent, exponent_levels, repeat, maximum)


_luq_gradient.defvjp(_keep_key, _quantise_cotangent)
