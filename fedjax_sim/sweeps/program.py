"""The compiled program of a sweep's group: one block of runs a device."""

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim.engine import History, Probes, RunState, advance, init
from fedjax_sim.execution.placement import ByClient, make_mesh
from fedjax_sim.execution.strategies import Execution, auto
from fedjax_sim.sweeps.grid import Block, Group, Plan, cut, widths
from fedjax_sim.types import Device, FedAlgorithm, Params, PyTree, Setup, Task, Timeline

# Dispatches a slice is cut into, at most: often enough for progress and Ctrl-C.
_MOST_SEGMENTS = 50

# All runs of a block are in the same round. As one number it keeps the draws that derive from
# it, and with them the minibatches, common to all configurations.
_STATE = RunState(round=None, server=0, clients=0, past=0, diverged_at=0)  # pyright: ignore


class Trial(NamedTuple):
    """Everything that the configurations of a group share."""

    factory: Callable[..., FedAlgorithm]  # called with the traced hyper-parameters, by name
    setup: Setup  # of all seeds: params [n, ...]
    execution: Execution | None  # None: chosen for the number of runs in a block
    probes: Probes


class Spread(NamedTuple):
    """Blocks over the devices of a mesh; those of one block share its clients."""

    mesh: Mesh
    axis: str | None  # over which blocks are divided
    clients: ByClient | None = None

    @property
    def number(self) -> int:
        """Blocks at once."""
        return self.mesh.shape[self.axis] if self.axis else 1

    def task(self, task: Task) -> Any:
        """PartitionSpecs of a task."""
        return PartitionSpec() if self.clients is None else self.clients.specs(task)

    def results(self, probes: Probes) -> tuple[RunState, History]:
        """PartitionSpecs of a block's state and history, ``[blocks, width, seeds, ...]``."""
        block, axis = PartitionSpec(self.axis), self.clients and self.clients.axis
        rows = PartitionSpec(self.axis, None, None, axis)
        slots = PartitionSpec(self.axis, None, None, None, axis)
        probed = dict.fromkeys((*probes.server, *probes.run), block)
        probed |= dict.fromkeys(probes.client, slots)
        state = RunState(block, block, rows, block, block)  # pyright: ignore
        return state, History(block, block, probed)  # pyright: ignore


class Compiled(NamedTuple):
    """Programs for blocks of one shape, D devices of width x seeds runs each."""

    begin: Any  # (hyper, task, timeline, params) -> state
    segments: dict[int, Any]  # rounds -> (hyper, task, eval_fn, timeline, state, keys) -> ...
    bytes_per_device: int


class Program(NamedTuple):
    """A group, ready to run slice by slice."""

    trial: Trial
    group: Group
    keys: Array  # [n]
    spread: Spread
    plan: Plan
    compiled: Compiled

    def run(
        self,
        blocks: Sequence[Block],
        on_segment: Callable[[int], None],
        interrupted: Callable[[], bool],
    ) -> tuple[History, np.ndarray] | None:
        """History and divergence of a slice, ``[D, width, seeds, ...]``; None if interrupted."""
        arguments = _arguments(
            self.trial.setup, self.group, self.keys, self.spread, self.plan, blocks
        )
        hyper, task, eval_fn, timeline, params, keys = arguments
        state = self.compiled.begin(hyper, task, timeline, params)
        parts, done = [], 0
        for length in _segments(self.trial.setup):
            if interrupted():
                return None
            part = _rounds(timeline, done, length)
            segment = self.compiled.segments[length]
            state, history = segment(hyper, task, eval_fn, part, state, keys)
            parts.append(jax.tree.map(np.asarray, history))  # waits for the devices
            done += length
            on_segment(done)
        history = jax.tree.map(lambda *x: np.concatenate(x, axis=3), *parts)
        return history, np.asarray(state.diverged_at)


