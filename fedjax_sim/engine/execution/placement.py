"""Placement of client data and states: in whole arrays, or by client on a mesh of devices.

The engine calls the methods of a :class:`Placement`; those of :class:`Whole` do nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim.data import ClientSource
from fedjax_sim.engine.execution.blocked import BlockedData, blocked
from fedjax_sim.engine.execution.devices import automatic, check_no_explicit_mesh, make_mesh
from fedjax_sim.engine.execution.strategies import Execution, Gathered, Local
from fedjax_sim.timelines import Strata
from fedjax_sim.timelines.strata import strata as divide
from fedjax_sim.tree import all_reduced
from fedjax_sim.types import PyTree, Task, Timeline, Upload


class Placement(Protocol):
    """Storage of the table of all clients, and division of the slots over devices."""

    @property
    def axis(self) -> str | None:
        """Mesh axis over which the rows of tables and the slots of rounds are divided."""
        ...

    def num_rows(self, num_clients: int) -> int:
        """Returns the number of rows of the table."""
        ...

    def rows(self, clients: Array) -> Array:
        """Returns the clients' rows in the local part of the table; any row for other clients."""
        ...

    def own(self, slots: PyTree) -> PyTree:
        """Returns the slots, of leaves ``[S, ...]``, that run on this device."""
        ...

    def mean_of_all(self, execution: Execution) -> Execution:
        """Returns a strategy for the local slots that returns the mean over all slots."""
        ...

    def spread(self, rounds: Callable[..., Any], specs: tuple, results: Any) -> Callable[..., Any]:
        """Returns ``rounds(task, ...)`` divided over the devices by PartitionSpecs of the rest."""
        ...

    def put(self, table: PyTree) -> PyTree:
        """Puts a table of all clients onto its devices, inside jit."""
        ...

    def check(self, timeline: Timeline) -> None:
        """Raises ValueError for a concrete timeline that cannot run."""
        ...


class Whole:
    """Placement of the data and states of all clients in whole arrays."""

    axis = None

    def num_rows(self, num_clients: int) -> int:
        return num_clients

    def rows(self, clients: Array) -> Array:
        return clients

    def own(self, slots: PyTree) -> PyTree:
        return slots

    def mean_of_all(self, execution: Execution) -> Execution:
        return execution

    def spread(self, rounds: Callable[..., Any], specs: tuple, results: Any) -> Callable[..., Any]:
        del specs, results
        return rounds

    def put(self, table: PyTree) -> PyTree:
        return table

    def check(self, timeline: Timeline) -> None:
        del timeline


