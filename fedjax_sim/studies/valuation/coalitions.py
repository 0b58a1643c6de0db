"""Timelines of coalitions, and compiled programs that run many coalitions together."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_sim.engine import (
    Execution,
    auto,
    has_kernels,
    is_ragged,
    make_mesh,
    memory_limit,
    platform_of,
    program_bytes,
    workers,
)
from fedjax_sim.studies.valuation.games import Metrics
from fedjax_sim.studies.valuation.metrics import final_metrics
from fedjax_sim.tree import entries
from fedjax_sim.types import FedAlgorithm, Setup, Timeline

# Coalitions per device at once. On a CPU more gain little, since a step costs as much as its runs
# plus four (sweeps.grid); on an accelerator they fill the chip.
_WIDEST = {"cpu": 64, "gpu": 512, "tpu": 512}


def masked(timeline: Timeline, members: Array) -> Timeline:
    """Returns a timeline in which only members, ``[M]`` bool, report."""
    clients = jnp.asarray(timeline.clients)
    return dataclasses.replace(timeline, mask=jnp.asarray(timeline.mask) & members[clients])


def resampled(setup: Setup, members: Array, key: Array) -> Timeline:
    """Returns a timeline whose cohorts are drawn from the members, ``[M]`` bool.

    Every round has a random order of all clients, which depends on ``key`` and the round only; its
    cohort is the first members in this order, as many as report in the setup's timeline.
    """
    timeline = setup.timeline

    def cohort(round: Array) -> Array:
        order = jax.random.uniform(jax.random.fold_in(key, round), (setup.task.num_clients,))
        first = jnp.argsort(jnp.where(members, order, 2.0))[: timeline.cohort_size]
        return jnp.pad(first, (0, timeline.cohort_size - len(first)))  # slots that stay empty

    clients = jax.vmap(cohort)(jnp.arange(timeline.num_rounds)).astype(jnp.int32)
    steps = entries(setup.task.num_steps, clients).astype(jnp.int32)
    reports = jnp.arange(timeline.cohort_size) < jnp.sum(timeline.mask, axis=1, keepdims=True)
    return dataclasses.replace(
        timeline, clients=clients, num_steps=steps, mask=members[clients] & reports
    )


class Programs:
    """Compiled programs for chunks of coalitions: one per power of two."""

    def __init__(
        self,
        algorithm: FedAlgorithm,
        setup: Setup,
        key: Array,
        resample: Array | None,
        width: int | None,
        memory: int | None,
        execution: Execution | None,
    ):
        self._algorithm, self._setup, self._execution = algorithm, setup, execution
        self._keys = key, resample
        platform = platform_of((setup.task, setup.params)) or "cpu"
        # Visits of a client that runs alone skip the steps of masked ones.
        self._in_turn = platform == "cpu" and (
            has_kernels(jax.tree.leaves(setup.params)) or is_ragged(setup.timeline)
        )
        placed = setup.task.placement is not None
        self._devices = [] if placed else list(workers())
        self._width = width or _WIDEST[platform]
        first = self._devices[0] if self._devices else jax.devices()[0]
        self._memory = memory or memory_limit(first)
        self._compiled: dict[int, Any] = {}
        self._mesh = make_mesh(self._devices, "coalitions") if self._devices else None

    def chunk(self, count: int) -> int:
        """Returns the coalitions of one call, of ``count`` that are missing."""
        parallel = max(len(self._devices), 1)
        size = min(self._width, 1 << max(-(-count // parallel) - 1, 0).bit_length())
        # A program that is up to four times too wide costs less than another compilation.
        size = min((n for n in self._compiled if size <= n <= 4 * size), default=size)
        while size not in self._compiled:
            compiled = self._compile(size * parallel)
            needed = program_bytes(compiled)
            if needed <= self._memory:
                self._compiled[size] = compiled
            elif size == 1:
                raise ValueError(
                    f"memory is {self._memory} bytes per device; expected at least {needed}, "
                    "those of one coalition"
                )
            else:
                self._width = size = size // 2
        return size * parallel

    def __call__(self, coalitions: np.ndarray) -> Metrics:
        count = len(coalitions)
        size = self.chunk(count)
        padded = coalitions[np.minimum(np.arange(size), count - 1)]
        compiled = self._compiled[size // max(len(self._devices), 1)]
        metrics = compiled(self._setup, *self._keys, self._placed(padded))
        return {name: np.asarray(x, np.float64)[:count] for name, x in metrics.items()}

    def _placed(self, members: Any) -> Array:
        if self._mesh is None:
            return jnp.asarray(members)
        return jax.device_put(members, NamedSharding(self._mesh, PartitionSpec("coalitions")))

    def _compile(self, size: int) -> Any:
        replicas = 1 if self._in_turn else size // max(len(self._devices), 1)
        execution = self._execution or auto(
            replicas, devices=(), ragged=self._in_turn,
            platform=platform_of((self._setup.task, self._setup.params)),
        )  # fmt: skip

        def of_block(setup: Setup, key: Array, resample: Array | None, members: Array) -> Any:
            def of_coalition(members: Array) -> dict[str, Array]:
                if resample is None:
                    timeline = masked(setup.timeline, members)
                else:
                    timeline = resampled(setup, members, resample)
                one = dataclasses.replace(setup, timeline=timeline)
                return final_metrics(self._algorithm, one, key, execution)

            if self._in_turn or members.shape[0] == 1:
                return jax.lax.map(of_coalition, members)
            return jax.vmap(of_coalition)(members)

        program = of_block
        if self._mesh is not None and self._mesh.size > 1:
            every, block = PartitionSpec(), PartitionSpec("coalitions")
            program = jax.shard_map(
                of_block, mesh=self._mesh, in_specs=(every, every, every, block), out_specs=block,
                check_vma=False,
            )  # fmt: skip
            where = NamedSharding(self._mesh, every)
            self._setup, self._keys = jax.device_put((self._setup, self._keys), where)
        members = self._placed(np.zeros((size, self._setup.task.num_clients), bool))
        return jax.jit(program).lower(self._setup, *self._keys, members).compile()
