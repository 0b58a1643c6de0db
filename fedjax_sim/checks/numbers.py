"""Checks of numbers.

Traced values pass, since they cannot be checked, and so does None, except as a count.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Set
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.types import PyTree

INT32_MAX = 2**31 - 1  # rounds, clients, steps and rows are counted in 32 bits


def check_rates(**values: object) -> None:
    """Raises ValueError for negative learning rates; schedules, traced values and None pass."""
    check_at_least(0, **{name: value for name, value in values.items() if not callable(value)})


def _check_holds(
    holds: Callable[[np.ndarray], Any], expected: str, values: Mapping[str, Any]
) -> None:
    """Refuses numbers without a property, and what is no number; traced values and None pass."""
    for name, value in values.items():
        _check_kind(name, value)
        if is_concrete(value) and not np.all(holds(np.asarray(value))):
            raise ValueError(f"{name} is {value}; expected {expected}")


def _check_kind(name: str, value: Any) -> None:
    """Refuses schedules, arrays with axes, and text, as which YAML reads 1e-3."""
    if callable(value):
        raise ValueError(f"{name} is {value!r:.60}; expected a number, not a schedule")
    check_one_number(**{name: value})


def check_number(**values: object) -> None:
    """Raises ValueError for schedules, NaN and what is no number; traced values and None pass."""
    _check_holds(lambda x: ~np.isnan(x.astype(np.float64)), "a number", values)


def seeded(seed: Any) -> np.random.Generator:
    """Returns NumPy's generator of a seed, or the generator that was given."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"seed is {' '.join(repr(seed).split()):.60}; expected an integer of at least 0, or a "
            "generator of NumPy"
        ) from error


def check_at_least(bound: float, /, **values: object) -> None:
    """Raises ValueError for schedules and numbers below a bound; traced values and None pass."""
    _check_holds(lambda x: x >= bound, f"at least {bound:g}", values)


def least_entries(**arrays: Any) -> dict[str, Any]:
    """Returns the least entry of every array, for checks of numbers; traced ones are left out."""
    return _reduced(np.min, arrays)


def largest_entries(**arrays: Any) -> dict[str, Any]:
    """Returns the largest entry of every array, otherwise as :func:`least_entries`."""
    return _reduced(np.max, arrays)


def _reduced(reduce: Callable[[Any], Any], arrays: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: value for name, value in arrays.items() if np.ndim(value) == 0}
    shaped = {name: value for name, value in arrays.items() if np.ndim(value) and np.size(value)}
    # NumPy's arrays, as a jitted function would trace a reduction of JAX's.
    return numbers | {
        name: reduce(np.asarray(value)) for name, value in shaped.items() if is_concrete(value)
    }


def check_count(least: int = 0, /, **values: Any) -> None:
    """Raises ValueError for values that are no integers, or below a bound; traced values pass.

    NumPy's integers and arrays of one integer are integers; booleans are none.
    """
    for name, value in values.items():
        if isinstance(value, Tracer):
            continue
        if isinstance(value, (bool, np.bool_)) or not _is_integer(value):
            hint = ""
            if isinstance(value, float) and value.is_integer():
                hint = " (in a sweep: annotate the factory's parameter as int)"
            raise ValueError(f"{name} is {value!r:.60}; expected an integer{hint}")
        check_at_least(least, **{name: value})


def check_counts(least: int = 0, /, **sequences: Any) -> None:
    """Raises ValueError for values that are no sequences of integers from a bound on."""
    for name, values in sequences.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise ValueError(f"{name} is {values!r:.60}; expected a sequence of integers")
        for value in values:
            check_count(least, **{name: value})


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def check_positive(**values: object) -> None:
    """Raises ValueError for schedules and numbers that are not above 0; traced values pass."""
    _check_holds(lambda x: x > 0, "a positive number", values)


