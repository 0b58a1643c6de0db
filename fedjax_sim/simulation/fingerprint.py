"""Functions by value: keys for caches of this process, and the walk over values behind them.

An algorithm is a tuple of closures.  Two calls of ``fedavg(0.1)`` return different function objects
that compute the same.  :func:`fingerprint` describes a function by its code and by the values that
it closes over, so that equal algorithms have equal fingerprints.
"""

import argparse
import dataclasses
import dis
import functools
import pickle
import sys
import types
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_sim.simulation.files import digest
from fedjax_sim.specs import Specified
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
    name; arrays by shape, dtype and bytes; objects of the user's classes by their attributes and by
    those of the class.  A value that was changed in place therefore has another key.  Other objects
    count by equality if they are hashable, else by structure and leaves if they are pytrees, else
    by their pickled bytes.  A key with an object that has none of these equals no other key.

    Example:
        >>> import fedjax_sim as fs
        >>> fingerprint(fs.fedavg(0.1)) == fingerprint(fs.fedavg(0.1))
        True
        >>> fingerprint(fs.fedavg(0.1)) == fingerprint(fs.fedavg(0.2))
        False
        >>> settings = argparse.Namespace(lr=0.1)
        >>> before = fingerprint(settings)
        >>> settings.lr = 0.2
        >>> fingerprint(settings) == before
        False
    """
    try:
        return walk(value, _Here().rules)
    except RecursionError:  # objects that refer to each other in a very long chain
        return Same(object())


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
        if not _is_readable(value):
            return rules.rest(value, inner)
        return "array", str(value.dtype), np.shape(value), digest(as_numpy(value))
    if isinstance(value, Specified):
        return inner(value.function)
    if isinstance(value, functools.partial):  # jax's Partial too
        return "partial", inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, types.FunctionType):
        defaults = inner((value.__defaults__, value.__kwdefaults__))
        return "function", rules.code(value, inner), defaults, inner(closure(value))
    if isinstance(value, types.MethodType):
        return "method", inner(value.__func__), inner(value.__self__)
    if isinstance(value, (tuple, list)):
        parts = value[: getattr(value, "num_digested", len(value))]
        parts = _old_fields(value) if isinstance(value, FedAlgorithm) else parts
        return rules.kind(type(value), inner), tuple(inner(part) for part in parts)
    if isinstance(value, Mapping):
        return "mapping", tuple((str(k), inner(value[k])) for k in sorted(value, key=str))
    if isinstance(value, (set, frozenset)):
        return "set", tuple(sorted(repr(inner(part)) for part in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        skipped = _skipped(value)
        names = [f.name for f in dataclasses.fields(value) if f.name not in skipped]
        fields = [(name, inner(getattr(value, name, None))) for name in names]
        return rules.kind(type(value), inner), tuple(fields)
    return rules.rest(value, inner)


def _old_fields(algorithm: FedAlgorithm) -> tuple[Any, ...]:
    """Returns the fields that count: an algorithm keeps the digest from before unused ones."""
    requires, aggregation = algorithm.requires, algorithm.aggregation
    fields = (*algorithm[:5], requires.synchronous, requires.check)
    if algorithm.personal is not None or aggregation is not None:
        fields += (algorithm.personal, requires.uniform_weights)
    return fields if aggregation is None else (*fields, aggregation, requires.exact_mean)


def _skipped(value: Any) -> set[str]:
    """Returns the fields of a dataclass that do not count, so that digests stay what they were."""
    if not isinstance(value, Timeline):
        return set()
    return {"sampling"} if value.lost is not None else {"sampling", "lost"}


class _Here:
    """Rules of :func:`fingerprint`.

    Objects, classes and functions of the user's modules are described where they are met first, and
    numbered after that, so that a value that many others share costs no more than once.
    """

    def __init__(self) -> None:
        self.rules = Rules(self._code, self._rest, self._kind)
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []  # references, so that no other object gets an address

    def _once(self, value: Any, described: Callable[[], Hashable]) -> Hashable:
        if id(value) in self._numbers:
            return "met", self._numbers[id(value)]
        self._numbers[id(value)] = len(self._met)
        self._met.append(value)
        return described()

    def _code(self, function: types.FunctionType, inner: Inner) -> Hashable:
        """Returns the code object, and the values of the globals that it names."""
        code = function.__code__
        if is_installed(function):
            known = global_values(function, lambda value: _by_equality(value, inner), _loaded)
            return code, known
        return self._once(function, lambda: (code, global_values(function, inner, _loaded)))

    def _rest(self, value: Any, inner: Inner) -> Hashable:
        if isinstance(value, Tracer) or (isinstance(value, jax.Array) and not _is_readable(value)):
            return Same(value)
        if isinstance(value, types.ModuleType):
            return _by_equality(value, inner)
        if isinstance(value, type):
            return _by_equality(value, inner), self._kind(value, inner)
        wrapped = getattr(value, "__wrapped__", None)  # of a jitted function, for example
        if isinstance(wrapped, types.FunctionType) and not is_installed(wrapped):
            functions = _functions_of(vars(value) if hasattr(value, "__dict__") else {})
            return type(value), inner(wrapped), inner(functions)
        if is_installed(type(value)) and not isinstance(value, _NAMESPACES):
            return _by_equality(value, inner)
        kind = type(value)
        return self._once(value, lambda: (self._kind(kind, inner), inner(_attributes(value))))

    def _kind(self, kind: type, inner: Inner) -> Hashable:
        """Returns a class's name; of a class of the user's modules its attributes too."""
        if is_installed(kind):
            return kind.__qualname__
        bases = [base for base in kind.__bases__ if not is_installed(base)]
        return self._once(
            kind,
            lambda: (
                kind.__qualname__,
                tuple(self._kind(base, inner) for base in bases),
                inner(_class_attributes(kind)),
            ),
        )


_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)


def _functions_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the functions among a wrapper's attributes, such as the rules of a custom_vjp."""
    return {
        name: value
        for name, value in attributes.items()
        if isinstance(value, types.FunctionType) and not name.startswith("_")
    }


