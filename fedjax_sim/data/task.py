"""Tasks from client data and an objective."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.checks import (
    INT32_MAX,
    called,
    check_at_most,
    check_count,
    check_takes,
    shapes_text,
)
from fedjax_sim.data.batches import Batches, Pick
from fedjax_sim.data.federated import FederatedData, from_lists, num_rows
from fedjax_sim.data.inspection import check_finite, check_numbers
from fedjax_sim.data.source import ClientSource, from_data
from fedjax_sim.objectives import batch_losses, check_labels, momentum_of, statistics_of
from fedjax_sim.tree import Where, fast, usual
from fedjax_sim.types import Oracle, Params, PyTree, Step, Summary, Task, value_text

__all__ = ["empirical_task", "shared_task"]

Objective = Callable[[Params, PyTree, Array], Array]  # (params, examples, key) -> losses [B]


def empirical_task(
    objective: Objective,
    data: FederatedData | ClientSource,
    batches: Batches,
    *,
    full_grad_batch: int = 256,
    placement: Any = None,
) -> Task:
    r"""Returns a task in which each client minimises the mean loss over its own examples.

    .. math:: F_i(x) = \frac{1}{n_i} \sum_{j=1}^{n_i} \ell(x; \xi_{ij})

    Args:
        objective: ``(params, examples, key) -> losses``, one loss per example ``[B]``.  The key,
            for augmentation or dropout, differs between steps and visits.
        data: the clients' examples, or a source that loads them.
        batches: the minibatch rule, e.g. ``epochs(5, batch_size=50)``.
        full_grad_batch: examples per block of the full local gradient.
        placement: where the clients' data and states are stored, for example
            :func:`~fedjax_sim.engine.execution.placement.by_client` or
            :func:`~fedjax_sim.engine.execution.offload.on_host`; default: whole arrays on the
            device.

    Raises:
        ValueError: the offsets are not non-decreasing from 0 to the number of examples, no client
            has examples, a visit would have more than 2^31 - 1 steps, or the placement is for
            another number of clients.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.ones((5, 2), np.float32)}, np.array([0, 2, 5]))
        >>> task = empirical_task(
        ...     lambda w, batch, key: (batch["x"] @ w - 1) ** 2, data, fs.epochs(1, batch_size=2))
        >>> task.num_steps.tolist()
        [1, 2]
        >>> oracle = task.oracle(1, jax.random.key(0), max_steps=2)
        >>> float(oracle.loss(jnp.zeros(2), 0))
        1.0
    """
    if not isinstance(data, (FederatedData, ClientSource)):
        raise ValueError(
            f"data is a {type(data).__name__}; expected FederatedData, such as "
            "fs.from_clients([...]), or a ClientSource"
        )
    check_rule(objective, batches, full_grad_batch)
    if isinstance(data, FederatedData):
        check_numbers(data.examples)
    sizes = _checked_sizes(data) if isinstance(data, FederatedData) else np.asarray(data.sizes)
    if not sizes.any():
        raise ValueError(f"data has {len(sizes)} clients without examples; expected at least one")
    # Clients without examples draw nothing.
    extremes = int(sizes[sizes > 0].min(initial=max(sizes.max(), 1))), max(int(sizes.max()), 1)

    def build(place: Place, data: Any) -> Task:
        oracle = _EmpiricalOracle(place, objective, batches, extremes, full_grad_batch)
        return _task(oracle, data, sizes)

    if placement is not None:
        source = from_data(data) if isinstance(data, FederatedData) else data
        return placement.task(source, build)
    if not isinstance(data, FederatedData):
        data = FederatedData(data.load(0, data.num_clients), np.cumsum([0, *sizes]))
    return build(_own_rows, _on_device(data))


def shared_task(
    objective: Objective,
    examples: PyTree,
    num_clients: int,
    batches: Batches,
    *,
    full_grad_batch: int = 256,
) -> Task:
    r"""Returns a task in which all clients draw from the same examples, without copies of them.

    .. math:: F_i(x) = F(x) = \frac{1}{n} \sum_{j=1}^{n} \ell(x; \xi_j), \qquad i = 1, \dots, M

    This is the homogeneous case: clients differ by their draws only.

    Args:
        objective: as in :func:`empirical_task`.
        examples: pytree of arrays ``[n, ...]``; lists of numbers are arrays.
        num_clients: the population M; ``num_examples`` is n for each of them.
        batches: the minibatch rule, e.g. ``with_replacement(1, num_steps=64)``: gradients that are
            independent between clients and steps.
        full_grad_batch: examples per block of the full gradient.

    Raises:
        ValueError: there are no clients or no examples, or leaves of different lengths or without
            numbers.

    Example:
        >>> import fedjax_sim as fs
        >>> examples = {"x": np.array([[1.0], [3.0]], np.float32)}
        >>> task = shared_task(
        ...     lambda w, batch, key: batch["x"] @ w, examples, 1000, fs.with_replacement(1, 64))
        >>> task.num_clients, int(task.num_steps.max())
        (1000, 64)
        >>> oracle = task.oracle(999, jax.random.key(0), max_steps=64)
        >>> oracle.full_grad(jnp.zeros(1)).tolist()
        [2.0]
    """
    check_count(1, num_clients=num_clients)
    check_rule(objective, batches, full_grad_batch)
    examples = from_lists(examples)
    length = num_rows(examples, "examples")
    check_numbers(examples)
    if not length:
        raise ValueError("examples has leaves of lengths [0]; expected at least one example")
    data = FederatedData(jax.tree.map(jnp.asarray, examples), np.array([0, length]))
    extremes = (length, length)
    oracle = _EmpiricalOracle(_all_rows, objective, batches, extremes, full_grad_batch)
    return _task(oracle, _on_device(data), np.full(num_clients, length))


def check_rule(objective: Objective, batches: Batches, full_grad_batch: int) -> None:
    """Refuses values that are no objective or no minibatch rule."""
    check_takes("objective", objective, ("params", "examples", "key"), " -> losses")
    if not isinstance(batches, Batches):
        raise ValueError(
            f"batches is {batches!r:.60}; expected a minibatch rule, such as "
            "fs.epochs(1, batch_size=20)"
        )
    check_count(1, full_grad_batch=full_grad_batch)


def running_statistics_of(task: Task) -> Where | None:
    """Returns the predicate of the running statistics of a task's model; None: none."""
    build = getattr(task.placement, "build", None)  # examples on the host: built again per segment
    oracle = task.oracle if build is None else build(_own_rows, None).oracle
    objective = getattr(getattr(oracle, "func", None), "objective", None)
    return None if objective is None else statistics_of(objective)


