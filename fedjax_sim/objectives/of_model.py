"""Objectives and metrics of a model, which consist of losses of its outputs.

:mod:`fedjax_sim.objectives` has the functions for users.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from fedjax_sim import tree
from fedjax_sim.checks import called, check_takes, floating_dtype, shapes_text
from fedjax_sim.objectives.losses import (
    MaskedSoftmax,
    errors_of,
    logistic,
    mean_per_example,
    softmax,
)
from fedjax_sim.types import Model, Params, PyTree, Scalar

Apply: TypeAlias = Callable[[Params, Any], Any]
KeyedApply: TypeAlias = Callable[[Params, Any, Any], Any]  # (params, x, key) -> outputs
Objective: TypeAlias = Callable[[Params, PyTree, Any], Array]
Metrics: TypeAlias = Callable[[Params, PyTree], dict[str, Array]]
Loss: TypeAlias = Callable[[Array, Array], Array]  # (outputs, y) -> [B]

_HINT = " -> outputs [B, ...]; fs.models.from_linen and from_nnx make models of flax modules"
VARIANCE = "target_variance"  # leaf that evaluators add to the examples of RegressionMetrics
SQUARE = "mean square"  # its values per example, of whose mean it makes the root


def as_float(x: Any, dtype: DTypeLike = jnp.float32) -> Array:
    """Converts inputs to the dtype of a model.

    The dtype decides: uint8 are pixels and become ``x / 255`` in [0, 1], floating inputs are cast,
    and all other integers are token ids, which reach the model unchanged. Images can be stored as
    uint8, in a quarter of the memory; bytes that are tokens need another dtype (uint16, int32). The
    objectives in this module call the function with the dtype of the parameters' first floating
    leaf, so float64 parameters give a float64 computation.

    Args:
        x: array of any shape.
        dtype: floating dtype of the result.

    Raises:
        ValueError: another dtype.

    Example:
        >>> print(as_float(jnp.array([0, 255], jnp.uint8)), as_float(jnp.array([0, 255])))
        [0. 1.] [  0 255]
    """
    x, dtype = jnp.asarray(x), floating_dtype(dtype)
    if x.dtype == jnp.uint8:
        return x.astype(dtype) / 255
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def check_labels(objective: Objective | Metrics, params: Params, examples: PyTree) -> None:
    """Refuses labels without an output and token ids without an embedding; JAX would clamp both.

    Objectives and metrics of this module are checked; those of users pass, unless they have a
    method ``check(params, examples)``.  The token ids of a model are known by the attribute
    ``vocab_size`` of its function ``apply``, which the language models of this package have.

    Args:
        params: of one model.
        examples: all of them, ``{"x": [N, ...], "y": [N, ...]}``, N at least 1.

    Raises:
        ValueError: naming the labels or tokens and the expected range.

    Example:
        >>> examples = {"x": jnp.ones((2, 3)), "y": jnp.array([1, 2])}
        >>> objective = OfApply(lambda params, x: x @ params, softmax)
        >>> check_labels(objective, jnp.ones((3, 2)), examples)
        Traceback (most recent call last):
        ...
        ValueError: examples['y'] has labels 1 .. 2; expected 0 .. 1, since ... have shape (2,)
    """
    if hasattr(objective, "check"):
        objective.check(params, examples)  # pyright: ignore[reportFunctionMemberAccess]


def batch_losses(
    objective: Objective, params: Params, examples: PyTree, key: Any, weights: Array
) -> Array:
    """Returns the losses ``[B]`` of a batch of which examples of weight 0 are no part.

    Args:
        objective: any objective; only those with a method ``weighted`` use the weights.
        params: of the model.
        examples: leaves ``[B, ...]``.
        key: of the step.
        weights: ``[B]``.

    Example:
        >>> objective = lambda params, examples, key: params * examples["x"]
        >>> batch_losses(objective, 2.0, {"x": jnp.ones(2)}, None, jnp.array([1, 0])).tolist()
        [2.0, 2.0]
    """
    weighted = getattr(objective, "weighted", None)
    if weighted is None:
        return objective(params, examples, key)
    return weighted(params, examples, key, weights)


def statistics_of(objective: Objective) -> tree.leaves.Where | None:
    """Returns the predicate of the running statistics of an objective's model; None: none.

    Example:
        >>> from fedjax_sim.objectives import squared
        >>> statistics_of(OfApply(lambda params, x: x, squared)) is None
        True
    """
    return getattr(objective, "statistics", None)


def momentum_of(objective: Objective, params: Params, examples: PyTree) -> float | None:
    """Returns the part of a running statistic that one gradient keeps; None: it is not known.

    Args:
        objective: of a model with running statistics.
        params: arrays or shapes of one model.
        examples: arrays or shapes ``{"x": [N, ...], "y": [N, ...]}``.

    Example:
        >>> from flax import nnx
        >>> from fedjax_sim import models, objectives
        >>> model = models.from_nnx(lambda rngs: nnx.BatchNorm(2, momentum=0.75, rngs=rngs))
        >>> examples = {"x": jnp.zeros((4, 2)), "y": jnp.zeros((4, 2))}
        >>> momentum_of(objectives.squared_error(model), model.init(jax.random.key(0)), examples)
        0.75
    """
    momentum = getattr(objective, "momentum", None)
    return None if momentum is None else momentum(params, examples)


def momentum_of_training(train: Any, params: Params, x: Any) -> float | None:
    """Returns the largest momentum of the batch normalisations of a model's function ``train``.

    None if the function does not know it.  A function around another one passes its answer on.
    """
    momentum = getattr(train, "momentum", None)
    return None if momentum is None else momentum(params, x)


def objective_of(model: Apply | Model, loss: Loss) -> Objective:
    """Returns the objective of a model or of its function ``apply``.

    Raises:
        ValueError: ``model`` is the function ``apply`` of a model that trains otherwise, or has it
            and no function ``train``.

    Example:
        >>> from fedjax_sim.objectives import squared
        >>> objective = objective_of(lambda params, x: params * x, squared)
        >>> objective(jnp.array(2.0), {"x": jnp.ones(1), "y": jnp.zeros(1)}, None).tolist()
        [4.0]
    """
    if isinstance(model, Model) and model.train is not None:
        return OfModel(model, loss)
    apply = model.apply if isinstance(model, Model) else model
    if getattr(apply, "trains_otherwise", False):
        raise ValueError(
            f"model is {apply}, which evaluates a model with dropout or batch normalisation; "
            "expected the model itself, as in cross_entropy(model) for cross_entropy(model.apply)"
        )
    return OfApply(apply_of(model), loss)


def apply_of(model: Apply | Model) -> Apply:
    """Returns the function ``apply`` of a model, or the function itself.

    Raises:
        ValueError: what is no function of parameters and inputs.
    """
    apply = model.apply if isinstance(model, Model) else model
    check_takes("model", apply, ("params", "x"), _HINT)
    return apply


def outputs_of(model: Apply | Model, params: Params, examples: PyTree) -> Any:
    """Returns the outputs of a model, or of a function such as its features, as in evaluation.

    Inputs are converted as by the objectives (:func:`as_float`).

    Args:
        model: a model, or a function ``(params, x) -> outputs [B, ...]``.
        params: of the model.
        examples: ``{"x": [B, ...]}``; of a model with several inputs a dict or tuple of them.

    Raises:
        ValueError: examples without ``"x"``.

    Example:
        >>> examples = {"x": jnp.array([[0, 255]], jnp.uint8)}
        >>> outputs_of(lambda params, x: x * params, jnp.array(2.0), examples).tolist()
        [[0.0, 2.0]]
    """
    apply, x = apply_of(model), _inputs(params, examples)
    given = f"parameters {shapes_text(params)} and inputs {shapes_text(x)}"
    return called("model", given, f"a function of (params, x){_HINT}", apply, params, x)


# Objectives and metrics are frozen dataclasses, hashable by value: a task or an evaluator that is
# rebuilt from the same model does not trigger recompilation.
@dataclasses.dataclass(frozen=True)
class OfApply:
    """Objective of a function ``apply``."""

    apply: Apply
    loss: Loss

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        return self.loss(outputs_of(self.apply, params, examples), _part(examples, "y"))

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError for labels without an output and token ids without an embedding."""
        check_tokens(self.apply, _part(examples, "x"))
        y = _part(examples, "y")
        known = self.loss in (softmax, logistic) or isinstance(self.loss, MaskedSoftmax)
        if not known or y.dtype == bool:  # probabilities are labels of the logistic loss
            return
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), examples)
        outputs = jax.eval_shape(lambda p, e: outputs_of(self.apply, p, e), params, one)
        jax.eval_shape(self.loss, outputs, one["y"])  # refuses other shapes
        y = np.asarray(y)
        if isinstance(self.loss, MaskedSoftmax):
            y = np.where(y == self.loss.ignore, 0, y)
        count = 2 if self.loss is logistic else outputs.shape[-1]
        low, high = y.min().item(), y.max().item()
        if not (low >= 0 and high <= count - 1):  # NaN is neither
            raise ValueError(
                f"examples['y'] has labels {low} .. {high}; expected 0 .. {count - 1}, since the "
                f"outputs of the model have shape {outputs.shape[1:]}"
            )


