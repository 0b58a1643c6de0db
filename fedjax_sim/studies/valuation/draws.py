"""Random draws on the host from JAX keys."""

import jax
import numpy as np
from jax import Array


def generator(key: Array) -> np.random.Generator:
    """Returns NumPy's generator with the words of a key as its seed.

    Example:
        >>> draws = [generator(jax.random.key(3)).integers(100) for _ in range(2)]
        >>> bool(draws[0] == draws[1])
        True
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
