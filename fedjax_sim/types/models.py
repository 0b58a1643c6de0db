"""Models, and what objectives and adapters need to know of a model's function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from fedjax_sim.types.aliases import Params, PyTree
from fedjax_sim.types.summaries import shown


@dataclasses.dataclass(frozen=True)
class Described:
    """Function ``apply`` of a model, and what objectives and adapters need to know of it.

    Example:
        >>> double = Described(lambda params, x: params * x, vocab_size=65)
        >>> double(2.0, 3.0), double.vocab_size, double.takes_adapters
        (6.0, 65, False)
    """

    function: Callable[[Params, Any], Any]
    vocab_size: int | None = None  # inputs are token ids below it
    takes_adapters: bool = False  # kernels may be fedjax_sim.models.layers.Adapted
    trains_otherwise: bool = False  # it evaluates a model with `train`, so objectives refuse it
    computes_in: str | None = None  # dtype of fedjax_sim.models.in_precision, if it has one

    def __call__(self, params: Params, x: Any) -> Any:
        return self.function(params, x)

    @staticmethod
    def of(apply: Callable[[Params, Any], Any], **facts: Any) -> Described:
        """Returns a function with further facts, beside those that it has."""
        known = apply if isinstance(apply, Described) else Described(apply)
        return dataclasses.replace(known, **facts)


@shown
class Model(NamedTuple):
    """A model: ``init(key) -> params`` and ``apply(params, x) -> outputs``.

    Both are pure.  ``params`` is any pytree of arrays, ``x`` a batch ``[B, ...]`` of floating
    inputs or of integers (token ids), ``outputs`` is ``[B, ...]`` (logits or predictions).  There
    are no other requirements, so any pair of such functions is a model.

    ``apply`` evaluates.  A model that computes something else in training (dropout, batch
    normalisation) also has ``train(params, x, key, weights) -> (outputs, statistics)``: examples of
    weight 0 (``[B]``) fill up a short batch.  ``statistics`` is a tree as ``params`` with the next
    values of the leaves that the field ``statistics`` selects, and None for all other leaves.

    ``axis_roles(path, leaf)`` has one letter per axis of a kernel, for adapters of low rank
    (:func:`fedjax_sim.models.lora`): "i" for inputs, "o" for outputs, "s" for a stack of matrices;
    None of any other leaf.  The convolution's kernel ``[height, width, inputs, outputs]`` is
    "iiio".  Without the field, leaves of two axes are "oi".

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> ridge = Model(
        ...     init=lambda key: {"w": jnp.zeros(3)},
        ...     apply=lambda params, x: x @ params["w"],
        ... )
        >>> ridge.apply(ridge.init(jax.random.key(0)), jnp.ones((2, 3))).shape
        (2,)
    """

    init: Callable[[Array], Params]  # key -> params
    apply: Callable[[Params, Any], Any]  # (params, x [B, ...]) -> outputs [B, ...]
    # (params, x, key, weights [B]) -> (outputs, statistics). None: `apply` also trains.
    train: Callable[[Params, Any, Array, Array], tuple[Any, PyTree]] | None = None
    # (path, leaf) -> bool: running statistics, which no optimiser may move. None: there are none.
    statistics: Callable[[tuple[str, ...], Any], bool] | None = None
    # (path, leaf) -> a letter per axis, for adapters of low rank. None: "oi" of two axes.
    axis_roles: Callable[[tuple[str, ...], Any], str | None] | None = None
