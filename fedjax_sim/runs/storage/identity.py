"""Identity of a run: digests of data and functions that are equal in other processes."""

import dataclasses
import functools
import json
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_sim.data.source import ClientSource
from fedjax_sim.runs.storage.files import digest
from fedjax_sim.runs.storage.fingerprint import (
    LIBRARIES,
    Inner,
    Rules,
    as_numpy,
    closure,
    global_values,
    is_installed,
    walk,
)
from fedjax_sim.types import FedAlgorithm, PyTree, Timeline

_DEEPEST = 8  # levels of closures that are shown


def check_json(value: object, argument: str) -> None:
    """Refuses a description that is no dict, or has values that JSON does not have; None passes.

    Raises:
        ValueError: naming the argument, its value and what was expected.

    Example:
        >>> check_json({"lr": 0.1}, "config")
    """
    expected = f"{argument} is {value!r:.60}; expected a dict of values that JSON has"
    if not (value is None or isinstance(value, Mapping)):
        raise ValueError(expected)
    try:
        json.dumps(dict(value or {}), sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{expected}: {error}") from error


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
    return digest(repr(walk(value, _ELSEWHERE)))


def functions_digest(value: Any) -> str:
    """Returns a digest of functions and of all values behind them, equal in other processes.

    As :func:`description`; in addition, functions and classes of the user's modules count with the
    global values that they name, with helpers and constants of these modules.  Of pytrees only the
    functions count, those in :class:`jax.tree_util.Partial` objects included, not the arrays.

    Example:
        >>> functions_digest({"f": jnp.sin, "x": 1}) == functions_digest({"f": jnp.sin, "x": 2})
        True
        >>> functions_digest(lambda x: x + 1) == functions_digest(lambda x: x + 2)
        False
    """
    return digest(repr(walk(list(functions_in(value)), _WITH_GLOBALS)))


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
            for free, inner in closure(value).items():
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
    return digest(*(as_numpy(leaf) for leaf in jax.tree.leaves(tree) if not callable(leaf)))


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
    arrays = [as_numpy(leaf) for leaf in jax.tree.leaves(timeline)]
    return [x.astype(np.float32) if x.dtype == np.float64 else x for x in arrays]


def source_digest(source: ClientSource, most_bytes: int = 2**26) -> str:
    """Returns a hash of the clients' sizes, and of the examples that a source loads.

    Of a source with more than ``most_bytes`` bytes, the examples of evenly spaced clients count,
    about ``most_bytes`` together: a change of others is not noticed.

    Example:
        >>> def source(x):
        ...     return ClientSource(np.array([1, 2]), lambda i, j: x[[0, 1, 3][i] : [0, 1, 3][j]])
        >>> source_digest(source(np.arange(3))) == source_digest(source(np.arange(3)))
        True
        >>> source_digest(source(np.arange(3))) == source_digest(source(np.arange(1, 4)))
        False
    """
    sizes = np.asarray(source.sizes, np.int64)
    empty = source.load(0, 0)
    row = sum(
        int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize
        for leaf in map(np.asarray, jax.tree.leaves(empty))
    )
    step = max(-(-int(sizes.sum()) * row // most_bytes), 1)
    clients = np.flatnonzero(sizes)[::step].tolist()
    examples = [arrays_digest(source.load(client, client + 1)) for client in clients]
    return digest(str(jax.tree.structure(empty)), arrays_digest(empty), sizes, examples)


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


def functions_in(tree: PyTree) -> Iterator[Callable]:
    """Yields the functions in a pytree, those in :class:`jax.tree_util.Partial` objects included.

    Example:
        >>> [f.__name__ for f in functions_in({"f": Partial(jnp.sin, 1.0), "x": jnp.ones(2)})]
        ['sin']
    """
    for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Partial)):
        if isinstance(leaf, Partial):
            yield leaf.func
            yield from functions_in((leaf.args, leaf.keywords))
        elif callable(leaf):
            yield leaf


def _code_elsewhere(function: types.FunctionType, inner: Any) -> Hashable:
    del inner
    name = f"{function.__module__}.{function.__qualname__}"
    interactive = function.__code__.co_filename.startswith("<")
    if name.partition(".")[0] in LIBRARIES and not interactive:
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


def _type_name(value: Any, inner: Inner | None = None) -> str:
    del inner
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _code_and_globals(function: types.FunctionType, inner: Inner) -> Hashable:
    own = _code_elsewhere(function, inner)
    if isinstance(own, str):
        return own
    # Without the module: a script has another name where it is imported than where it runs.
    own = function.__qualname__, _byte_code(function.__code__)
    return own, global_values(function, lambda value: _value_elsewhere(value, inner))


def _value_elsewhere(value: Any, inner: Inner) -> Hashable:
    """Returns a global value, or an object that is not taken apart otherwise."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    wrapped = getattr(value, "__wrapped__", None)  # of a jitted function, for example
    if isinstance(wrapped, types.FunctionType):
        return inner(wrapped)
    if isinstance(value, type):
        return _class(value, inner)
    if isinstance(value, _PLAIN) or dataclasses.is_dataclass(value):
        return inner(value)
    attributes = () if is_installed(type(value)) else sorted(getattr(value, "__dict__", {}).items())
    return _class(type(value), inner), tuple((name, inner(part)) for name, part in attributes)


def _class(kind: type, inner: Inner) -> Hashable:
    """Returns a class's name, and the functions of a class of the user's modules."""
    if is_installed(kind):
        return f"{kind.__module__}.{kind.__qualname__}"
    methods = {k: v for k, v in vars(kind).items() if isinstance(v, types.FunctionType)}
    return kind.__qualname__, inner(methods)


_PLAIN = (
    bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None),
    np.ndarray, np.generic, jax.Array, types.FunctionType, types.MethodType, functools.partial,
)  # fmt: skip
_ELSEWHERE = Rules(_code_elsewhere, _type_name)
_WITH_GLOBALS = Rules(_code_and_globals, _value_elsewhere, _class)