@dataclasses.dataclass(frozen=True)
class OfModel:
    """Objective of a model that trains otherwise than it is evaluated."""

    model: Model
    loss: Loss

    @property
    def statistics(self) -> tree.leaves.Where | None:
        """Predicate of the running statistics."""
        return self.model.statistics

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        return self.weighted(params, examples, key, jnp.ones(_part(examples, "y").shape[:1], bool))

    def weighted(self, params: Params, examples: PyTree, key: Any, weights: Array) -> Array:
        """Losses of a batch of which examples of weight 0 are no part."""
        assert self.model.train is not None
        x = _inputs(params, examples)
        expected = "(outputs, statistics)"
        result = called(
            "model.train",
            f"parameters {shapes_text(params)} and inputs {shapes_text(x)}",
            f"a function of (params, x, key, weights) -> {expected}",
            self.model.train, params, x, key, weights,
        )  # fmt: skip
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ValueError(
                f"model.train returns a {type(result).__name__}; expected a pair {expected}"
            )
        outputs, new = result
        losses = self.loss(outputs, _part(examples, "y"))
        if self.statistics is None:
            return losses
        old, _ = tree.leaves.split(params, self.statistics)
        return losses + _zero_of_gradient(old, new).astype(losses.dtype)

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError for labels without an output and token ids without an embedding."""
        OfApply(self.model.apply, self.loss).check(params, examples)

    def momentum(self, params: Params, examples: PyTree) -> float | None:
        """Returns the largest momentum of the model's batch normalisations, if it is known."""
        return momentum_of_training(self.model.train, params, _inputs_of_two(params, examples))


