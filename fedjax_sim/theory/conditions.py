"""Checks shared by all bounds: constants are known and have the right sign, conditions hold.

Every bound raises a ValueError that names a missing constant, or a constant or number that is
negative (or 0, where it must be positive).  Traced values are not checked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.theory.problem_constants import ProblemConstants, is_known


def positive(
    constants: ProblemConstants | None = None, /, *names: str, **numbers: Any
) -> tuple[Array, ...]:
    """Positive constants and numbers as floating arrays: first ``names``, then ``numbers``."""
    return _checked(constants, names, numbers, np.greater, "positive")


def non_negative(
    constants: ProblemConstants | None = None, /, *names: str, **numbers: Any
) -> tuple[Array, ...]:
    """Like :func:`positive`, for constants and numbers that may be 0."""
    return _checked(constants, names, numbers, np.greater_equal, "non-negative")


def optional(constants: ProblemConstants, name: str) -> Array | None:
    """A non-negative constant, or None if it is unknown."""
    if not is_known(getattr(constants, name)):
        return None
    return non_negative(constants, name)[0]


def strong_convexity(constants: ProblemConstants) -> Array | None:
    """mu, or None if it is unknown or a concrete 0: then bounds for other objectives hold."""
    mu = constants.mu
    if not is_known(mu) or (not isinstance(mu, Tracer) and not np.any(np.asarray(mu))):
        return None
    return positive(constants, "mu")[0]


def both_moments(constants: ProblemConstants) -> Array:
    """The smallest sigma that bounds both moments of the noise: ``max(sigma, sigma4)``."""
    return jnp.maximum(*non_negative(constants, "sigma", "sigma4"))


def where_valid(value: Array, condition: Array, text: str) -> Array:
    """``value`` where the condition of its theorem holds, NaN elsewhere."""
    if not isinstance(condition, Tracer) and not np.all(condition):
        # Shows the line that called the public function which called this one.
        warnings.warn(f"the condition {text} does not hold: the bound is NaN", stacklevel=3)
    return jnp.where(condition, value, jnp.nan)


def at_most(value: Array, *limits: Array) -> Array:
    """``value <= limit`` for every limit, up to rounding: limits are often met with equality."""
    slack = 1 + 8 * jnp.finfo(value.dtype).eps
    return jnp.all(
        jnp.stack([value <= slack * limit for limit in jnp.broadcast_arrays(*limits)]), 0
    )


def check_choice(name: str, value: str, choices: Any) -> None:
    """Raises if a value is not among the values of a ``Literal``."""
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}; expected one of {get_args(choices)}")


def _checked(
    constants: ProblemConstants | None,
    names: tuple[str, ...],
    numbers: dict[str, Any],
    compare: Callable[[Any, int], Any],
    kind: str,
) -> tuple[Array, ...]:
    """Known constants and numbers that compare with 0 as they should, as floating arrays."""
    values = {name: getattr(constants, name) for name in names}
    for name, value in values.items():
        if not is_known(value):
            raise ValueError(
                f"constants.{name} is {value}; expected a number, which this bound needs"
            )
    values |= numbers
    for name, value in values.items():
        if not isinstance(value, Tracer) and not np.all(compare(np.asarray(value), 0)):
            raise ValueError(f"{name} is {value}; expected a {kind} number")
    dtype = jnp.result_type(float)
    return tuple(jnp.asarray(value).astype(dtype) for value in values.values())
