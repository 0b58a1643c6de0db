"""Compiled programs of a sweep's groups: one block of runs per device."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim.checks import shapes_of_one
from fedjax_sim.engine import (
    History,
    RunState,
    Scorers,
    is_ragged,
    make_mesh,
    program_bytes,
    takes_state,
)
from fedjax_sim.runs.storage.functions import sealed
from fedjax_sim.runs.storage.run_functions import RunTraces
from fedjax_sim.runs.sweeps.blocks import Spread, block_functions, on_devices
from fedjax_sim.runs.sweeps.grid import Block, Group, Plan, cut, widths
from fedjax_sim.runs.sweeps.trial import Trial
from fedjax_sim.types import Device, Params, PyTree, Setup, Task, Timeline

# Dispatches per slice, at most: often enough for progress and Ctrl-C.
_MOST_SEGMENTS = 50


class Compiled(NamedTuple):
    """Programs for blocks of one shape, D devices of width x seeds runs each."""

    begin: Any  # (hyper, task, timeline, params) -> state
    segments: dict[int, Any]  # rounds -> (hyper, task, eval_fn, timeline, state, keys) -> ...
    bytes_per_device: int


class SliceResult(NamedTuple):
    """Results of the runs of a slice, leaves ``[D, width, seeds, ...]``."""

    history: History
    diverged_at: np.ndarray
    models: Params | None  # None: not kept
    state: RunState | None  # on the devices; None: not kept


class Program(NamedTuple):
    """A group whose programs are compiled."""

    trial: Trial
    group: Group
    keys: Array  # [n]
    spread: Spread
    plan: Plan
    compiled: Compiled
    lengths: Sequence[int]  # of the segments, in rounds
    scorers: Scorers

    def run(
        self,
        blocks: Sequence[Block],
        on_segment: Callable[[int], None],
        interrupted: Callable[[], bool],
        *,
        keep_models: bool,
        start: RunState | None = None,
        first: int = 0,
        last: int | None = None,
        keep_state: bool = False,
    ) -> SliceResult | None:
        """Runs a slice, or its rounds ``first`` to ``last``; returns None if interrupted.

        Args:
            blocks, on_segment, interrupted: of the slice.
            keep_models, keep_state: parts of the result.
            start: its state after round ``first``, which is consumed; None: the first state.
            first, last: ends of segments.
        """
        arguments = _arguments(
            self.trial.setup, self.group, self.keys, self.spread, self.plan, blocks
        )
        hyper, task, eval_fn, timeline, params, keys = arguments
        state = self.compiled.begin(hyper, task, timeline, params) if start is None else start
        parts, done = [], 0
        for length in self.lengths:
            if done < first or (last is not None and done >= last):
                done += length
                continue
            if interrupted():
                return None
            part = _rounds(timeline, done, length)
            segment = self.compiled.segments[length]
            state, history = segment(hyper, task, eval_fn, part, state, keys)
            history = jax.tree.map(np.asarray, history)  # waits for the devices
            scored = self.scorers(history.metrics, history.round.shape)
            parts.append(history._replace(metrics=scored))
            done += length
            on_segment(done)
        history = jax.tree.map(lambda *x: np.concatenate(x, axis=3), *parts)
        models = jax.tree.map(np.asarray, state.server.params) if keep_models else None
        diverged_at = np.asarray(state.diverged_at)
        # A state that is not needed must not stay in memory beside that of the next slice.
        return SliceResult(history, diverged_at, models, state if keep_state else None)

    def continued(self, states: Sequence[RunState], rows: np.ndarray) -> RunState:
        """Returns the state of a slice whose runs were in other slices before.

        Args:
            states: of those slices, leaves ``[D', width', seeds', ...]``.
            rows: number of each run of this slice among all of theirs, ``[D, width, seeds]``.
        """

        @jax.jit
        def selected(states: Sequence[RunState]) -> RunState:
            def of(*parts: Array) -> Array:
                return jnp.concatenate([x.reshape(-1, *x.shape[3:]) for x in parts])[rows]

            rounds = jnp.broadcast_to(states[0].round[0], rows.shape[:1])
            other = jax.tree.map(of, *(state._replace(round=()) for state in states))
            return other._replace(round=rounds)

        where = _shardings(self.spread.results(self.trial.probes)[0], self.spread.mesh)
        return jax.device_put(selected(list(states)), where)  # perhaps on fewer devices


class Programs:
    """Compiled programs of groups; groups with the same shapes and functions share them.

    Args:
        devices: that run blocks.
        budget: bytes that a program may need per device.
        filled: function of the configurations of a group that returns for how many blocks are made:
            groups fill theirs by repetition, so that they need no program of their own.
        rungs: rounds in which runs may be cut, ends of segments.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        budget: int,
        filled: Callable[[int], int] = int,
        rungs: Sequence[int] = (),
    ):
        self._devices = list(devices)
        self.budget = budget
        self._filled = filled
        self._rungs = rungs
        self._compiled: dict[Any, Compiled] = {}
        self.compilations = 0
        self.compile_seconds = 0.0

    def prepare(self, trial: Trial, group: Group, keys: Array) -> Program:
        """Returns the cheapest plan whose program fits the memory budget, with the program."""
        setup, traces = trial.setup, trial.traces(group.names)
        scorers = Scorers(setup.eval_fn)
        num_seeds, num_runs = keys.shape[0], len(group.members) * keys.shape[0]
        spread = self._spread(setup.task, num_runs)
        if not takes_state(setup.eval_fn):  # the only user of these numbers on the devices
            setup = dataclasses.replace(setup, task=dataclasses.replace(setup.task, num_steps=()))
        where = spread.task(setup.task), PartitionSpec()
        data = _data_bytes((setup.task, setup.eval_fn), where, spread.mesh)
        if data <= self.budget:  # copied to the devices once, not per slice
            shardings = _shardings(where, spread.mesh)
            task, eval_fn = jax.device_put((setup.task, setup.eval_fn), shardings)
            setup = dataclasses.replace(setup, task=task, eval_fn=eval_fn)
        task, eval_fn = sealed((setup.task, setup.eval_fn), traces)
        setup = dataclasses.replace(setup, task=task, eval_fn=eval_fn)
        trial = trial._replace(setup=setup)
        needed, per_run = data, 0.0
        for width, seeds in _shapes(spread, self._filled(len(group.members)), num_seeds):
            if data + per_run * width * seeds > self.budget:
                continue  # larger than one that was compiled and did not fit
            plan = cut(len(group.members), num_seeds, spread.number, width, seeds)
            lengths = _segments(setup, scorers, width * seeds, self._rungs)
            compiled = self._compiled_for(trial, traces, group, keys, spread, plan, lengths)
            needed = compiled.bytes_per_device
            if needed <= self.budget:
                return Program(trial, group, keys, spread, plan, compiled, lengths, scorers)
            per_run = max(needed - data, 0) / (width * seeds)
        raise ValueError(
            f"memory is {self.budget} bytes per device; expected more: one run needs about "
            f"{int(data + per_run) if per_run else needed}"
        )

    def _spread(self, task: Task, num_runs: int) -> Spread:
        """Returns the devices of blocks: one each, or all that share a placed task's clients."""
        placed = task.placement
        if placed is None:
            # A device without a run of its own would repeat another device's run.
            return Spread(make_mesh(self._devices[:num_runs], "blocks"), "blocks")
        others = [axis for axis in placed.mesh.axis_names if axis != placed.axis]
        if len(others) > 1:
            raise ValueError(
                f"task.placement has a mesh with axes {placed.mesh.axis_names}; expected at most "
                f"one besides {placed.axis!r}, for the runs of the sweep"
            )
        return Spread(placed.mesh, others[0] if others else None, placed)

    def _compiled_for(
        self,
        trial: Trial,
        traces: RunTraces,
        group: Group,
        keys: Array,
        spread: Spread,
        plan: Plan,
        lengths: Sequence[int],
    ) -> Compiled:
        setup = trial.setup
        arguments = _arguments(setup, group, keys, spread, plan, plan.slices[0])
        leaves, structure = jax.tree.flatten(arguments)
        # The steps of a timeline decide how clients are executed, see strategies.auto.
        functions = traces, setup.eval_every, is_ragged(setup.timeline)
        key = functions, structure, tuple((x.shape, x.dtype) for x in leaves), lengths[0]
        if key not in self._compiled:
            began = time.perf_counter()
            self._compiled[key] = _compile(trial, spread, plan, lengths, arguments)
            self.compile_seconds += time.perf_counter() - began
            self.compilations += len(self._compiled[key].segments)
        return self._compiled[key]


