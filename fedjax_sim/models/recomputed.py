"""Arrays that are not stored, because each of their readers computes them again.

``jax.checkpoint`` makes the gradients' readers compute an array again.  The readers of the forward
pass share one computation, since XLA merges equal operations, so that the array is stored for them.
Here every reader has a computation of its own, which XLA can make a part of the reader.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array, lax


@dataclasses.dataclass(frozen=True)
class Recomputed:
    """An array as a function of stored arrays."""

    carrier: Array  # the array's derivatives, with zeros as entries
    stored: Any  # arrays without derivatives
    function: Callable[[Any], Array]

    @classmethod
    def of(cls, array: Array, stored: Any, function: Callable[[Any], Array]) -> Self:
        """The array that the function returns of stored arrays; the one given is not computed."""
        return cls(_zeros(array), lax.stop_gradient(stored), function)

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.carrier.shape


def read(function: Callable[..., Array], *inputs: Any) -> Array:
    """Returns ``function(*inputs)`` of pytrees and :class:`Recomputed` arrays.

    The latter are computed for this reader alone, and once more for its gradient.
    """
    if not any(isinstance(x, Recomputed) for x in inputs):
        return function(*inputs)
    parts = [_parts(x) for x in inputs]

    @jax.checkpoint  # the gradient is another reader
    def reader(carriers: list[Array], stored: list[Any]) -> Array:
        # XLA merges equal operations before it removes barriers. One around all arrays of a reader
        # equals no other's, so that what follows is not merged either.
        stored = lax.optimization_barrier(stored)
        values = (
            _evaluated(x.function, carrier, arrays)
            for x, carrier, arrays in zip(parts, carriers, stored, strict=True)
        )
        return function(*values)

    return reader([x.carrier for x in parts], [x.stored for x in parts])


def later(function: Callable[..., Array], *inputs: Array | Recomputed) -> Array | Recomputed:
    """Returns ``function(*inputs)``, recomputed if an input is."""
    if not any(isinstance(x, Recomputed) for x in inputs):
        return function(*inputs)
    parts = [_parts(x) for x in inputs]

    def composed(stored: list[Any]) -> Array:
        return function(*(x.function(arrays) for x, arrays in zip(parts, stored, strict=True)))

    return Recomputed.of(read(function, *inputs), [x.stored for x in parts], composed)


def _parts(x: Any) -> Recomputed:
    """The input of a reader, which is itself what is stored if it is not recomputed."""
    if isinstance(x, Recomputed):
        return x
    return Recomputed(x, lax.stop_gradient(x), lambda stored: stored)


@jax.custom_jvp
def _zeros(x: Array) -> Array:
    """Zeros with the derivatives of an array."""
    return jnp.zeros_like(x)


@_zeros.defjvp
def _zeros_jvp(primals, tangents):
    return _zeros(*primals), tangents[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _evaluated(function: Callable[[Any], Array], carrier: Array, stored: Any) -> Array:
    """The function of stored arrays, with the derivatives of the carrier."""
    del carrier
    return function(stored)


@_evaluated.defjvp
def _evaluated_jvp(function, primals, tangents):
    return _evaluated(function, *primals), tangents[0]