def _attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object, those in slots included."""
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for part in slots for name in ((part,) if isinstance(part, str) else part)]
    present = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return present | dict(getattr(value, "__dict__", {}))


def _class_attributes(kind: type) -> dict[str, Any]:
    """Returns the methods and the values of a class, without what Python adds to each class."""
    result: dict[str, Any] = {}
    for name, value in vars(kind).items():
        if isinstance(value, (staticmethod, classmethod)):
            result[name] = value.__func__
        elif isinstance(value, property):
            result[name] = value.fget, value.fset
        elif isinstance(value, functools.cached_property):
            result[name] = value.func
        elif isinstance(value, types.FunctionType) or _is_data(name, value):
            result[name] = value
    return result


def _is_data(name: str, value: Any) -> bool:
    return not (name.startswith("__") or name == "_abc_impl" or hasattr(value, "__get__"))


def _names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that a function and the functions inside it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


@functools.lru_cache(maxsize=4096)
def _loaded(code: types.CodeType) -> frozenset[str]:
    """Names of globals that a function and the functions inside it read; no attributes."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in _LOADS}
    inside = [_loaded(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(names).union(*inside)


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def global_values(
    function: types.FunctionType,
    counted: Callable[[Any], Hashable],
    names_of: Callable[[types.CodeType], Set[str]] = _names,
) -> tuple[tuple[str, Hashable], ...]:
    """Returns the global values that a function names, each as ``counted`` returns it.

    Of the user's modules, the attributes that the function names are returned.

    Args:
        function: the function.
        counted: returns how a value counts.
        names_of: returns the names of globals in a code object; by default the names of attributes
            too, as in the digests of existing folders.
    """
    known, names = function.__globals__, _names(function.__code__)
    values: list[tuple[str, Hashable]] = []
    for name in sorted(names_of(function.__code__) & known.keys()):
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


def _by_equality(value: Any, inner: Inner) -> Hashable:
    """Returns how an object of an installed package counts."""
    try:
        hash(value)
    except TypeError:
        leaves, structure = jax.tree.flatten(value)
        if not jax.tree_util.treedef_is_leaf(structure):
            return "pytree", structure, inner(leaves)  # a variable of a flax module, for example
        try:
            return type(value), digest(np.frombuffer(pickle.dumps(value), np.uint8))
        except Exception:  # a pickling method may raise any error
            return Same(object())  # equals no other key
    return type(value), value


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


def _is_readable(x: Any) -> bool:
    """Returns True for an array whose values this process has; not after its donation."""
    if isinstance(x, jax.Array) and x.is_deleted():
        return False
    return getattr(x, "is_fully_addressable", True)
