"""Where clients' data and states lie: in whole arrays, or by client on a mesh of devices.

The engine asks a :class:`Placement`; :class:`Whole` answers with what needs no devices.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_sim.data.blocked import BlockedData, blocked
from fedjax_sim.data.source import ClientSource
from fedjax_sim.execution.strategies import Execution, Gathered, Local, all_reduced
from fedjax_sim.timelines.strata import Strata
from fedjax_sim.timelines.strata import strata as divide
from fedjax_sim.types import Device, PyTree, Task, Timeline, Upload


class Placement(Protocol):
    """What the engine asks about the table of all clients and about a round's slots."""

    @property
    def axis(self) -> str | None:
        """Of a mesh, over which the rows of tables and the slots of rounds are divided."""
        ...

    def num_rows(self, num_clients: int) -> int:
        """Rows of the whole table."""
        ...

    def rows(self, clients: Array) -> Array:
        """Clients' rows in the part of the table that is at hand; some row for other clients."""
        ...

    def own(self, slots: PyTree) -> PyTree:
        """Of a round's slots, leaves ``[S, ...]``, those whose work is done here."""
        ...

    def mean_of_all(self, cohort: Execution) -> Execution:
        """From one's own slots to the mean over everybody's."""
        ...

    def spread(self, rounds: Callable[..., Any], specs: tuple, results: Any) -> Callable[..., Any]:
        """``rounds(task, ...)`` wherever the rows are; PartitionSpecs say of what it is given
        besides the task, and of what it returns, how it is divided."""
        ...

    def put(self, table: PyTree) -> PyTree:
        """A table of all clients, inside jit, where it belongs."""
        ...

    def check(self, timeline: Timeline) -> None:
        """Refuses a concrete timeline that cannot be run."""
        ...