def check_at_most(bound: float, /, **values: object) -> None:
    """Raises ValueError for schedules and numbers above a bound; traced values and None pass."""
    _check_holds(lambda x: x <= bound, f"at most {bound}", values)


def check_one_number(**values: Any) -> None:
    """Raises ValueError for arrays with axes, also for traced ones, and for what is no number.

    None passes, and so do the placeholders that JAX puts into pytrees.
    """
    for name, value in values.items():
        if np.ndim(value):
            raise ValueError(f"{name} has shape {np.shape(value)}; expected one number")
        if isinstance(value, str):
            raise ValueError(f"{name} is {value!r:.60}; expected a number, not text")
        if np.iscomplexobj(value):
            raise ValueError(f"{name} is {value!r:.60}; expected a real number")
        if isinstance(value, (bytes, Mapping, Set)):
            raise ValueError(f"{name} is {value!r:.60}; expected a number")


def check_probability(**values: object) -> None:
    """Raises ValueError for schedules and numbers outside of (0, 1]; traced values pass."""
    _check_holds(lambda x: (x > 0) & (x <= 1), "a number in (0, 1]", values)


def check_share(**values: object) -> None:
    """Raises ValueError for schedules and numbers outside of [0, 1]; traced values pass."""
    _check_holds(lambda x: (x >= 0) & (x <= 1), "a number in [0, 1]", values)


def check_decay(**values: object) -> None:
    """Raises ValueError for schedules and numbers outside of [0, 1); traced values pass."""
    _check_holds(lambda x: (x >= 0) & (x < 1), "a number in [0, 1)", values)


def check_unused(other: str, /, **values: tuple[Any, Any]) -> None:
    """Refuses arguments that another one leaves without effect, unless they have their defaults.

    Traced numbers pass: a program is compiled for values that were refused or not.

    Args:
        other: the other argument, with its value if another value would not do so.
        values: the argument and its default, by name.

    Example:
        >>> check_unused("optimizer", momentum=(0.9, 0.9))
    """
    for name, (value, default) in values.items():
        # NumPy compares arrays of JAX also while a function is traced.
        if not is_traced(value) and bool(np.asarray(value) != default):
            raise ValueError(
                f"{name} is {value!r}; expected the default, {default!r}, with {other}"
            )


def floating_dtype(dtype: Any) -> np.dtype:
    """Returns a floating dtype, also one of half precision."""
    try:
        found = None if dtype is None else jnp.dtype(dtype)  # NumPy's None is float64
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        name = repr(dtype) if found is None else found.name
        raise ValueError(f"dtype is {name}; expected a floating dtype")
    return found


def is_real(x: Any) -> bool:
    """Returns True for an array or a number that is neither complex nor a random key.

    Example:
        >>> is_real(1.0), is_real(1j), is_real(jax.random.key(0))
        (True, False, False)
    """
    dtype = jax.typeof(x).dtype
    others = jnp.complexfloating, jax.dtypes.prng_key
    return not any(jnp.issubdtype(dtype, other) for other in others)


def has_real_numbers(array: np.ndarray) -> bool:
    """Returns True for booleans, integers and floats, also of half precision.

    Example:
        >>> half = np.asarray(jnp.ones(2, jnp.bfloat16))  # a kind of its own for NumPy
        >>> has_real_numbers(half), half.dtype.kind, has_real_numbers(np.asarray("1"))
        (True, 'V', False)
    """
    return array.dtype.kind in "biu" or jnp.issubdtype(array.dtype, jnp.floating)


def is_traced(values: PyTree) -> bool:
    """Returns True if any leaf is traced, so that its numbers are not known."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def is_concrete(value: PyTree) -> bool:
    """Returns True for real numbers, as a Fraction, and arrays with known values.

    False for traced values, and for the placeholders that JAX puts into pytrees.
    """
    known = (Real, np.ndarray, np.generic, Array)
    return isinstance(value, known) and not isinstance(value, Tracer)