@dataclasses.dataclass(frozen=True)
class Keyed:
    """Objective of a random function ``apply``."""

    make: Callable[[Apply], Objective]
    apply: KeyedApply

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        objective = self.make(lambda params, x: self.apply(params, x, key))
        return objective(params, examples, key)

    def weighted(self, params: Params, examples: PyTree, key: Any, weights: Array) -> Array:
        """Losses of a batch of which examples of weight 0 are no part, if the model tells them."""
        apply = getattr(self.apply, "weighted", None)
        if apply is None:
            return self(params, examples, key)
        objective = self.make(lambda params, x: apply(params, x, key, weights))
        return objective(params, examples, key)

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError as the objective that :attr:`make` returns."""
        key = jax.random.key(0)
        check_labels(self.make(lambda params, x: self.apply(params, x, key)), params, examples)


@dataclasses.dataclass(frozen=True, eq=False)  # a traced weight has no value to compare
class Regularised:
    """Objective with the square of the parameters' norm."""

    objective: Objective
    weight: Scalar

    @property
    def statistics(self) -> tree.leaves.Where | None:
        """Predicate of the running statistics, which are no parameters."""
        return statistics_of(self.objective)

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        return self._added(self.objective(params, examples, key), params)

    def weighted(self, params: Params, examples: PyTree, key: Any, weights: Array) -> Array:
        """Losses of a batch of which examples of weight 0 are no part."""
        return self._added(batch_losses(self.objective, params, examples, key, weights), params)

    def _added(self, losses: Array, params: Params) -> Array:
        if self.statistics is not None:
            _, params = tree.leaves.split(params, self.statistics)
        # Frozen leaves may be in half precision, whose squares overflow above 65,504.
        squared = tree.norm(tree.wide(jax.tree.map(jnp.asarray, params)), squared=True)
        penalty = jnp.asarray(self.weight, squared.dtype) * (squared / 2)
        return losses + penalty.astype(losses.dtype)

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError as the objective without the regulariser."""
        check_labels(self.objective, params, examples)

    def momentum(self, params: Params, examples: PyTree) -> float | None:
        """Returns that of the objective without the regulariser, see :func:`momentum_of`."""
        return momentum_of(self.objective, params, examples)


@dataclasses.dataclass(frozen=True)
class _OfLoss:
    """Metrics of a function ``apply`` with a loss."""

    apply: Apply
    loss: Loss

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError as the objective of the same loss."""
        OfApply(self.apply, self.loss).check(params, examples)