def kept_per_step(task: Task, params: Params) -> float | None:
    """Returns the part of its running statistics that a model keeps in a step; None: not known.

    Args:
        task: with data on the device; others are not known.
        params: shapes of one model.
    """
    objective = getattr(getattr(task.oracle, "func", None), "objective", None)
    data = next(iter(getattr(task.oracle, "args", ())), None)
    examples = getattr(data, "examples", None)
    if objective is None or not jax.tree.leaves(examples):
        return None
    return momentum_of(objective, *jax.eval_shape(lambda *x: x, params, examples))


def _on_device(data: FederatedData) -> FederatedData:
    # A copy to the device; `jnp.asarray` would compile a program per shape.
    data = dataclasses.replace(data, offsets=np.asarray(data.offsets, np.int32))
    return jax.device_put(data)


def _task(oracle: _EmpiricalOracle, data: Any, sizes: np.ndarray) -> Task:
    # In 64 bits, since the steps of a large client could exceed 32 bits.
    num_steps = np.asarray(oracle.batches.num_steps(np.asarray(sizes, np.int64)))
    check_at_most(INT32_MAX, num_steps=int(num_steps.max()))
    return Task(
        oracle=Partial(oracle, data),
        num_examples=sizes.astype(np.int32),
        num_steps=num_steps.astype(np.int32),
        resumable=oracle.batches.resume is not None,
    )


Place = Callable[[Any, Array], tuple[Array, Array]]  # (data, client) -> first row, number of rows


def _own_rows(data: FederatedData, client: Array) -> tuple[Array, Array]:
    """Returns a client's first row and its number of rows."""
    start = data.offsets[client]
    return start, data.offsets[client + 1] - start


def _all_rows(data: FederatedData, client: Array) -> tuple[Array, Array]:
    """Returns the first row and the number of all rows, as constants of the program."""
    del client
    return jnp.array(0, jnp.int32), jnp.array(data.num_examples, jnp.int32)


