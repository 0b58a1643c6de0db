"""Metrics per client: statistics over clients, and the values of every client."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import Partial

from fedjax_sim.checks import check_one_number
from fedjax_sim.data import FederatedData, check_clients
from fedjax_sim.engine.evaluation.names import direction
from fedjax_sim.engine.evaluation.streaming import (
    check_examples,
    check_is_metrics,
    check_metrics,
    masked,
    stream,
    wide,
)
from fedjax_sim.objectives import Metrics, finished, prepared
from fedjax_sim.types import Params, PyTree

PER_CLIENT = "per_client"  # first part of the names of arrays [M]
QUANTILES = (0.1, 0.5, 0.9)


def client_evaluator(
    metrics: Metrics,
    data: FederatedData,
    batch_size: int | None = None,
    quantiles: Sequence[float] = QUANTILES,
    *,
    per_client: bool = False,
    higher_is_better: Collection[str] | None = None,
) -> Partial:
    """Statistics of the server's model over clients, see :func:`client_statistics`.

    Let ``v_i`` be the mean of a metric over the examples of client i.  All clients have the same
    weight; clients without examples are excluded.  The clients may be others than those that train.

    Args:
        metrics: ``(params, examples) -> {name: values [B]}``.
        data: the clients' examples, concatenated; concrete, not traced.
        batch_size: examples evaluated at once, of any number of clients; default by the model.
        quantiles: numbers in [0, 1].
        per_client: also return ``per_client/{name}``, all values ``[M]`` (0 without examples), and
            ``per_client/num_examples``.  :func:`~fedjax_sim.simulate` writes these to
            ``clients.csv`` and not to the history, with ``data.client_ids`` as the column ``name``.
        higher_is_better: metrics of which the worst decile has the smallest values; default: those
            whose names say it, such as accuracies (:mod:`fedjax_sim.engine.evaluation.names`).

    Returns:
        ``Partial``: ``params -> {name/statistic: scalar}``.

    Raises:
        ValueError: see :func:`~fedjax_sim.engine.evaluation.evaluator`; a quantile outside [0, 1].

    Example:
        >>> data = FederatedData({"x": jnp.array([1.0, 3.0, 8.0])}, np.array([0, 2, 3]))
        >>> metrics = lambda params, examples: {"value": params * examples["x"]}
        >>> result = client_evaluator(metrics, data, quantiles=(0.5,))(jnp.array(1.0))
        >>> {name: round(float(result["value/" + name]), 3) for name in ("mean", "q50", "jain")}
        {'mean': 5.0, 'q50': 5.0, 'jain': 0.735}
        >>> both = client_evaluator(metrics, data, per_client=True)(jnp.array(1.0))
        >>> both["per_client/value"].tolist(), both["per_client/num_examples"].tolist()
        ([2.0, 8.0], [2, 1])
    """
    check_is_metrics(metrics)
    check_clients("data", data)
    summary = summary_of(metrics, quantiles, per_client, higher_is_better, data.client_ids)
    sizes = np.asarray(data.sizes, np.int32)
    examples = check_examples(prepared(metrics, data.examples, sizes), batch_size)
    owners = data.owners().astype(np.int32)
    statistics = _ClientStatistics(metrics, batch_size, summary)
    present = np.flatnonzero(sizes).astype(np.int32)
    return Partial(statistics, examples, *jax.device_put((owners, sizes, present)))


class _ClientStatistics(NamedTuple):
    """Static part of a client evaluator. Hashable by value."""

    metrics: Metrics
    batch_size: int | None
    summary: _Summary

    def check(self, examples: PyTree, *others: Any) -> None:
        """Refuses labels and token ids that the model, the last argument, does not have."""
        check_metrics(self.metrics, others[-1], examples)

    def __call__(
        self, examples: PyTree, owners: Array, sizes: Array, present: Array, params: Params
    ) -> dict[str, Array]:
        def add(totals: Array, values: Array, counted: Array, start: Array) -> Array:
            # Updates in place inside the scan; the cost is independent of the number of clients.
            clients = lax.dynamic_slice_in_dim(owners, start, values.shape[0])
            # A client's part of the batch is summed first: a sum of 1e6 terms, one after the
            # other, would be wrong by a percent.
            part = jnp.cumsum(jnp.diff(clients, prepend=clients[:1]) != 0)
            values = masked(values, counted)
            sums = jnp.zeros_like(values).at[part].add(values)
            owner = jnp.zeros_like(clients).at[part].set(clients)
            return totals.at[owner].add(sums)

        totals = stream(self.metrics, examples, params, self.batch_size, sizes.shape, add)
        return self.summary(totals, sizes, present)


def client_statistics(
    values: Array | np.ndarray,
    quantiles: Sequence[float] = QUANTILES,
    *,
    higher_is_better: bool = True,
) -> dict[str, Array]:
    """Statistics of one value per client, ``v [M]``, all clients with the same weight.

    ``mean``, ``min``, ``max``; ``q10``, ...: quantiles (with linear interpolation between
    clients); ``std``: standard deviation ``sqrt(1/M sum_i (v_i - mean)^2)``; ``worst_decile``: mean
    of the worst ``ceil(M / 10)`` clients; ``jain``: Jain's index of fairness
    ``(sum_i v_i)^2 / (M sum_i v_i^2)``, 1 if all values are equal, 1/M if all but one are 0.

    R. Jain, D. Chiu, W. Hawe, "A quantitative measure of fairness and discrimination for resource
    allocation in shared computer systems", DEC-TR-301, 1984.

    Args:
        values: ``[M]``, M at least 1; results are in at least float32, of integers, too.
        quantiles: numbers in [0, 1].
        higher_is_better: the worst clients have the smallest values.

    Raises:
        ValueError: values that are not ``[M]`` real numbers, or a quantile outside [0, 1].

    Example:
        >>> result = client_statistics(jnp.array([0.5, 1.0, 0.0, 0.5]), quantiles=())
        >>> {name: round(float(value), 4) for name, value in result.items()}
        {'mean': 0.5, 'min': 0.0, 'max': 1.0, 'std': 0.3536, 'worst_decile': 0.0, 'jain': 0.6667}
    """
    values = jnp.asarray(values)
    if values.ndim != 1 or not values.size or jnp.iscomplexobj(values):
        raise ValueError(
            f"values has shape {values.shape} and dtype {values.dtype}; expected real numbers [M], "
            "one per client, of at least one client"
        )
    # Positions among integers or half-precision numbers would be rounded.
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    values = values.astype(wide(values.dtype) if floating else jnp.float32)
    count = values.shape[0]
    ordered = jnp.sort(values)  # NaN last
    num_worst = -(-count // 10)

    def unless_nan(x: Array) -> Array:
        return jnp.where(jnp.isnan(ordered[-1]), ordered[-1], x)

    worst = ordered[:num_worst] if higher_is_better else ordered[count - num_worst :]
    squares = count * (values**2).sum()
    result = {"mean": values.mean(), "min": values.min(), "max": values.max()}
    for name, quantile in quantile_names(quantiles).items():
        # As jnp.quantile, which would sort once per quantile.
        position = np.asarray(quantile, values.dtype) * np.asarray(count - 1, values.dtype)
        low, high = np.floor(position), np.ceil(position)
        above = position - low
        value = ordered[int(low)]
        if above:  # 0 times an infinite value would be NaN
            value = value * (1 - above) + ordered[int(high)] * above
        result[name] = unless_nan(value)
    return result | {
        "std": values.std(),
        "worst_decile": unless_nan(worst.mean()),
        # All values 0: equal values.
        "jain": jnp.where(squares == 0, 1, values.sum() ** 2 / jnp.where(squares == 0, 1, squares)),
    }


class _Summary(NamedTuple):
    """From sums per client to results."""

    metrics: Metrics
    quantiles: tuple[float, ...]
    per_client: bool
    higher_is_better: tuple[str, ...] | None
    client_ids: tuple[str, ...] | None = None  # names of the clients, for tables

    def __call__(self, totals: dict[str, Array], sizes: Array, present: Array) -> dict[str, Array]:
        summary = {}
        for name, means in self.of_clients(totals, sizes).items():
            chosen = self.higher_is_better
            higher = direction(name) == "max" if chosen is None else name in chosen
            statistics = client_statistics(means[present], self.quantiles, higher_is_better=higher)
            summary |= {f"{name}/{statistic}": value for statistic, value in statistics.items()}
            if self.per_client:
                summary[f"{PER_CLIENT}/{name}"] = means
        if self.per_client:
            summary[f"{PER_CLIENT}/num_examples"] = sizes
        return summary

    def of_clients(self, totals: dict[str, Array], sizes: Array) -> dict[str, Array]:
        """Metrics of every client, ``[M]``."""
        counts = jnp.maximum(sizes, 1)
        means = {name: total / counts.astype(total.dtype) for name, total in totals.items()}
        return finished(self.metrics, means)


def summary_of(
    metrics: Metrics,
    quantiles: Sequence[float],
    per_client: bool,
    higher_is_better: Collection[str] | None,
    client_ids: Sequence[str] | None = None,
) -> _Summary:
    """Returns the function from sums per client, clients' sizes and present clients to results."""
    chosen = tuple(quantile_names(quantiles).values())
    higher = None if higher_is_better is None else tuple(sorted(higher_is_better))
    names = None if client_ids is None or not per_client else tuple(map(str, client_ids))
    return _Summary(metrics, chosen, per_client, higher, names)


def quantile_names(quantiles: Sequence[float]) -> dict[str, float]:
    """Returns quantiles by the names of their statistics."""
    for quantile in quantiles:
        check_one_number(quantiles=quantile)
        if not 0 <= quantile <= 1:
            raise ValueError(f"quantiles contains {quantile}; expected numbers in [0, 1]")
    return {f"q{100 * quantile:g}": quantile for quantile in quantiles}
