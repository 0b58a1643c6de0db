"""Values of functions: the factory that made an algorithm or a schedule, and its arguments.

Two calls of a factory return different closures that compute the same.  Their specs are equal.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial

from fedjax_sim.types.annotations import annotated_kinds
from fedjax_sim.types.arrays import (
    dtype_and_shape,
    is_array,
    plain_integer,
    plain_integers,
    readable,
)

_LONGEST = 120  # characters of a field in the text of a record

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Factory:
    """A function under the decorator :func:`specified`; equals only itself."""

    def __init__(self, function: Callable, static: Collection[str]):
        self.name = _name(function)
        self.call = function  # the decorated function, once it exists
        self.signature = inspect.signature(function)
        self.static = frozenset(static)
        if unknown := self.static - self.signature.parameters.keys():
            raise ValueError(f"static is {sorted(unknown)}; expected parameters of {self.name}")
        self.numbers = _numbers(function, self.signature)


# Decorated functions by name, the last definition of each.
FACTORIES: dict[str, Factory] = {}


def _numbers(function: Callable, signature: inspect.Signature) -> frozenset[str]:
    """Returns the parameters of which an integer counts as a floating number."""
    annotated = annotated_kinds(function)

    def is_number(name: str, default: Any) -> bool:
        kinds = annotated.get(name, set())
        return isinstance(default, float) or (float in kinds and int not in kinds)

    return frozenset(
        name for name, one in signature.parameters.items() if is_number(name, one.default)
    )


class Spec:
    """Name of a factory with the arguments of a call: the value of what the call returns.

    A spec is hashable.  Specs are equal if their factories are the same function and their
    arguments have equal values: arrays by dtype, shape and bytes, functions with a spec by the
    spec, other functions by ``==``.

    A spec is a pytree, whose leaves are the floating numbers and arrays among the arguments, those
    of specs inside included.  All else is its structure.  A compiled function whose argument is the
    spec is therefore compiled once for all rates.  Python's numbers stay Python's, hence weakly
    typed.  An integer counts as a floating number if the parameter is one by its annotation.

    Args:
        factory: a function under :func:`specified`, or its name.  Those of this package are named
            without their module.
        arguments: arguments of the call; others have their defaults.

    Raises:
        ValueError: an unknown factory.
        TypeError: arguments that the factory does not take.

    Example:
        >>> import fedjax_sim as fs
        >>> spec = fs.scaffold(0.1).spec
        >>> spec
        scaffold(lr=0.1, server_lr=1.0, option='II')
        >>> spec == fs.Spec("scaffold", lr=0.1)
        True
        >>> jax.tree.leaves(spec)
        [0.1, 1.0]
        >>> jax.tree.map(lambda x: 2 * x, spec).build().spec
        scaffold(lr=0.2, server_lr=2.0, option='II')
    """

    _form: _Form
    _numbers: tuple[Any, ...]  # leaves

    def __init__(self, factory: str | Callable, /, **arguments: Any):
        known = _factory(factory)
        other = _spec(known, known.signature.bind(**arguments))
        self._form, self._numbers = other._form, other._numbers

    @property
    def name(self) -> str:
        """Name of the factory, after its module unless it is one of this package."""
        return self._form.factory.name

    @property
    def factory(self) -> Callable:
        """The factory."""
        return self._form.factory.call

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments by name, defaults included; specs stand for what they build."""
        numbers = iter(self._numbers)
        leaves = [next(numbers) if one is None else one.value for one in self._form.fixed]
        values = jax.tree.unflatten(self._form.structure, leaves)
        return dict(zip(self._form.names, values, strict=True))

    @property
    def fixed(self) -> tuple[Any, ...]:
        """Values that are structure, those of specs inside included: functions, integers, texts.

        They are compared by ``==``, which does not notice a function whose globals have changed.
        """
        own = tuple(one.value for one in self._form.fixed if one is not None)
        inside = jax.tree.leaves((self.arguments, own), is_leaf=lambda one: isinstance(one, Spec))
        return own + tuple(x for one in inside if isinstance(one, Spec) for x in one.fixed)

    def build(self) -> Any:
        """Returns what the factory returns for the arguments; specs among them are built first."""
        built = jax.tree.map(
            lambda one: one.build() if isinstance(one, Spec) else one,
            self.arguments,
            is_leaf=lambda one: isinstance(one, Spec),
        )
        bound = _bound(self._form.factory, {name: built[name] for name in self._form.names})
        return self._form.factory.call(*bound.args, **bound.kwargs)

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as plain values of JSON, for people and for comparisons of runs.

        Functions stand with their qualified names, arrays with dtype, shape and SHA-256.

        Example:
            >>> import fedjax_sim as fs
            >>> fs.fedprox(fs.local.exponential_decay(0.5, 0.9), mu=1).spec.to_json()["arguments"]
            {'lr': {'name': 'exponential_decay', 'arguments': {'lr': 0.5, 'decay': 0.9}}, 'mu': ...
        """
        return _json(self)

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        return self._form, tuple(_key(number) for number in self._numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return value_text(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_arguments, (self.factory, self.arguments)


class _Form(NamedTuple):
    """Structure of a spec, which compiled programs are made for."""

    factory: Factory
    names: tuple[str, ...]
    structure: Any  # of the arguments' values, a list
    fixed: tuple[_Fixed | None, ...]  # their leaves; None where it is a leaf of the spec


class _Fixed:
    """A value that is no leaf of a spec, compared by its value."""

    def __init__(self, value: Any):
        self.value, self.key = value, _key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Same:
    """A value that equals only itself, for objects that have no value of their own."""

    def __init__(self, value: Any):
        self.value = value  # a reference, so that no other object gets its address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _restored(form: _Form, numbers: tuple[Any, ...]) -> Spec:
    """Returns a spec with other leaves, which may be JAX's placeholders; calls no factory."""
    spec = object.__new__(Spec)
    spec._form, spec._numbers = form, numbers
    return spec


jax.tree_util.register_pytree_node(
    Spec, lambda spec: (spec._numbers, spec._form), lambda form, numbers: _restored(form, numbers)
)


def _factory(factory: str | Callable) -> Factory:
    """Returns the record of a decorated function."""
    known = FACTORIES.get(factory if isinstance(factory, str) else _name(factory))
    if known is None or not (isinstance(factory, str) or known.call is factory):
        raise ValueError(f"factory is {factory!r:.60}; expected one under fedjax_sim.specified")
    return known


def _spec(factory: Factory, bound: inspect.BoundArguments) -> Spec:
    bound.apply_defaults()
    values = []
    for name, value in bound.arguments.items():
        value = plain_integer(value)
        if name in factory.numbers and type(value) is int:
            value = float(value)
        value = _specs_inside(value)
        values.append(_Fixed(value) if name in factory.static else value)
    leaves, structure = jax.tree.flatten(values)
    fixed, numbers = [], []
    for leaf in leaves:
        if _is_floating(leaf):
            numbers.append(leaf)
            fixed.append(None)
        else:
            fixed.append(leaf if isinstance(leaf, _Fixed) else _Fixed(leaf))
    return _restored(_Form(factory, tuple(bound.arguments), structure, tuple(fixed)), (*numbers,))


def _of_arguments(factory: Callable, arguments: Mapping[str, Any]) -> Spec:
    known = _factory(factory)
    return _spec(known, _bound(known, arguments))


def _bound(factory: Factory, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
    return inspect.BoundArguments(factory.signature, OrderedDict(arguments))


def spec_of(value: Any) -> Spec | None:
    """Returns the spec of an algorithm or a function; None: it has none."""
    spec = getattr(value, "spec", None)
    return spec if isinstance(spec, Spec) else None


def _specs_inside(value: Any) -> Any:
    """Returns a value in which specs stand for what they build, and partials are pytrees."""

    def inside(one: Any) -> Any:
        if isinstance(one, functools.partial) and not isinstance(one, Partial):
            return Partial(one.func, *map(_specs_inside, one.args), **_specs_inside(one.keywords))
        return spec_of(one) or one

    return jax.tree.map(inside, value, is_leaf=lambda one: spec_of(one) is not None)


_ARRAYS = (np.ndarray, np.generic, jax.Array)


def _is_floating(leaf: Any) -> bool:
    if isinstance(leaf, _ARRAYS):
        return isinstance(leaf, Tracer) or jnp.issubdtype(leaf.dtype, np.inexact)
    return isinstance(leaf, (float, complex))


def _key(value: Any) -> Hashable:
    """Returns what a value is compared by; structures by their parts."""
    if isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True):
        return Same(value)  # its values are not known here
    if isinstance(value, _ARRAYS):
        return dtype_and_shape(value), _array_digest(value)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)  # NaN equals itself, and -0.0 is not 0.0
    leaves, structure = jax.tree.flatten(value)
    if not jax.tree_util.treedef_is_leaf(structure):
        return structure, tuple(map(_key, leaves))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return type(value), tuple(map(_key, fields))
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value