class _EmpiricalOracle(NamedTuple):
    """Static part of a task: hashable by value, so rebuilding a task does not recompile."""

    place: Place
    objective: Objective
    batches: Batches
    sizes: tuple[int, int]  # examples of the smallest and of the largest client
    full_grad_batch: int

    def _summary(self) -> Summary:
        return Summary("oracle", {"objective": value_text(self.objective)})

    def check(self, data: Any, params: Params) -> None:
        """Refuses an objective, inputs (also token ids) or labels that do not fit the model."""
        examples = getattr(data, "examples", None)
        leaves = jax.tree.leaves(examples)
        if not leaves or not leaves[0].shape[0]:  # on the host, or none at all
            return
        losses, count = losses_of_few(self.objective, params, examples)
        check_finite(examples, data.offsets)
        check_losses(losses, count)
        check_labels(self.objective, params, examples)

    def __call__(
        self, data: Any, client: Array, key: Array, max_steps: int, first_step: Array | None = None
    ) -> Oracle:
        start, size = self.place(data, client)
        rows_key, loss_key, full_key = usual(jax.random.split(fast(key), 3))
        max_size = self.sizes[1]
        if first_step is None:
            pick = self.batches.draw(rows_key, size, max_size, max_steps)
        else:
            assert self.batches.resume is not None
            pick = self.batches.resume(rows_key, size, self.sizes, first_step, max_steps)

        total = _totals(pick, max_steps)

        def gather(rows: Array) -> PyTree:
            return jax.tree.map(
                lambda x: x.at[start + rows].get(mode="promise_in_bounds"), data.examples
            )

        def minibatch(step: Step) -> tuple[PyTree, Array, Array]:
            rows, weights = pick(step)
            number = step if first_step is None else first_step + step
            key = usual(jax.random.fold_in(fast(loss_key), number))
            return gather(rows), key, weights

        def loss(params: Params, step: Step) -> Array:
            losses = batch_losses(self.objective, params, *(batch := minibatch(step)))
            return weighted_mean(losses, batch[-1], total(step))

        block = min(self.full_grad_batch, max_size)

        def block_from(first: Array) -> tuple[PyTree, Array, Array]:
            rows = first + jnp.arange(block, dtype=jnp.int32)
            valid = rows < size
            key = usual(jax.random.fold_in(fast(full_key), first))
            return gather(jnp.where(valid, rows, 0)), key, valid

        def block_sum(params: Params, first: Array) -> Array:
            losses = batch_losses(self.objective, params, *(batch := block_from(first)))
            return jnp.sum(jnp.where(batch[-1], losses, 0))

        def mean_over_blocks(function: Callable[[Any, Array], PyTree], params: PyTree) -> PyTree:
            def add_block(total: PyTree, first: Array) -> tuple[PyTree, None]:
                values = function(params, first)
                return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, values), None

            firsts = jnp.arange(0, max_size, block, dtype=jnp.int32)
            shapes = jax.eval_shape(function, params, 0)
            # In bfloat16 a sum of equal terms ends at 256 of them.
            zeros = jax.tree.map(
                lambda x: jnp.zeros(x.shape, np.promote_types(x.dtype, np.float32)), shapes
            )
            total, _ = jax.lax.scan(add_block, zeros, firsts)
            return jax.tree.map(
                lambda g, x: (g / jnp.maximum(size, 1).astype(g.dtype)).astype(x.dtype),
                total,
                shapes,
            )

        def mean(function: Callable[..., Array], step: Step | None = None) -> Callable[..., Array]:
            def of_minibatch(*models: Params) -> Array:
                assert step is not None
                examples, key, weights = minibatch(step)
                return weighted_mean(function(*models, examples, key), weights, total(step))

            def of_block(models: tuple[Params, ...], first: Array) -> Array:
                examples, key, valid = block_from(first)
                values = function(*models, examples, key)
                return jnp.where(_rows_of(valid, values), values, 0).sum(axis=0)

            if step is None:
                return lambda *models: mean_over_blocks(of_block, models)
            return of_minibatch

        return Oracle(
            grad=jax.grad(loss),
            loss=loss,
            full_grad=lambda params: mean_over_blocks(jax.grad(block_sum), params),
            full_loss=lambda params: mean_over_blocks(block_sum, params),
            mean=mean,
        )


