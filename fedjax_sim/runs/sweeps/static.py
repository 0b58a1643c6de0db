"""Static hyper-parameters: those that a program has as constants, by the factory's signature."""

import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.types import annotated_kinds

_FLOATING = (float, jax.Array, np.ndarray)


def static_names(
    factory: Callable, configurations: Sequence[Mapping[str, Any]], taken: Collection[str] = ()
) -> set[str]:
    """Returns the names of the hyper-parameters that are passed as Python values.

    These are the parameters of the setup, and those with a value that is no number (a text, a flag,
    None), unless the factory annotates the parameter as a number.  A number is static if the
    factory annotates the parameter with types without floating-point numbers, such as ``int``.  All
    others vary inside a program, as traced floating-point numbers.

    Example:
        >>> def factory(lr: float, f: int, rule="median", mu=0.0): ...
        >>> grid = [{"lr": 0.1, "f": 2, "rule": "krum", "mu": 1, "batch_size": 5}]
        >>> sorted(static_names(factory, grid, ["batch_size"]))
        ['batch_size', 'f', 'rule']
    """
    hints = annotated_kinds(factory)
    return {
        name
        for configuration in configurations
        for name, value in configuration.items()
        if name in taken or _is_static(hints.get(name), value)
    }


def _is_static(kinds: set[Any] | None, value: Any) -> bool:
    number = _is_number(value)
    if kinds is None or kinds & {Any, object}:
        return not number
    floating = any(kind in kinds for kind in _FLOATING)
    if number or not floating:
        return not floating
    # A text in the place of a number is refused as one, unless the factory takes texts, too.
    plain = {str: str, bool: bool, np.bool_: bool, type(None): type(None)}
    return plain.get(type(value), type(value)) in kinds or type(value) not in plain


def _is_number(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_, str)):
        return False
    return isinstance(value, numbers.Number) or (np.ndim(value) == 0 and hasattr(value, "dtype"))
