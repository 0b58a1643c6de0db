r"""Influence of clients and of examples on the final metric, by differentiating the whole run.

Influence functions: P. W. Koh, P. Liang, "Understanding black-box predictions via influence
functions", ICML 2017; here the derivative of the finite run and not of a minimiser.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.checks import check_count, check_is_algorithm
from fedjax_sim.data import FederatedData
from fedjax_sim.engine import Execution, weights_by_round
from fedjax_sim.objectives import batch_losses, check_labels, statistics_of
from fedjax_sim.runs import Mode, sign
from fedjax_sim.studies.hypergradients.checkpointing import Checkpoint
from fedjax_sim.studies.hypergradients.hypergradient import Hypergradient, hypergradient
from fedjax_sim.studies.valuation.metrics import Metric, evaluated_once
from fedjax_sim.studies.valuation.result import Valuation
from fedjax_sim.types import FedAlgorithm, Oracle, Params, PyTree, Setup, Work


def influence(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    metric: Metric,
    *,
    mode: Mode = None,
    checkpoint: Checkpoint = "sqrt",
    execution: Execution | None = None,
) -> Valuation:
    r"""Returns the derivative of the final metric with respect to the clients' weights.

    Uploads are averaged with weights :math:`w_i / \sum_{\mathrm{cohort}} w`.  The influence

    .. math:: I_i = -w_i \frac{\partial L(x_T)}{\partial w_i}

    is to first order the leave-one-out value (the opposite sign if large values are good).  Only
    ratios of weights matter, so :math:`\sum_i I_i = 0`: a client counts relative to the others,
    unlike with Shapley values, which sum to :math:`v(N)`.  A metric that is piecewise constant,
    such as an accuracy, has the derivative 0.

    Args:
        algorithm: any algorithm that accepts weights.
        setup: of one run; the weights are those of ``setup.weighting``.
        key: of the run.
        metric: as for :func:`fedjax_sim.studies.valuation.game`.
        mode: direction of the metric, as for :func:`fedjax_sim.studies.valuation.game`.
        checkpoint: states that are stored for the derivative, which takes the time of about five
            runs for any number of clients, as for :func:`fedjax_sim.hypergradient`.
        execution: execution strategy.

    Raises:
        ValueError: a client of the timeline has weight 0, where the mean has no derivative; an
            algorithm that requires equal weights; as :func:`fedjax_sim.studies.valuation.game`.
        FloatingPointError: the metric or a derivative is not finite, since the run diverged.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 2.0, 6.0])}, np.arange(4))
        >>> loss = lambda w, examples, key: (w - examples["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 3, task.num_steps), jnp.zeros(()))
        >>> loss = lambda w: (w - 2) ** 2 / 2
        >>> result = influence(fs.fedavg(1.0), setup, jax.random.key(0), loss, mode="min")
        >>> result.values.round(4).tolist()  # the model is 3
        [0.6667, 0.3333, -1.0]
    """
    check_is_algorithm(algorithm)
    if algorithm.requires.uniform_weights is not None:
        raise ValueError(
            "algorithm requires equal weights of all uploads; expected one that accepts others: "
            f"{algorithm.requires.uniform_weights}"
        )
    setup, name = evaluated_once(algorithm, setup, key, metric, mode)
    _check_weights(setup)

    def setup_of(factors: Array, setup: Setup) -> Setup:
        def weighting(work: Work) -> Array:
            return jnp.asarray(base(work), factors.dtype) * factors[work.client]

        return dataclasses.replace(setup, weighting=weighting)

    base = setup.weighting
    derivative = hypergradient(
        name, lambda factors: algorithm, setup, key, setup_of=setup_of, mode="reverse",
        checkpoint=checkpoint, execution=execution,
    )  # fmt: skip
    factors = jnp.ones(setup.task.num_clients, jnp.result_type(float))
    return _result("influence", name, mode, derivative(factors))


def example_influence(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    metric: Metric,
    client: int,
    *,
    mode: Mode = None,
    checkpoint: Checkpoint = "sqrt",
    execution: Execution | None = None,
) -> Valuation:
    r"""Returns the derivative of the final metric with respect to one client's examples' weights.

    The client's losses are :math:`e_j \ell(x; \xi_{ij})`, in every minibatch divided by the number
    of its examples, with all :math:`e_j = 1`; so are the terms of algorithms that average losses of
    outputs over the examples (:func:`fedjax_sim.fedntd`).  The influence
    :math:`I_j = -\partial L(x_T) / \partial e_j` is to first order the value that is lost if
    example j had no gradient.

    Args:
        client: number of the client.
        setup: as for :func:`influence`; the task is one of :func:`fedjax_sim.empirical_task`
            without a placement.
        algorithm, key, metric, mode, checkpoint, execution: as for :func:`influence`.

    Returns:
        A value per example of the client, in the order of its rows.

    Raises:
        ValueError: an unknown client, another kind of task, a model with running statistics,
        FloatingPointError: as :func:`influence`.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0, 6.0])}, np.array([0, 2, 3]))
        >>> loss = lambda w, examples, key: (w - examples["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.zeros(()))
        >>> metric = lambda w: (w - 5) ** 2 / 2
        >>> result = example_influence(
        ...     fs.fedavg(1.0), setup, jax.random.key(0), metric, 0, mode="min")
        >>> result.values.tolist()  # the model is ((1 + 3) / 2 + 6) / 2 = 4
        [0.25, 0.75]
    """
    check_count(client=client)
    setup, name = evaluated_once(algorithm, setup, key, metric, mode)
    start, stop = _rows(setup, client)

    def setup_of(weights: Array, setup: Setup) -> Setup:
        oracle: Any = setup.task.oracle
        data, static = oracle.args[0], oracle.func
        every = jnp.ones(data.num_examples, weights.dtype).at[start:stop].set(weights)
        data = dataclasses.replace(data, examples=(data.examples, every))
        static = static._replace(objective=_Weighted(static.objective))
        task = dataclasses.replace(setup.task, oracle=Partial(_WeightedOracle(static), data))
        return dataclasses.replace(setup, task=task)

    derivative = hypergradient(
        name, lambda weights: algorithm, setup, key, setup_of=setup_of, mode="reverse",
        checkpoint=checkpoint, execution=execution,
    )  # fmt: skip
    weights = jnp.ones(stop - start, jnp.result_type(float))
    return _result("example influence", name, mode, derivative(weights))


class _Weighted(NamedTuple):
    """Objective whose losses are multiplied by the examples' weights."""

    objective: Callable

    def __call__(self, params: Params, examples: PyTree, key: Array) -> Array:
        inner, weight = examples
        losses = self.objective(params, inner, key)
        return losses * weight.astype(losses.dtype)

    def weighted(self, params: Params, examples: PyTree, key: Array, weights: Array) -> Array:
        inner, weight = examples
        losses = batch_losses(self.objective, params, inner, key, weights)
        return losses * weight.astype(losses.dtype)

    def check(self, params: Params, examples: PyTree) -> None:
        check_labels(self.objective, params, examples[0])


class _WeightedOracle(NamedTuple):
    """Static part of a task whose examples have weights beside them."""

    inner: Any  # static part of the same task, with a weighted objective

    @property
    def objective(self) -> Callable:
        """Objective of the examples with weights."""
        return self.inner.objective

    def check(self, data: Any, params: Params) -> None:
        self.inner.check(data, params)

    def __call__(self, data: Any, *visit: Any, **options: Any) -> Oracle:
        oracle = self.inner(data, *visit, **options)

        def mean(function: Callable, *step: Any) -> Callable[..., Array]:
            return oracle.mean(_weighted(function), *step)

        return oracle._replace(mean=mean)


def _weighted(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns a function of models, examples with weights and a key, ``[B, ...]``."""

    def values(*arguments: Any) -> Array:
        *models, (examples, weight), key = arguments
        result = function(*models, examples, key)
        return result * jnp.expand_dims(weight, range(1, result.ndim)).astype(result.dtype)

    return values


def _result(method: str, name: str, mode: Mode, result: Hypergradient) -> Valuation:
    """Returns the result; its cost is in runs: reverse mode takes about as long as five."""
    gradient = np.asarray(result.gradient, np.float64)
    if not np.isfinite(gradient).all() or not np.isfinite(result.value):
        raise FloatingPointError(
            f"{name} is {float(result.value)} with {(~np.isfinite(gradient)).sum()} of "
            f"{len(gradient)} derivatives that are not finite; expected finite numbers: try a "
            "smaller learning rate"
        )
    return Valuation(method, sign(name, mode) * gradient, None, 5)


def _check_weights(setup: Setup) -> None:
    """Refuses clients of weight 0, whose uploads the mean leaves out with all derivatives."""
    timeline = setup.timeline
    weights = np.asarray(weights_by_round(setup.task, timeline, setup.weighting))
    without = np.asarray(timeline.arrived) & (weights <= 0)
    if without.any():
        first = np.unravel_index(without.argmax(), without.shape)
        raise ValueError(
            f"setup.weighting is {weights[first]:g} for client {int(timeline.clients[first])}; "
            "expected positive weights: the mean leaves out uploads of weight 0, so its derivative "
            "there is 0"
        )


def _rows(setup: Setup, client: int) -> tuple[int, int]:
    """Returns the rows of a client; refuses tasks whose examples have no weights."""
    data: Any = (*getattr(setup.task.oracle, "args", ()), None)[0]
    objective = getattr(getattr(setup.task.oracle, "func", None), "objective", None)
    own = isinstance(data, FederatedData) and data.num_clients == setup.task.num_clients
    if not own or objective is None or setup.task.placement is not None:
        raise ValueError(
            "setup.task has no rows of its clients on the device; expected a task of "
            "fs.empirical_task without a placement"
        )
    if statistics_of(objective) is not None:
        raise ValueError(
            "setup.task has a model with running statistics; expected one without: statistics are "
            "no function of the losses"
        )
    if not 0 <= client < setup.task.num_clients:
        raise ValueError(f"client is {client}; expected 0 .. {setup.task.num_clients - 1}")
    start, stop = (int(x) for x in np.asarray(data.offsets)[client : client + 2])
    if start == stop:
        raise ValueError(f"client is {client}, which has no examples; expected one with examples")
    return start, stop