def empirical_oracle(
    objective: Objective, batches: Batches, sizes: tuple[int, int], full_grad_batch: int
) -> _EmpiricalOracle:
    """Returns the oracle ``(data, client, key, max_steps) -> Oracle`` of clients with own rows.

    Args:
        objective, batches, full_grad_batch: as in :func:`empirical_task`.
        sizes: examples of the smallest and of the largest client.
    """
    return _EmpiricalOracle(_own_rows, objective, batches, sizes, full_grad_batch)


def losses_of_few(objective: Objective, params: Params, examples: PyTree) -> tuple[Any, int]:
    """Returns the shape of the losses of a few examples, and their number.

    No other axis has this length, so a mean over the wrong axis has another shape.
    """
    shapes = [x.shape for x in jax.tree.leaves(params)]
    shapes += [x.shape[1:] for x in jax.tree.leaves(examples)]
    axes = {n for shape in shapes for n in shape}
    count = next(n for n in itertools.count(2) if n not in axes)
    few = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), examples)
    losses = called(
        "objective",
        f"parameters {shapes_text(params)} and a batch of examples {shapes_text(few)}",
        "a function of (params, examples, key) for these names and shapes",
        lambda: jax.eval_shape(lambda p, e: objective(p, e, jax.random.key(0)), params, few),
    )
    return losses, count


def check_losses(losses: Any, count: int) -> None:
    """Refuses an objective whose losses of some examples are not one floating number each."""
    shape = getattr(losses, "shape", None)
    if shape != (count,):
        value = f"a {type(losses).__name__}" if shape is None else f"an array of shape {shape}"
        raise ValueError(
            f"objective returns {value} for {count} examples; expected ({count},), one loss per "
            "example"
        )
    # The gradient of integers is 0, and a model would stay as it is.
    if not jnp.issubdtype(losses.dtype, jnp.floating):
        raise ValueError(
            f"objective returns losses of dtype {losses.dtype}; expected a floating dtype, which "
            "has gradients"
        )


def weighted_mean(values: Array, weights: Array, total: Array | None = None) -> Array:
    """Returns ``sum(w * v) / sum(w)`` over the first axis; 0 if all weights are 0."""
    weights = weights.astype(values.dtype)
    total = jnp.sum(weights) if total is None else total.astype(values.dtype)
    weighted = _rows_of(weights, values) * values
    return jnp.sum(weighted, axis=0) / jnp.where(total > 0, total, 1)


def _rows_of(weights: Array, values: Array) -> Array:
    """Returns a number per row in a shape that broadcasts with values ``[B, ...]``."""
    return weights.reshape(*weights.shape, *[1] * (values.ndim - 1))


def _totals(pick: Pick, max_steps: int) -> Callable[[Step], Array | None]:
    """Returns the number of a step's examples by step; None unless weights are booleans."""
    steps = jnp.arange(max(max_steps, 1), dtype=jnp.int32)
    if jax.eval_shape(pick, 0)[1].dtype != bool:
        return lambda step: None
    counts = jax.vmap(lambda step: jnp.sum(pick(step)[1], dtype=jnp.int32))(steps)
    return lambda step: jax.lax.dynamic_index_in_dim(
        counts, jnp.asarray(step, jnp.int32), keepdims=False
    )


def _checked_sizes(data: FederatedData) -> np.ndarray:
    offsets = np.asarray(data.offsets)
    sizes = np.diff(np.atleast_1d(offsets))
    if offsets.ndim != 1 or len(sizes) < 1 or offsets[0] != 0 or (sizes < 0).any():
        raise ValueError(
            f"data.offsets has shape {offsets.shape} and starts with "
            f"{offsets.ravel()[:5].tolist()}; expected non-decreasing numbers from 0, one more "
            "than clients"
        )
    if data.client_ids is not None and len(data.client_ids) != len(sizes):
        raise ValueError(
            f"data.client_ids has {len(data.client_ids)} names; expected {len(sizes)}, one per "
            "client"
        )
    if not np.issubdtype(offsets.dtype, np.integer):
        raise ValueError(f"data.offsets has dtype {offsets.dtype}; expected integers")
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(data.examples)}
    if lengths != {int(offsets[-1])}:
        raise ValueError(
            f"data.examples has leaves of lengths {sorted(lengths)}; "
            f"expected {int(offsets[-1])}, the last offset"
        )
    return sizes
