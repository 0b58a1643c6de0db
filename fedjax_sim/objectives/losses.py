"""Losses and hits of outputs and labels, one value per example.

Losses of outputs in half precision are computed in float32, and rounded at the end.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import INT32_MAX, check_at_most, check_count


def softmax(logits: Array, y: Array) -> Array:
    """``log sum_c exp(z_c) - z_y``, the mean over positions: ``[B, ..., C], [B, ...] -> [B]``."""
    return mean_per_example(_softmax(logits, y)).astype(logits.dtype)


@dataclasses.dataclass(frozen=True)
class MaskedSoftmax:
    """:func:`softmax` without the positions of one label."""

    ignore: int

    def __post_init__(self) -> None:
        """Refuses a label that is no integer, to which no label is equal."""
        check_count(-INT32_MAX, ignore=self.ignore)
        check_at_most(INT32_MAX, ignore=self.ignore)

    def counts(self, y: Array) -> Array:
        """True for the labels that are not ignored."""
        return y.astype(jnp.int32) != int(self.ignore)  # -1 as a byte would be the label 255

    def __call__(self, logits: Array, y: Array) -> Array:
        counts = self.counts(y)
        losses = mean_per_example(_softmax(logits, jnp.where(counts, y, 0)), counts)
        return losses.astype(logits.dtype)


def logistic(logits: Array, y: Array) -> Array:
    """``log(1 + exp(z)) - y z``: ``[B], [B] -> [B]``."""
    _check_outputs(logits)
    _check_targets(y, logits.shape)
    z = tree.wide(logits)
    y = y.astype(z.dtype)
    # log(1 + e^z) - y z = log(1 + e^-z) + (1 - y) z. The nearer label is 0 in both, where nothing
    # of the size of z cancels.
    is_one = y > 0.5
    z, rest = jnp.where(is_one, -z, z), jnp.where(is_one, 1 - y, y)
    # 0 times an infinite z would be NaN.
    return (jnp.logaddexp(0.0, z) - rest * jnp.where(rest == 0, 0, z)).astype(logits.dtype)


def errors_of(predictions: Array, y: Array) -> Array:
    """Predictions minus targets, in at least float32: ``[B, ...], [B, ...] -> [B, ...]``.

    Predictions may be those of one output, ``[B, 1]``.
    """
    _check_outputs(predictions)
    if predictions.shape == (*y.shape, 1):
        predictions = predictions[..., 0]
    _check_targets(y, predictions.shape)
    predictions = tree.wide(predictions)
    return predictions - y.astype(predictions.dtype)


def squared(predictions: Array, y: Array) -> Array:
    """Sum of squared errors: ``[B, ...], [B, ...] -> [B]``."""
    errors = errors_of(predictions, y) ** 2
    return jax.lax.collapse(errors, 1).sum(axis=1).astype(predictions.dtype)


@dataclasses.dataclass(frozen=True)
class Huber:
    """Sum over outputs of ``e^2 / 2``, linear beyond ``delta``: ``[B, ...], [B, ...] -> [B]``."""

    delta: float = 1.0

    def __call__(self, predictions: Array, y: Array) -> Array:
        size = jnp.abs(errors_of(predictions, y))
        near = jnp.minimum(size, self.delta)
        values = near * (size - near / 2)  # e^2 / 2, or delta (|e| - delta / 2)
        return jax.lax.collapse(values, 1).sum(axis=1).astype(predictions.dtype)


def largest_is_label(logits: Array, y: Array) -> Array:
    """True where the label has the largest logit: ``[B, ..., C], [B, ...] -> [B, ...]``."""
    # The position of NaN is that of the largest logit for JAX: a diverged model would be right for
    # all examples of the first class.
    known = ~jnp.isnan(logits).any(axis=-1)
    return known & (logits.argmax(axis=-1).astype(jnp.int32) == y.astype(jnp.int32))


def sign_is_label(logits: Array, y: Array) -> Array:
    """True where the logit's sign agrees with the label: ``[B], [B] -> [B]``."""
    return ~jnp.isnan(logits) & ((logits > 0) == (y.astype(logits.dtype) > 0.5))


def _softmax(logits: Array, y: Array) -> Array:
    """``log sum_c exp(z_c) - z_y`` in at least float32: ``[B, ..., C], [B, ...] -> [B, ...]``."""
    _check_outputs(logits)
    if y.shape != logits.shape[:-1]:
        raise ValueError(
            f"examples['y'] has shape {y.shape}; expected {logits.shape[:-1]}, since the outputs "
            f"[..., classes] have shape {logits.shape}"
        )
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(f"examples['y'] has dtype {y.dtype}; expected integer labels")
    y, logits = y.astype(jnp.int32), tree.wide(logits)
    target = jax.lax.platform_dependent(logits, y, cpu=_gathered, default=_selected)
    # Relative to the largest logit: a small loss would be lost beside logits that are large.
    largest = jax.lax.stop_gradient(logits.max(axis=-1))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    return jnp.log(jnp.exp(logits - largest[..., None]).sum(axis=-1)) - (target - largest)


def _gathered(logits: Array, y: Array) -> Array:
    return jnp.take_along_axis(logits, y[..., None], axis=-1)[..., 0]


def _selected(logits: Array, y: Array) -> Array:
    """Returns the same as :func:`_gathered`, without a scatter in its gradient.

    On an accelerator a scatter is a kernel of its own; a selection is fused with its neighbours.
    """
    classes = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.where(y[..., None] == classes, logits, 0).sum(axis=-1)


def mean_per_example(values: Array, counts: Array | None = None) -> Array:
    """Returns the mean over all axes but the first; only of entries that count."""
    values = jax.lax.collapse(values, 1)
    if counts is None:
        return values.mean(axis=1)
    counts = counts.reshape(values.shape)
    number = counts.sum(axis=1).astype(values.dtype)
    return jnp.where(counts, values, 0).sum(axis=1) / jnp.maximum(number, 1)


def _check_outputs(outputs: Any) -> None:
    """Refuses outputs of a model that are no array, or that have no gradients."""
    dtype = getattr(outputs, "dtype", None)
    if dtype is None:
        raise ValueError(f"model returns a {type(outputs).__name__}; expected an array [B, ...]")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"model returns outputs of dtype {dtype}; expected a floating dtype, which has "
            "gradients"
        )


def _check_targets(y: Array, shape: tuple[int, ...]) -> None:
    """Refuses targets of another shape than the outputs, and complex ones."""
    if y.shape != shape:
        raise ValueError(
            f"examples['y'] has shape {y.shape}; expected {shape}, the shape of the outputs"
        )
    if jnp.iscomplexobj(y):
        raise ValueError(f"examples['y'] has dtype {y.dtype}; expected real numbers")