def _compile(
    trial: Trial, spread: Spread, plan: Plan, lengths: Sequence[int], arguments: tuple
) -> Compiled:
    hyper, task, eval_fn, timeline, params, keys = arguments
    setup = trial.setup
    begin_block, segment_block = block_functions(trial, plan)
    batched = 0 if setup.timeline.clients.ndim == 3 else None
    block, every = PartitionSpec(spread.axis), PartitionSpec()
    timelines, tasks = every if batched is None else block, spread.task(task)
    results = spread.results(trial.probes)
    begin = on_devices(
        begin_block, spread, (0, None, batched, 0), (block, tasks, timelines, block), results[0]
    )
    segment = on_devices(
        segment_block,
        spread,
        (0, None, None, batched, 0, 0),
        (block, tasks, every, timelines, results[0], block),
        results,
    )
    lowered = jax.jit(begin).lower(hyper, task, timeline, params)
    begin = lowered.compile()
    # Shapes only: a state that exceeds the budget must not be created.
    state = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        lowered.out_info,
        begin.output_shardings,
    )
    segments, needed = {}, program_bytes(begin)
    for length in dict.fromkeys(lengths):
        lowered = jax.jit(segment, donate_argnums=4).lower(
            hyper, task, eval_fn, _rounds(timeline, 0, length), state, keys
        )
        segments[length] = compiled = lowered.compile()
        needed = max(needed, program_bytes(compiled))
    return Compiled(begin, segments, needed)


