"""Personal models: the model that each client uses itself, on the client's own examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import Partial

from fedjax_sim.data import FederatedData, check_clients
from fedjax_sim.engine.evaluation.clients import QUANTILES, summary_of
from fedjax_sim.engine.evaluation.context import RunContext, context_of
from fedjax_sim.engine.evaluation.streaming import (
    check_examples,
    check_is_metrics,
    check_metrics,
    masked,
    num_examples,
    value_shapes,
)
from fedjax_sim.engine.evaluation.visits import check_states, client_row, current_broadcast, visits
from fedjax_sim.objectives import Metrics, finished, prepared
from fedjax_sim.types import ClientState, Oracle, Params, PyTree, Task, Work

Personal = Callable[[Params, Any], Params]  # (server's parameters, client's state) -> parameters
Totals = dict[str, Array]


def personal_evaluator(
    metrics: Metrics,
    data: FederatedData,
    personal: Personal | None = None,
    batch_size: int | None = None,
    quantiles: Sequence[float] = QUANTILES,
    *,
    unseen: Task | None = None,
    first_visit: bool = False,
    per_client: bool = False,
    higher_is_better: Collection[str] | None = None,
) -> Partial:
    r"""Statistics over clients of personal models: client i's model on client i's examples.

    The model is the algorithm's own (``FedAlgorithm.personal``), computed from the current
    broadcast, the client's state and the client's training data; without one, it is the server's.
    So one setup evaluates every algorithm: joined leaves (FedPer), a second model (Ditto), a choice
    among models (IFCA), fine-tuning.  Evaluation changes no state.  Clients are evaluated one after
    the other, so one model is stored; a model is computed once per evaluation.

    Statistics are those of :func:`~fedjax_sim.engine.evaluation.client_statistics`, all clients
    with the same weight, and ``weighted_mean``, the mean over all examples:

    .. math:: \frac{\sum_i n_i v_i}{\sum_i n_i}

    for values :math:`v_i` of clients with :math:`n_i` evaluated examples (of a root mean square the
    root of this mean of squares).

    With ``unseen`` the clients are others, which never train.  Their training data are those of the
    task ``unseen``, and their state is that of a new client, ``init_client(x)``, with the server's
    model x.  With ``first_visit`` such a client first does the local work of one visit, so that
    second models and heads are trained; its upload is discarded.  Its number in ``Work`` is M more
    than in ``unseen``, so it is none of the M clients: in a network it has the mean model.

    The evaluator receives the run (:mod:`fedjax_sim.engine.evaluation.state`), as in the setup of
    ``run``, ``simulate``, ``compare`` and ``sweep``.  States of clients must be on one device.

    Args:
        metrics, batch_size, quantiles, per_client, higher_is_better: as for
            :func:`~fedjax_sim.engine.evaluation.client_evaluator`.
        data: examples of the M clients, in the task's order: the clients' own test examples.
        personal: ``(server's parameters, state of one client) -> parameters`` instead of the
            algorithm's own model; the evaluator then needs the run's state only.
        unseen: task of the training data of other clients, those of ``data``.
        first_visit: unseen clients do one visit before the evaluation.

    Raises:
        ValueError: as :func:`~fedjax_sim.engine.evaluation.client_evaluator`; ``unseen`` is a task
            of another number of clients, or placed; ``first_visit`` without ``unseen``, or
            ``unseen`` with ``personal``.
            The evaluator raises it for clients' states or examples that are not on one device.

    Example:
        >>> import fedjax_sim as fs
        >>> train = FederatedData({"x": jnp.array([1.0, 1.0, 8.0])}, np.array([0, 2, 3]))
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, train, fs.full_batch(1))
        >>> metrics = lambda w, examples: {"error": jnp.abs(examples["x"] - w)}
        >>> setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.array(0.0),
        ...                  eval_fn=personal_evaluator(metrics, train))
        >>> tuned = fs.fine_tuned(fs.fedavg(0.0), lr=0.5, steps=1)  # models 0.5 and 4
        >>> _, history = fs.run(tuned, setup, jax.random.key(0))
        >>> [float(history.metrics[f"error/{name}"][0]) for name in ("max", "mean")]
        [4.0, 2.25]
        >>> round(float(history.metrics["error/weighted_mean"][0]), 3)  # (0.5 + 0.5 + 4) / 3
        1.667
    """
    check_is_metrics(metrics)
    check_clients("data", data)
    summary = summary_of(metrics, quantiles, per_client, higher_is_better, data.client_ids)
    sizes = np.asarray(data.sizes, np.int32)
    examples = check_examples(prepared(metrics, data.examples, sizes), batch_size)
    new = None if unseen is None else _checked_unseen(unseen, len(sizes), personal, first_visit)
    if first_visit and new is None:
        raise ValueError("first_visit is True; expected a task of clients with it, unseen")
    batch = _batch(sizes, 32 if batch_size is None else batch_size)
    chunks = _chunks(np.asarray(data.offsets), batch)
    present = np.flatnonzero(sizes).astype(np.int32)
    statistics = _PersonalStatistics(metrics, personal, batch, summary, new)
    return Partial(statistics, examples, chunks, *jax.device_put((sizes, present)), unseen)


class _Unseen(NamedTuple):
    """Static part of an evaluation of clients that never train."""

    max_steps: int
    first_visit: bool


class _Chunks(NamedTuple):
    """Batches that hold examples of one client each, ordered by client; K of them."""

    owner: Array  # [K] int
    first: Array  # [K] int    first example that counts
    size: Array  # [K] int    examples that count


class _PersonalStatistics(NamedTuple):
    """Static part of a personal evaluator. Hashable by value."""

    metrics: Metrics
    personal: Personal | None
    batch: int
    summary: Callable[[Totals, Array, Array], Totals]
    unseen: _Unseen | None
    takes_state = True

    def check(self, examples: PyTree, *others: Any) -> None:
        """Refuses labels and token ids that the model, the last argument, does not have."""
        if self.personal is None:  # whose models may have other outputs
            check_metrics(self.metrics, others[-1], examples)

    def __call__(
        self,
        examples: PyTree,
        chunks: _Chunks,
        sizes: Array,
        present: Array,
        unseen: Task | None,
        run: Any,
    ) -> Totals:
        model = self._models(context_of(run), unseen, sizes.shape[0])
        length = num_examples(examples)

        def slice_at(start: Array | int) -> PyTree:
            return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, self.batch), examples)

        def evaluate(last: tuple[Array, Params], chunk: _Chunks) -> tuple[tuple, Totals]:
            # The owner is common to all seeds, so this remains a branch under vmap.
            params = lax.cond(chunk.owner == last[0], lambda: last[1], lambda: model(chunk.owner))
            start = jnp.minimum(chunk.first, jnp.int32(length - self.batch))
            row = start + jnp.arange(self.batch, dtype=jnp.int32)
            counted = (row >= chunk.first) & (row < chunk.first + chunk.size)
            values = self.metrics(params, slice_at(start))
            sums = {name: masked(x, counted).sum() for name, x in values.items()}
            return (chunk.owner, params), sums

        nobody = jnp.array(-1, jnp.int32)
        empty = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(model, chunks.owner[0])
        )
        value_shapes(self.metrics, empty, jax.eval_shape(slice_at, 0))
        _, sums = lax.scan(evaluate, (nobody, empty), chunks)
        totals = {
            name: jnp.zeros(sizes.shape, x.dtype).at[chunks.owner].add(x)
            for name, x in sums.items()
        }
        means = {
            name: total.sum() / sizes.sum().astype(total.dtype) for name, total in totals.items()
        }
        weighted = finished(self.metrics, means)
        return self.summary(totals, sizes, present) | {
            f"{name}/weighted_mean": value for name, value in weighted.items()
        }

    def _models(
        self, context: RunContext, unseen: Task | None, num_clients: int
    ) -> Callable[[Array], Params]:
        """Returns the function from a client's number to its model."""
        state, algorithm, task = context.state, context.algorithm, context.task
        if self.personal is not None:
            own = self.personal
            check_states(state.clients, num_clients)
            return lambda client: own(state.server.params, client_row(state.clients, client))
        if algorithm is None or task is None or context.key is None:
            raise ValueError(
                "the evaluator receives a state without its algorithm and task; expected "
                "evaluate(evaluator, RunContext(...)), or a function personal"
            )
        if unseen is None and task.num_clients != num_clients:
            raise ValueError(
                f"data has {num_clients} clients; expected {task.num_clients}, those of the task, "
                "or the task of other clients, unseen"
            )
        compute = algorithm.personal
        if compute is None and not (self.unseen and self.unseen.first_visit):
            return lambda client: state.server.params
        message, key = current_broadcast(context)

        def computed(own: ClientState, oracle: Oracle, work: Work) -> Params:
            if compute is None:
                return state.server.params
            return compute(message, own, oracle, work)

        if unseen is None:
            if jax.tree.leaves(state.clients):
                check_states(state.clients, num_clients)
            visit = visits(task, context.max_steps, state.round, key)
            return lambda client: computed(client_row(state.clients, client), *visit(client))

        assert self.unseen is not None
        first, others = self.unseen, task.num_clients
        visit = visits(unseen, first.max_steps, state.round, key, others)
        # A new client's state is that of the current server model, since a run keeps no initial
        # one; private leaves of the server stay initial, so for them both are the same.
        new = algorithm.init_client(state.server.params)

        def model(client: Array) -> Params:
            oracle, work = visit(client)
            own = new
            if first.first_visit:
                _, own = algorithm.local(message, own, oracle, work)
            return computed(own, oracle, work)

        return model


