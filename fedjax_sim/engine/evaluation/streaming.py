"""Folds of metrics over batches of examples; only one batch's activations are stored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_sim.checks import called, check_count, check_takes, seeded, shapes_text
from fedjax_sim.data import check_finite, check_numbers, from_lists
from fedjax_sim.engine.execution.strategies import has_kernels
from fedjax_sim.objectives import Metrics, check_labels
from fedjax_sim.types import Params, PyTree
from fedjax_sim.types.platforms import CHOICES, Platform

# Examples per batch, by CPU time per example on two x86 cores (1 MB of L2 cache per core). LeNet-5:
# 41 us at 50, 54 at 100, 141 at 1,000; FEMNIST CNN: 550 us at 25, 710 at 50, 890 at 200; dense
# 784-200-200-10: 5.0 us at 50, 3.7 at 1,000. Activations and patches of a convolution should stay
# in the cache; a dense layer should read its matrix seldom.
_BATCH = 1000

# add(total, values [batch], counted bool [batch], start) -> total
Add = Callable[[Array, Array, Array, Array], Array]


def stream(
    metrics: Metrics,
    examples: PyTree,
    params: Params,
    batch_size: int | None,
    shape: tuple[int, ...],
    add: Add,
) -> dict[str, Array]:
    """Folds ``add(total, values [batch], counted [batch], start)`` over batches of examples.

    Args:
        metrics: ``(params, examples) -> {name: values [B]}``.
        examples: pytree of arrays ``[N, ...]``.
        params: of one model.
        batch_size: examples per batch; None: by the model, see :func:`default_batch`.
        shape: shape of a total, which begins at zero, in at least float32.
        add: ``counted`` is False for examples that an earlier batch had; ``start`` is the number
            of the batch's first example.
    """

    def fold(batch: int) -> Callable[[Params, PyTree], dict[str, Array]]:
        return lambda params, examples: _fold(metrics, examples, params, batch, shape, add)

    return in_batches(fold, params, examples, batch_size)


def in_batches(
    fold: Callable[[int], Callable[[Params, PyTree], Any]],
    params: Params,
    examples: PyTree,
    batch_size: int | None,
) -> Any:
    """Returns ``fold(batch)(params, examples)`` for batches of the default size of the platform."""
    length = num_examples(examples)
    if batch_size is not None:
        return fold(min(batch_size, length))(params, examples)
    on_cpu = min(default_batch(params, "cpu"), length)
    elsewhere = min(default_batch(params, "gpu"), length)
    if on_cpu == elsewhere:
        return fold(on_cpu)(params, examples)
    return lax.platform_dependent(params, examples, cpu=fold(on_cpu), default=fold(elsewhere))


def _fold(
    metrics: Metrics, examples: PyTree, params: Params, batch: int, shape: tuple[int, ...], add: Add
) -> dict[str, Array]:
    length = num_examples(examples)

    def slice_at(start: Array | int) -> PyTree:
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, batch), examples)

    struct = value_shapes(metrics, params, jax.eval_shape(slice_at, 0))

    @functools.partial(jax.checkpoint, prevent_cse=False)  # not needed inside scan
    def step(totals: dict[str, Array], index: Array) -> tuple[dict[str, Array], None]:
        start = jnp.minimum(index * batch, length - batch)
        counted = start + jnp.arange(batch) >= index * batch
        values = metrics(params, slice_at(start))
        return {name: add(totals[name], values[name], counted, start) for name in totals}, None

    zeros = {name: jnp.zeros(shape, wide(values.dtype)) for name, values in struct.items()}
    totals, _ = lax.scan(step, zeros, jnp.arange(-(-length // batch)))
    return totals


def default_batch(params: Params, platform: Platform) -> int:
    """Returns the examples per batch for a model: small batches for convolutions on a CPU."""
    return CHOICES[platform].evaluation_batch if has_kernels(params) else _BATCH


def value_shapes(
    metrics: Metrics, params: Params, examples: PyTree
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a batch's metrics."""
    # A function of its own, since JAX keeps weak references, which NamedTuples do not have.
    struct = called(
        "metrics",
        f"parameters {shapes_text(params)} and examples {shapes_text(examples)}",
        "a function of (params, examples) -> {name: values [B]}",
        lambda: jax.eval_shape(lambda *x: metrics(*x), params, examples),
    )
    if not isinstance(struct, Mapping):
        raise ValueError(f"metrics returns {struct!r:.60}; expected a dict of values by name")
    batch = num_examples(examples)
    for name, values in struct.items():
        array = hasattr(values, "dtype")
        fits = array and values.shape == (batch,) and jnp.issubdtype(values.dtype, jnp.floating)
        if not fits:
            found = f"{values.dtype}{list(values.shape)}" if array else f"{values!r:.60}"
            raise ValueError(
                f"metrics returns {found} for {name!r}; expected "
                f"floating values [{batch}], one per example"
            )
    return dict(struct)


def wide(dtype: np.dtype) -> np.dtype:
    """Returns the dtype of sums of a metric: at least float32.

    A sum of ones in bfloat16 ends at 256, since 257 is rounded to 256.
    """
    return np.promote_types(dtype, np.float32)


def masked(values: Array, counted: Array) -> Array:
    """Returns the values that count, and zeros, in the dtype of sums (:func:`wide`)."""
    return jnp.where(counted, values, jnp.zeros_like(values)).astype(wide(values.dtype))


def check_examples(examples: PyTree, batch_size: int | None) -> PyTree:
    """Returns the examples as arrays."""
    examples = from_lists(examples)
    _check_lengths(examples)
    check_numbers(examples)
    if batch_size is not None:
        check_count(1, batch_size=batch_size)
    return jax.device_put(examples)


def check_is_metrics(metrics: Any) -> None:
    """Refuses what is no function of parameters and examples."""
    check_takes("metrics", metrics, ("params", "examples"), " -> {name: values [B]}")


def check_metrics(metrics: Metrics, params: Params, examples: PyTree) -> None:
    """Refuses examples that are not finite, labels and token ids that the model does not have."""
    few = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), examples)
    try:
        value_shapes(metrics, params, few)
    except Exception:  # an algorithm may evaluate other models than the setup's; the run refuses
        return
    check_finite(examples)
    check_labels(metrics, params, examples)


def _check_lengths(examples: PyTree) -> None:
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(examples)]
    if () in shapes:
        raise ValueError("examples has a leaf of shape (); expected [N, ...], N examples")
    lengths = sorted({shape[0] for shape in shapes})
    if len(lengths) != 1 or lengths[0] == 0:
        raise ValueError(
            f"examples has leaves of lengths {lengths}; expected one common length, at least 1"
        )


def subsample(examples: PyTree, count: int, seed: int = 0) -> PyTree:
    """Returns ``count`` examples drawn without replacement, in their order; all if there are fewer.

    The draw is uniform over the examples, not stratified by label or client, and the same for equal
    ``count`` and ``seed``.

    Raises:
        ValueError: a count below 1; no examples, or leaves of different lengths.

    Example:
        >>> subsample({"x": np.arange(10)}, 4)["x"].shape, subsample({"x": np.arange(3)}, 4)["x"]
        ((4,), array([0, 1, 2]))
    """
    check_count(1, count=count)
    _check_lengths(examples)
    total = num_examples(examples)
    if total <= count:
        return examples
    rows = np.sort(seeded(seed).choice(total, count, replace=False))
    return jax.tree.map(lambda x: x[rows], examples)


def num_examples(examples: PyTree) -> int:
    """Returns the length of the leaves."""
    return jax.tree.leaves(examples)[0].shape[0]
