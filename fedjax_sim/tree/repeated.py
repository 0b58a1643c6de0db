"""Vectors of equal numbers that take no memory, for populations of millions of clients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclasses.dataclass(frozen=True)
class Repeated:
    """Vector ``[length]`` whose entries are equal; a pytree with one number.

    NumPy reads it as a view without memory of its own.  Inside compiled programs take entries with
    :func:`entries`.
    """

    value: Any  # a number
    length: int  # static

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    @property
    def dtype(self) -> np.dtype:
        return jnp.result_type(self.value)

    def max(self) -> Any:
        return self.value

    def min(self) -> Any:
        return self.value

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.broadcast_to(np.asarray(self.value, dtype), self.shape)


jax.tree_util.register_dataclass(Repeated, data_fields=["value"], meta_fields=["length"])


def entries(values: Any, index: Array) -> Array:
    """Returns ``values[index]`` of a vector, which may be a :class:`Repeated`."""
    if isinstance(values, Repeated):
        return jnp.broadcast_to(jnp.asarray(values.value), index.shape)
    return jnp.asarray(values)[index]
