r"""Codecs that send some entries of a tensor: the largest ones, or random ones.

They do not use ``near``.  A codec is a contraction with the constant :math:`\alpha` if
:math:`\mathbb{E} \|C(v) - v\|^2 \le (1 - \alpha) \|v\|^2`; it is unbiased with the variance
:math:`\omega` if :math:`\mathbb{E} Q(v) = v` and
:math:`\mathbb{E} \|Q(v) - v\|^2 \le \omega \|v\|^2`.

References:
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", 2018, https://arxiv.org/abs/1809.07599.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.compression.codec import Codec, Unbiased, code_bits, per_tensor
from fedjax_sim.timelines import sample_without_replacement
from fedjax_sim.tree import scalar_bits
from fedjax_sim.types import plain_number, specified


@specified(static=["keep"])
def top_k(keep: int | float) -> Codec:
    r"""Sends the k entries of the largest magnitude and sets the others to 0.

    Of equal magnitudes those with the lowest index are sent.  A contraction with
    :math:`\alpha = k / d` for a tensor of d entries; the constant of a pytree is the smallest one
    of its tensors.  Sends k entries and k indices of ``ceil(log2 d)`` bits; :math:`k = d` changes
    nothing.

    Args:
        keep: k, an integer (at most d entries are sent), or the fraction k / d of the entries, a
            float in (0, 1], rounded up.

    Raises:
        ValueError: an integer below 1, or a fraction outside (0, 1].

    Example:
        >>> x = jnp.array([1.0, -3.0, 2.0, 3.0])
        >>> top_k(2).through(jax.random.key(0), x, x).tolist(), top_k(0.5).bits(x)
        ([0.0, -3.0, 0.0, 3.0], 68)
    """
    keep = _checked(keep)

    def through(key: Array, x: Array, near: Array) -> Array:
        entries = x.reshape(-1)
        _, chosen = jax.lax.top_k(jnp.abs(entries), count(keep, x))
        return _only(chosen, entries).reshape(x.shape)

    def bits(leaf: Any) -> int:
        return count(keep, leaf) * (scalar_bits(leaf) + code_bits(math.prod(leaf.shape)))

    return per_tensor(through, bits, "contraction")


@specified(static=["keep"])
def random_k(keep: int | float) -> Codec:
    r"""Sends k random entries, multiplied by d / k, and sets the others to 0.

    .. math:: Q(v) = \frac{d}{k} \sum_{j \in S} v_j e_j, \qquad
        S \subseteq \{1, \dots, d\} \text{ uniform}, |S| = k

    Unbiased with the variance :math:`\omega = d / k - 1`; the constant of a pytree is the largest
    one of its tensors.  The server draws the same indices from the key of the visit, so only k
    entries are sent.

    Args:
        keep: k or the fraction k / d, as for :func:`top_k`.

    Raises:
        ValueError: an integer below 1, or a fraction outside (0, 1].

    Example:
        >>> x = jnp.array([1.0, -3.0, 2.0, 3.0])
        >>> y = random_k(1).through(jax.random.key(0), x, x)
        >>> int((y != 0).sum()), float(y.sum()) in (4.0, -12.0, 8.0, 12.0), random_k(1).bits(x)
        (1, True, 32)
    """
    keep = _checked(keep)

    def through(key: Array, x: Array, near: Array) -> Array:
        chosen = sample_without_replacement(key, x.size, count(keep, x))
        return _only(chosen, x.reshape(-1) * (x.size / count(keep, x))).reshape(x.shape)

    return per_tensor(
        through,
        lambda leaf: count(keep, leaf) * scalar_bits(leaf),
        # A tensor without entries has no errors.
        Unbiased(lambda leaf: max(math.prod(leaf.shape), 1) / max(count(keep, leaf), 1) - 1),
    )


def count(keep: int | float, leaf: Any) -> int:
    """Number of entries of a tensor that are sent."""
    size = math.prod(leaf.shape)
    if isinstance(keep, numbers.Integral):
        return min(int(keep), size)
    # 0.07 * 100 is 7.000000000000001; twelve digits are enough for a fraction.
    return math.ceil(float(f"{keep * size:.12g}"))


def _only(chosen: Array, entries: Array) -> Array:
    """Returns the chosen entries of a vector and 0 for the others."""
    sent = entries.at[chosen].get(mode="promise_in_bounds", unique_indices=True)
    return (
        jnp.zeros_like(entries).at[chosen].set(sent, mode="promise_in_bounds", unique_indices=True)
    )


def _checked(keep: int | float) -> int | float:
    """Returns a number of entries, or a fraction of them, as a number of Python."""
    keep = plain_number(keep)
    whole = isinstance(keep, numbers.Integral) and not isinstance(keep, bool) and keep >= 1
    if not whole and not (isinstance(keep, float) and 0 < keep <= 1):
        raise ValueError(
            f"keep is {keep!r}; expected a number of entries, an integer of at least 1, or a "
            "fraction of them, a float in (0, 1]"
        )
    return keep
