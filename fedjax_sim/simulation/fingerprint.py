"""Functions by value: keys for caches of this process, and the walk over values behind them.

An algorithm is a tuple of closures.  Two calls of ``fedavg(0.1)`` return different function objects
that compute the same.  :func:`fingerprint` describes a function by its code and by the values that
it closes over, so that equal algorithms have equal fingerprints.
"""

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_sim.simulation.files import digest
from fedjax_sim.types import FedAlgorithm, Timeline

Inner: TypeAlias = Callable[[Any], Hashable]

# Functions of these count by their names, since they do not change while a program runs.
LIBRARIES = ("fedjax_sim", "jax", "optax", "flax", "chex", "numpy", "functools")


class Same:
    """A value that equals only itself, for objects that have no value of their own."""

    def __init__(self, value: Any):
        self.value = value  # a reference, so that no other object gets its address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def fingerprint(value: Any) -> Hashable:
    """Returns a key of a value for caches of this process.

    Functions count by their code object, defaults, closed-over values and the global values they
    name; arrays by shape, dtype and bytes; other objects by equality if they are hashable, else by
    structure and leaves if they are pytrees, else by identity.

    Example:
        >>> import fedjax_sim as fs
        >>> fingerprint(fs.fedavg(0.1)) == fingerprint(fs.fedavg(0.1))
        True
        >>> fingerprint(fs.fedavg(0.1)) == fingerprint(fs.fedavg(0.2))
        False
    """
    return walk(value, Rules(_code_here, lambda value, inner: _object_here(value)))


class Rules(NamedTuple):
    """Parts of :func:`walk` that depend on who reads the result; ``inner`` walks on."""

    code: Callable[[types.FunctionType, Inner], Hashable]  # of a function
    rest: Callable[[Any, Inner], Hashable]  # of an object that walk does not take apart
    kind: Callable[[type, Inner], Hashable] = lambda kind, inner: kind.__qualname__


def walk(value: Any, rules: Rules, above: frozenset[int] = frozenset()) -> Hashable:
    """Returns a value taken apart: numbers, arrays' digests, functions by their rule.

    Args:
        value: any value.
        rules: how functions and other objects count.
        above: identities of the objects that contain the value, so that cycles end.

    Example:
        >>> walk((1, "a"), Rules(lambda f, _: f.__name__, lambda x, _: type(x)))
        ('tuple', (('int', 1), ('str', 'a')))
    """
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return type(value).__name__, value
    if isinstance(value, (float, complex)):
        return type(value).__name__, repr(value)  # NaN equals itself
    if id(value) in above:
        return ("cycle",)
    above = above | {id(value)}

    def inner(part: Any) -> Hashable:
        return walk(part, rules, above)

    if isinstance(value, Tracer):
        return rules.rest(value, inner)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        if not getattr(value, "is_fully_addressable", True):
            return rules.rest(value, inner)
        return "array", str(value.dtype), np.shape(value), digest(as_numpy(value))
    if isinstance(value, functools.partial):  # jax's Partial too
        return "partial", inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, types.FunctionType):
        defaults = inner((value.__defaults__, value.__kwdefaults__))
        return "function", rules.code(value, inner), defaults, inner(closure(value))
    if isinstance(value, types.MethodType):
        return "method", inner(value.__func__), inner(value.__self__)
    if isinstance(value, (tuple, list)):
        parts = _old_fields(value) if isinstance(value, FedAlgorithm) else value
        return rules.kind(type(value), inner), tuple(inner(part) for part in parts)
    if isinstance(value, Mapping):
        return "mapping", tuple((str(k), inner(value[k])) for k in sorted(value, key=str))
    if isinstance(value, (set, frozenset)):
        return "set", tuple(sorted(repr(inner(part)) for part in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        skipped = _skipped(value)
        names = [f.name for f in dataclasses.fields(value) if f.name not in skipped]
        fields = [(name, inner(getattr(value, name))) for name in names]
        return rules.kind(type(value), inner), tuple(fields)
    return rules.rest(value, inner)


def _old_fields(algorithm: FedAlgorithm) -> tuple[Any, ...]:
    """Returns the fields that count: an algorithm keeps the digest from before unused ones."""
    if algorithm.aggregation is not None:
        return algorithm
    last = "personal" if algorithm.personal is None else "aggregation"
    return algorithm[: FedAlgorithm._fields.index(last)]


def _skipped(value: Any) -> set[str]:
    """Returns the fields of a dataclass that do not count, so that digests stay what they were."""
    if not isinstance(value, Timeline):
        return set()
    return {"sampling"} if value.lost is not None else {"sampling", "lost"}


def _code_here(function: types.FunctionType, inner: Inner) -> Hashable:
    """Returns the code object, and the values of the globals that it names.

    Functions of the user's modules count by value too, so that one of them can be defined again.
    """

    def counted(value: Any) -> Hashable:
        if isinstance(value, types.FunctionType) and not is_installed(value):
            return inner(value)
        return _object_here(value)

    return function.__code__, global_values(function, counted)


def global_values(
    function: types.FunctionType, counted: Callable[[Any], Hashable]
) -> tuple[tuple[str, Hashable], ...]:
    """Returns the global values that a function names, each as ``counted`` returns it.

    Of the user's modules, the attributes that the function names are returned.
    """
    known, names = function.__globals__, _names(function.__code__)
    values: list[tuple[str, Hashable]] = []
    for name in sorted(names & known.keys()):
        value = known[name]
        if isinstance(value, types.ModuleType) and not is_installed(value):
            attributes = sorted(names & vars(value).keys())
            values.append((name, tuple((key, counted(getattr(value, key))) for key in attributes)))
        else:
            values.append((name, counted(value)))
    return tuple(values)


def is_installed(value: Any) -> bool:
    """Returns True for modules, classes and functions of installed packages.

    They do not change while a program runs, and a package's version stands for them.

    Example:
        >>> is_installed(np.mean), is_installed(jax)
        (True, True)
    """
    is_module = isinstance(value, types.ModuleType)
    module = value.__name__ if is_module else getattr(value, "__module__", None)
    if (module or "").partition(".")[0] in LIBRARIES:
        return True
    code = getattr(value, "__code__", None)
    if code is not None:
        path = code.co_filename
    else:
        path = getattr(value if is_module else sys.modules.get(module or ""), "__file__", None)
    return path is None or path.startswith((sys.prefix, sys.base_prefix))


def _object_here(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        leaves, structure = jax.tree.flatten(value)
        if jax.tree_util.treedef_is_leaf(structure):
            return Same(value)
        return "pytree", structure, fingerprint(leaves)  # a variable of a flax module, for example
    return type(value), value


def _names(code: types.CodeType) -> set[str]:
    """Global names that a function and the functions inside it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def closure(function: Any) -> dict[str, Any]:
    """Returns the values that a function closes over, by name.

    Example:
        >>> closure((lambda a: lambda: a)(2))
        {'a': 2}
    """
    cells = getattr(function, "__closure__", None) or ()
    code = getattr(function, "__code__", None)
    values: dict[str, Any] = {}
    for name, cell in zip(() if code is None else code.co_freevars, cells, strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            values[name] = None
    return values


def as_numpy(x: Any) -> np.ndarray:
    """Returns an array on the host; of random keys their words."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)
