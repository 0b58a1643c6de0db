"""Coins of timelines: events of given probabilities, decided by 32-bit random words."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.types import Scalar


def occurs(words: Array, probability: Scalar | np.ndarray | Array) -> Array:
    """Returns True, with the given probability, for every random word.

    Probabilities are rounded to multiples of 2^-32, so that a rate of 10^-6 is met to 0.02 %.
    Uniform numbers in float32 are multiples of 2^-23 and would make this rate 7 % too high.
    """
    threshold = jnp.asarray(probability).astype(jnp.float32)  # equal draws in either precision
    # 2^32 is no uint32: probability 1 is compared on its own.
    limit = jnp.where(threshold < 1, jnp.round(threshold * 2.0**32), 0.0).astype(jnp.uint32)
    return (threshold >= 1) | (words < limit)