@dataclasses.dataclass(frozen=True)
class LossAndAccuracy(_OfLoss):
    """Loss and accuracy, of sequences without the positions that the loss ignores."""

    correct: Callable[[Array, Array], Array]  # (outputs, y) -> bool [B, ...]

    def __call__(self, params: Params, examples: PyTree) -> dict[str, Array]:
        logits, y = outputs_of(self.apply, params, examples), _part(examples, "y")
        loss = self.loss(logits, y)
        correct = tree.wide(self.correct(logits, y).astype(loss.dtype))
        counts = self.loss.counts(y) if isinstance(self.loss, MaskedSoftmax) else None
        return {"loss": loss, "accuracy": mean_per_example(correct, counts)}


@dataclasses.dataclass(frozen=True)
class RegressionMetrics(_OfLoss):
    """Loss, root mean squared error and R^2 of a function ``apply``."""

    def __call__(self, params: Params, examples: PyTree) -> dict[str, Array]:
        outputs, y = outputs_of(self.apply, params, examples), _part(examples, "y")
        squares = errors_of(outputs, y) ** 2
        values = {"loss": self.loss(outputs, y), SQUARE: mean_per_example(squares)}
        if VARIANCE in examples:
            variance = examples[VARIANCE].astype(squares.dtype)
            shares = squares / jnp.where(variance > 0, variance, jnp.nan)
            values["r2"] = 1 - mean_per_example(shares)
        return values

    def prepare(self, examples: PyTree, sizes: np.ndarray | None = None) -> PyTree:
        """Returns all examples with the variance of the targets, in float64, of all or per client.

        The mean of ``1 - e^2 / variance`` over the examples is R^2, so R^2 is a mean of values per
        example, for any batch size.
        """
        y = np.asarray(_part(examples, "y"), np.float64)
        starts = np.array([0]) if sizes is None else np.cumsum([0, *sizes[:-1]])[sizes > 0]
        lengths = np.array([len(y)]) if sizes is None else sizes[sizes > 0]

        def means(values: np.ndarray) -> np.ndarray:
            sums = np.add.reduceat(values, starts, axis=0)
            return np.repeat(sums, lengths, axis=0) / np.repeat(lengths, lengths).reshape(
                -1, *[1] * (y.ndim - 1)
            )

        variance = means((y - means(y)) ** 2)
        # The mean of equal targets is rounded, and their variance then is not 0.
        equal = np.maximum.reduceat(y, starts, axis=0) == np.minimum.reduceat(y, starts, axis=0)
        variance[np.repeat(equal, lengths, axis=0)] = 0
        return {**examples, VARIANCE: variance.astype(np.float32)}

    def finish(self, means: dict[str, Array]) -> dict[str, Array]:
        """Returns the metrics of examples whose values have these means."""
        roots = {"rmse": jnp.sqrt(means[SQUARE])} if SQUARE in means else {}
        others = {name: value for name, value in means.items() if name != SQUARE}
        return roots | others  # of which one of the user's may be named rmse, too


