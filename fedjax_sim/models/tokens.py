"""Token ids as the inputs of a model."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedjax_sim.types import Params


def takes_tokens(
    apply: Callable[[Params, Any], Any], vocab_size: int | None
) -> Callable[[Params, Any], Any]:
    """Marks a function ``apply`` whose inputs are ids below ``vocab_size``; returns it.

    Objectives read the mark and refuse other ids before compilation; JAX would clamp them.

    Args:
        apply: ``(params, x) -> outputs``.
        vocab_size: number of tokens; None: the inputs are no tokens, and there is no mark.

    Example:
        >>> takes_tokens(lambda params, x: params[x], 65).vocab_size
        65
    """
    if vocab_size is not None:
        setattr(apply, "vocab_size", vocab_size)  # noqa: B010, which type checkers would refuse
    return apply


def check_sequences(x: Any) -> None:
    """Raises ValueError for inputs of a language model that are not integers ``[B, L]``.

    Example:
        >>> check_sequences(jnp.ones(3))
        Traceback (most recent call last):
        ...
        ValueError: x has shape (3,) and dtype float32; expected integer tokens [B, L]
    """
    if jnp.ndim(x) != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(
            f"x has shape {jnp.shape(x)} and dtype {x.dtype}; expected integer tokens [B, L]"
        )
