"""Identity of functions and data by value.

An algorithm is a tuple of closures.  Two calls of ``fedavg(0.1)`` return different function objects
that compute the same.  :func:`fingerprint` describes a function by its code and by the values that
it closes over, so that equal algorithms have equal fingerprints.
"""

import dataclasses
import functools
import sys
import types
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_sim.simulation.files import digest
from fedjax_sim.types import FedAlgorithm, PyTree, Timeline

_DEEPEST = 8  # levels of closures that are shown
_LIBRARIES = ("fedjax_sim", "jax", "optax", "flax", "chex", "numpy", "functools")


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
    return _walk(value, _code_here, _object_here, frozenset())


def description(value: Any) -> str:
    """Returns a digest of a value that is equal in other processes, 16 hexadecimal digits.

    As :func:`fingerprint`, with two differences.  Functions of this library and of those it is
    built on count by their names, all other functions by their byte code too.  Objects without a
    value of their own count by the names of their types.

    Example:
        >>> import fedjax_sim as fs
        >>> description(fs.fedavg(0.1)) == description(fs.fedavg(0.1))
        True
        >>> description(lambda x: x + 1) == description(lambda x: x + 2)
        False
    """
    return digest(repr(_walk(value, _code_elsewhere, _object_elsewhere, frozenset())))


def algorithm_identity(algorithm: FedAlgorithm) -> dict[str, Any]:
    """Returns an algorithm's functions, its numbers and its digest, as JSON values.

    Functions and numbers are those of ``local`` and ``update`` and of the functions that these
    close over.  They are for the reader; the digest decides.

    Example:
        >>> import fedjax_sim as fs
        >>> identity = algorithm_identity(fs.fedprox(0.1, mu=0.01))
        >>> "fedprox" in identity["functions"], identity["numbers"]["mu"]
        (True, 0.01)
    """
    functions: list[str] = []
    numbers: dict[str, Any] = {}

    def visit(label: str, value: Any, depth: int) -> None:
        if isinstance(value, (bool, int, float, str)):
            numbers.setdefault(label, value)
        elif isinstance(value, types.FunctionType) and depth < _DEEPEST:
            name = value.__qualname__.split(".<locals>")[0]
            if value.__module__.partition(".")[0] not in ("jax", "optax") and name not in functions:
                functions.append(name)
            for free, inner in _closure(value).items():
                visit(free, inner, depth + 1)
        elif isinstance(value, FedAlgorithm):
            visit("local", value.local, depth)
            visit("update", value.update, depth)

    visit("algorithm", algorithm, 0)
    return {"functions": functions, "numbers": numbers, "digest": description(algorithm)}


def arrays_digest(tree: PyTree) -> str:
    """Returns a hash of the arrays of a pytree; functions in it do not count.

    Example:
        >>> arrays_digest({"a": np.arange(3)}) == arrays_digest({"a": jnp.arange(3)})
        False
    """
    return digest(*(_as_numpy(leaf) for leaf in jax.tree.leaves(tree) if not callable(leaf)))


def timeline_arrays(timeline: Timeline) -> list[np.ndarray]:
    """Returns the arrays of a timeline that count in digests.

    Times count in single precision, so that digests do not depend on where a timeline was made,
    and folders of versions that kept times in single precision remain valid.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.full(2, 3, num_steps=1)
        >>> [array.dtype.name for array in timeline_arrays(timeline)]
        ['int32', 'int32', 'int32', 'bool', 'float32']
    """
    arrays = [_as_numpy(leaf) for leaf in jax.tree.leaves(timeline)]
    return [x.astype(np.float32) if x.dtype == np.float64 else x for x in arrays]


def sharded_digest(tree: PyTree) -> str:
    """Returns a hash of arrays that may be divided over devices and processes.

    Equal for every division: the devices sum exact checksums, and nothing is gathered.

    Example:
        >>> sharded_digest(jnp.arange(3)) == sharded_digest(jnp.array([0, 2, 1]))
        False
    """
    arrays = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if not callable(leaf)]
    kinds = [[list(x.shape), str(x.dtype)] for x in arrays]
    return digest(kinds, [int(_checksum(x)) for x in arrays])


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
    """Sums the words of an array, each times an odd number that its position determines."""
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    word = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = jax.lax.bitcast_convert_type(x, word).astype(jnp.uint32)
    position = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        position = position * jnp.uint32(size)
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    weights = (position * jnp.uint32(2654435761)) | jnp.uint32(1)
    return jnp.sum(words * weights, dtype=jnp.uint32)


