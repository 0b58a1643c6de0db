"""Random numbers of clients, which depend neither on their slots nor on the precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.tree import fast

_BITS = 23  # so that the midpoints below are exact in single precision, and never 0 or 1


def uniforms(key: Array, clients: Array, dtype: Any) -> Array:
    """Returns a number in (0, 1) per client."""

    def draw(client: Array) -> Array:
        return jax.random.bits(jax.random.fold_in(fast(key), client), (), jnp.uint32)

    words = jax.vmap(draw)(clients) >> np.uint32(32 - _BITS)
    return (words.astype(dtype) + 0.5) / 2**_BITS
