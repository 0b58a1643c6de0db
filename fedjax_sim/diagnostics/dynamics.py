"""Dynamics of single clients along a run: drift, disagreement, alignment, sharpness and noise.

:func:`client_dynamics` is an evaluator, so it runs inside the compiled run, at the rounds that a
setup or :func:`~fedjax_sim.engine.evaluation.at_rounds` chooses, and its values go where the values
of other evaluators go.  It lets clients do the work of a round and discards the result, so it can
measure all clients, also those that no round selects, and it changes no run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.checks import check_count, check_counts
from fedjax_sim.data import running_statistics_of
from fedjax_sim.diagnostics.client_updates import (
    Shared,
    Slots,
    shared_of,
    slots_of,
    update_of_visit,
)
from fedjax_sim.diagnostics.gradient_moments import sample_variance
from fedjax_sim.diagnostics.sharpness import top_eigenvalues
from fedjax_sim.engine import (
    EVALUATED,
    PER_CLIENT,
    QUANTILES,
    Execution,
    RunContext,
    auto,
    context_of,
    quantile_names,
)
from fedjax_sim.tree import entries
from fedjax_sim.types import Params, Task, Upload

Measure = Literal["drift", "disagreement", "alignment", "eigenvalue", "noise"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Values = dict[str, Array]


def client_dynamics(
    measures: Collection[Measure] = MEASURES,
    *,
    clients: Literal["all", "cohort"] | Sequence[int] = "all",
    iterations: int = 10,
    num_batches: int = 4,
    store_updates: bool = False,
    per_client: bool = True,
    execution: Execution | None = None,
) -> Partial:
    r"""Evaluator of the dynamics of every client: values per client, and statistics over clients.

    Client i of n starts from the current message and does one visit, whose upload is discarded.
    With the update :math:`\Delta_i` (received minus local model), the mean of the updates
    :math:`\bar\Delta`, the server's model x and minibatch gradients :math:`g_{i1}, \dots, g_{ib}`
    of independent visits:

    * ``drift``: :math:`\|\Delta_i\|`, the distance of the local model from the received one,
      which is x unless the algorithm sends another model (FedACG, averages of iterates);
    * ``disagreement``: :math:`\|\Delta_i - \bar\Delta\|`, its distance from the mean local model;
    * ``alignment``: :math:`\cos(\Delta_i, \bar\Delta)`, 0 if one of them is 0;
    * ``eigenvalue``: the largest eigenvalue of :math:`\nabla^2 F_i(x)` by Lanczos' method, which
      approaches it from below;
    * ``noise``: :math:`\frac{1}{b-1} \sum_j \|g_{ij} - \bar g_i\|^2`, which is unbiased for the
      variance :math:`E\|g_i - E g_i\|^2` of a minibatch gradient at x.

    Results are ``NAME/STATISTIC`` with the statistics mean, std, min, max and quantiles, and
    ``per_client/NAME`` ``[M]``, which :func:`~fedjax_sim.simulate` writes to ``clients.csv``.  If
    clients move, there are also ``mean_update``, :math:`\|\bar\Delta\|`, and
    ``alignment/pairwise``, the mean cosine between the updates of two clients,

    .. math:: \frac{1}{n (n - 1)} \sum_{i \ne j} \cos(\Delta_i, \Delta_j)
              = \frac{\| \sum_i \Delta_i / \|\Delta_i\| \|^2 - n}{n (n - 1)},

    over the n updates that are not 0; it is 1 if there are fewer than two, and NaN if an
    update has NaN.

    Costs per client and evaluation: the local steps of a visit, twice with ``disagreement`` or
    ``alignment``, because the mean must be known first; ``iterations`` Hessian-vector products with
    the full local loss; ``num_batches`` minibatch gradients.  The memory is that of the clients
    that ``execution`` runs together, whatever n.  :func:`~fedjax_sim.forecast` shows both.

    The algorithm's update is its upload, or the first part of it, if that has the form of the
    model; uploads that are no changes of the model, such as gradients, are refused.  Clients'
    states and examples must be on one device.

    Args:
        measures: names from the list above; others are not computed.
        clients: ``"all"`` clients with examples; the ``"cohort"`` of the last round, namely its
            clients that reported; or numbers of clients.
        iterations: Lanczos iterations per client.
        num_batches: b.
        store_updates: keep all n updates, which saves the second visit of every client and takes
            the memory of n models.
        per_client: also return the values of single clients.
        execution: strategy over the clients, such as ``chunked(8)``; default
            :func:`~fedjax_sim.engine.execution.auto` on one device.

    Raises:
        ValueError: unknown measures, numbers out of range.  The evaluator raises it for uploads of
            another form, for examples or states that are not on one device, and for eigenvalues and
            noise of a model with running statistics, and for the cohort of a selection.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> dynamics = fs.evaluation.at_rounds(client_dynamics(("drift", "alignment")), 2)
        >>> setup = fs.Setup(task, fs.timelines.full(4, 2, task.num_steps), jnp.zeros(()),
        ...                  eval_fn=dynamics, eval_every=2)
        >>> _, history = fs.run(fs.fedavg(0.25), setup, jax.random.key(0))
        >>> history.metrics["per_client/drift"].tolist()  # at the models 1.5 and 1.875
        [[0.25, 0.75], [0.4375, 0.5625]]
        >>> history.metrics["alignment/pairwise"].tolist()  # opposite directions
        [-1.0, -1.0]
    """
    unknown = set(measures) - set(MEASURES)
    if unknown or not measures:
        raise ValueError(f"measures is {sorted(measures)}; expected some of {', '.join(MEASURES)}")
    check_count(1, iterations=iterations)
    check_count(2, num_batches=num_batches)
    return Partial(
        _Dynamics(
            tuple(name for name in MEASURES if name in measures),
            _checked_clients(clients),
            iterations,
            num_batches,
            store_updates,
            per_client,
            execution,
        )
    )


class _Dynamics(NamedTuple):
    """Static part of the evaluator. Hashable by value."""

    measures: tuple[Measure, ...]
    clients: str | tuple[int, ...]
    iterations: int
    num_batches: int
    store_updates: bool
    per_client: bool
    execution: Execution | None
    takes_state = True

    def __call__(self, run: Any) -> Values:
        context = context_of(run)
        shared = shared_of(context)
        slots = self._slots(context, shared.task)
        of_gradients = [name for name in ("eigenvalue", "noise") if name in self.measures]
        if of_gradients and running_statistics_of(shared.task) is not None:
            raise ValueError(
                f"measures contains {of_gradients[0]!r}; expected other measures for a model with "
                "running statistics, whose updates are not gradients"
            )
        values, result = self._measure(context, shared, slots)
        for name in self.measures:
            statistics = _statistics(values[name], slots.present)
            result |= {f"{name}/{key}": value for key, value in statistics.items()}
        if self.per_client:
            chosen = {name: values[name] for name in self.measures}
            result |= _per_client(chosen, slots, shared.task)
        if self.clients == "cohort":
            result[EVALUATED] = slots.present.any()
        return result

    def _slots(self, context: RunContext, task: Task) -> Slots:
        if self.clients == "cohort":
            if context.timeline is None:
                raise ValueError("context.timeline is None; expected the rounds of the run")
            if context.algorithm is not None and context.algorithm.selection is not None:
                raise ValueError(
                    "clients is 'cohort' with a selection, whose choice among the timeline's "
                    "clients is not known here; expected 'all' or numbers of clients"
                )
            last = jax.tree.map(lambda x: jnp.asarray(x)[-1], context.timeline)
            slots = slots_of(context, last.clients.astype(jnp.int32))
            steps = last.num_steps.astype(jnp.int32)
            return slots._replace(present=slots.present & last.arrived, num_steps=steps)
        if isinstance(self.clients, str):
            return slots_of(context, jnp.arange(task.num_clients, dtype=jnp.int32))
        if max(self.clients) >= task.num_clients:
            raise ValueError(
                f"clients contains {max(self.clients)}; expected numbers below {task.num_clients}"
            )
        return slots_of(context, jnp.array(self.clients, jnp.int32))

    def _measure(self, context: RunContext, shared: Shared, slots: Slots) -> tuple[Values, Values]:
        """Returns the measures of every slot, and numbers of all slots together."""
        execute = self.execution or auto(devices=())
        weights = slots.present.astype(jnp.result_type(float))
        update = update_of_visit(context)
        values: Values = {}
        if not {"eigenvalue", "noise"}.isdisjoint(self.measures):
            _, values = execute(self._of_gradients, shared, slots.client, weights)
        if {"drift", "disagreement", "alignment"}.isdisjoint(self.measures):
            return values, {}

        def visit(both: tuple[Shared, Params], slot: Slots) -> tuple[Upload, Values]:
            shared, mean = both
            change = update(shared, slot)
            return (change, _unit(change)), _compared(change, mean)

        def all_visits(means: Upload, _: None) -> tuple[Upload, Values]:
            return execute(visit, (shared, means[0]), slots, weights)

        def stored(shared: Shared, slot: Slots) -> tuple[Upload, Params]:
            change = update(shared, slot)
            return (change, _unit(change)), change

        if self.store_updates:
            (mean, mean_unit), changes = execute(stored, shared, slots, weights)
            local = jax.vmap(_compared, (0, None))(changes, mean)
        else:
            # The first pass computes the mean for the second one; a loop is compiled once.
            passes = 1 if {"disagreement", "alignment"}.isdisjoint(self.measures) else 2
            zeros = tree.zeros_like(shared.params), tree.zeros_like(shared.params)
            (mean, mean_unit), local = jax.lax.scan(all_visits, zeros, length=passes)
            local = tree.take(local, jnp.array(passes - 1))
        result = {"mean_update": tree.norm(mean)}
        if "alignment" in self.measures:
            moved = slots.present & (local["drift"] > 0)
            result["alignment/pairwise"] = _pairwise(mean_unit, weights.sum(), moved.sum())
        return values | local, result

    def _of_gradients(self, shared: Shared, client: Array) -> tuple[Upload, Values]:
        """Returns the measures of a client that need no local work; it uploads nothing."""
        task, (_, key), params, _ = shared
        # Branches 0 and 1 are those of the visit.
        *_, full_key, lanczos_key, noise_key = (
            jax.random.fold_in(jax.random.fold_in(key, client), i) for i in range(5)
        )
        values = {}
        if "eigenvalue" in self.measures:
            gradient = task.oracle(client, full_key, 1).full_grad
            top = top_eigenvalues(gradient, params, lanczos_key, iterations=self.iterations)
            values["eigenvalue"] = top.values[0]
        if "noise" in self.measures:

            def sample(number: Array) -> Params:
                return task.oracle(client, jax.random.fold_in(noise_key, number), 1).grad(params, 0)

            values["noise"] = sample_variance(sample, self.num_batches, params)
        return (), values


def _checked_clients(clients: str | Sequence[int]) -> str | tuple[int, ...]:
    if isinstance(clients, str):
        if clients not in ("all", "cohort"):
            raise ValueError(f"clients is {clients!r}; expected 'all', 'cohort' or numbers")
        return clients
    check_counts(clients=clients)
    numbers = tuple(int(client) for client in clients)
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ValueError(f"clients is {list(numbers)}; expected different numbers of clients")
    return numbers


def _unit(x: Params) -> Params:
    """Returns ``x / ||x||``, and 0 for 0."""
    length = tree.norm(x)
    return tree.scale(jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0), x)


def _compared(change: Params, mean: Params) -> Values:
    """Returns the measures of an update beside the mean of all updates."""
    return {
        "drift": tree.norm(change),
        "disagreement": tree.norm(tree.sub(change, mean)),
        "alignment": tree.vdot(_unit(change), _unit(mean)),
    }


def _pairwise(mean_unit: Params, num_slots: Array, num_moved: Array) -> Array:
    """Returns the mean cosine between two different updates, from the mean of the unit vectors."""
    count = num_moved.astype(num_slots.dtype)
    square = num_slots**2 * tree.norm(mean_unit, squared=True)
    mean = (square - count) / jnp.maximum(count * (count - 1), 1)
    # Updates with NaN count as none that moved.
    return jnp.where((count > 1) | jnp.isnan(mean), mean, 1)


def _statistics(values: Array, present: Array) -> Values:
    """Returns statistics of the values of present clients: 0 without any, NaN if one is NaN."""
    count = present.sum()
    divisor = jnp.maximum(count, 1).astype(values.dtype)

    def mean_of(x: Array) -> Array:
        return jnp.where(present, x, 0).sum() / divisor

    mean = mean_of(values)
    result = {"mean": mean, "std": jnp.sqrt(mean_of((values - mean) ** 2))}
    ordered = jnp.sort(jnp.where(present, values, jnp.inf))
    for name, quantile in {"min": 0.0, "max": 1.0, **quantile_names(QUANTILES)}.items():
        position = jnp.asarray(quantile, values.dtype) * (divisor - 1)
        low = jnp.floor(position)
        above = position - low
        i = low.astype(count.dtype)
        j = jnp.minimum(i + 1, jnp.maximum(count - 1, 0))
        value = jnp.where(above > 0, ordered[i] * (1 - above) + ordered[j] * above, ordered[i])
        result[name] = jnp.where(jnp.isnan(mean), mean, value)
    return {name: jnp.where(count > 0, value, 0) for name, value in result.items()}


def _per_client(values: Values, slots: Slots, task: Task) -> Values:
    """Returns the values of all clients ``[M]``, with 0 examples for those that are not present."""
    # Rows of absent clients are out of bounds, so they are dropped.
    rows = jnp.where(slots.present, slots.client, task.num_clients)

    def table(x: Array) -> Array:
        return jnp.zeros(task.num_clients, x.dtype).at[rows].set(x, mode="drop")

    tables = {f"{PER_CLIENT}/{name}": table(x) for name, x in values.items()}
    sizes = entries(task.num_examples, slots.client)
    return tables | {f"{PER_CLIENT}/num_examples": table(sizes)}