class Programs:
    """Compiles for groups, once for all that have the same shapes and functions."""

    def __init__(self, devices: Sequence[Device], budget: int):
        self._devices = list(devices)
        self._budget = budget
        self._compiled: dict[Any, Compiled] = {}
        self.compilations = 0
        self.compile_seconds = 0.0

    def ready(self, trial: Trial, group: Group, keys: Array) -> Program:
        """The cheapest plan whose program fits the budget, compiled.

        Raises:
            ValueError: even one run does not fit.
        """
        setup = trial.setup
        num_seeds, num_runs = keys.shape[0], len(group.members) * keys.shape[0]
        spread = self._spread(setup.task, num_runs)
        task = dataclasses.replace(setup.task, num_steps=())  # concrete, and not needed
        setup = dataclasses.replace(setup, task=task)
        where = spread.task(setup.task), PartitionSpec()
        data = _data_bytes((setup.task, setup.eval_fn), where, spread.mesh)
        if data <= self._budget:  # copied to the devices once, not for every slice
            shardings = _shardings(where, spread.mesh)
            task, eval_fn = jax.device_put((setup.task, setup.eval_fn), shardings)
            setup = dataclasses.replace(setup, task=task, eval_fn=eval_fn)
        trial = trial._replace(setup=setup)
        needed, per_run = data, 0.0
        for width, seeds in _shapes(spread, len(group.members), num_seeds):
            if data + per_run * width * seeds > self._budget:
                continue  # larger than one that was compiled and did not fit
            plan = cut(len(group.members), num_seeds, spread.number, width, seeds)
            compiled = self._compile(trial, group, keys, spread, plan)
            needed = compiled.bytes_per_device
            if needed <= self._budget:
                return Program(trial, group, keys, spread, plan, compiled)
            per_run = max(needed - data, 0) / (width * seeds)
        raise ValueError(
            f"memory is {self._budget} bytes a device; expected more: one run needs about "
            f"{int(data + per_run) if per_run else needed}"
        )

    def _spread(self, task: Task, num_runs: int) -> Spread:
        """Where blocks go: to a device each, or to those that share a placed task's clients."""
        placed = task.placement
        if placed is None:
            # A device without a run of its own would repeat another's, on a CPU at its cost.
            return Spread(make_mesh(self._devices[:num_runs], "blocks"), "blocks")
        others = [axis for axis in placed.mesh.axis_names if axis != placed.axis]
        if len(others) > 1:
            raise ValueError(
                f"task.placement has a mesh with axes {placed.mesh.axis_names}; expected one "
                f"besides {placed.axis!r} at most, for the sweep's runs"
            )
        return Spread(placed.mesh, others[0] if others else None, placed)

    def _compile(
        self, trial: Trial, group: Group, keys: Array, spread: Spread, plan: Plan
    ) -> Compiled:
        setup = trial.setup
        arguments = _arguments(setup, group, keys, spread, plan, plan.slices[0])
        leaves, structure = jax.tree.flatten(arguments)
        probes = tuple(tuple(p.items()) for p in trial.probes)
        factory = _by_value(trial.factory)
        functions = (factory, trial.execution, setup.weighting, setup.eval_every, probes)
        key = functions, structure, tuple((x.shape, x.dtype) for x in leaves)
        if key not in self._compiled:
            began = time.perf_counter()
            self._compiled[key] = self._compile_anew(trial, spread, plan, arguments)
            self.compile_seconds += time.perf_counter() - began
        return self._compiled[key]

    def _compile_anew(self, trial: Trial, spread: Spread, plan: Plan, arguments: tuple) -> Compiled:
        hyper, task, eval_fn, timeline, params, keys = arguments
        setup = trial.setup
        begin_block, segment_block = _blocks(trial, plan)
        batched = 0 if setup.timeline.clients.ndim == 3 else None
        block, every = PartitionSpec(spread.axis), PartitionSpec()
        timelines, tasks = every if batched is None else block, spread.task(task)
        results = spread.results(trial.probes)
        begin = _on_devices(
            begin_block,
            spread,
            (0, None, batched, 0),
            (block, tasks, timelines, block),
            results[0],
        )
        segment = _on_devices(
            segment_block,
            spread,
            (0, None, None, batched, 0, 0),
            (block, tasks, every, timelines, results[0], block),
            results,
        )
        lowered = jax.jit(begin).lower(hyper, task, timeline, params)
        begin = lowered.compile()
        # Only its shapes: until the budget is checked a state may be too large to exist.
        state = jax.tree.map(
            lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
            lowered.out_info,
            begin.output_shardings,
        )
        segments, needed = {}, _bytes(begin)
        for length in dict.fromkeys(_segments(setup)):
            lowered = jax.jit(segment, donate_argnums=4).lower(
                hyper, task, eval_fn, _rounds(timeline, 0, length), state, keys
            )
            segments[length] = compiled = lowered.compile()
            self.compilations += 1
            needed = max(needed, _bytes(compiled))
        return Compiled(begin, segments, needed)