def _checked_unseen(
    unseen: Task, num_clients: int, personal: Personal | None, first_visit: bool
) -> _Unseen:
    if unseen.num_clients != num_clients:
        raise ValueError(
            f"unseen has {unseen.num_clients} clients; expected {num_clients}, those of data"
        )
    if unseen.placement is not None:
        raise ValueError("unseen has a placement; expected a task without one")
    if personal is not None:
        raise ValueError("personal is a function; expected None with unseen clients")
    return _Unseen(int(np.max(unseen.num_steps)), first_visit)


def _batch(sizes: np.ndarray, most: int) -> int:
    """Returns the examples per chunk, a power of 2 or ``most``, that costs least.

    A chunk costs as much as its examples plus 4, whether they count or not.
    """
    most = min(most, int(sizes.sum()))
    options = [2**i for i in range(most.bit_length()) if 2**i < most] + [most]
    return min(options, key=lambda batch: int((-(-sizes // batch)).sum()) * (batch + 4))


def _chunks(offsets: np.ndarray, batch: int) -> _Chunks:
    sizes = np.diff(offsets)
    per_client = -(-sizes // batch)
    owner = np.repeat(np.arange(len(sizes)), per_client)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(per_client) - per_client, per_client)
    first = offsets[owner] + number * batch
    count = np.minimum(offsets[owner + 1] - first, batch)
    return _Chunks(*map(jnp.asarray, (x.astype(np.int32) for x in (owner, first, count))))