def _array_digest(array: Any) -> str:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return hashlib.sha256(np.asarray(array).tobytes()).hexdigest()


def _json(value: Any) -> Any:
    """Returns a value as plain values of JSON."""
    if isinstance(value, Spec):
        return {"name": value.name, "arguments": _json(value.arguments)}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, _ARRAYS):
        if isinstance(value, Tracer):
            return {"traced": dtype_and_shape(value)}
        content = {"value": value.item()} if value.ndim == 0 and value.dtype.kind in "biuf" else {}
        return {"array": dtype_and_shape(value), "sha256": _array_digest(value)} | content
    if isinstance(value, Mapping):
        return {str(name): _json(one) for name, one in value.items()}
    if names := _fields(value):
        arguments = {name: _json(getattr(value, name)) for name in names}
        return {"name": type(value).__qualname__, "arguments": arguments}
    if isinstance(value, (tuple, list)):
        return [_json(one) for one in value]
    return _name(value if hasattr(value, "__qualname__") else type(value))


def value_text(value: Any) -> str:
    """Returns a value as the text of the call that made it."""
    if not isinstance(value, Spec) and (spec := spec_of(value)) is not None:
        value = spec
    if isinstance(value, Spec):
        return _call(value.name, value.arguments)
    if is_array(value):
        number = None if value.ndim else readable(value)
        return dtype_and_shape(value) if number is None else str(number)
    if names := _fields(value):
        return _call(type(value).__qualname__, {name: getattr(value, name) for name in names})
    if isinstance(value, (tuple, list)):
        ends = "()" if isinstance(value, tuple) else "[]"
        return ends[0] + ", ".join(map(value_text, value)) + ends[1]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {value_text(one)}" for name, one in value.items()) + "}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    return _name(value if hasattr(value, "__qualname__") else type(value))


