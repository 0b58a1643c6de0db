"""Loss and metrics of a model: built in, or functions of outputs and labels of a study module."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import objectives
from fedjax_sim.datasets import Dataset
from fedjax_sim.models import Model
from fedjax_sim.objectives import (
    Metrics,
    Objective,
    as_float,
    classification_metrics,
    cross_entropy,
    finished,
    objective_of,
    outputs_of,
    prepared,
    regression_metrics,
)
from fedjax_sim.types import Params, PyTree

PerExample = Callable[[Array, Array], Any]  # (outputs, y) -> [B], or {name: [B]}


@dataclasses.dataclass(frozen=True)
class Losses:
    """Loss and metrics for the targets of a data set; functions are those of a study module."""

    regression: str | None = None  # built-in loss of targets that are numbers
    loss: PerExample | None = None
    metrics: PerExample | None = None

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        name: str | None,
        loss: PerExample | None = None,
        metrics: PerExample | None = None,
    ) -> "Losses":
        """Returns loss and metrics of a data set."""
        of_numbers = dataset.target == "numbers"
        if name is not None and (name == "cross_entropy") == of_numbers:
            raise ValueError(
                f"loss is {name!r}; expected another one, since the targets of {dataset.name} are "
                f"{dataset.target}"
            )
        return cls((name or "squared") if of_numbers else None, loss, metrics)

    def check(self, net: Model, dataset: Dataset) -> None:
        """Refuses functions whose results are not one value per example; compiles nothing."""
        if self.loss is None and self.metrics is None:
            return
        params = jax.eval_shape(lambda: net.init(jax.random.key(0)))
        x, y = (np.asarray(dataset.train[key][:3]) for key in ("x", "y"))
        outputs = jax.eval_shape(lambda params: net.apply(params, as_float(x)), params)
        jax.eval_shape(self._check, outputs, y)

    def _check(self, outputs: Array, y: Array) -> None:
        """Refuses results for traced outputs; those that are no arrays have no shape to return."""
        if self.loss is not None:
            _check_values("loss", self.loss(outputs, y), outputs, y)
        if self.metrics is None:
            return
        values = self.metrics(outputs, y)
        if not isinstance(values, dict):
            raise ValueError(
                f"metrics returned {type(values).__name__}; expected {{name: values [B]}}"
            )
        for name, value in values.items():
            _check_values(f"metrics {name!r}", value, outputs, y)

    def objective(self, net: Model, ignore: int | None = None) -> Objective:
        """Returns the objective of the clients; labels ``ignore`` do not count."""
        if self.loss is not None:
            return objective_of(net, self.loss)
        if self.regression is not None:
            huber = self.regression == "huber"
            return objectives.huber(net) if huber else objectives.squared_error(net)
        return cross_entropy(net, ignore)

    def evaluated(self, net: Model, ignore: int | None = None) -> Metrics:
        """Returns the built-in metrics and the user's, which replace them if equal.

        Built in are ``loss`` and ``accuracy``, or ``loss``, ``rmse`` and ``r2`` of numbers.
        """
        built_in = classification_metrics(net.apply, ignore)
        if self.regression is not None:
            delta = 1.0 if self.regression == "huber" else None
            built_in = regression_metrics(net.apply, delta)
        is_own = self.loss is not None or self.metrics is not None
        return _Metrics(net.apply, built_in, self.loss, self.metrics) if is_own else built_in


def _check_values(name: str, value: Any, outputs: Array, y: Array) -> None:
    if not isinstance(value, Array | np.ndarray):
        raise ValueError(f"{name} returned {type(value).__name__}; expected one value per example")
    if value.shape != y.shape[:1]:
        raise ValueError(
            f"{name} returned shape {value.shape} for outputs {outputs.shape} and y {y.shape}; "
            f"expected {y.shape[:1]}, one value per example"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"{name} returned {value.dtype}; expected floating values")


# Hashable by value, like the objectives of the library.
@dataclasses.dataclass(frozen=True)
class _Metrics:
    apply: Callable[[Params, Any], Array]
    built_in: Metrics
    loss: PerExample | None
    metrics: PerExample | None

    def __call__(self, params: Params, examples: PyTree) -> dict[str, Array]:
        outputs, y = outputs_of(self.apply, params, examples), examples["y"]
        values = {} if self.loss is None else {"loss": self.loss(outputs, y)}
        if self.metrics is not None:
            values |= self.metrics(outputs, y)
        if {"loss", "accuracy"} <= set(values):
            return values
        return self.built_in(params, examples) | values

    def prepare(self, examples: PyTree, sizes: np.ndarray | None = None) -> PyTree:
        """Returns all examples as the built-in metrics need them."""
        return prepared(self.built_in, examples, sizes)

    def finish(self, means: dict[str, Array]) -> dict[str, Array]:
        """Returns the built-in metrics from their means; the user's stay means."""
        return finished(self.built_in, means)
