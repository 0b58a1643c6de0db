"""Token ids as the inputs of a model."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedjax_sim.types import Described, Params


def takes_tokens(
    apply: Callable[[Params, Any], Any], vocab_size: int | None
) -> Callable[[Params, Any], Any]:
    """Returns a function ``apply`` with the number of tokens that its inputs are ids of."""
    # Objectives refuse other ids before compilation; JAX would clamp them.
    return apply if vocab_size is None else Described.of(apply, vocab_size=vocab_size)


def check_sequences(x: Any) -> None:
    """Raises ValueError for inputs of a language model that are not integers ``[B, L]``."""
    if jnp.ndim(x) != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(
            f"x has shape {jnp.shape(x)} and dtype {x.dtype}; expected integer tokens [B, L]"
        )