def record_text(value: Any) -> str:
    """Returns a record as a call, without the fields that have their defaults."""
    return f"{type(value).__qualname__}({', '.join(map('='.join, changed_texts(value).items()))})"


def changed_texts(record: Any) -> dict[str, str]:
    """Returns the texts of the fields whose values are not their defaults."""
    texts = {name: value_text(value) for name, value in _changed(record)}
    return {name: x if len(x) <= _LONGEST else f"{x[:_LONGEST]} ..." for name, x in texts.items()}


def _changed(record: Any) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a record whose values are not their defaults."""
    if dataclasses.is_dataclass(record):
        defaults = {field.name: field.default for field in dataclasses.fields(record)}
    else:
        defaults = record._field_defaults
    for name in _fields(record):
        value = getattr(record, name)
        default = defaults.get(name, dataclasses.MISSING)
        plain = type(value) in (bool, int, float, str)  # others may have no truth value of `==`
        if value is not default and not (plain and value == default):
            yield name, value


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value_text(value)}' for key, value in arguments.items())})"


def _fields(value: Any) -> tuple[str, ...]:
    """Returns the fields of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    return getattr(value, "_fields", ()) if isinstance(value, tuple) else ()


def _name(named: Any) -> str:
    """Returns the qualified name of a function or a class, of this package without the module."""
    module = getattr(named, "__module__", None) or ""
    own = module.partition(".")[0] == __name__.partition(".")[0]
    return named.__qualname__ if own or not module else f"{module}.{named.__qualname__}"


