"""Models that keep their running statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from fedjax_sim.models.stateful_linen import LinenTraining
from fedjax_sim.models.stateful_nnx import NnxTraining
from fedjax_sim.tree import leaves
from fedjax_sim.types import Model, Params, PyTree


def frozen_statistics(model: Model) -> Model:
    """Model whose batch normalisations use the running statistics in training, too.

    The statistics never change; scales and biases are trained.  This is the usual way to fine-tune
    a pretrained model on small batches.  The gradient of a statistic is 0, so every algorithm runs
    on the model; :func:`fedjax_sim.freeze` with ``model.statistics`` of the given model keeps the
    statistics out of uploads, weight decay and optimiser states.

    Args:
        model: of :func:`~fedjax_sim.models.from_nnx` or :func:`~fedjax_sim.models.from_linen`.

    Raises:
        ValueError: the model has no running statistics, or its function ``train`` is not that of
            these two.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from fedjax_sim import models
        >>> model = models.from_nnx(lambda rngs: nnx.BatchNorm(1, epsilon=0.0, rngs=rngs))
        >>> params, x = model.init(jax.random.key(0)), jnp.array([[5.0], [7.0]])
        >>> train = frozen_statistics(model).train
        >>> train(params, x, jax.random.key(1), jnp.ones(2))[0].tolist()  # mean 0, variance 1
        [[5.0], [7.0]]
    """
    if model.statistics is None or not isinstance(model.train, (NnxTraining, LinenTraining)):
        raise ValueError(
            f"model has the statistics {model.statistics} and the function train {model.train}; "
            "expected a model of from_nnx or from_linen with batch normalisation"
        )
    train = dataclasses.replace(model.train, frozen=True)
    return model._replace(train=_Constant(train, model.statistics), statistics=None)


@dataclasses.dataclass(frozen=True)
class _Constant:
    train: Callable[..., tuple[Any, PyTree]]
    where: leaves.Where

    def __call__(self, params: Params, x: Any, key: Array, weights: Array) -> tuple[Any, PyTree]:
        statistics, rest = leaves.split(params, self.where)
        params = leaves.join(jax.lax.stop_gradient(statistics), rest)
        return self.train(params, x, key, weights)
