"""Arrays that are not stored, because each of their readers computes them again.

``jax.checkpoint`` computes an array once more for all gradients.  What reads it in the forward pass
shares one computation, since XLA merges equal operations, so that the array is stored all the same.
Here every reader has a computation of its own, which XLA can make a part of the reader.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


@dataclasses.dataclass(frozen=True)
class Recomputed:
    """An array as a function of small arrays, which all its operations need, and of stored ones.

    Small and stored arrays are pytrees without derivatives.  Those of the array are the ones of the
    carrier, whose entries are zero.  The numbers are those of copies that do not exist yet.
    """

    carrier: Array
    small: Any
    stored: Any
    function: Callable[[Any, Any], Array]
    numbers: Iterator[int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.carrier.shape

    def copy(self) -> Any:
        """The small arrays behind a number of barriers that no other copy of them has."""
        # XLA merges equal barriers and what is equal behind them. Around images or gradients a
        # barrier would keep XLA from computing them inside of a convolution.
        small = self.small
        for _ in range(next(self.numbers)):
            small = lax.optimization_barrier(small)
        return small


def recomputed(
    array: Array, small: Any, stored: Any, function: Callable[[Any, Any], Array]
) -> Recomputed:
    """Returns what has the derivatives of an array and the value ``function(small, stored)``."""
    constants = lax.stop_gradient((small, stored))
    return Recomputed(_zeros(array), *constants, function, itertools.count(1))


def read(function: Callable[..., Array], *inputs: Any) -> Array:
    """Returns ``function(*inputs)`` of pytrees and :class:`Recomputed` arrays.

    The latter are computed for this reader alone, and once more for its gradient.
    """
    if not any(isinstance(x, Recomputed) for x in inputs):
        return function(*inputs)

    def values(carriers: list[Any], copies: list[Any], stored: list[Any]) -> list[Any]:
        return [
            _evaluated(x.function, *arrays) if isinstance(x, Recomputed) else arrays[0]
            for x, *arrays in zip(inputs, carriers, copies, stored, strict=True)
        ]

    @jax.custom_jvp
    def reader(carriers: list[Any], forward: list[Any], backward: list[Any], stored: list[Any]):
        del backward
        return function(*values(carriers, forward, stored))

    @reader.defjvp
    def _(primals, tangents):
        carriers, _, backward, stored = primals

        def again(carriers: list[Any], backward: list[Any], stored: list[Any]) -> Array:
            return function(*values(carriers, backward, stored))

        def along(carriers: list[Any]) -> Array:
            # Values of the forward pass would be stored where the backward pass is another program.
            return jax.checkpoint(again, prevent_cse=False)(carriers, backward, stored)

        return reader(*primals), jax.jvp(along, (carriers,), (tangents[0],))[1]

    carriers = [x.carrier if isinstance(x, Recomputed) else x for x in inputs]
    copies = [[x.copy() if isinstance(x, Recomputed) else () for x in inputs] for _ in range(2)]
    stored = [x.stored if isinstance(x, Recomputed) else () for x in inputs]
    return reader(carriers, *copies, stored)


def later(function: Callable[..., Array], *inputs: Any) -> Array | Recomputed:
    """Returns ``function(*inputs)``, recomputed if an input is."""
    first = next((x for x in inputs if isinstance(x, Recomputed)), None)
    if first is None:
        return function(*inputs)

    def composed(small: list[Any], stored: list[Any]) -> Array:
        return function(
            *(
                x.function(*arrays) if isinstance(x, Recomputed) else arrays[1]
                for x, *arrays in zip(inputs, small, stored, strict=True)
            )
        )

    small = [x.small if isinstance(x, Recomputed) else () for x in inputs]
    stored = [x.stored if isinstance(x, Recomputed) else x for x in inputs]
    result = recomputed(read(function, *inputs), small, stored, composed)
    # With numbers of its own, copies of the same small arrays could be equal.
    return dataclasses.replace(result, numbers=first.numbers)


@jax.custom_jvp
def _zeros(x: Array) -> Array:
    """Zeros with the derivatives of an array."""
    return jnp.zeros_like(x)


@_zeros.defjvp
def _zeros_jvp(primals, tangents):
    return _zeros(*primals), tangents[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _evaluated(function: Callable, carrier: Array, small: Any, stored: Any) -> Array:
    """The function of small and stored arrays, with the derivatives of the carrier."""
    del carrier
    return function(small, stored)


@_evaluated.defjvp
def _evaluated_jvp(function, primals, tangents):
    return _evaluated(function, *primals), tangents[0]
