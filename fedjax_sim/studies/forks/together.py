"""Continuations of several alternatives in one compiled program."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.engine import History, RunState, advance, evaluation_context
from fedjax_sim.engine.evaluation.state import evaluate
from fedjax_sim.engine.execution.placement import everywhere
from fedjax_sim.engine.execution.platforms import platform_of
from fedjax_sim.engine.execution.strategies import Execution, auto, has_kernels, is_ragged
from fedjax_sim.runs.storage.run_functions import trace_run
from fedjax_sim.runs.storage.traces import Trace
from fedjax_sim.types import FedAlgorithm, PyTree, Same, Setup, Timeline


class Continuation(NamedTuple):
    """An alternative that may start; its algorithm is ``factory(**numbers)``."""

    factory: Callable[..., FedAlgorithm]
    numbers: Mapping[str, float]
    setup: Setup  # of the remaining rounds
    state: RunState
    last: Timeline  # the round before


class _Group(NamedTuple):
    """Alternatives that differ in numbers, timelines and states only, K of them."""

    names: list[str]
    factory: Callable[..., FedAlgorithm]
    over: Callable[[Callable, tuple], Callable]  # vmap, or a loop
    execution: Execution
    timeline_axis: int | None  # None: all have the same timeline
    seed_axis: int | None  # of one timeline; None: all seeds have the same
    # numbers [K], timeline [K, T, ...] or [T, ...], the round before, state [K, ...]
    arguments: tuple


def continue_together(
    continuations: Mapping[str, Continuation], keys: Array, execution: Execution | None
) -> dict[str, tuple[History, RunState]]:
    """Runs all alternatives in one program; returns histories from the first state on, and states.

    Alternatives with equal factories, names of numbers and shapes are vmapped over.
    """
    groups = [
        _group(members, keys, execution)
        for members in _alike(continuations, batched=keys.ndim == 1)
    ]
    _, _, setup, begin, _ = next(iter(continuations.values()))  # they differ in timelines only
    parts = parts_of(setup, begin)

    def continued(group: _Group, task, eval_fn, keys, number, arguments):
        def one(numbers, timeline, last_round, state, key) -> tuple[History, RunState]:
            # All runs are in the same round. One number for all of them: what derives from it, and
            # with it the minibatches, is computed once.
            state = state._replace(round=number)
            algorithm = group.factory(**numbers)
            part = Setup(task, timeline, None, eval_fn, setup.eval_every, setup.weighting)
            histories = []
            if eval_fn is not None:
                context = evaluation_context(algorithm, task, last_round, state, key)
                histories = [_initial(number, evaluate(eval_fn, context))]
            for first, last in parts:
                now = dataclasses.replace(part, timeline=timeline[first:last])
                state, history = advance(algorithm, now, state, key, execution=group.execution)
                histories.append(history)
            return jax.tree.map(lambda *x: jnp.concatenate(x), *histories), state

        if keys.ndim:
            one = group.over(one, (None, group.seed_axis, group.seed_axis, 0, 0))
        return group.over(one, (0, group.timeline_axis, None, 0, None))(*arguments, keys)

    put = everywhere(setup.task)

    def program(task, eval_fn, keys, number, arguments) -> list[tuple[History, RunState]]:
        pairs = zip(groups, arguments, strict=True)
        return put([continued(group, task, eval_fn, keys, number, own) for group, own in pairs])

    number = jnp.max(begin.round)
    shared = setup.task, put(setup.eval_fn), put(keys), put(number)
    results = jax.jit(program)(*shared, [put(group.arguments) for group in groups])
    found = {
        name: jax.tree.map(lambda x, k=k: x[k], result)
        for group, result in zip(groups, results, strict=True)
        for k, name in enumerate(group.names)
    }
    return {name: found[name] for name in continuations}


def parts_of(setup: Setup, state: RunState) -> list[tuple[int, int]]:
    """Returns the parts of the remaining rounds that are evaluated after the whole run's rounds.

    The first part ends with the run's next evaluation.

    Args:
        setup: of the remaining rounds.
        state: before them, after any number of rounds.

    Example:
        >>> import fedjax_sim as fs
        >>> setup = fs.Setup(None, fs.timelines.full(7, 2, 1), 0.0, eval_every=5)
        >>> state = RunState(jnp.array(3), None, (), (), jnp.array(0))
        >>> parts_of(setup, state), parts_of(setup, state._replace(round=jnp.array(5)))
        ([(0, 2), (2, 7)], [(0, 7)])
    """
    last = setup.timeline.num_rounds
    first = min(-int(np.max(state.round)) % setup.eval_every, last)
    return [(a, b) for a, b in ((0, first), (first, last)) if a < b]


def _initial(number: Array, metrics: Mapping[str, Any]) -> History:
    """Returns the history of the evaluation before the first round."""
    return History(number[None], {k: jnp.asarray(x)[None] for k, x in metrics.items()}, {})


def _alike(
    continuations: Mapping[str, Continuation], *, batched: bool
) -> list[dict[str, Continuation]]:
    """Divides alternatives into those that one function can run."""

    def shapes(tree: PyTree) -> tuple:
        leaves, structure = jax.tree.flatten(tree)
        return structure, *((np.shape(x), str(jax.dtypes.result_type(x))) for x in leaves)

    groups: dict[Any, dict[str, Continuation]] = {}
    known: dict[Any, Trace] = {}
    for name, one in continuations.items():
        varying = shapes(one.setup.timeline), shapes(one.state._replace(round=0))
        form = tuple(sorted(one.numbers)), varying
        same = Same(one.factory), form
        if same not in known:  # one trace for many numbers
            traces = trace_run(
                lambda values, one=one: one.factory(**values),
                one.setup,
                batched=batched,
                numbers=dict(one.numbers),
            )
            known[same] = traces.algorithm
        key = known[same], form
        groups.setdefault(key, {})[name] = one
    return list(groups.values())


def _group(members: Mapping[str, Continuation], keys: Array, execution: Execution | None) -> _Group:
    first = next(iter(members.values()))
    timelines = [one.setup.timeline for one in members.values()]
    leaves = [jax.tree.leaves(timeline) for timeline in timelines]
    same = all(
        np.array_equal(x, y) for other in leaves for x, y in zip(leaves[0], other, strict=True)
    )
    numbers = {
        name: jnp.asarray([one.numbers[name] for one in members.values()]) for name in first.numbers
    }
    states = [one.state._replace(round=None) for one in members.values()]  # pyright: ignore
    # On a CPU, as the seeds of a run (runs/programs.py): one after the other if vmap would
    # compute all steps of the longest visit, or has convolutions with several sets of parameters.
    platform = platform_of((first.setup.task, first.setup.params))
    ragged = any(is_ragged(timeline) for timeline in timelines)
    seed_axis = 0 if timelines[0].clients.ndim == 3 else None
    per_run = not same or seed_axis == 0
    model = first.state.server.params
    kernels = has_kernels(jax.tree.map(lambda x: x[0], model) if keys.ndim else model)
    in_turn = platform == "cpu" and first.setup.task.placement is None
    in_turn = in_turn and (kernels or (ragged and per_run))
    vmapped = 1 if in_turn else len(members) * max(keys.size, 1)
    chosen = execution or auto(
        vmapped, ragged=ragged and (in_turn or not per_run), platform=platform
    )
    return _Group(
        list(members),
        first.factory,
        _in_turn if in_turn else jax.vmap,
        chosen,
        None if same else 0,
        seed_axis,
        (numbers, timelines[0] if same else _stacked(timelines), first.last, _stacked(states)),
    )


def _stacked(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def _in_turn(function: Callable, axes: tuple[int | None, ...]) -> Callable:
    """``jax.vmap(function, axes)`` as a loop."""

    def looped(*arguments: PyTree) -> PyTree:
        def one(varying: tuple) -> PyTree:
            parts = iter(varying)
            pairs = zip(arguments, axes, strict=True)
            return function(*(x if axis is None else next(parts) for x, axis in pairs))

        pairs = zip(arguments, axes, strict=True)
        return jax.lax.map(one, tuple(x for x, axis in pairs if axis is not None))

    return looped