class Whole:
    """Data and states of all clients in whole arrays, wherever JAX puts them."""

    axis = None

    def num_rows(self, num_clients: int) -> int:
        return num_clients

    def rows(self, clients: Array) -> Array:
        return clients

    def own(self, slots: PyTree) -> PyTree:
        return slots

    def mean_of_all(self, cohort: Execution) -> Execution:
        return cohort

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
    """Data and states by client: every device has those of its own strata, and does their work.

    Made by :func:`by_client`; hashable, and equal for equal arguments.
    """

    mesh: Mesh
    axis: str
    strata: Strata

    def task(self, source: ClientSource, build: Callable[[Callable, Any], Task]) -> Task:
        """A task with every stratum's examples on its device, loaded by that device's process.

        Raises:
            ValueError: a source of another number of clients.
        """
        if source.num_clients != self.strata.num_clients:
            raise ValueError(
                f"placement is for {self.strata.num_clients} clients; expected "
                f"{source.num_clients}, the data's"
            )
        blocks = blocked(source, self.strata, self, self.sharding)
        return dataclasses.replace(build(BlockedData.place, blocks), placement=self)

    @property
    def inside(self) -> bool:
        """Whether this is traced for one device of the mesh."""
        return self.axis in jax.sharding.get_abstract_mesh().manual_axes

    @property
    def num_devices(self) -> int:
        """Devices that rows are divided over."""
        return self.mesh.shape[self.axis]

    def num_rows(self, num_clients: int) -> int:
        del num_clients  # the strata's
        return self.strata.num_rows // (self.num_devices if self.inside else 1)

    def rows(self, clients: Array) -> Array:
        if not self.inside:
            raise ValueError(
                "task has its data by client on a mesh; expected it in a run, since no device has "
                "the data of all clients"
            )
        at_hand = self.num_rows(self.strata.num_clients)
        first = jax.lax.axis_index(self.axis) * at_hand
        return jnp.clip(self.strata.row(clients) - first, 0, at_hand - 1)  # pyright: ignore

    def own(self, slots: PyTree) -> PyTree:
        def part(x: Array) -> Array:
            size = x.shape[0] // self.num_devices
            first = jax.lax.axis_index(self.axis) * size
            return jax.lax.dynamic_slice_in_dim(x, first, size)

        return jax.tree.map(part, slots)

    def mean_of_all(self, cohort: Execution) -> Execution:
        if isinstance(cohort, Gathered):
            return cohort.across(self.axis)

        def run(
            local: Local, shared: PyTree, slots: PyTree, weights: Array
        ) -> tuple[Upload, PyTree]:
            mean, outputs = cohort(local, shared, slots, weights)
            return all_reduced(mean, weights.sum(), self.axis), outputs

        return run

    def spread(self, rounds: Callable[..., Any], specs: tuple, results: Any) -> Callable[..., Any]:
        if self.inside:  # a sweep's block is spread as a whole
            return rounds

        def run(task: Any, *rest: PyTree) -> PyTree:
            # Without replication checks: with them a gradient with respect to the message would
            # be summed over the devices at every local step.
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
        """How a task is divided: its blocked data, and nothing else."""

        def is_blocked(x: Any) -> bool:
            return isinstance(x, BlockedData)

        return jax.tree.map(
            lambda x: PartitionSpec(self.axis) if is_blocked(x) else PartitionSpec(),
            task,
            is_leaf=is_blocked,
        )

    @property
    def sharding(self) -> NamedSharding:
        """Of a table of clients."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    @property
    def everywhere(self) -> NamedSharding:
        """Of what every device has."""
        return NamedSharding(self.mesh, PartitionSpec())

    def put(self, table: PyTree) -> PyTree:
        if self.inside:
            return table
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, self.sharding), table)

    def check(self, timeline: Timeline) -> None:
        columns, number = timeline.cohort_size, self.strata.number
        if columns % number:
            raise ValueError(
                f"timeline has {columns} slots; expected a multiple of the {number} strata, as "
                "participation.stratified and participation.dealt make it"
            )
        expected = np.arange(columns) // (columns // number)
        clients, mask = np.asarray(timeline.clients), np.asarray(timeline.mask)
        wrong = mask & (self.strata.of(clients) != expected)
        if wrong.any():
            where = tuple(int(i[0]) for i in np.nonzero(wrong))
            raise ValueError(
                f"timeline.clients[{', '.join(map(str, where))}] is {clients[where]}, which is not "
                f"of stratum {expected[where[-1]]}; expected a timeline of "
                f"participation.stratified or participation.dealt with num_strata = {number}"
            )


def by_client(
    num_clients: int,
    mesh: Mesh | None = None,
    *,
    axis: str = "clients",
    num_strata: int | None = None,
) -> ByClient:
    """Shards data and states of clients over the devices of a mesh axis.

    Give it to :func:`~fedjax_sim.data.task.empirical_task`.  Each device works on the clients that
    it owns, consecutive ones, and a round needs one all-reduce, of the upload's mean, and nothing
    else.  So every device must be given as many slots of a round, for clients of its own:
    :func:`~fedjax_sim.timelines.sampling.stratified` samples like that, and
    :func:`~fedjax_sim.timelines.arrange_by_stratum` rearranges any other schedule.

    Args:
        num_clients: the population.
        mesh: default: all devices, of all processes.
        axis: of the mesh, over which clients are divided; over its other axes they are copied.
        num_strata: blocks that the clients are divided into, a multiple of the axis' devices;
            default: one a device.  Runs with the same number give the same results on every
            number of devices that divides it, and continue each other's checkpoints.

    Raises:
        ValueError: an axis that the mesh lacks, strata that the devices do not divide, or more
            strata than clients.

    Example:
        >>> import fedjax_sim as fs
        >>> here = by_client(6, jax.make_mesh((1,), ("clients",)), num_strata=2)
        >>> data = fs.FederatedData({"x": np.arange(12.0)}, np.arange(0, 13, 2))
        >>> loss = lambda w, batch, key: (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1), placement=here)
        >>> timeline = fs.timelines.stratified(jax.random.key(0), 30, 6, 4, 1, num_strata=2)
        >>> state, _ = fs.run(fs.fedavg(0.1), fs.Setup(task, timeline, jnp.float32(0)), jax.random.key(1))
        >>> 3 < float(state.server.params) < 9
        True
    """
    mesh = make_mesh(jax.devices(), axis) if mesh is None else mesh
    if axis not in mesh.shape:
        raise ValueError(f"axis is {axis!r}; expected one of the mesh's {tuple(mesh.shape)}")
    num_devices = mesh.shape[axis]
    number = num_devices if num_strata is None else num_strata
    if number % num_devices:
        raise ValueError(
            f"num_strata is {number}; expected a multiple of the {num_devices} devices of the "
            f"mesh's axis {axis!r}"
        )
    # The engine says where everything is; nothing is left for types to track.
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)
    return ByClient(mesh, axis, divide(num_clients, number))


def everywhere(task: Task) -> Callable[[PyTree], PyTree]:
    """Puts what is not of clients onto all devices of a task's placement, also from inside jit;
    the values must be the same in every process."""
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


def make_mesh(devices: Sequence[Device], axis: str = "clients") -> Mesh:
    """The devices in a row."""
    return Mesh(np.array(devices), (axis,), axis_types=(AxisType.Auto,))
