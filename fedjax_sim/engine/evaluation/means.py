"""Means of metrics over examples, and evaluators combined into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.checks import check_count
from fedjax_sim.engine.evaluation.state import EVALUATED, evaluate, takes_state
from fedjax_sim.engine.evaluation.streaming import (
    check_examples,
    check_is_metrics,
    check_metrics,
    masked,
    num_examples,
    stream,
    subsample,
)
from fedjax_sim.objectives import Metrics, finished, prepared
from fedjax_sim.types import Params, PyTree


def evaluator(
    metrics: Metrics,
    examples: PyTree,
    batch_size: int | None = None,
    *,
    max_examples: int | None = None,
    seed: int = 0,
) -> Partial:
    """Means over all N examples: ``{name: 1/N sum_n metrics(params, examples)[name][n]}``.

    Exact for any ``batch_size``: a short last batch is filled with earlier examples of weight 0.

    Args:
        metrics: ``(params, examples) -> {name: values [B]}``, for instance
            :func:`fedjax_sim.objectives.classification_metrics`.
        examples: pytree of arrays ``[N, ...]``.
        batch_size: examples evaluated at once; default by the model
            (:func:`~fedjax_sim.engine.evaluation.streaming.default_batch`).
        max_examples: evaluate at most this many examples, a fixed uniform subsample without
            replacement; the result then has their number as ``examples``.
        seed: of the subsample.

    Returns:
        ``Partial``: ``params -> {name: scalar}``.

    Raises:
        ValueError: no examples, leaves of different lengths, ``batch_size`` or ``max_examples``
            below 1. The evaluator raises it for metrics that are not one value per example.

    Example:
        >>> metrics = lambda params, examples: {"error": (examples["x"] - params) ** 2}
        >>> evaluate = evaluator(metrics, {"x": jnp.array([0.0, 1.0, 5.0])}, batch_size=2)
        >>> float(evaluate(jnp.array(2.0))["error"])  # (4 + 1 + 9) / 3
        4.666666507720947
        >>> part = evaluator(metrics, {"x": jnp.arange(9.0)}, max_examples=4)
        >>> int(part(jnp.array(2.0))["examples"])
        4
    """
    check_is_metrics(metrics)
    if max_examples is not None:
        check_count(1, max_examples=max_examples)
        examples = subsample(examples, max_examples, seed)
    examples = check_examples(prepared(metrics, examples), batch_size)
    return Partial(_Means(metrics, batch_size, max_examples is not None), examples)


class _Means(NamedTuple):
    """Static part of an evaluator. Hashable by value, so an equal evaluator is not recompiled."""

    metrics: Metrics
    batch_size: int | None
    counts: bool  # report the number of examples

    def check(self, examples: PyTree, params: Params) -> None:
        """Refuses labels and token ids that the model does not have."""
        check_metrics(self.metrics, params, examples)

    def __call__(self, examples: PyTree, params: Params) -> dict[str, Array]:
        def add(total: Array, values: Array, counted: Array, start: Array) -> Array:
            del start
            return total + masked(values, counted).sum()

        count = num_examples(examples)
        totals = stream(self.metrics, examples, params, self.batch_size, (), add)
        means = finished(self.metrics, {name: total / count for name, total in totals.items()})
        return means | ({"examples": jnp.asarray(count, jnp.int32)} if self.counts else {})


def merge_evaluators(
    *plain: Callable[[Params], dict[str, Any]], **evaluators: Callable[[Params], dict[str, Any]]
) -> Partial:
    """Combines evaluators into one, with results ``{prefix/name: scalar}``.

    Args:
        plain: evaluators whose names get no prefix, such as the one of a preset.
        evaluators: evaluators by prefix.

    Raises:
        ValueError: no evaluators, or values that are no functions. The result raises it if two
            metrics have one name, or if a part of :func:`~fedjax_sim.engine.evaluation.at_rounds`
            has no prefix beside other parts.

    Example:
        >>> metrics = lambda params, examples: {"loss": params * examples["x"]}
        >>> train = evaluator(metrics, {"x": jnp.array([1.0, 3.0])})
        >>> test = evaluator(metrics, {"x": jnp.array([4.0])})
        >>> result = merge_evaluators(train=train, test=test)(jnp.array(1.0))
        >>> {name: float(value) for name, value in result.items()}
        {'train/loss': 2.0, 'test/loss': 4.0}
        >>> sorted(merge_evaluators(train, test=test)(jnp.array(1.0)))
        ['loss', 'test/loss']
    """
    if not plain and not evaluators:
        raise ValueError("evaluators is empty; expected at least one, given by name")
    for part in (*plain, *evaluators.values()):
        if not callable(part):
            raise ValueError(
                f"evaluators has a {type(part).__name__}; expected functions of the parameters, "
                "with prefixes as keywords: merge_evaluators(train=..., test=...)"
            )
    parts = tuple(
        part if isinstance(part, Partial) else Partial(part)
        for part in (*plain, *evaluators.values())
    )
    names = (*[""] * len(plain), *evaluators)
    return Partial(_All(names, any(map(takes_state, parts))), parts)


class _All(NamedTuple):
    """Static part of merged evaluators."""

    names: tuple[str, ...]
    takes_state: bool  # of a part

    def __call__(self, parts: tuple[Partial, ...], argument: Any) -> dict[str, Any]:
        call = evaluate if self.takes_state else lambda part, params: part(params)
        merged: dict[str, Any] = {}
        for prefix, part in zip(self.names, parts, strict=True):
            for name, value in call(part, argument).items():
                full = f"{prefix}/{name}" if prefix else name
                if full == EVALUATED and len(parts) > 1:
                    raise ValueError(
                        "evaluators has a part of at_rounds without a name, or another one that "
                        "marks skipped rounds, and its mark would count for all parts; expected it "
                        "by name, as in merge_evaluators(test, slow=at_rounds(...))"
                    )
                if full in merged:
                    raise ValueError(
                        f"evaluators have two metrics {full!r}; expected different names, such as "
                        "those of evaluators that are given by name"
                    )
                merged[full] = value
        return merged
