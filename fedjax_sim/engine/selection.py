"""Selection of a round's visits among the candidates of the timeline, inside a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim import tree
from fedjax_sim.checks import INT32_MAX, check_count, is_traced
from fedjax_sim.engine.execution.strategies import Execution, Gathered
from fedjax_sim.engine.records import RunState, Selected
from fedjax_sim.engine.returned import called_part, checked_arrays, checked_choice
from fedjax_sim.types import (
    Candidates,
    FedAlgorithm,
    Oracle,
    Params,
    PyTree,
    Round,
    Selector,
    Setup,
    Task,
    Timeline,
    Work,
)


class Slots(NamedTuple):
    """Slots of a round, of leaves ``[S, ...]``."""

    works: Work
    draws: PyTree  # of the minibatches
    mask: Array
    arrived: Array

    def at(self, slots: Array) -> Slots:
        """Returns some of the slots."""
        fields = jax.tree.map(lambda x: x[slots], self.works[:-1])
        works = Work(*fields, max_steps=self.works.max_steps)
        draws, mask, arrived = jax.tree.map(lambda x: x[slots], tuple(self[1:]))
        return Slots(works, draws, mask, arrived)


def first_selected(algorithm: FedAlgorithm, num_clients: int) -> Selected | tuple[()]:
    """Returns what is known of the selection before the first round."""
    if algorithm.selection is None:
        return ()
    known = checked_arrays("selection.init", called_part(algorithm, "selection.init", num_clients))
    state = jax.tree.map(lambda x: jnp.array(x, jnp.result_type(x)), known)
    zero = jnp.array(0, jnp.int32)
    return Selected(state, jnp.zeros(num_clients, jnp.int32), zero)


def measured_model(server: Any) -> Params:
    """Returns the model for which candidates compute scores: that of the algorithm in wrappers.

    A mean over rounds is evaluated, but it changes nothing that clients receive and compute.
    """
    inner = getattr(server, "inner", None)
    if not hasattr(inner, "params"):
        return server.params
    model = measured_model(inner)
    return server.completed(model) if hasattr(server, "completed") else model


def chosen_slots(
    algorithm: FedAlgorithm,
    slots: Slots,
    weights: Array,  # [S] of the candidates; 0 where no upload would arrive
    state: Selected,
    shared: tuple[Task, Params],  # and the server's model, for which candidates compute scores
    round: Round,  # with a key of the selector's own
    execution: Execution,
    oracle: Callable[[Task, Work, PyTree], Oracle],
) -> tuple[Slots, Array, Selected]:
    """Returns the slots that work, the factors of their weights, and what is known then.

    The chosen ones come first, in their order, and only ``selector.size`` slots remain, so a
    candidate that is not chosen costs its score and nothing else.
    """
    works, mask = slots.works, slots.mask
    selector: Any = algorithm.selection
    scores = ()
    if selector.score is not None:

        def visit(shared: tuple[Task, Params], slot: tuple) -> tuple[tuple, PyTree]:
            (task, params), (fields, draws) = shared, slot
            work = Work(*fields, max_steps=works.max_steps)
            score = called_part(
                algorithm, "selection.score", params, oracle(task, work, draws), work
            )
            return (), checked_arrays("selection.score", score)

        inner = execution.inner if isinstance(execution, Gathered) else execution
        _, scores = inner(visit, shared, (works[:-1], slots.draws), weights)
    candidates = Candidates(
        works.client, mask, works.num_examples, works.num_steps, weights, scores
    )
    choice, new = checked_choice(
        called_part(algorithm, "selection.choose", state.state, candidates, round),
        state.state,
        mask.shape[0],
        unbiased=selector.unbiased,
    )
    chosen = mask & choice.chosen
    steps = works.num_steps if choice.num_steps is None else choice.num_steps
    factors = jnp.ones_like(weights)
    if choice.factors is not None:
        given = jnp.asarray(choice.factors, weights.dtype)
        # Of clients that are not chosen 1 / (probability of being chosen) may be infinite.
        factors = jnp.where(chosen, jnp.where(given < 0, jnp.nan, given), 0)
    size = mask.shape[0] if selector.size is None else min(int(selector.size), mask.shape[0])
    # A selector that chooses other numbers of clients than it says, or negative numbers of steps,
    # makes the model NaN, as negative weights do.
    count = chosen.sum()
    as_said = count == jnp.minimum(size, mask.sum()) if selector.exact else count <= size
    if choice.num_steps is not None:
        as_said &= ~(chosen & (choice.num_steps < 0)).any()
    factors = jnp.where(as_said, factors, jnp.nan)
    # No client does more steps than the timeline has for it, which bounds the loop.
    works = works._replace(num_steps=jnp.where(chosen, jnp.minimum(steps, works.num_steps), 0))
    kept = Slots(works, slots.draws, chosen, slots.arrived & chosen)
    if size < mask.shape[0]:
        first = jnp.argsort(~chosen, stable=True)[:size]
        kept, factors = kept.at(first), factors[first]
    new_state = Selected(
        new,
        state.visits.at[kept.works.client].add(kept.mask.astype(jnp.int32)),
        state.local_steps + kept.works.num_steps.sum(dtype=jnp.int32),
    )
    return kept, factors, new_state


def after_visits(selected: Selected, known: PyTree, before: Selected, any_visit: Array) -> Selected:
    """Returns what is known after a round, in the dtypes of before; without visits, as before."""
    new = jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), known, before.state)
    return selected._replace(state=tree.where(any_visit, new, before.state))


def counted(state: RunState) -> dict[str, Array]:
    """Returns the local steps so far, which the timeline does not tell where clients are chosen."""
    return {} if state.selection == () else {"local_steps": state.selection.local_steps}


def as_chosen(selector: Selector | None, timeline: Timeline) -> Timeline:
    """Returns a timeline with as many uploads per round as the selector leaves at most."""
    return timeline if selector is None else _with_at_most(selector.size, timeline)


def least_chosen(selector: Selector | None, timeline: Timeline) -> Timeline:
    """Returns a timeline with as many uploads per round as the selector leaves at least."""
    if selector is None:
        return timeline
    return _with_at_most(selector.size if selector.exact else 1, timeline)


def _with_at_most(size: int | None, timeline: Timeline) -> Timeline:
    if size is None or size >= timeline.cohort_size:
        return timeline
    xp: Any = jnp if isinstance(timeline.mask, Tracer) else np
    mask = xp.asarray(timeline.mask)
    few = mask & (xp.cumsum(mask, axis=-1) <= size)
    return dataclasses.replace(timeline, mask=few, sampling=None)


def check_selection(algorithm: FedAlgorithm, setup: Setup) -> None:
    """Refuses what a selection of clients contradicts."""
    selector, timeline, requires = algorithm.selection, setup.timeline, algorithm.requires
    if selector is None:
        return
    if selector.size is not None:
        check_count(1, **{"algorithm.selection.size": selector.size})
    if timeline.own_models or timeline.idle is not None:
        raise ValueError(
            "timeline has simulated durations; expected rounds without with a selection, since who "
            "is chosen would change all later times"
        )
    if timeline.first_step is not None:
        raise ValueError(
            "timeline.first_step is given; expected none with a selection, which changes how many "
            "steps a client did before"
        )
    if requires.last is not None:
        raise ValueError(
            f"algorithm is {requires.last.name}(...) with a selection; expected none: no "
            "accountant knows a choice that depends on the clients' data"
        )
    if setup.task.placement is not None and setup.task.placement.axis is not None:
        raise ValueError(
            "task.placement is by client; expected none with a selection, whose candidates are "
            "compared across devices"
        )
    if requires.statistics is not None or requires.partial_model:
        raise ValueError(
            "algorithm has running statistics or private leaves; expected a model that the server "
            "has as a whole with a selection, since candidates measure the server's model"
        )
    if requires.no_selection is not None:
        raise ValueError(
            "algorithm has a selection; expected none, since the timeline alone must say who works "
            f"and for how long: {requires.no_selection}"
        )
    if selector.unbiased:
        _check_unbiased(algorithm)
    if not is_traced((timeline.num_steps, timeline.mask)):
        steps = np.where(np.asarray(timeline.mask), np.asarray(timeline.num_steps), 0)
        most = int(steps.sum(axis=(-2, -1), dtype=np.int64).max())
        if most > INT32_MAX:
            raise ValueError(
                f"timeline has {most} local steps; expected at most {INT32_MAX} with a selection, "
                "which counts them"
            )


def _check_unbiased(algorithm: FedAlgorithm) -> None:
    requires = algorithm.requires
    stacked = algorithm.aggregation is not None
    reason = (
        requires.uniform_weights
        or requires.uniform_weights_if_partial
        or requires.mean_of_states
        or requires.exact_mean
        or ("uploads are models, whose sum is no model" if requires.uploads_models else None)
        or ("a robust rule has no unbiased sum" if stacked else None)
    )
    if reason is not None:
        raise ValueError(
            f"algorithm has a selection with unbiased weights; expected one without: {reason}"
        )
