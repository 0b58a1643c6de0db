"""What all bounds share: checked constants, and NaN where a bound's condition fails."""

import warnings
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

# Of a published formula: with its slips corrected, or as it stands in the paper.
Form = Literal["corrected", "printed"]


def positive(**constants: Any) -> tuple[Array, ...]:
    """The constants as floating arrays, in the order given.

    Raises:
        ValueError: a concrete constant that is not above 0; traced ones are not looked at.

    Example:
        >>> [float(x) for x in positive(beta=2, mu=0.5)]
        [2.0, 0.5]
    """
    for name, value in constants.items():
        if not isinstance(value, Tracer) and not np.all(np.asarray(value) > 0):
            raise ValueError(f"{name} is {value}; expected a positive number")
    return _floats(constants)


def non_negative(**constants: Any) -> tuple[Array, ...]:
    """The same for constants that may be 0.

    Raises:
        ValueError: a concrete constant below 0, or NaN.

    Example:
        >>> [float(x) for x in non_negative(sigma=0)]
        [0.0]
    """
    for name, value in constants.items():
        if not isinstance(value, Tracer) and not np.all(np.asarray(value) >= 0):
            raise ValueError(f"{name} is {value}; expected a non-negative number")
    return _floats(constants)


def where_valid(value: Array, condition: Array, text: str) -> Array:
    """``value`` where the condition of its theorem holds, NaN elsewhere.

    A concrete condition that fails also warns, with the condition's text.

    Example:
        >>> float(where_valid(jnp.array(1.0), jnp.array(True), "x <= 1"))
        1.0
    """
    if not isinstance(condition, Tracer) and not np.all(condition):
        # Callers are public functions: the line to show is theirs.
        warnings.warn(f"the condition {text} does not hold: the bound is NaN", stacklevel=3)
    return jnp.where(condition, value, jnp.nan)


def at_most(value: Array, *limits: Array) -> Array:
    """``value <= limit`` for every limit, up to rounding: limits are often met with equality.

    Example:
        >>> bool(at_most(jnp.array(0.1), 1 / jnp.array(10.0)))
        True
    """
    slack = 1 + 8 * jnp.finfo(value.dtype).eps
    return jnp.all(
        jnp.stack([value <= slack * limit for limit in jnp.broadcast_arrays(*limits)]), 0
    )


def check_choice(name: str, value: str, choices: Any) -> None:
    """Refuses a value that is none of a ``Literal``'s.

    Raises:
        ValueError: naming the argument, its value and the choices.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}; expected one of {get_args(choices)}")


def _floats(constants: dict[str, Any]) -> tuple[Array, ...]:
    dtype = jnp.result_type(float)
    return tuple(jnp.asarray(value).astype(dtype) for value in constants.values())
