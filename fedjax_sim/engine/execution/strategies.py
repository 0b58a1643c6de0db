"""Execution strategies: ``(local, shared, slots, weights) -> (mean, outputs)``.

``local(shared, slot)`` runs ONE client and returns its upload and its outputs (client state,
probe values).  ``shared`` is the input that all clients share, ``slots`` a pytree with a leading
axis of slots ``[S, ...]``.  A strategy returns the weighted mean of the uploads and the outputs
stacked to ``[S, ...]``.  All strategies give the same results up to the order of floating-point
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim import tree
from fedjax_sim.checks import check_count, is_traced
from fedjax_sim.engine.execution import chunks
from fedjax_sim.engine.execution.devices import (
    automatic,
    check_no_explicit_mesh,
    make_mesh,
    platform_named,
    workers,
)
from fedjax_sim.tree import all_reduced, mean_from_sum, weighted, weighted_mean, weighted_sum
from fedjax_sim.types import Device, PyTree, Timeline, Upload, shown
from fedjax_sim.types.platforms import CHOICES, PLATFORMS, Platform, by_platform

Local = Callable[[PyTree, PyTree], tuple[Upload, PyTree]]
Execution = Callable[[Local, PyTree, PyTree, Array], tuple[Upload, PyTree]]

# Most bytes of data and clients' states that are copied to every host device, so that they share a
# round's clients. CIFAR in float32 has 614 MB.
_CPU_COPY_BYTES = 1_000_000_000
# Least parameters of a round's models together: an exchange between host devices takes 20
# microseconds, which rounds of smaller models do not (docs/performance.md).
_CPU_SHARED_VALUES = 2_000
# Clients of a task that `auto` does not know, whose states are copied only if they are tiny.
_MANY_CLIENTS = 1_000_000
# Steps of a mean slot, as a part of the longest visit, below which clients run one after the other
# on a CPU. Measured, see docs/performance.md.
_CPU_RAGGED = 0.5


def vmapped() -> Execution:
    """Runs all clients at once, as one batched program.

    Example:
        >>> local = lambda shared, x: (shared * x, ())  # (message, slot) -> (upload, output)
        >>> mean, _ = vmapped()(local, 2.0, jnp.arange(4.0), jnp.ones(4))
        >>> float(mean)
        3.0
    """

    def run(local: Local, shared: PyTree, slots: PyTree, weights: Array) -> tuple[Upload, PyTree]:
        uploads, outputs = jax.vmap(local, (None, 0))(shared, slots)
        return weighted_mean(uploads, weights), outputs

    return run


def sequential() -> Execution:
    """Runs one client after the other and accumulates the mean, so only one upload exists.

    Example:
        >>> local = lambda shared, x: (shared * x, ())  # (message, slot) -> (upload, output)
        >>> mean, _ = sequential()(local, 2.0, jnp.arange(4.0), jnp.ones(4))
        >>> float(mean)
        3.0
    """

    def run(local: Local, shared: PyTree, slots: PyTree, weights: Array) -> tuple[Upload, PyTree]:
        def body(total: Upload, item: tuple[PyTree, Array]) -> tuple[Upload, PyTree]:
            slot, weight = item
            upload, output = local(shared, slot)
            return tree.add(total, weighted(upload, weight)), output

        upload, _ = _shapes(local, shared, slots)
        total, outputs = jax.lax.scan(body, _zero_sum(upload), (slots, weights))
        return mean_from_sum(total, weights.sum(), upload), outputs

    return run


def chunked(size: int) -> Execution:
    """Runs chunks of ``size`` clients one after the other; the clients of a chunk are vmapped.

    Needs the memory of ``size`` clients for any cohort.  The last chunk is filled with repeated
    clients of weight 0.

    Raises:
        ValueError: a size below 1, or no integer.

    Example:
        >>> local = lambda shared, x: (shared * x, ())  # (message, slot) -> (upload, output)
        >>> mean, _ = chunked(3)(local, 2.0, jnp.arange(4.0), jnp.ones(4))
        >>> float(mean)
        3.0
    """
    if size < 1:
        raise ValueError(f"size is {size}; expected at least one client per chunk")
    check_count(1, size=size)
    if size == 1:
        return sequential()

    def run(local: Local, shared: PyTree, slots: PyTree, weights: Array) -> tuple[Upload, PyTree]:
        num_slots = weights.shape[0]
        if num_slots <= size:
            return vmapped()(local, shared, slots, weights)

        def body(total: Upload, chunk: tuple[PyTree, Array]) -> tuple[Upload, PyTree]:
            slots, weights = chunk
            uploads, outputs = jax.vmap(local, (None, 0))(shared, slots)
            return tree.add(total, weighted_sum(uploads, weights)), outputs

        # No -1 in shapes: a client's state may have empty leaves.
        chunks = jax.tree.map(
            lambda x: x.reshape(len(x) // size, size, *x.shape[1:]), _pad(slots, weights, size)
        )
        upload, _ = _shapes(local, shared, slots)
        total, outputs = jax.lax.scan(body, _zero_sum(upload), chunks)
        outputs = jax.tree.map(lambda x: jax.lax.collapse(x, 0, 2)[:num_slots], outputs)
        return mean_from_sum(total, weights.sum(), upload), outputs

    return run


def sharded(mesh: Mesh, inner: Execution | None = None, axis: str = "clients") -> Execution:
    """Splits the cohort over the devices of a mesh axis, with ``inner`` on each.

    The weighted sum of the uploads is all-reduced once per round.  Client data and messages are
    replicated.  A cohort that the devices do not divide is filled with repeated clients of weight
    0.  On a CPU, forced host devices wait for each other in XLA's thread pool, which has one thread
    per core.  With more devices than cores, set the environment variable NPROC to several times
    their number before JAX starts; otherwise the program can hang.

    Args:
        mesh: the devices.
        inner: strategy on one device; default :func:`auto` for one.
        axis: axis of the mesh, over which the clients are divided.

    Raises:
        ValueError: the mesh lacks the axis, or ``inner`` is made by :func:`gathered`.  At the start
            of a run: inside ``jax.set_mesh`` of a mesh with axes of type Explicit.

    Example:
        >>> mesh = jax.make_mesh((1,), ("clients",))
        >>> mean, _ = sharded(mesh)(lambda shared, x: (2 * x, ()), (), jnp.ones(4), jnp.ones(4))
        >>> float(mean)
        2.0
    """
    # Slots are gathered by index, so their layout is the compiler's to choose.
    mesh = automatic(mesh, axis)
    if isinstance(inner, Gathered):
        raise ValueError(
            "inner is gathered(...); expected a strategy with the mean, since every device has a "
            "part of the uploads: write gathered(aggregate, sharded(mesh))"
        )
    platform = platform_named(mesh.devices.flat[0].platform)
    inner = inner or auto(devices=(), platform=platform)
    num_devices = mesh.shape[axis]

    def run(local: Local, shared: PyTree, slots: PyTree, weights: Array) -> tuple[Upload, PyTree]:
        check_no_explicit_mesh()

        # With replication checks, a gradient with respect to the replicated message would be
        # summed over the devices at every local step, silently; without, it stays per device.
        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(axis), PartitionSpec(axis)),
            out_specs=(PartitionSpec(), PartitionSpec(axis)),
            check_vma=False,
        )
        def block(shared: PyTree, slots: PyTree, weights: Array) -> tuple[Upload, PyTree]:
            mean, outputs = inner(local, shared, slots, weights)
            return all_reduced(mean, weights.sum(), axis), outputs

        num_slots = weights.shape[0]
        slots, weights = _pad(slots, weights, num_devices)
        # Devices that divided the drawing of the schedule would have to exchange it.
        everywhere = NamedSharding(mesh, PartitionSpec())
        slots, weights = jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(x, everywhere) if x.ndim == 1 else x,
            (slots, weights),
        )
        mean, outputs = block(shared, slots, weights)
        return mean, jax.tree.map(lambda x: x[:num_slots], outputs)

    return run


def auto(
    replicas: int = 1,
    devices: Sequence[Device] | None = None,
    *,
    num_clients: int | None = None,
    ragged: bool = False,
    platform: Platform | None = None,
) -> Execution:
    """Chooses a strategy by platform and model (docs/performance.md has the evidence).

    On a CPU: one client after the other if the model has convolutions or if visits are ragged, else
    chunks of clients.  The cohort is divided among ``devices`` if its models together have at least
    2,000 parameters, and the data and the states of all clients at most 1 GB, since every device
    needs a copy.  On an accelerator: equal chunks, of as many clients as the memory holds with
    their activations; on a TPU pairs of clients if a client's visit alone fills the on-chip memory.

    Args:
        replicas: runs that are vmapped over (seeds, configurations); their models count too.
        devices: host devices that may share a round's clients; default
            :func:`~fedjax_sim.engine.execution.devices.workers`.  A program that they share is a
            program for these devices.  To lower it for other ones, pass ``()``.
        num_clients: clients of the task, whose states would be copied; default: unknown, so that
            only states below a kilobyte are.  A run without ``execution`` uses its task's number.
        ragged: the clients' local steps differ, see :func:`is_ragged`.  Clients that run together
            all take as long as the longest visit.
        platform: ``cpu``, ``tpu`` or ``gpu``, if it is known; the default decides when the program
            is lowered and traces ``local`` once per different choice.

    Raises:
        ValueError: an unknown platform.

    Example:
        >>> local = lambda shared, x: (shared * x, ())  # (message, slot) -> (upload, output)
        >>> mean, _ = auto()(local, jnp.array(2.0), jnp.arange(4.0), jnp.ones(4))
        >>> float(mean)
        3.0
    """
    if platform not in (None, *PLATFORMS):
        raise ValueError(f"platform is {platform!r}; expected one of {', '.join(PLATFORMS)}")

    def run(local: Local, shared: PyTree, slots: PyTree, weights: Array) -> tuple[Upload, PyTree]:
        program = jax.jit(local).trace(shared, jax.tree.map(lambda x: x[0], slots))
        upload, output = program.out_info
        leaves = jax.tree.leaves(upload) or jax.tree.leaves(output)
        size = max(sum(leaf.size for leaf in leaves), 1)
        num_slots = weights.shape[0]
        in_turn = ragged or has_kernels(leaves)
        if platform in (None, "cpu"):
            sharing = list(_sharing() if devices is None else devices)[:num_slots]
            # What would be copied to every device: the data, and the states of all clients.
            states = _num_bytes(slots) // num_slots * replicas * (num_clients or _MANY_CLIENTS)
            fits = _num_bytes(shared) + states <= _CPU_COPY_BYTES
            gains = num_slots * size * replicas >= _CPU_SHARED_VALUES
            # XLA:CPU runs independent loops of one program one after the other, so several cores
            # need several host devices.
            if len(sharing) > 1 and fits and gains:
                inner = auto(replicas, devices=(), ragged=ragged, platform="cpu")
                return sharded(make_mesh(sharing), inner)(local, shared, slots, weights)

        def clients(platform: Platform) -> int:
            rule = CHOICES[platform].clients
            if rule == "cache":
                return 1 if in_turn else chunks.cpu_chunk(num_slots, replicas * size)
            chunk = {"pairs": chunks.tpu_chunk, "memory": chunks.accelerator_chunk}[rule]
            return chunk(num_slots, replicas * chunks.peak_bytes(program.jaxpr))

        if platform:
            return chunked(clients(platform))(local, shared, slots, weights)
        sizes: dict[Platform, int] = {name: clients(name) for name in PLATFORMS}
        # Platforms with one size share a branch.
        branches = {size: partial(chunked(size), local) for size in sizes.values()}
        each = {name: branches[size] for name, size in sizes.items()}
        return by_platform(each, shared, slots, weights)

    return run


def has_kernels(params: PyTree) -> bool:
    """Returns True for a model with convolutions.

    On a CPU its replicas (clients, and seeds as well) should run one after the other, not vmapped:
    with a kernel per replica, the convolutions would be grouped convolutions, and the activations
    of all replicas together do not fit the cache.
    """
    return any(np.ndim(leaf) >= 4 for leaf in jax.tree.leaves(params))


def is_ragged(timeline: Timeline) -> bool:
    """Returns True if most visits have clearly fewer local steps than the longest one.

    Empty slots count as visits without steps.  False for a traced timeline.
    """
    if is_traced((timeline.num_steps, timeline.mask)):
        return False
    steps = np.where(np.asarray(timeline.mask), np.asarray(timeline.num_steps), 0)
    return bool(steps.mean() < _CPU_RAGGED * timeline.max_steps)


def _sharing() -> list[Device]:
    """Returns the host devices that may divide a round's clients.

    None where a mesh is in use already, in a sharded program or by ``jax.set_mesh``: another mesh
    would contradict it.
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return []
    return [device for device in workers() if device.platform == "cpu"]