def _walk(value: Any, of_code: Any, of_object: Any, above: frozenset[int]) -> Hashable:
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return type(value).__name__, value
    if isinstance(value, (float, complex)):
        return type(value).__name__, repr(value)  # NaN equals itself
    if id(value) in above:
        return ("cycle",)
    above = above | {id(value)}

    def inner(part: Any) -> Hashable:
        return _walk(part, of_code, of_object, above)

    if isinstance(value, Tracer):
        return of_object(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        if not getattr(value, "is_fully_addressable", True):
            return of_object(value)
        return "array", str(value.dtype), np.shape(value), digest(_as_numpy(value))
    if isinstance(value, functools.partial):  # jax's Partial too
        return "partial", inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, types.FunctionType):
        defaults = inner((value.__defaults__, value.__kwdefaults__))
        return "function", of_code(value, inner), defaults, inner(_closure(value))
    if isinstance(value, types.MethodType):
        return "method", inner(value.__func__), inner(value.__self__)
    if isinstance(value, (tuple, list)):
        return type(value).__qualname__, tuple(inner(part) for part in value)
    if isinstance(value, Mapping):
        return "mapping", tuple((str(k), inner(value[k])) for k in sorted(value, key=str))
    if isinstance(value, (set, frozenset)):
        return "set", tuple(sorted(repr(inner(part)) for part in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, inner(getattr(value, f.name))) for f in dataclasses.fields(value)]
        return type(value).__qualname__, tuple(fields)
    return of_object(value)


def _code_here(function: types.FunctionType, inner: Any) -> Hashable:
    """Returns the code object, and the values of the globals that it names.

    Functions of the user's modules count by value too, so that one of them can be defined again.
    """
    known = function.__globals__
    names = _names(function.__code__)
    values: list[tuple[str, Hashable]] = []
    for name in sorted(names & known.keys()):
        value = known[name]
        if isinstance(value, types.ModuleType) and not _is_installed(value.__name__, value):
            attributes = sorted(names & vars(value).keys())
            part = tuple((key, _global(getattr(value, key), inner)) for key in attributes)
            values.append((name, part))
        else:
            values.append((name, _global(value, inner)))
    return function.__code__, tuple(values)


def _global(value: Any, inner: Any) -> Hashable:
    if isinstance(value, types.FunctionType) and not _is_installed(value.__module__, value):
        return inner(value)
    return _object_here(value)


def _is_installed(module: str | None, value: Any) -> bool:
    """Returns True for modules and functions that do not change while a program runs."""
    if (module or "").partition(".")[0] in _LIBRARIES:
        return True
    code = getattr(value, "__code__", None)
    path = code.co_filename if code is not None else getattr(value, "__file__", None)
    return path is None or path.startswith((sys.prefix, sys.base_prefix))


def _code_elsewhere(function: types.FunctionType, inner: Any) -> Hashable:
    del inner
    name = f"{function.__module__}.{function.__qualname__}"
    interactive = function.__code__.co_filename.startswith("<")
    if name.partition(".")[0] in _LIBRARIES and not interactive:
        return name
    return name, _byte_code(function.__code__)


def _byte_code(code: types.CodeType) -> Hashable:
    return code.co_code.hex(), code.co_names, tuple(_constant(c) for c in code.co_consts)


def _constant(value: Any) -> Hashable:
    if isinstance(value, types.CodeType):
        return _byte_code(value)
    if isinstance(value, frozenset):  # its order differs between processes
        return "frozenset", tuple(sorted(map(repr, value)))
    return repr(value)


def _object_here(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        leaves, structure = jax.tree.flatten(value)
        if jax.tree_util.treedef_is_leaf(structure):
            return Same(value)
        return "pytree", structure, fingerprint(leaves)  # a variable of a flax module, for example
    return type(value), value


def _object_elsewhere(value: Any) -> Hashable:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _names(code: types.CodeType) -> set[str]:
    """Global names that a function and the functions inside it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _closure(function: Any) -> dict[str, Any]:
    """The values that a function closes over, by name."""
    cells = getattr(function, "__closure__", None) or ()
    code = getattr(function, "__code__", None)
    values: dict[str, Any] = {}
    for name, cell in zip(() if code is None else code.co_freevars, cells, strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            values[name] = None
    return values


def _as_numpy(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)
