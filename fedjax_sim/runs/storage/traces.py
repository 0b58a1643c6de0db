"""Programs that functions trace to, and their digests: two functions that trace alike are one.

The operations of a trace are what XLA compiles, so they hold whatever Python code a function ran:
attributes, decorators, sub-modules, files and environment variables that it read.
"""

import dataclasses
import enum
import functools
import hashlib
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import AbstractMesh, Mesh

from fedjax_sim.types import PyTree, Same

# Settings of JAX that decide how operations are compiled, not which ones there are.
_SETTINGS = ("jax_threefry_partitionable", "jax_default_matmul_precision")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
# Parameters that do not change a program: names, and rules of derivatives that were not taken.
_UNUSED = ("name", "debug_info", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd")
_PLAIN = {bool, int, float, complex, str, bytes, type(None)}


class Trace(NamedTuple):
    """Identity of a traced function; equal ones compute the same."""

    digest: str  # of its operations and constants, equal in other processes
    here: tuple[Hashable, ...] = ()  # in this process only: functions on the host, and meshes
    error: Exception | None = None  # why it could not be traced; such a trace equals no other


def trace(function: Callable, *arguments: PyTree) -> tuple[Trace, PyTree]:
    """Returns the trace of a function, and the shapes of its results (None if it failed).

    Operations count in their order, with shapes, types, parameters and the values of all constants.
    Names, places in source files and the rules of derivatives that were not taken do not.  JAX
    keeps what it traced of a function that is jitted inside; everything else runs again.
    """
    try:
        traced = jax.jit(lambda *x: function(*x)).trace(*arguments)  # JAX keeps it for this lambda
    except Exception as error:  # the function is the user's
        # Without the frames of the error, which hold data.
        return Trace("", (Same(object()),), error.with_traceback(None)), None
    writer = _Writer()
    structure = _without_addresses(jax.tree.structure(traced.out_info))
    settings = [getattr(jax.config, name) for name in _SETTINGS]
    text = f"{settings} {structure} {writer.closed(traced.jaxpr)}"
    return Trace(_hashed(text), tuple(writer.here)), traced.out_info


def shapes(values: PyTree) -> PyTree:
    """Returns the shapes and types of arrays and tracers; Python's numbers stay."""

    def shape(x: Any) -> Any:
        if isinstance(x, bool | int | float | complex):
            return x
        weak = getattr(x, "weak_type", False)
        dtype = jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(x.shape, dtype, weak_type=weak)

    return jax.tree.map(shape, values)


def combined(traces: Mapping[str, Trace]) -> Trace:
    """Returns the trace of several functions by name."""
    parts = [(name, traces[name]) for name in sorted(traces)]
    here = tuple(x for _, part in parts for x in part.here)
    error = next((part.error for _, part in parts if part.error is not None), None)
    return Trace(_hashed(repr([(name, part.digest) for name, part in parts])), here, error)


class _Writer:
    """Text of programs, equal in all processes, and what has no text."""

    def __init__(self) -> None:
        self.here: list[Hashable] = []
        self._known: dict[int, str] = {}  # digests of programs that occur several times

    def closed(self, program: ClosedJaxpr) -> str:
        return f"{self._value(tuple(program.consts))} {self._program(program.jaxpr)}"

    def _program(self, program: Jaxpr) -> str:
        if id(program) in self._known:
            return self._known[id(program)]
        numbers: dict[Any, int] = {}

        def variable(x: Any) -> str:
            if isinstance(x, Literal):
                return f"{self._value(x.val)}:{_type(x.aval)}"
            return str(numbers.setdefault(x, len(numbers)))

        def typed(x: Any) -> str:
            return f"{variable(x)}:{_type(x.aval)}"

        lines = [" ".join(map(typed, (*program.constvars, *program.invars)))]
        for step in program.eqns:
            params = {key: x for key, x in step.params.items() if key not in _UNUSED}
            on_host = "callback" in step.primitive.name
            lines.append(
                f"{step.primitive.name} {' '.join(map(variable, step.invars))} "
                f"{self._value(params, on_host=on_host)} {' '.join(map(typed, step.outvars))}"
            )
        lines.append(" ".join(map(variable, program.outvars)))
        self._known[id(program)] = result = _hashed("\n".join(lines))
        return result

    def _value(self, value: Any, *, on_host: bool = False) -> str:
        """Returns the text of a parameter or a constant."""

        def inner(part: Any) -> str:
            return self._value(part, on_host=on_host)

        if type(value) in _PLAIN or isinstance(value, enum.Enum | np.dtype):
            return repr(value)
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self._program(value)
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return _array(value)
        if isinstance(value, tuple | list):
            return f"{type(value).__name__}({','.join(map(inner, value))})"
        if isinstance(value, Mapping):
            parts = sorted((str(key), inner(part)) for key, part in value.items())
            return f"{type(value).__name__}({parts})"
        if isinstance(value, set | frozenset):
            return f"set({sorted(map(inner, value))})"
        if isinstance(value, Mesh | AbstractMesh) and value.empty:
            return "mesh"
        if isinstance(value, Mesh | AbstractMesh):
            self.here.append(value)
            return f"mesh({value.axis_names})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
            return f"{type(value).__name__}{inner(fields)}"
        if callable(value):  # a function on the host, or a rule of a derivative
            if on_host:
                method = getattr(value, "__func__", value), getattr(value, "__self__", None)
                self.here.append(tuple(map(Same, method)))
            return "function"
        return _without_addresses(value)


@functools.lru_cache(maxsize=4096)
def _type(aval: Any) -> str:
    if not hasattr(aval, "dtype"):
        return _without_addresses(aval)
    return f"{aval.dtype}{aval.shape}{'~' if getattr(aval, 'weak_type', False) else ''}"


def _array(x: Any) -> str:
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return f"{x.dtype}{_array(jax.random.key_data(x))}"
    x = np.asarray(x)
    return f"{x.dtype}{x.shape}{_hashed(np.ascontiguousarray(x).view(np.uint8).data)}"


def _without_addresses(value: Any) -> str:
    return _ADDRESS.sub("", repr(value))


def _hashed(value: Any) -> str:
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()[:16]
