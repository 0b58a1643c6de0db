"""Objectives and metrics: functions of parameters and a batch, with one value per example.

An objective is ``(params, examples, key) -> losses [B]``; a metric function is
``(params, examples) -> {name: values [B]}``, where ``examples = {"x": [B, ...], "y": [B, ...]}``.
They return values per example instead of means, so that short last batches and clients of different
sizes are weighted exactly. ``key`` is for random objectives (dropout, augmentation); in this module
only :func:`keyed` uses it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least
from fedjax_sim.types import Params, PyTree, Scalar

Apply: TypeAlias = Callable[[Params, Any], Any]
KeyedApply: TypeAlias = Callable[[Params, Any, Any], Any]  # (params, x, key) -> outputs
Objective: TypeAlias = Callable[[Params, PyTree, Any], Array]
Metrics: TypeAlias = Callable[[Params, PyTree], dict[str, Array]]


def as_float(x: Any, dtype: DTypeLike = jnp.float32) -> Array:
    """Converts inputs to the dtype of a model.

    uint8 pixels become ``x / 255`` in [0, 1], floating inputs are cast, and other integers (token
    ids) are unchanged. Images can be stored as uint8, in a quarter of the memory. The objectives in
    this module call the function with the dtype of the parameters' first floating leaf, so float64
    parameters give a float64 computation.

    Args:
        x: array of any shape.
        dtype: floating dtype of the result.

    Example:
        >>> print(as_float(jnp.array([0, 255], jnp.uint8)))
        [0. 1.]
    """
    x = jnp.asarray(x)
    if x.dtype == jnp.uint8:
        return x.astype(dtype) / 255
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def cross_entropy(apply: Apply) -> Objective:
    """Softmax cross-entropy: ``log sum_c exp(z_c) - z_y`` with ``z = apply(params, x)``.

    Args:
        apply: ``(params, x) -> logits [B, C]``, or ``[B, L, C]`` for sequences, whose loss is the
            mean over the L positions.

    Returns:
        Objective for integer labels ``[B]`` (``[B, L]``) in 0..C-1. It raises ValueError if the
        labels are not integers, or if their shape differs from the logits' shape without classes.

    Example:
        >>> objective = cross_entropy(lambda params, x: x @ params)
        >>> examples = {"x": jnp.ones((2, 3)), "y": jnp.array([0, 1])}
        >>> print(objective(jnp.zeros((3, 4)), examples, None).round(4))  # log 4
        [1.3863 1.3863]
    """
    return _Loss(apply, _cross_entropy)


def binary_cross_entropy(apply: Apply) -> Objective:
    """Logistic loss: ``log(1 + exp(z)) - y z`` with ``z = apply(params, x)``.

    Args:
        apply: ``(params, x) -> logits [B]``.

    Returns:
        Objective for labels ``[B]``, 0 or 1 (integers, booleans, or probabilities in between).
        It raises ValueError if logits and labels differ in shape, such as ``[B, 1]`` and ``[B]``,
        which would broadcast.

    Example:
        >>> objective = binary_cross_entropy(lambda params, x: x @ params)
        >>> examples = {"x": jnp.array([[2.0], [-1000.0]]), "y": jnp.array([1, 0])}
        >>> print(objective(jnp.ones(1), examples, None).round(4))
        [0.1269 0.    ]
    """
    return _Loss(apply, _binary_cross_entropy)


def squared_error(apply: Apply) -> Objective:
    """Squared error summed over outputs, without a factor 1/2: ``||apply(params, x) - y||^2``.

    Args:
        apply: ``(params, x) -> predictions [B, ...]``.

    Returns:
        Objective for targets ``[B, ...]``. It raises ValueError if predictions and targets differ
        in shape.

    Example:
        >>> objective = squared_error(lambda params, x: x @ params)
        >>> examples = {"x": jnp.ones((1, 2)), "y": jnp.array([5.0])}
        >>> objective(jnp.ones(2), examples, None).tolist()
        [9.0]
    """
    return _Loss(apply, _squared_error)


def with_l2(objective: Objective, weight: Scalar) -> Objective:
    """Adds ``weight / 2 ||params||^2`` to the loss of every example.

    The mean over any batch then includes the full regulariser. The sum of squares includes all
    parameters, also biases.

    Args:
        objective: ``(params, examples, key) -> losses [B]``.
        weight: non-negative; may be traced, for sweeps.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> objective = with_l2(lambda params, examples, key: jnp.zeros(2), weight=0.5)
        >>> objective({"w": jnp.array([2.0])}, {}, None).tolist()
        [1.0, 1.0]
    """
    check_at_least(0, weight=weight)

    return _Regularised(objective, weight)


def check_labels(objective: Objective, params: Params, examples: PyTree) -> None:
    """Refuses integer labels that the model has no output for; JAX would clamp their indices.

    Objectives of this module are checked; those of users pass, unless they have a method
    ``check(params, examples)``.

    Args:
        params: of one model.
        examples: all of them, ``{"x": [N, ...], "y": [N, ...]}``, N at least 1.

    Raises:
        ValueError: naming the labels and the expected range.

    Example:
        >>> examples = {"x": jnp.ones((2, 3)), "y": jnp.array([1, 2])}
        >>> check_labels(cross_entropy(lambda params, x: x @ params), jnp.ones((3, 2)), examples)
        Traceback (most recent call last):
        ...
        ValueError: examples['y'] has labels 1 .. 2; expected 0 .. 1, since ... have shape (2,)
    """
    if hasattr(objective, "check"):
        objective.check(params, examples)  # pyright: ignore[reportFunctionMemberAccess]


def keyed(make: Callable[[Apply], Objective], apply: KeyedApply) -> Objective:
    """Objective of a random model: ``make(apply(., ., key))`` with the key of the objective.

    Args:
        make: a function such as :func:`cross_entropy`.
        apply: ``(params, x, key) -> outputs``, e.g. of :func:`~fedjax_sim.models.quantized`.

    Example:
        >>> noisy = lambda params, x, key: x @ params + jax.random.normal(key, x.shape[:1])
        >>> objective = keyed(squared_error, noisy)
        >>> examples = {"x": jnp.ones((1, 2)), "y": jnp.array([2.0])}
        >>> noise = jax.random.normal(jax.random.key(0), (1,))
        >>> bool(objective(jnp.ones(2), examples, jax.random.key(0)) == (2 + noise - 2) ** 2)
        True
    """
    return _Keyed(make, apply)


def classification_metrics(apply: Apply) -> Metrics:
    """``loss``: :func:`cross_entropy`; ``accuracy``: 1 where the label has the largest logit.

    The accuracy of a sequence is the mean over positions. Among equal logits the first is used.

    Example:
        >>> metrics = classification_metrics(lambda params, x: x @ params)
        >>> examples = {"x": jnp.eye(2), "y": jnp.array([0, 0])}
        >>> metrics(jnp.eye(2), examples)["accuracy"].tolist()
        [1.0, 0.0]
    """
    return _LossAndAccuracy(apply, _cross_entropy, _largest_is_label)


def binary_classification_metrics(apply: Apply) -> Metrics:
    """``loss``: :func:`binary_cross_entropy`; ``accuracy``: 1 where ``z > 0`` agrees with ``y``.

    Labels are 0 or 1.

    Example:
        >>> metrics = binary_classification_metrics(lambda params, x: x @ params)
        >>> examples = {"x": jnp.array([[1.0], [-1.0]]), "y": jnp.array([1, 1])}
        >>> metrics(jnp.ones(1), examples)["accuracy"].tolist()
        [1.0, 0.0]
    """
    return _LossAndAccuracy(apply, _binary_cross_entropy, _sign_is_label)


# Objectives and metrics are frozen dataclasses, hashable by value: a task or an evaluator that is
# rebuilt from the same model does not trigger recompilation.
@dataclasses.dataclass(frozen=True)
class _Loss:
    apply: Apply
    loss: Callable[[Array, Array], Array]  # (outputs, y) -> [B]

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        del key
        return self.loss(_outputs(self.apply, params, examples), examples["y"])

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError for integer labels that the model has no output for."""
        if self.loss is _squared_error or not jnp.issubdtype(examples["y"].dtype, jnp.integer):
            return
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), examples)
        outputs = jax.eval_shape(lambda p, e: _outputs(self.apply, p, e), params, one)
        count = outputs.shape[-1] if self.loss is _cross_entropy else 2
        low, high = int(examples["y"].min()), int(examples["y"].max())
        if low < 0 or high >= count:
            raise ValueError(
                f"examples['y'] has labels {low} .. {high}; expected 0 .. {count - 1}, since the "
                f"outputs of the model have shape {outputs.shape[1:]}"
            )