WHOLE = Whole()


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ByClient:
    """Placement by client: every device stores and runs the clients of its own strata."""

    mesh: Mesh
    axis: str
    strata: Strata

    def task(self, source: ClientSource, build: Callable[[Callable, Any], Task]) -> Task:
        """Returns a task with every stratum's examples on its device.

        The process of a device loads that device's examples.
        """
        if source.num_clients != self.strata.num_clients:
            raise ValueError(
                f"placement is for {self.strata.num_clients} clients; expected "
                f"{source.num_clients}, the data's"
            )
        blocks = blocked(source, self.strata, self, self.sharding)
        return dataclasses.replace(build(BlockedData.place, blocks), placement=self)

    def alone(self) -> ByClient:
        """Returns the placement on one device of this process, for shapes and traces."""
        mesh = automatic(make_mesh(jax.local_devices()[:1], self.axis), self.axis)
        return dataclasses.replace(self, mesh=mesh)

    @property
    def inside(self) -> bool:
        """True while the program of one device is traced."""
        return self.axis in jax.sharding.get_abstract_mesh().manual_axes

    @property
    def num_devices(self) -> int:
        """Number of devices that the rows are divided over."""
        return self.mesh.shape[self.axis]

    def num_rows(self, num_clients: int) -> int:
        del num_clients  # the strata's
        return self.strata.num_rows // (self.num_devices if self.inside else 1)

    def rows(self, clients: Array) -> Array:
        if not self.inside:
            raise ValueError(
                "task has its data by client on a mesh; expected a call within a run, since no "
                "device has the data of all clients"
            )
        count = self.num_rows(self.strata.num_clients)
        first = jax.lax.axis_index(self.axis) * count
        return jnp.clip(self.strata.row(clients) - first, 0, count - 1)  # pyright: ignore

    def own(self, slots: PyTree) -> PyTree:
        # A slot belongs to a device by its column.
        def part(x: Array) -> Array:
            size = x.shape[0] // self.num_devices
            first = jax.lax.axis_index(self.axis) * size
            return jax.lax.dynamic_slice_in_dim(x, first, size)

        return jax.tree.map(part, slots)

    def mean_of_all(self, execution: Execution) -> Execution:
        if isinstance(execution, Gathered):
            return execution.across(self.axis)

        def run(
            local: Local, shared: PyTree, slots: PyTree, weights: Array
        ) -> tuple[Upload, PyTree]:
            mean, outputs = execution(local, shared, slots, weights)
            return all_reduced(mean, weights.sum(), self.axis), outputs

        return run

    def spread(self, rounds: Callable[..., Any], specs: tuple, results: Any) -> Callable[..., Any]:
        if self.inside:  # a sweep divides whole blocks
            return rounds

        def run(task: Any, *rest: PyTree) -> PyTree:
            # The whole scan over rounds is one program per device: the partitioner would make a
            # dozen all-gathers of clients that are gathered by arbitrary indices.
            # Replication checks would sum a gradient with respect to the message over the devices
            # at every local step.
            program = jax.shard_map(
                rounds,
                mesh=self.mesh,
                in_specs=(self.specs(task), *specs),
                out_specs=results,
                check_vma=False,
            )
            return program(task, *rest)

        return run

    def specs(self, task: Any) -> Any:
        """Returns the PartitionSpecs of a task: only its blocked data is divided."""

        def is_blocked(x: Any) -> bool:
            return isinstance(x, BlockedData)

        return jax.tree.map(
            lambda x: PartitionSpec(self.axis) if is_blocked(x) else PartitionSpec(),
            task,
            is_leaf=is_blocked,
        )

    @property
    def sharding(self) -> NamedSharding:
        """Sharding of a table of clients."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    @property
    def everywhere(self) -> NamedSharding:
        """Sharding of replicated arrays."""
        return NamedSharding(self.mesh, PartitionSpec())

    def put(self, table: PyTree) -> PyTree:
        if self.inside:
            return table
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, self.sharding), table)

    def check(self, timeline: Timeline) -> None:
        check_no_explicit_mesh()
        columns, number = timeline.cohort_size, self.strata.number
        if columns % number:
            raise ValueError(
                f"timeline has {columns} slots; expected a multiple of the {number} strata, as "
                "timelines.stratified and timelines.arrange_by_stratum return it"
            )
        expected = np.arange(columns) // (columns // number)
        clients, mask = np.asarray(timeline.clients), np.asarray(timeline.mask)
        wrong = mask & (self.strata.of(clients) != expected)
        if wrong.any():
            where = tuple(int(i[0]) for i in np.nonzero(wrong))
            raise ValueError(
                f"timeline.clients[{', '.join(map(str, where))}] is {clients[where]}, which is not "
                f"in stratum {expected[where[-1]]}; expected a timeline of timelines.stratified or "
                f"timelines.arrange_by_stratum with num_strata = {number}"
            )


def by_client(
    num_clients: int,
    mesh: Mesh | None = None,
    *,
    axis: str = "clients",
    num_strata: int | None = None,
) -> ByClient:
    """Shards data and states of clients over the devices of a mesh axis.

    Pass it to :func:`~fedjax_sim.data.task.empirical_task`.  Each device runs the clients that it
    stores, which are consecutive, and a round needs a single all-reduce, of the mean upload.  So
    every device needs the same number of slots per round, for its own clients:
    :func:`~fedjax_sim.timelines.sampling.stratified` samples such cohorts, and
    :func:`~fedjax_sim.timelines.arrange_by_stratum` rearranges any other timeline.

    Args:
        num_clients: the population.
        mesh: default: all devices of all processes.
        axis: mesh axis over which the clients are divided; they are replicated over other axes.
        num_strata: blocks that the clients are divided into, a multiple of the axis' devices;
            default: one per device.  Runs with the same number of strata give the same results on
            every number of devices that divides it, and can resume each other's checkpoints.

    Raises:
        ValueError: the mesh lacks the axis, the devices do not divide the strata, or there are more
            strata than clients.

    Example:
        >>> import fedjax_sim as fs
        >>> here = by_client(6, jax.make_mesh((1,), ("clients",)), num_strata=2)
        >>> data = fs.FederatedData({"x": np.arange(12.0)}, np.arange(0, 13, 2))
        >>> loss = lambda w, batch, key: (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1), placement=here)
        >>> timeline = fs.timelines.stratified(jax.random.key(0), 30, 6, 4, 1, num_strata=2)
        >>> setup = fs.Setup(task, timeline, jnp.float32(0))
        >>> state, _ = fs.run(fs.fedavg(0.1), setup, jax.random.key(1))
        >>> 3 < float(state.server.params) < 9
        True
    """
    mesh = make_mesh(jax.devices(), axis) if mesh is None else mesh
    # The engine places all arrays explicitly, so types need not track shardings.
    mesh = automatic(mesh, axis)
    num_devices = mesh.shape[axis]
    number = num_devices if num_strata is None else num_strata
    if number % num_devices:
        raise ValueError(
            f"num_strata is {number}; expected a multiple of the {num_devices} devices of the "
            f"mesh's axis {axis!r}"
        )
    return ByClient(mesh, axis, divide(num_clients, number))


def everywhere(task: Task) -> Callable[[PyTree], PyTree]:
    """Returns a function that replicates values over the devices of a task's placement.

    For values that do not belong to clients, also inside jit.  They must be equal in all processes.
    """
    placed = task.placement
    if placed is None or placed.axis is None:
        return lambda x: x

    def put(leaf: Any) -> Array:
        if isinstance(leaf, Tracer):
            return jax.lax.with_sharding_constraint(leaf, placed.everywhere)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf)
            )
        return jax.device_put(np.asarray(leaf), placed.everywhere)

    return lambda tree: jax.tree.map(put, tree)
