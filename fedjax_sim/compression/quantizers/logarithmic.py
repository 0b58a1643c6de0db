r"""Logarithmic unbiased quantisation (LUQ) of neural gradients.

Reference:
    Chmiel et al., "Logarithmic Unbiased Quantization: Simple 4-bit Training in Deep Learning",
        2021, https://arxiv.org/abs/2112.10769.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count
from fedjax_sim.compression.quantizers.rounding import bernoulli, check_floating
from fedjax_sim.tree import max_magnitude, power_of_two_below, quotient


def luq(key: Array, x: Array, exponent_levels: int = 6) -> Array:
    r"""Logarithmic unbiased quantisation: values :math:`0, \pm 2^j a`, with expectation x.

    With :math:`M = \max |x|` and the underflow threshold :math:`a = M / 2^J`,

    .. math::
        Q(x) = \operatorname{sign}(x)\, a \cdot \begin{cases}
            1 \text{ with probability } |x| / a, \text{ else } 0, & |x| < a \\
            2^{e+1} \text{ with probability } |x| / (2^e a) - 1, \text{ else } 2^e,
            & 2^e a \le |x| < 2^{e+1} a
        \end{cases}

    There are 2 J + 3 values. J = 6 gives 15 values, which fit in 4 bits; J = 7, as in the first
    version of the authors' program, gives 17, which do not. Tensors of zeros are returned
    unchanged, and so are tensors so small that a would be subnormal.

    Args:
        key: for the draws, one number per entry.
        x: tensor of any shape.
        exponent_levels: J; the largest exponent e.

    Raises:
        ValueError: a negative ``exponent_levels``; a tensor that is not floating.

    Source: Chmiel et al., 2021, section 3.

    Example:
        >>> x = jnp.array([64.0, -2.0, 0.25, 0.0])
        >>> bool(jnp.isin(luq(jax.random.key(0), x)[2], jnp.array([0.0, 1.0])))
        True
        >>> luq(jax.random.key(0), x)[jnp.array([0, 1, 3])].tolist()  # on the grid already
        [64.0, -2.0, 0.0]
    """
    check_count(exponent_levels=exponent_levels)
    check_floating(x)
    full = tree.wide(x)
    threshold = max_magnitude(full) * 2.0**-exponent_levels
    usable = threshold > 0
    ratio = quotient(jnp.abs(full), jnp.where(usable, threshold, 1))
    below = jnp.where(ratio < 1, 0, power_of_two_below(ratio))
    gap = jnp.maximum(below, 1)
    up = bernoulli(key, (ratio - below) / gap)
    quantised = jnp.sign(full) * threshold * (below + gap * up)
    return jnp.where(usable, quantised, full).astype(x.dtype)


def luq_gradient(key: Array, x: Array, exponent_levels: int = 6) -> Array:
    """The identity with a quantised gradient: :func:`luq` is applied to the cotangent.

    Supports reverse mode only; forward mode would need the transpose of a random rounding.

    Args:
        key, exponent_levels: see :func:`luq`.
        x: tensor of any shape, returned unchanged.

    Example:
        >>> x, slope = jnp.ones(2), jnp.array([64.0, 2.5])
        >>> gradient = jax.grad(lambda x: luq_gradient(jax.random.key(0), x) @ slope)(x)
        >>> float(gradient[0]), float(gradient[1]) in (2.0, 4.0)
        (64.0, True)
    """
    return _luq_gradient(exponent_levels, key, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _luq_gradient(exponent_levels, key, x):
    return x


def _keep_key(exponent_levels, key, x):
    return x, key


def _quantise_cotangent(exponent_levels, key, cotangent):
    return None, luq(key, cotangent, exponent_levels)


_luq_gradient.defvjp(_keep_key, _quantise_cotangent)