@dataclasses.dataclass(frozen=True)
class _Keyed:
    make: Callable[[Apply], Objective]
    apply: KeyedApply

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        objective = self.make(lambda params, x: self.apply(params, x, key))
        return objective(params, examples, key)

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError as the objective that :attr:`make` returns."""
        key = jax.random.key(0)
        check_labels(self.make(lambda params, x: self.apply(params, x, key)), params, examples)


@dataclasses.dataclass(frozen=True, eq=False)  # a traced weight has no value to compare
class _Regularised:
    objective: Objective
    weight: Scalar

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        losses = self.objective(params, examples, key)
        penalty = tree.norm(params, squared=True).astype(losses.dtype) / 2
        return losses + jnp.asarray(self.weight, losses.dtype) * penalty

    def check(self, params: Params, examples: PyTree) -> None:
        """Raises ValueError as the objective without the regulariser."""
        check_labels(self.objective, params, examples)


@dataclasses.dataclass(frozen=True)
class _LossAndAccuracy:
    apply: Apply
    loss: Callable[[Array, Array], Array]  # (outputs, y) -> [B]
    correct: Callable[[Array, Array], Array]  # (outputs, y) -> bool [B, ...]

    def __call__(self, params: Params, examples: PyTree) -> dict[str, Array]:
        logits, y = _outputs(self.apply, params, examples), examples["y"]
        loss = self.loss(logits, y)
        accuracy = _mean_per_example(self.correct(logits, y).astype(loss.dtype))
        return {"loss": loss, "accuracy": accuracy}


def _outputs(apply: Apply, params: Params, examples: PyTree) -> Array:
    leaves = jax.tree.leaves(params)
    floats = [leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return apply(params, as_float(examples["x"], *floats[:1]))


def _cross_entropy(logits: Array, y: Array) -> Array:
    _check_shape(y, logits.shape[:-1])
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(f"examples['y'] has dtype {y.dtype}; expected integer labels")
    target = jnp.take_along_axis(logits, y[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return _mean_per_example(jax.nn.logsumexp(logits, axis=-1) - target)


def _binary_cross_entropy(logits: Array, y: Array) -> Array:
    _check_shape(y, logits.shape)
    return jnp.logaddexp(0.0, logits) - y.astype(logits.dtype) * logits


def _squared_error(predictions: Array, y: Array) -> Array:
    _check_shape(y, predictions.shape)
    errors = (predictions - y.astype(predictions.dtype)) ** 2
    return errors.reshape(errors.shape[0], -1).sum(axis=1)


def _largest_is_label(logits: Array, y: Array) -> Array:
    return logits.argmax(axis=-1).astype(jnp.int32) == y.astype(jnp.int32)


def _sign_is_label(logits: Array, y: Array) -> Array:
    return (logits > 0) == (y.astype(logits.dtype) > 0.5)


def _mean_per_example(values: Array) -> Array:
    return values.reshape(values.shape[0], -1).mean(axis=1)


def _check_shape(y: Array, expected: tuple[int, ...]) -> None:
    if y.shape != expected:
        raise ValueError(
            f"examples['y'] has shape {y.shape}; expected {expected}, the shape of the outputs"
        )
