"""The user's loss and metrics: functions of outputs and labels with one value per example."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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
    prepared,
    regression_metrics,
)
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.names import REGRESSION_LOSSES
from fedjax_sim.studies.setups.own_objects import reference_of
from fedjax_sim.studies.setups.references import Reference
from fedjax_sim.types import Params, PyTree

PerExample = Callable[[Array, Array], Any]  # (outputs, y) -> [B], or {name: [B]}


class OwnFunctions(NamedTuple):
    """Loss and metrics of the user; None where the built-in ones are used.

    Example:
        >>> from fedjax_sim.datasets import load
        >>> OwnFunctions.of(RunConfig(), load("digits"))
        OwnFunctions(loss=None, metrics=None, regression=None)
    """

    loss: Reference | None = None
    metrics: Reference | None = None
    regression: str | None = None  # built-in loss of targets that are numbers

    @classmethod
    def of(cls, config: RunConfig, dataset: Dataset) -> "OwnFunctions":
        """Returns the functions that the options name, for the targets of a data set.

        Raises:
            ValueError: a loss for numbers with classes.
        """
        named = config.loss if config.loss in REGRESSION_LOSSES else None
        if named is not None and dataset.target == "classes":
            raise ValueError(
                f"loss is {named!r}, for targets that are numbers; expected another one, since the "
                f"targets of {dataset.name} are classes"
            )
        regression = (named or "squared") if dataset.target == "numbers" else None
        return cls(reference_of(config, "loss"), reference_of(config, "metrics"), regression)

    def check(self, net: Model, dataset: Dataset) -> None:
        """Refuses functions whose results are not one value per example; compiles nothing.

        Raises:
            ValueError: naming the function, the shape of its result and what was expected.
        """
        if self.loss is None and self.metrics is None:
            return
        params = jax.eval_shape(lambda: net.init(jax.random.key(0)))
        x, y = (np.asarray(dataset.train[key][:3]) for key in ("x", "y"))
        outputs = jax.eval_shape(lambda params: net.apply(params, as_float(x)), params)
        for reference in filter(None, (self.loss, self.metrics)):
            try:
                values = jax.eval_shape(reference.call, outputs, y)
            except TypeError as error:  # of the results, since errors of the call are ValueErrors
                reference.fail("which returned no arrays; expected one value per example", error)
            if reference is self.metrics:
                reference.check_result(values, dict, "{name: values [B]}")
                for name, value in values.items():
                    _check_shape(reference, value, outputs, y, f" for {name!r}")
            else:
                _check_shape(reference, values, outputs, y)

    def objective(self, net: Model, ignore: int | None = None) -> Objective:
        """Returns the objective of the clients; labels ``ignore`` do not count."""
        if self.loss is not None:
            return objective_of(net, self.loss.function)
        if self.regression is not None:
            return REGRESSION_LOSSES[self.regression](net)
        return cross_entropy(net, ignore)

    def evaluated(self, net: Model, ignore: int | None = None) -> Metrics:
        """Returns the built-in metrics and the user's, which replace them if equal.

        Built in are ``loss`` and ``accuracy``, or ``loss``, ``rmse`` and ``r2`` of numbers.
        """
        own = {key: getattr(self, key) for key in ("loss", "metrics")}
        functions = {key: None if row is None else row.function for key, row in own.items()}
        built_in = classification_metrics(net.apply, ignore)
        if self.regression is not None:
            delta = 1.0 if self.regression == "huber" else None
            built_in = regression_metrics(net.apply, delta)
        is_own = self.loss is not None or self.metrics is not None
        return _Metrics(net.apply, built_in, **functions) if is_own else built_in


def _check_shape(reference: Reference, value: Any, outputs: Any, y: Any, name: str = "") -> None:
    reference.check_result(value, jax.ShapeDtypeStruct, f"one value per example{name}")
    if value.shape != y.shape[:1]:
        reference.fail(
            f"which returned shape {value.shape}{name} for outputs {outputs.shape} and y "
            f"{y.shape}; expected {y.shape[:1]}, one value per example"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        reference.fail(f"which returned {value.dtype}{name}; expected floating values")


# Hashable by value, like the objectives of the library.
@dataclasses.dataclass(frozen=True)
class _Metrics:
    apply: Callable[[Params, Any], Array]
    built_in: Metrics
    loss: PerExample | None
    metrics: PerExample | None

    def __call__(self, params: Params, examples: PyTree) -> dict[str, Array]:
        outputs, y = _outputs(self.apply, params, examples), examples["y"]
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


def _outputs(apply: Callable[[Params, Any], Array], params: Params, examples: PyTree) -> Array:
    floats = [x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
    return apply(params, as_float(examples["x"], *floats[:1]))
