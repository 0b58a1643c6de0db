"""Models whose precision differs from that of their parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from fedjax_sim.models.stateful import Evaluation
from fedjax_sim.tree import leaves
from fedjax_sim.types import Model, Params, PyTree


def in_precision(model: Model, dtype: DTypeLike) -> Model:
    """Model that computes in another floating dtype; parameters and outputs keep their dtype.

    With bfloat16 the products of a local step, forward and backward, are in half precision.  Local
    iterates, gradients, losses, uploads and the server's state have the dtype of the parameters
    (float32): differences of models over a local step are too small for 8 bits.  Running statistics
    are not converted, either.

    Args:
        model: any model.
        dtype: floating dtype of the computation.

    Raises:
        ValueError: a dtype that is not floating.

    Example:
        >>> model = in_precision(Model(lambda key: jnp.ones(2), lambda w, x: x @ w), jnp.bfloat16)
        >>> out = model.apply(jnp.array([1.0, 1 / 512]), jnp.ones((1, 2)))
        >>> out.dtype, out.tolist()
        (dtype('float32'), [1.0])
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype is {jnp.dtype(dtype)}; expected a floating dtype")
    name = jnp.dtype(dtype).name
    apply = _Cast(model.apply, name)
    if model.train is None:
        return model._replace(apply=apply)
    train = _CastTraining(model.train, name, model.statistics)
    return model._replace(apply=Evaluation(apply), train=train)


@dataclasses.dataclass(frozen=True)
class _CastTraining:
    """Function ``train`` of a model; hashable by value as :class:`_Cast`."""

    train: Callable
    dtype: str
    statistics: leaves.Where | None

    def __call__(self, params: Params, x: PyTree, key: Array, weights: Array) -> tuple:
        kept, rest = leaves.split(params, self.statistics or (lambda path, leaf: False))
        new = None

        def apply(rest: Params, x: PyTree) -> PyTree:
            nonlocal new
            outputs, new = self.train(leaves.join(kept, rest), x, key, weights)
            return outputs

        return _Cast(apply, self.dtype)(rest, x), new


@dataclasses.dataclass(frozen=True)
class _Cast:
    """Apply function that is hashable by value: rebuilding a model does not recompile."""

    apply: Callable
    dtype: str

    @property
    def takes_adapters(self) -> bool:
        """True if kernels may have adapters beside them, which are cast as well."""
        return getattr(self.apply, "takes_adapters", False)

    @property
    def vocab_size(self) -> int | None:
        """Number of tokens if the inputs are token ids, which are not cast."""
        return getattr(self.apply, "vocab_size", None)

    def __call__(self, params: Params, x: PyTree) -> PyTree:
        def floating(leaf: Array) -> bool:
            return jnp.issubdtype(leaf.dtype, jnp.floating)

        def cast(tree: PyTree) -> PyTree:
            return jax.tree.map(
                lambda leaf: leaf.astype(self.dtype) if floating(leaf) else leaf, tree
            )

        dtypes = [leaf.dtype for leaf in jax.tree.leaves(params) if floating(leaf)]
        with jax.numpy_dtype_promotion("standard"):  # frozen leaves may be in half precision
            param_dtype = jnp.result_type(*dtypes)
        outputs = self.apply(cast(params), cast(x))
        return jax.tree.map(
            lambda leaf: leaf.astype(param_dtype) if floating(leaf) else leaf, outputs
        )