def _shapes(spread: Spread, num_configurations: int, num_seeds: int) -> Iterator[tuple[int, int]]:
    """Yields configurations and seeds per block, the best choice first.

    Seeds share no minibatch: running them together gains nothing on a CPU and fills the chip of
    an accelerator.
    """
    together = 1 if spread.mesh.devices.flat[0].platform == "cpu" else num_seeds
    for width in widths(num_configurations, -(-num_seeds // together), spread.number):
        yield width, together
    yield from ((1, seeds) for seeds in range(together - 1, 0, -1))


def _shardings(specs: PyTree, mesh: Mesh) -> PyTree:
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def _data_bytes(data: PyTree, specs: PyTree, mesh: Mesh) -> int:
    """Returns the bytes of one device's part."""

    def of_part(sharding: NamedSharding, part: PyTree) -> int:
        def size(x: Array | float) -> int:
            return int(np.prod(sharding.shard_shape(np.shape(x)))) * jnp.result_type(x).itemsize

        return sum(size(x) for x in jax.tree.leaves(part))

    return sum(jax.tree.leaves(jax.tree.map(of_part, _shardings(specs, mesh), data)))


def _arguments(
    setup: Setup, group: Group, keys: Array, spread: Spread, plan: Plan, blocks: Sequence[Block]
) -> tuple[dict[str, Array], Task, Any, Timeline, Params, Array]:
    """Returns a slice's arguments on the devices.

    Hyper-parameters are ``[D, width]``; models, keys and timelines that differ by seed
    ``[D, seeds, ...]``.
    """
    rows = np.array([plan.configurations(block, len(group.members)) for block in blocks])
    seeds = np.array([plan.seed_numbers(block, keys.shape[0]) for block in blocks])
    per_device = NamedSharding(spread.mesh, PartitionSpec(spread.axis))
    everywhere = NamedSharding(spread.mesh, PartitionSpec())
    real = jnp.result_type(float)
    hyper = {name: group.values[name][rows].astype(real) for name in sorted(group.names)}
    # Selected by NumPy: as JAX operations these would be two dozen small programs to compile.
    picked = jax.tree.map(lambda x: np.asarray(x)[seeds], (setup.params, jax.random.key_data(keys)))
    timeline = jax.tree.map(np.asarray, setup.timeline)
    if timeline.clients.ndim == 3:
        timeline = jax.device_put(jax.tree.map(lambda x: x[seeds], timeline), per_device)
    else:
        timeline = jax.device_put(timeline, everywhere)
    hyper, (params, words) = jax.device_put((hyper, picked), per_device)
    keys = jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))
    return hyper, setup.task, setup.eval_fn, timeline, params, keys


def _segments(
    setup: Setup, scorers: Scorers, num_runs: int, rungs: Sequence[int] = ()
) -> list[int]:
    """Returns the rounds of each dispatch, equal where one program can serve all; rungs end one."""
    rounds, every = setup.timeline.num_rounds, setup.eval_every
    if rounds % every:  # runs that end between two evaluations have no equal parts
        return [end - begin for begin, end in itertools.pairwise([0, *rungs, rounds])]
    evaluations = math.gcd(rounds, *rungs) // every  # of a part that must not be joined with others
    parts = rounds // every // evaluations
    most = max(min(evaluations, _MOST_SEGMENTS // parts), 1)
    number = next(n for n in range(most, 0, -1) if evaluations % n == 0)
    model = shapes_of_one(setup.params, batched=True)
    if scorers.are_large(model, evaluations // number * num_runs):
        number = evaluations
    return [evaluations // number * every] * (number * parts)


def _rounds(timeline: Timeline, first: int, length: int) -> Timeline:
    return timeline[first : first + length]