def _by_value(factory: Callable) -> Any:
    """Returns an equal key for factories with equal static hyper-parameters."""
    if not isinstance(factory, functools.partial):
        return factory
    key = factory.func, tuple(sorted(factory.keywords.items()))
    try:
        hash(key)
    except TypeError:
        return factory
    return key


def _shapes(spread: Spread, num_configurations: int, num_seeds: int) -> Iterator[tuple[int, int]]:
    """Configurations and seeds a block, the best first.

    Seeds share no minibatch: on CPU running them together gains nothing, on an accelerator
    it fills the chip.
    """
    together = 1 if spread.mesh.devices.flat[0].platform == "cpu" else num_seeds
    for width in widths(num_configurations, -(-num_seeds // together), spread.number):
        yield width, together
    yield from ((1, seeds) for seeds in range(together - 1, 0, -1))


def _blocks(trial: Trial, plan: Plan) -> tuple[Callable, Callable]:
    """One device's work: all runs of a block begin, and advance by some rounds."""
    setup = trial.setup
    of_seed = 0 if setup.timeline.clients.ndim == 3 else None
    execution = trial.execution or auto(replicas=plan.width * plan.seeds, devices=())

    def begin(hyper, task, timeline, params) -> RunState:
        def one(hyper, timeline, params):
            one = dataclasses.replace(setup, task=task, timeline=timeline, params=params)
            return init(trial.factory(**hyper), one)

        over_seeds = _batched(one, (None, of_seed, 0), _STATE, plan.seeds)
        over_both = jax.vmap(over_seeds, (0, None, None), _STATE, axis_size=plan.width)
        return over_both(hyper, timeline, params)

    def segment(hyper, task, eval_fn, timeline, state, keys) -> tuple[RunState, History]:
        def one(hyper, timeline, state, key):
            part = dataclasses.replace(
                setup, task=task, timeline=timeline, params=None, eval_fn=eval_fn
            )
            return advance(
                trial.factory(**hyper), part, state, key, execution=execution, probes=trial.probes
            )

        over_seeds = _batched(one, (None, of_seed, _STATE, 0), (_STATE, 0), plan.seeds)
        over_both = jax.vmap(over_seeds, (0, None, _STATE, None), (_STATE, 0), axis_size=plan.width)
        return over_both(hyper, timeline, state, keys)

    return begin, segment


def _batched(one: Callable, in_axes: tuple, out_axes: Any, size: int) -> Callable:
    """``vmap``, except that a batch of 1 is no batch: the compiler would not see through it."""
    if size > 1:
        return jax.vmap(one, in_axes, out_axes)

    def alone(*arguments: PyTree) -> PyTree:
        return _where_axis(jnp.expand_dims, out_axes, one(*_where_axis(_only, in_axes, arguments)))

    return alone


def _where_axis(change: Callable[[Array, int], Array], axes: Any, values: PyTree) -> PyTree:
    """``change(leaf, 0)`` where the prefix ``axes`` has 0, nothing where it has None."""

    def of(axis: int | None, part: PyTree) -> PyTree:
        return part if axis is None else jax.tree.map(lambda x: change(x, 0), part)

    return jax.tree.map(of, axes, values, is_leaf=lambda x: x is None)


def _only(x: Array, axis: int) -> Array:
    return jax.lax.index_in_dim(x, 0, axis, keepdims=False)


def _on_devices(
    block: Callable, spread: Spread, in_axes: tuple[int | None, ...], specs: tuple, results: Any
) -> Callable:
    """``block`` for every block; of arguments with axis 0 each has its own, ``[blocks, ...]``."""
    on_device = _batched(block, in_axes, 0, 1)
    if spread.mesh.size == 1:
        return on_device
    # Nothing that is shared is differentiated, so replication checks would have nothing to insert.
    return jax.shard_map(
        on_device, mesh=spread.mesh, in_specs=specs, out_specs=results, check_vma=False
    )


def _shardings(specs: PyTree, mesh: Mesh) -> PyTree:
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def _data_bytes(data: PyTree, specs: PyTree, mesh: Mesh) -> int:
    """Of one device's part."""

    def of_part(sharding: NamedSharding, part: PyTree) -> int:
        def size(x: Array) -> int:
            return int(np.prod(sharding.shard_shape(x.shape))) * x.dtype.itemsize

        return sum(size(x) for x in jax.tree.leaves(part))

    return sum(jax.tree.leaves(jax.tree.map(of_part, _shardings(specs, mesh), data)))


def _arguments(
    setup: Setup, group: Group, keys: Array, spread: Spread, plan: Plan, blocks: Sequence[Block]
) -> tuple[dict[str, Array], Task, Any, Timeline, Params, Array]:
    """A slice's arguments on the devices: ``[D, width]`` hyper-parameters, ``[D, seeds, ...]``
    models, keys and (if they differ by seed) timelines; the task and one timeline for all."""
    rows = np.array([plan.configurations(block, len(group.members)) for block in blocks])
    seeds = np.array([plan.seed_numbers(block, keys.shape[0]) for block in blocks])
    per_device = NamedSharding(spread.mesh, PartitionSpec(spread.axis))
    everywhere = NamedSharding(spread.mesh, PartitionSpec())
    real = jnp.result_type(float)
    hyper = {name: group.values[name][rows].astype(real) for name in sorted(group.names)}
    # Picked by NumPy: as operations of JAX they are two dozen small programs to compile.
    picked = jax.tree.map(lambda x: np.asarray(x)[seeds], (setup.params, jax.random.key_data(keys)))
    timeline = jax.tree.map(np.asarray, setup.timeline)
    if timeline.clients.ndim == 3:
        timeline = jax.device_put(jax.tree.map(lambda x: x[seeds], timeline), per_device)
    else:
        timeline = jax.device_put(timeline, everywhere)
    hyper, (params, words) = jax.device_put((hyper, picked), per_device)
    keys = jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))
    return hyper, setup.task, setup.eval_fn, timeline, params, keys


