"""Evaluation over whole data sets, in batches, so that only one batch's activations are stored.

An evaluator is a ``jax.tree_util.Partial`` that carries its data: ``evaluator(params)`` is a dict
of scalars. It works under ``jit``, ``vmap`` over parameters and ``grad`` (which recomputes the
activations of each batch). Pass an evaluator to a jitted function as an argument; in a closure its
data would become constants of the program.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import Partial

from fedjax_sim.checks import check_at_least
from fedjax_sim.data.federated import FederatedData
from fedjax_sim.objectives import Metrics
from fedjax_sim.types import Params, PyTree


def evaluator(metrics: Metrics, examples: PyTree, batch_size: int = 1000) -> Partial:
    """Means over all N examples: ``{name: 1/N sum_n metrics(params, examples)[name][n]}``.

    Exact for any ``batch_size``: a short last batch is filled with earlier examples of weight 0.

    Args:
        metrics: ``(params, examples) -> {name: values [B]}``, for instance
            :func:`fedjax_sim.objectives.classification_metrics`.
        examples: pytree of arrays ``[N, ...]``.
        batch_size: examples evaluated at once.

    Returns:
        ``Partial``: ``params -> {name: scalar}``.

    Raises:
        ValueError: no examples, leaves of different lengths, ``batch_size`` below 1. The evaluator
            raises it for metrics that are not one value per example.

    Example:
        >>> metrics = lambda params, examples: {"error": (examples["x"] - params) ** 2}
        >>> evaluate = evaluator(metrics, {"x": jnp.array([0.0, 1.0, 5.0])}, batch_size=2)
        >>> float(evaluate(jnp.array(2.0))["error"])  # (4 + 1 + 9) / 3
        4.666666507720947
    """
    examples, batch = _checked(examples, batch_size)
    return Partial(_Means(metrics, batch), examples)


class _Means(NamedTuple):
    """Static part of an evaluator. Hashable by value, so an equal evaluator is not recompiled."""

    metrics: Metrics
    batch: int

    def __call__(self, examples: PyTree, params: Params) -> dict[str, Array]:
        def add(total, values, counted, start):
            del start
            return total + jnp.where(counted, values, jnp.zeros_like(values)).sum()

        totals = _stream(self.metrics, examples, params, self.batch, (), add)
        return {name: total / _length(examples) for name, total in totals.items()}


def client_evaluator(
    metrics: Metrics,
    data: FederatedData,
    batch_size: int = 1000,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
) -> Partial:
    """Statistics of a metric over clients.

    Let ``v_i`` be the mean of a metric over the examples of client i. ``{name}/mean`` is the mean
    of the ``v_i`` (all clients have the same weight), ``{name}/min`` and ``{name}/max`` are the
    extremes, and ``{name}/q10`` is the quantile 0.1 (with linear interpolation between clients).
    Clients without examples are excluded.

    Args:
        metrics: ``(params, examples) -> {name: values [B]}``.
        data: the clients' examples, concatenated; concrete, not traced.
        batch_size: examples evaluated at once, of any number of clients.
        quantiles: numbers in [0, 1].

    Returns:
        ``Partial``: ``params -> {name/statistic: scalar}``.

    Raises:
        ValueError: see :func:`evaluator`; a quantile outside [0, 1].

    Example:
        >>> data = FederatedData({"x": jnp.array([1.0, 3.0, 8.0])}, np.array([0, 2, 3]))
        >>> metrics = lambda params, examples: {"value": params * examples["x"]}
        >>> result = client_evaluator(metrics, data, quantiles=(0.5,))(jnp.array(1.0))
        >>> {name: float(value) for name, value in sorted(result.items())}
        {'value/max': 8.0, 'value/mean': 5.0, 'value/min': 2.0, 'value/q50': 5.0}
    """
    for quantile in quantiles:
        if not 0 <= quantile <= 1:
            raise ValueError(f"quantiles contains {quantile}; expected numbers in [0, 1]")
    examples, batch = _checked(data.examples, batch_size)
    sizes = np.asarray(data.sizes)
    sizes = sizes[sizes > 0]
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    statistics = _ClientStatistics(metrics, batch, tuple(quantiles))
    return Partial(statistics, examples, jnp.asarray(owners), jnp.asarray(sizes))


class _ClientStatistics(NamedTuple):
    """Static part of a client evaluator. Hashable by value."""

    metrics: Metrics
    batch: int
    quantiles: tuple[float, ...]

    def __call__(
        self, examples: PyTree, owners: Array, sizes: Array, params: Params
    ) -> dict[str, Array]:
        def add(totals, values, counted, start):
            # Updates in place inside the scan; the cost is independent of the number of clients.
            clients = lax.dynamic_slice_in_dim(owners, start, self.batch)
            return totals.at[clients].add(jnp.where(counted, values, jnp.zeros_like(values)))

        totals = _stream(self.metrics, examples, params, self.batch, sizes.shape, add)
        summary = {}
        for name, total in totals.items():
            means = total / sizes.astype(total.dtype)
            summary[f"{name}/mean"] = means.mean()
            summary[f"{name}/min"] = means.min()
            summary[f"{name}/max"] = means.max()
            for quantile in self.quantiles:
                level = jnp.asarray(quantile, means.dtype)
                summary[f"{name}/q{100 * quantile:g}"] = jnp.quantile(means, level)
        return summary


def merge_evaluators(**evaluators: Callable[[Params], dict[str, Any]]) -> Partial:
    """Combines evaluators into one, with results ``{prefix/name: scalar}``.

    Raises:
        ValueError: no evaluators.

    Example:
        >>> metrics = lambda params, examples: {"loss": params * examples["x"]}
        >>> train = evaluator(metrics, {"x": jnp.array([1.0, 3.0])})
        >>> test = evaluator(metrics, {"x": jnp.array([4.0])})
        >>> result = merge_evaluators(train=train, test=test)(jnp.array(1.0))
        >>> {name: float(value) for name, value in result.items()}
        {'train/loss': 2.0, 'test/loss': 4.0}
    """
    if not evaluators:
        raise ValueError("evaluators is empty; expected at least one, given by name")
    names = tuple(evaluators)
    parts = tuple(
        part if isinstance(part, Partial) else Partial(part) for part in evaluators.values()
    )
    return Partial(_All(names), parts)


class _All(NamedTuple):
    """Static part of merged evaluators."""

    names: tuple[str, ...]

    def __call__(self, parts: tuple[Partial, ...], params: Params) -> dict[str, Any]:
        return {
            f"{prefix}/{name}": value
            for prefix, part in zip(self.names, parts, strict=True)
            for name, value in part(params).items()
        }


def _stream(
    metrics: Metrics,
    examples: PyTree,
    params: Params,
    batch: int,
    shape: tuple[int, ...],
    add: Callable[[Array, Array, Array, Array], Array],
) -> dict[str, Array]:
    """Folds ``add(total, values [batch], counted [batch], start)`` over batches of examples."""
    length = _length(examples)

    def slice_at(start):
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, batch), examples)

    struct = jax.eval_shape(lambda: metrics(params, slice_at(0)))
    for name, values in struct.items():
        if values.shape != (batch,) or not jnp.issubdtype(values.dtype, jnp.floating):
            raise ValueError(
                f"metrics returns {values.dtype}{list(values.shape)} for {name!r}; expected "
                f"floating values [{batch}], one per example"
            )

    @functools.partial(jax.checkpoint, prevent_cse=False)  # not needed inside scan
    def step(totals, index):
        start = jnp.minimum(index * batch, length - batch)
        counted = start + jnp.arange(batch) >= index * batch
        values = metrics(params, slice_at(start))
        return {name: add(totals[name], values[name], counted, start) for name in totals}, None

    zeros = {name: jnp.zeros(shape, values.dtype) for name, values in struct.items()}
    totals, _ = lax.scan(step, zeros, jnp.arange(-(-length // batch)))
    return totals


def _checked(examples: PyTree, batch_size: int) -> tuple[PyTree, int]:
    examples = jax.tree.map(jnp.asarray, examples)
    lengths = sorted({leaf.shape[0] for leaf in jax.tree.leaves(examples)})
    if len(lengths) != 1 or lengths[0] == 0:
        raise ValueError(
            f"examples has leaves of lengths {lengths}; expected one common length, at least 1"
        )
    check_at_least(1, batch_size=batch_size)
    return examples, min(batch_size, lengths[0])


def _length(examples: PyTree) -> int:
    return jax.tree.leaves(examples)[0].shape[0]
