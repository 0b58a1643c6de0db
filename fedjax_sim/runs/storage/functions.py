"""Arguments of compiled programs whose functions count by what they trace to.

JAX compares functions by identity: a setup that is built again has other functions, and one whose
objects were changed in place has the same.  Sealed functions are equal if their keys are.
"""

from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.tree_util import Partial

from fedjax_sim.types import PyTree


class _Sealed:
    """A function of a Partial that is equal to those with the same key."""

    def __init__(self, function: Callable, key: Hashable):
        self.function, self.key = function, key

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sealed) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def sealed(tree: PyTree, key: Hashable) -> PyTree:
    """Returns a tree whose Partials have functions that are equal for equal keys and places."""

    def changed(function: Callable, place: int) -> Callable:
        is_sealed = isinstance(function, _Sealed)
        return function if is_sealed else _Sealed(function, (key, place))

    return _with_functions(tree, changed)


def opened(tree: PyTree) -> PyTree:
    """Returns a tree with the functions that were sealed."""
    return _with_functions(tree, lambda f, _: f.function if isinstance(f, _Sealed) else f)


def _with_functions(tree: PyTree, changed: Callable[[Any, int], Any]) -> PyTree:
    """Returns a tree whose Partials have other functions, from the function and its place."""
    places = iter(range(2**31))

    def inner(tree: PyTree) -> PyTree:
        return jax.tree.map(replaced, tree, is_leaf=lambda x: isinstance(x, Partial))

    def replaced(part: PyTree) -> PyTree:
        if not isinstance(part, Partial):
            return part
        function = changed(part.func, next(places))
        return Partial(function, *inner(part.args), **inner(part.keywords))

    return inner(tree)


class SealedJit:
    """A jitted function that has one program for all arguments whose functions trace to ``key``."""

    def __init__(self, function: Callable, key: Hashable, **options: Any):
        def of_sealed(*arguments: PyTree) -> PyTree:
            return function(*opened(arguments))

        of_sealed.__name__ = function.__name__
        self._jitted, self.key = jax.jit(of_sealed, **options), key

    def __call__(self, *arguments: PyTree) -> PyTree:
        return self._jitted(*sealed(arguments, self.key))

    def lower(self, *arguments: PyTree) -> Any:
        """Returns the lowered program, which takes sealed arguments."""
        return self._jitted.lower(*sealed(arguments, self.key))

    def trace(self, *arguments: PyTree) -> Any:
        """Returns the traced program, which takes sealed arguments."""
        return self._jitted.trace(*sealed(arguments, self.key))