def _segments(setup: Setup) -> list[int]:
    """Rounds of each dispatch, all equal so that one program serves them."""
    rounds, every = setup.timeline.num_rounds, setup.eval_every
    if rounds % every:
        return [rounds]
    evaluations = rounds // every
    most = min(evaluations, _MOST_SEGMENTS)
    number = next(n for n in range(most, 0, -1) if evaluations % n == 0)
    return [rounds // number] * number


def _rounds(timeline: Timeline, first: int, length: int) -> Timeline:
    return timeline[first : first + length]


def _bytes(compiled: Any) -> int:
    """Of a program's arguments, results and temporaries; donated ones counted once."""
    sizes = compiled.memory_analysis()
    if sizes is None:  # a backend that does not say
        return 0
    return (
        sizes.argument_size_in_bytes
        + sizes.output_size_in_bytes
        + sizes.temp_size_in_bytes
        - sizes.alias_size_in_bytes
    )


def check_names(function: Callable, names: Sequence[str]) -> None:
    """Refuses hyper-parameters that a function does not take, or lacks.

    Raises:
        ValueError: naming them.
    """
    try:
        inspect.signature(function).bind(**dict.fromkeys(names))
    except TypeError as error:
        given = ", ".join(names) or "nothing"
        raise ValueError(
            f"grid gives {given} to {getattr(function, '__qualname__', function)}: {error}"
        ) from error