@shown
class Gathered(NamedTuple):
    """Strategy whose aggregator receives all uploads; made by :func:`gathered`.

    Example:
        >>> largest = Gathered(lambda uploads, weights: uploads.max(0), vmapped())
        >>> local = lambda shared, slot: (slot, ())
        >>> float(largest(local, (), jnp.array([1.0, 9.0]), jnp.ones(2))[0])
        9.0
    """

    aggregate: Callable[[Upload, Array], Upload]
    inner: Execution
    axis: str | None = None  # mesh axis over which the uploads are divided

    def across(self, axis: str) -> Gathered:
        """Returns the strategy for every device of a mesh axis, which has its part of the slots."""
        return self._replace(axis=axis)

    def __call__(
        self, local: Local, shared: PyTree, slots: PyTree, weights: Array
    ) -> tuple[Upload, PyTree]:
        def keep(shared: PyTree, slot: PyTree) -> tuple[Upload, PyTree]:
            return (), local(shared, slot)

        _, (uploads, outputs) = self.inner(keep, shared, slots, weights)
        if self.axis is not None:
            uploads, weights = jax.lax.all_gather((uploads, weights), self.axis, tiled=True)
        return self.aggregate(uploads, weights), outputs


def gathered(
    aggregate: Callable[[Upload, Array], Upload], inner: Execution | None = None
) -> Execution:
    """Replaces the weighted mean by ``aggregate(uploads [S, ...], weights [S])``.

    All uploads of one round are in memory at once, and on a mesh they are gathered: cohort x
    parameters, where the mean needs one model.

    Example:
        >>> median = gathered(lambda u, w: jnp.median(u, axis=0), vmapped())
        >>> float(median(lambda shared, x: (x, ()), (), jnp.array([1.0, 2.0, 9.0]), jnp.ones(3))[0])
        2.0
    """
    return Gathered(aggregate, inner or auto())


def _shapes(local: Local, shared: PyTree, slots: PyTree) -> tuple[Upload, PyTree]:
    """Returns the shapes of one client's upload and outputs."""
    first = jax.tree.map(lambda x: x[0], slots)
    return jax.eval_shape(local, shared, first)


def _num_bytes(values: PyTree) -> int:
    """Returns the bytes of all arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(values))


def _zero_sum(upload: Upload) -> Upload:
    """Returns the sum of no uploads, in the precision of :func:`weighted`."""
    return jax.tree.map(lambda leaf: tree.wide(jnp.zeros(leaf.shape, leaf.dtype)), upload)


def _pad(slots: PyTree, weights: Array, multiple: int) -> tuple[PyTree, Array]:
    """Repeats the first slot, with weight 0, up to a multiple."""
    missing = -weights.shape[0] % multiple

    def fill(x: Array) -> Array:
        return jnp.concatenate([x, jnp.broadcast_to(x[:1], (missing, *x.shape[1:]))])

    return jax.tree.map(fill, slots), jnp.pad(weights, (0, missing))