def prepared(metrics: Metrics, examples: PyTree, sizes: np.ndarray | None = None) -> PyTree:
    """Returns all examples of an evaluation as the metrics need them.

    Args:
        metrics: those with a method ``prepare`` need something of all examples.
        examples: leaves ``[N, ...]``.
        sizes: examples of each client, ``[M]``, if every client is evaluated for itself.

    Example:
        >>> metrics = RegressionMetrics(lambda params, x: x, lambda outputs, y: outputs)
        >>> prepared(metrics, {"y": np.array([1.0, 3.0])})[VARIANCE].tolist()
        [1.0, 1.0]
    """
    prepare = getattr(metrics, "prepare", None)
    return examples if prepare is None else prepare(examples, sizes)


def finished(metrics: Metrics, means: dict[str, Array]) -> dict[str, Array]:
    """Returns metrics from the means of their values over examples.

    Args:
        metrics: those with a method ``finish`` are no means, such as the root of one.
        means: of each metric, of any shape.

    Example:
        >>> metrics = RegressionMetrics(lambda params, x: x, lambda outputs, y: outputs)
        >>> list(finished(metrics, {SQUARE: jnp.array(4.0)}).items())
        [('rmse', Array(2., dtype=float32, weak_type=True))]
    """
    finish = getattr(metrics, "finish", None)
    return means if finish is None else finish(means)


def check_tokens(apply: Apply, x: Any) -> None:
    """Refuses token ids that a model has no embedding for; of abstract inputs nothing is known."""
    count = getattr(apply, "vocab_size", None)
    if count is None or isinstance(x, jax.ShapeDtypeStruct) or not jnp.size(x):
        return
    low, high = int(x.min()), int(x.max())
    if low < 0 or high >= count:
        raise ValueError(
            f"examples['x'] has tokens {low} .. {high}; expected 0 .. {count - 1}, since the model "
            f"has embeddings of {count} tokens"
        )


def _inputs(params: Params, examples: PyTree) -> Any:
    dtypes = [jnp.result_type(leaf) for leaf in jax.tree.leaves(params)]  # as JAX has them
    floats = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]

    def is_list(x: Any) -> bool:  # of numbers: an array
        return isinstance(x, list)

    # A model may have several inputs.
    return jax.tree.map(lambda x: as_float(x, *floats[:1]), _part(examples, "x"), is_leaf=is_list)


def _inputs_of_two(params: Params, examples: PyTree) -> Any:
    """Returns the shape of the inputs of two examples, as the model receives them."""
    two = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), examples)
    return jax.eval_shape(_inputs, params, two)


def _part(examples: PyTree, name: str) -> Array:
    """Inputs ``"x"`` or labels ``"y"``; ValueError for examples without."""
    if not isinstance(examples, Mapping) or name not in examples:
        given = sorted(examples) if isinstance(examples, Mapping) else type(examples).__name__
        raise ValueError(f"examples is {given}; expected a dict with {name!r}")
    return examples[name]


def _zero_of_gradient(old: PyTree, new: PyTree) -> Array:
    """Returns 0, whose gradient with respect to ``old`` is ``old - new``."""
    stop = jax.lax.stop_gradient
    terms = [
        jnp.sum(stop(s - n) * (s - stop(s)))
        for s, n in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)
    ]
    return sum(terms[1:], terms[0])
