"""One device's work in a sweep: a block of runs, and blocks over the devices of a mesh."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from fedjax_sim.engine import (
    ByClient,
    Execution,
    History,
    Probes,
    RunState,
    advance,
    auto,
    first_state,
    is_ragged,
    platform_of,
)
from fedjax_sim.engine.execution.replicas import clients_outside
from fedjax_sim.runs.storage.functions import opened
from fedjax_sim.runs.sweeps.grid import Plan
from fedjax_sim.runs.sweeps.trial import Trial
from fedjax_sim.types import PyTree, Setup, Task

# All runs of a block are in the same round. The round is one number, so the draws that derive from
# it, and with them the minibatches, are common to all configurations.
_STATE = RunState(round=None, server=0, clients=0, past=0, diverged_at=0, selection=0)  # pyright: ignore


class Spread(NamedTuple):
    """Devices of a mesh that run blocks; the devices of one block share its clients."""

    mesh: Mesh
    axis: str | None  # over which blocks are divided
    clients: ByClient | None = None

    @property
    def number(self) -> int:
        """Number of blocks that run at once."""
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
        state = RunState(block, block, rows, block, block, block)  # pyright: ignore
        return state, History(block, block, probed)  # pyright: ignore


def block_functions(trial: Trial, plan: Plan) -> tuple[Callable, Callable]:
    """Returns the functions that initialise all runs of a block and that advance them."""
    setup = trial.setup
    of_seed = 0 if setup.timeline.clients.ndim == 3 else None
    # Runs that are batched together do all steps of the longest visit, see local.local_steps.
    batched = of_seed == 0 and plan.seeds > 1
    execution = trial.execution or _chosen(
        setup, plan.width * plan.seeds, is_ragged(setup.timeline) and not batched
    )

    def begin(hyper, task, timeline, params) -> RunState:
        task = opened(task)

        def one(hyper, timeline, params):
            one = dataclasses.replace(setup, task=task, timeline=timeline, params=params)
            return first_state(trial.factory(**hyper), one)

        over_seeds = _batched(one, (None, of_seed, 0), _STATE, plan.seeds)
        over_both = jax.vmap(over_seeds, (0, None, None), _STATE, axis_size=plan.width)
        return over_both(hyper, timeline, params)

    def segment(hyper, task, eval_fn, timeline, state, keys) -> tuple[RunState, History]:
        task, eval_fn = opened((task, eval_fn))

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


def _chosen(setup: Setup, runs: int, ragged: bool) -> Execution:
    """Returns the strategy of a block with ``runs`` runs."""
    platform = platform_of((setup.task, setup.params))
    execution = auto(runs, devices=(), ragged=ragged, platform=platform)
    # The vectors of the runs, also a matrix with one row, become the columns of one product.
    # Measured on CPUs only: W4's sweep took 0.93 of the time; models with matrices, which gain no
    # columns, took 1.00 to 1.05.
    vectors = all(
        math.prod(leaf.shape[1:]) == max(leaf.shape[1:], default=1)  # [seeds, ...]
        for leaf in jax.tree.leaves(setup.params)
    )
    return clients_outside(execution) if platform == "cpu" and runs > 1 and vectors else execution


def _batched(one: Callable, in_axes: tuple, out_axes: Any, size: int) -> Callable:
    """Returns ``vmap`` of a function; a batch of 1 is run without ``vmap``, which is faster."""
    if size > 1:
        return jax.vmap(one, in_axes, out_axes)

    def alone(*arguments: PyTree) -> PyTree:
        return _where_axis(jnp.expand_dims, out_axes, one(*_where_axis(_only, in_axes, arguments)))

    return alone


def _where_axis(change: Callable[[Array, int], Array], axes: Any, values: PyTree) -> PyTree:
    """Applies ``change(leaf, 0)`` where the prefix ``axes`` has 0."""

    def of(axis: int | None, part: PyTree) -> PyTree:
        return part if axis is None else jax.tree.map(lambda x: change(x, 0), part)

    return jax.tree.map(of, axes, values, is_leaf=lambda x: x is None)


def _only(x: Array, axis: int) -> Array:
    return jax.lax.index_in_dim(x, 0, axis, keepdims=False)


def on_devices(
    block: Callable, spread: Spread, in_axes: tuple[int | None, ...], specs: tuple, results: Any
) -> Callable:
    """Returns ``block`` for all blocks: arguments with axis 0 are ``[blocks, ...]``."""
    on_device = _batched(block, in_axes, 0, 1)
    if spread.mesh.size == 1:
        return on_device
    # No replicated value is differentiated, so replication checks would insert nothing.
    return jax.shard_map(
        on_device, mesh=spread.mesh, in_specs=specs, out_specs=results, check_vma=False
    )
