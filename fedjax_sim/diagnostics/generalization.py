"""Metrics on training and test data, and the gap between them."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array
from jax.tree_util import Partial

from fedjax_sim.engine import evaluator, merge_evaluators
from fedjax_sim.objectives import Metrics
from fedjax_sim.types import Params, PyTree


def generalization_gap(
    metrics: Metrics, train: PyTree, test: PyTree, batch_size: int = 1000
) -> Partial:
    """Returns an ``eval_fn`` with every metric on both sets and the difference, test minus train.

    ``gap/loss`` estimates the generalisation error ``F_D(x) - F_S(x)``. The function ``metrics``,
    with its transforms, is the same for both sets; augmentation belongs in the objective.

    Args:
        metrics: ``(params, examples) -> {name: values [B]}``.
        train: pytree of arrays ``[N, ...]``, the clients' examples (``data.examples``).
        test: the same for held-out examples.
        batch_size: examples evaluated at once.

    Returns:
        ``Partial``: ``params -> {"train/loss": ..., "test/loss": ..., "gap/loss": ...}`` for the
        metric ``"loss"``, and the same entries for the other metrics.

    Raises:
        ValueError: see :func:`fedjax_sim.engine.evaluation.evaluator`.

    Example:
        >>> import jax.numpy as jnp
        >>> metrics = lambda params, examples: {"loss": (examples["x"] - params) ** 2}
        >>> evaluate = generalization_gap(metrics, {"x": jnp.ones(3)}, {"x": jnp.zeros(2)})
        >>> {name: float(value) for name, value in evaluate(jnp.array(1.0)).items()}
        {'train/loss': 0.0, 'test/loss': 1.0, 'gap/loss': 1.0}
    """
    both = merge_evaluators(
        train=evaluator(metrics, train, batch_size), test=evaluator(metrics, test, batch_size)
    )
    return Partial(_with_gaps, both)


def metric(evaluate: Partial, name: str) -> Partial:
    """Returns one output of an evaluator as a scalar loss that carries its data.

    It suits functions that take a loss: ``optimum(metric(evaluate, "loss"), params)``.
    The loss raises ValueError if the evaluator has no output of this name.

    Example:
        >>> import jax.numpy as jnp
        >>> evaluate = Partial(lambda scale, params: {"loss": scale * params}, jnp.array(2.0))
        >>> float(metric(evaluate, "loss")(jnp.array(3.0)))
        6.0
    """
    return Partial(_Named(name), evaluate)


class _Named(NamedTuple):
    """Static part of a metric."""

    name: str

    def __call__(self, evaluate: Partial, params: Params) -> Array:
        values = evaluate(params)
        if self.name not in values:
            raise ValueError(f"name is {self.name!r}; expected one of {sorted(values)}")
        return values[self.name]


def _with_gaps(both: Partial, params: Params) -> dict[str, Any]:
    values = both(params)
    names = [name.removeprefix("train/") for name in values if name.startswith("train/")]
    return values | {
        f"gap/{name}": values[f"test/{name}"] - values[f"train/{name}"] for name in names
    }
