"""The wrapper that replaces the mean of the uploads by a rule."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_is_algorithm, is_traced
from fedjax_sim.tree import divide_or_keep, weighted_mean
from fedjax_sim.types import (
    Aggregation,
    FedAlgorithm,
    Params,
    PyTree,
    Round,
    ServerState,
    Stack,
    Timeline,
    Upload,
    specified,
)
from fedjax_sim.wrappers.received import broadcast_inner, inner_params, stack_bytes, upload_shapes
from fedjax_sim.wrappers.robust.rules import Points, Rule, check_rule

_KEY = 2**31 + 8  # branch of the round's key


class AggregatedState(NamedTuple):
    """State of a server whose rule uses the previous aggregate."""

    inner: ServerState
    aggregate: Upload  # of the last round; zeros before the first

    params = inner_params


class _Change(NamedTuple):
    change: Upload  # of the aggregate; zeros for an upload that is not finite
    finite: Array  # 1 or 0


@specified
def aggregate(
    algorithm: FedAlgorithm, rule: Rule, *, skip_small_rounds: bool = False
) -> FedAlgorithm:
    r"""Returns an algorithm whose server aggregates uploads by a robust rule.

    The server's update receives the rule's aggregate of the n uploads of a round instead of their
    weighted mean.  Empty slots and lost uploads do not exist for a rule.  An upload with a NaN or
    an infinity counts in n, has distance infinity to all others, comes last in every order and
    weighs 0 in averages; if it is selected it enters as 0.

    The uploads of a round are in memory together, cohort x parameters
    (:func:`~fedjax_sim.forecast` has the bytes).  :func:`centred_clipping` with one iteration needs
    one model per chunk of clients.

    Apply it after wrappers that compute with the mean, such as :func:`~fedjax_sim.diana` and
    :func:`~fedjax_sim.running_statistics`; attacks are applied after it.

    Args:
        algorithm: any algorithm; the rule aggregates all parts of its upload together.
        rule: for example :func:`median`.
        skip_small_rounds: a round with fewer uploads than the rule requires changes nothing at the
            server.  False: a timeline that has one is refused.

    Raises:
        ValueError: no algorithm, no rule, or the algorithm has a rule already.  At the start of a
            run, before compilation: fewer uploads in a round than the rule requires, weights that
            the rule does not take, or for a rule that uses the previous aggregate an algorithm
            whose upload has no shape without data.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 2.0, 3.0, 99.0])}, np.arange(5))
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 4, task.num_steps), jnp.array(0.0))
        >>> state, _ = fs.run(
        ...     aggregate(fs.fedavg(1.0), fs.robust.median(f=1)), setup, jax.random.key(0))
        >>> float(state.server.params)
        2.5
    """
    check_is_algorithm(algorithm)
    check_rule(rule)
    if algorithm.aggregation is not None:
        raise ValueError("algorithm has a robust rule already; expected one without")
    algorithm = algorithm.requiring(
        uniform_weights=algorithm.requires.uniform_weights
        or (None if rule.weighted else f"{rule.name} is defined for uploads of equal weights")
    )
    wrapped = _with_memory(algorithm, rule) if rule.remembers else _without_memory(algorithm, rule)
    update = wrapped.update

    def update_large(state: ServerState, uploads: Stack | _Change, round: Round) -> ServerState:
        enough = jnp.asarray(round.num_uploads) >= rule.smallest
        return tree.where(enough, update(state, uploads, round), state)

    return wrapped._replace(
        update=update_large if skip_small_rounds else update,
        aggregation=Aggregation(
            each=_each(rule),
            check=lambda timeline: check_counts(rule, timeline, some=skip_small_rounds),
            num_bytes=lambda upload, slots: _bytes(rule, upload, slots),
            f=rule.f,
        ),
    )


def stacked(algorithm: FedAlgorithm) -> FedAlgorithm:
    """Returns the algorithm with an update that receives a :class:`~fedjax_sim.types.Stack`.

    For attacks that transform the uploads of a round together.

    Raises:
        ValueError: no algorithm.

    Example:
        >>> import fedjax_sim as fs
        >>> stacked(fs.fedavg(0.1)).aggregation.each is None
        True
    """
    check_is_algorithm(algorithm)
    aggregation = algorithm.aggregation
    if aggregation is not None and aggregation.each is None:
        return algorithm
    aggregation = aggregation or Aggregation()
    each = aggregation.each

    def update(state: ServerState, stack: Stack, round: Round) -> ServerState:
        uploads = stack.uploads
        if each is not None:
            uploads = jax.vmap(each, (None, 0))(state, uploads)
        mean = weighted_mean(uploads, stack.mean_weights)
        return algorithm.update(state, mean, round)

    return algorithm._replace(
        update=update, aggregation=aggregation._replace(each=None, num_bytes=stack_bytes)
    )


def points_of(stack: Stack) -> Points:
    """Returns the uploads of a round as a rule receives them."""
    finite = stack.arrived & jax.vmap(tree.all_finite)(stack.uploads)
    x = jax.vmap(lambda some, x: tree.where(some, x, tree.zeros_like(x)))(finite, stack.uploads)
    return Points(x, stack.weights, stack.arrived, finite, stack.clients)


def check_counts(rule: Rule, timeline: Timeline, *, some: bool = False) -> None:
    """Refuses rounds with fewer uploads than a rule requires; ``some``: only if all have.

    Rounds without uploads pass, since they change nothing.  Traced values pass.
    """
    slots = timeline.cohort_size
    if slots < rule.smallest:
        raise ValueError(
            f"timeline has {slots} slots; expected at least {rule.smallest}, which {rule.name} "
            "requires"
        )
    if is_traced(timeline):
        return
    counts = np.asarray(timeline.arrived).sum(-1)
    small = (counts > 0) & (counts < rule.smallest)
    enough = some and bool((counts >= rule.smallest).any())
    if small.any() and not enough:
        *seed, number = np.argwhere(small)[0].tolist()
        of_seed = f" of seed {seed[0]}" if seed else ""
        raise ValueError(
            f"timeline has {counts[*seed, number]} uploads in round {number}{of_seed}; expected at "
            f"least {rule.smallest}, which {rule.name} requires"
            + ("" if some else ", or robust.aggregate(..., skip_small_rounds=True)")
        )


def _without_memory(algorithm: FedAlgorithm, rule: Rule) -> FedAlgorithm:
    def update(state: ServerState, stack: Stack, round: Round) -> ServerState:
        return algorithm.update(state, rule.aggregate(points_of(stack), (), _key(round)), round)

    return algorithm._replace(update=update)


def _with_memory(algorithm: FedAlgorithm, rule: Rule) -> FedAlgorithm:
    """The algorithm with a server that keeps the previous aggregate."""

    def init(params: Params) -> AggregatedState:
        shapes = upload_shapes(algorithm, params)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return AggregatedState(algorithm.init(params), zeros)

    def update(state: AggregatedState, uploads: Any, round: Round) -> AggregatedState:
        if rule.change is None:
            new = rule.aggregate(points_of(uploads), state.aggregate, _key(round))
        else:
            change = divide_or_keep(uploads.change, uploads.finite)
            new = tree.add(state.aggregate, change)
        return AggregatedState(algorithm.update(state.inner, new, round), new)

    return algorithm._replace(init=init, update=update, broadcast=broadcast_inner(algorithm))


def _each(rule: Rule) -> Any:
    """Returns the transform of a single upload, if a rule is a mean of transformed uploads."""
    if rule.change is None:
        return None
    change = rule.change

    # The engine calls it with the current server state, also for stale uploads: neither chunks nor
    # devices need all uploads, and no client receives the previous aggregate.
    def each(state: Any, upload: Upload) -> _Change:
        while not isinstance(state, AggregatedState):  # of a wrapper around the aggregation
            state = state.inner
        finite = tree.all_finite(upload)
        upload = tree.where(finite, upload, state.aggregate)
        changed = tree.where(finite, change(state.aggregate, upload), tree.zeros_like(upload))
        return _Change(changed, finite.astype(jnp.result_type(float)))

    return each


def _key(round: Round) -> Array:
    return jax.random.fold_in(round.key, np.uint32(_KEY))


def _bytes(rule: Rule, upload: PyTree, slots: int) -> int:
    """Bytes of a stack of uploads and of the distances of all pairs."""
    if rule.change is not None:
        return 0
    pairs = slots**2 * jnp.zeros(()).dtype.itemsize if rule.distances else 0
    return stack_bytes(upload, slots) + pairs