class Specified:
    """A function that a factory made; functions with equal specs are equal.

    Example:
        >>> from fedjax_sim.local import exponential_decay
        >>> exponential_decay(0.5, 0.9) == exponential_decay(0.5, 0.9)
        True
    """

    def __init__(self, function: Callable, spec: Spec):
        self.function, self.spec = function, spec

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Specified) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return repr(self.spec)


def with_spec(cls: type[T]) -> type[T]:
    """Decorates a named tuple with a field ``spec``, which holds for its other fields.

    Its text is that of the spec, and tuples with equal specs are equal.  ``_replace`` drops the
    spec, since the factory has not made what it returns.
    """
    replace, text = cls._replace, cls.__repr__  # pyright: ignore[reportAttributeAccessIssue]

    def __eq__(self: Any, other: object) -> bool:
        one, two = spec_of(self), spec_of(other)
        if one is None and two is None:
            return tuple.__eq__(self, other)  # pyright: ignore[reportArgumentType]
        return one == two

    def __ne__(self: Any, other: object) -> bool:
        return not self == other

    def __hash__(self: Any) -> int:
        return tuple.__hash__(self) if self.spec is None else hash(self.spec)

    def _replace(self: Any, **changes: Any) -> Any:
        return replace(self, **{"spec": None} | changes)

    def __repr__(self: Any) -> str:
        return text(self) if self.spec is None else repr(self.spec)

    for method in (_replace, __repr__, __eq__, __ne__, __hash__):
        setattr(cls, method.__name__, method)
    setattr(cls, "__replace__", _replace)  # noqa: B010    of copy.replace
    return cls


@functools.cache
def _subclass(kind: Any) -> Any:
    """Returns the class of a library's named tuples of functions, with an attribute ``spec``."""

    class WithSpec(kind):
        spec: Spec | None = None  # what `_replace` returns has none

        @classmethod
        def _with_spec(cls, functions: tuple[Any, ...], spec: Spec) -> Any:
            result = cls._make(functions)
            result.spec = spec
            return result

    return WithSpec


@overload
def specified(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def specified(*, static: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def specified(function: Any = None, /, *, static: Collection[str] = ()) -> Any:
    """Decorates a factory, so that what it returns has a :class:`Spec` in its field ``spec``.

    A factory returns a :class:`~fedjax_sim.FedAlgorithm`, a function, such as a schedule, or a
    named tuple of functions: ``specified(optax.adam)`` makes optimizers with a spec.  What it
    returns must follow from its arguments.

    Args:
        function: the factory.
        static: parameters whose numbers decide a shape or a number of steps.  They are structure of
            the spec, not leaves, so another value is another program.

    Raises:
        ValueError: a name in ``static`` that is no parameter; in a call, a result that is neither
            an algorithm nor of functions.

    Example:
        >>> import fedjax_sim as fs
        >>> @specified
        ... def half_decay(lr: float):
        ...     return lambda round: lr * 0.5**round
        >>> algorithm = fs.fedavg(half_decay(0.1))
        >>> algorithm.spec.arguments["lr"].arguments
        {'lr': 0.1}
        >>> algorithm.spec == fs.fedavg(half_decay(0.1)).spec
        True
    """
    if function is None:
        return functools.partial(_specified, static=static)
    return _specified(function, static)


def _specified(function: Callable[P, R], static: Collection[str]) -> Callable[P, R]:
    factory = Factory(function, static)

    plain = plain_integers(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result: Any = plain(*args, **kwargs)
        if any(result is argument for argument in (*args, *kwargs.values())):
            return result  # it has its own spec
        spec = _spec(factory, factory.signature.bind(*args, **kwargs))
        if "spec" in _fields(result):
            return result._replace(spec=spec)
        if _fields(result) and all(map(callable, result)):  # an optimizer of optax, for example
            return _subclass(type(result))._with_spec(result, spec)
        if isinstance(result, Specified):
            result = result.function
        if not callable(result):
            raise ValueError(
                f"{factory.name} returned {result!r:.60}; expected an algorithm or a function"
            )
        return cast(R, Specified(result, spec))

    factory.call = call
    FACTORIES[factory.name] = factory
    return call
