"""Examples and client states in host memory or in files, loaded before the rounds that need them.

A round touches its cohort only.  While the rounds of one load run, a thread gathers the examples of
the next load's clients and sends them to the device.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.checks import check_bytes
from fedjax_sim.data import ClientSource
from fedjax_sim.engine.execution.placement import Whole
from fedjax_sim.objectives import check_labels
from fedjax_sim.types import Oracle, Params, PyTree, Task, Timeline

_ALIGNMENT = 64  # bytes
Build = Callable[[Callable, Any], Task]  # (place, data) -> task


@dataclasses.dataclass(frozen=True)
class PresentData:
    """Examples of some clients, concatenated; a pytree."""

    examples: PyTree  # [R, ...]; the last rows may belong to no client
    offsets: Array  # [C + 1] int    the first row of each client
    ids: Array  # [C] int    the clients, ascending; padded with numbers that no client has

    def place(self, client: Array) -> tuple[Array, Array]:
        """Returns a client's first row and its number of rows."""
        row = _row(self.ids, client)
        return self.offsets[row], self.offsets[row + 1] - self.offsets[row]


jax.tree_util.register_dataclass(
    PresentData, data_fields=["examples", "offsets", "ids"], meta_fields=[]
)


@dataclasses.dataclass(frozen=True)
class PresentStates(Whole):
    """Placement of the states of some clients, ``ids`` ``[C]``, in one table."""

    ids: Array

    def num_rows(self, num_clients: int) -> int:
        del num_clients
        return self.ids.shape[0]

    def rows(self, clients: Array) -> Array:
        return jax.vmap(lambda client: _row(self.ids, client))(clients)


jax.tree_util.register_dataclass(PresentStates, data_fields=["ids"], meta_fields=[])


def _row(ids: Array, client: Array) -> Array:
    # A binary search would be a loop in every visit.
    return jnp.searchsorted(ids, client, method="compare_all")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class OnHost(Whole):
    """Placement of examples outside the device's memory; made by :func:`on_host`."""

    memory: int
    states: bool
    source: ClientSource | None = None
    build: Build | None = None

    def task(self, source: ClientSource, build: Build) -> Task:
        """Returns a task for :func:`~fedjax_sim.simulate`, which loads its clients."""
        bound = dataclasses.replace(self, source=source, build=build)
        # Without examples; sizes and batches are those of all clients.
        template = build(PresentData.place, None)
        return dataclasses.replace(template, oracle=Partial(_elsewhere), placement=bound)

    def num_rows(self, num_clients: int) -> int:
        return 1 if self.states else num_clients  # one row, which the host copies

    def spread(self, rounds: Callable[..., Any], specs: tuple, results: Any) -> Callable[..., Any]:
        del rounds, specs, results
        return _elsewhere


def _elsewhere(*arguments: Any) -> Oracle:
    raise ValueError(
        "task has its examples on the host; expected a call of simulate, which loads the examples "
        "that rounds need"
    )


def on_host(memory: int, *, states: bool = False) -> OnHost:
    """Keeps clients' examples in host memory, or wherever the source has them.

    Pass it to :func:`~fedjax_sim.data.task.empirical_task` and the task to
    :func:`~fedjax_sim.simulate`.  The results equal those of resident data, bit for bit.

    Args:
        memory: bytes of the device's memory for examples, both those in use and those of the next
            load.  With more rounds per load, fewer dispatches are needed.
        states: also keep the states of clients in host memory, and only those of the current rounds
            on the device.  A round's states must return before those of the next round are sent,
            so these transfers do not overlap with computation.  Random keys in states stay on the
            device.  Run probes, which receive the states of all clients, are refused.

    Raises:
        ValueError: a memory below 1 byte, or larger than any memory.

    Example:
        >>> import fedjax_sim as fs
        >>> x = np.arange(12.0, dtype=np.float32)  # or np.load("x.npy", mmap_mode="r")
        >>> data = fs.FederatedData({"x": x}, np.arange(0, 13, 2))
        >>> loss = lambda w, batch, key: (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1), placement=on_host(memory=64))
        >>> timeline = fs.timelines.uniform(jax.random.key(0), 30, 6, 2, task.num_steps)
        >>> setup = fs.Setup(task, timeline, np.float32(0))
        >>> result = fs.simulate(fs.fedavg(0.1), setup, jax.random.key(1))
        >>> 3 < float(result.state.server.params) < 9
        True
    """
    check_bytes(memory=memory)
    return OnHost(memory, states)


class Load(NamedTuple):
    """Rounds ``first .. last - 1``, which share one load of examples."""

    first: int
    last: int


class Plan(NamedTuple):
    """Loads of a run, all of one shape."""

    loads: list[Load]
    length: int  # rounds of the longest load
    clients: int
    rows: int


def plan(task: Task, timeline: Timeline, done: int, eval_every: int, stride: int) -> Plan:
    """Returns loads with as many rounds each as fit into half of the memory."""
    where: OnHost = task.placement
    assert where.source is not None
    sizes = np.asarray(where.source.sizes)
    row_bytes = sum(
        int(np.prod(x.shape[1:])) * jax.dtypes.canonicalize_dtype(x.dtype).itemsize
        for x in jax.tree.leaves(where.source.load(0, 0))
    )
    rounds = timeline.num_rounds
    needed = 0
    for length in _lengths(eval_every, stride):
        # Counted from round 0, so that a load between two evaluations ends with the second.
        ends = [*range(length * (done // length + 1), rounds, length), rounds]
        loads = [Load(*pair) for pair in itertools.pairwise([done, *ends] if done < rounds else [])]
        present = [_clients(timeline, *load) for load in loads]
        rows = max((int(sizes[ids].sum()) for ids in present), default=1)
        needed = 2 * max(rows, 1) * row_bytes
        if needed <= where.memory:
            return Plan(loads, length, max(map(len, present), default=1), max(rows, 1))
    raise ValueError(
        f"memory of on_host is {where.memory} bytes; expected at least {needed}: the examples of "
        "the largest round's clients, twice"
    )


def _lengths(eval_every: int, stride: int) -> Iterator[int]:
    """Yields the possible rounds per load, the most first.

    Loads are parts of a segment that end with evaluations, or divide the rounds between two
    evaluations.
    """
    evaluations = stride // eval_every
    yield from (n * eval_every for n in range(evaluations, 0, -1) if evaluations % n == 0)
    yield from (n for n in range(eval_every - 1, 0, -1) if eval_every % n == 0)


def _clients(timeline: Timeline, first: int, last: int) -> np.ndarray:
    """Returns the clients that report in these rounds, ascending."""
    part = timeline[first:last]
    return np.unique(np.asarray(part.clients)[np.asarray(part.mask)])


class Feed:
    """Tasks of a plan's loads, one after the other, each loaded while the previous one runs.

    At most two loads are on the device.  Two host buffers are used in turn, since allocating new
    memory can take longer than filling it.  Labels and token ids are checked as they are loaded.
    """

    def __init__(self, task: Task, timeline: Timeline, plan: Plan, params: Params):
        self._task, self._timeline, self._plan = task, timeline, plan
        self._params = params
        self._where: OnHost = task.placement
        self._pool = ThreadPoolExecutor(1)
        self._coming: tuple[int, Future] | None = None
        self._buffers: dict[int, PyTree] = {}
        self._next, self._running = 0, None
        # The setting of the caller's thread, which the loading thread does not inherit.
        self._x64 = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def loads(self, first: int, last: int) -> Iterator[tuple[Load, np.ndarray, Task]]:
        """Yields the loads of the rounds ``first .. last - 1`` with their clients and tasks."""
        for number, load in enumerate(self._plan.loads):
            if first <= load.first < last:
                ids, task = self._ready(number).result()
                self._next = number + 1
                yield load, ids, task

    def started(self, result: PyTree) -> None:
        """Starts the next load once the rounds before the running ones have ended."""
        jax.block_until_ready(self._running)
        self._running = result
        if self._next < len(self._plan.loads):
            self._ready(self._next)

    def _ready(self, number: int) -> Future:
        if self._coming is None or self._coming[0] != number:
            self._coming = number, self._pool.submit(self._gather, number)
        return self._coming[1]

    def _gather(self, number: int) -> tuple[np.ndarray, Task]:
        with jax.enable_x64(self._x64):
            return self._load(number)

    def _load(self, number: int) -> tuple[np.ndarray, Task]:
        load = self._plan.loads[number]
        source, build = self._where.source, self._where.build
        assert source is not None
        assert build is not None
        present = _clients(self._timeline, load.first, load.last)
        sizes = np.zeros(self._plan.clients, np.int32)
        sizes[: len(present)] = np.asarray(source.sizes)[present]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)

        def buffer(like: np.ndarray) -> np.ndarray:
            dtype = jax.dtypes.canonicalize_dtype(like.dtype)
            return _aligned((self._plan.rows, *like.shape[1:]), dtype)

        if number % 2 not in self._buffers:
            self._buffers[number % 2] = jax.tree.map(buffer, source.load(0, 0))
        examples = self._buffers[number % 2]
        for client, start, stop in zip(present, offsets[:-1], offsets[1:], strict=False):
            own = source.load(int(client), int(client) + 1)
            for whole, part in zip(jax.tree.leaves(examples), jax.tree.leaves(own), strict=True):
                whole[start:stop] = part
        for whole in jax.tree.leaves(examples):
            whole[offsets[len(present)] :] = 0  # rows of no client
        ids = np.full(self._plan.clients, np.iinfo(np.int32).max, np.int32)
        ids[: len(present)] = present
        data = PresentData(*jax.device_put((examples, offsets, ids)))
        task = build(PresentData.place, data)
        objective = getattr(getattr(task.oracle, "func", None), "objective", None)
        if objective is not None and offsets[-1]:
            loaded = jax.tree.map(lambda whole: whole[: offsets[-1]], examples)
            check_labels(objective, self._params, loaded)
        return present, task


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns uninitialised memory with an alignment that JAX uses on a CPU without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


def table(first: PyTree, num_clients: int, axis: int) -> PyTree:
    """Repeats one row to the states of all clients on the host, ``[M, ...]`` or ``[n, M, ...]``.

    NumPy has no random keys, so these stay on the device.
    """
    rows = (*_every(axis), np.zeros(num_clients, np.int64))
    return jax.tree.map(lambda x: (x if _is_key(x) else np.asarray(x))[rows], first)


def send(table: PyTree, ids: np.ndarray, width: int, axis: int) -> PyTree:
    """Copies the states of some clients to the device, padded to ``width`` rows."""
    rows = np.zeros(width, np.int64)
    rows[: len(ids)] = ids
    return jax.device_put(jax.tree.map(lambda x: x[(*_every(axis), rows)], table))


def receive(table: PyTree, ids: np.ndarray, here: PyTree, axis: int) -> PyTree:
    """Returns the table with the new states of some clients; its NumPy arrays are the same ones."""

    at = (*_every(axis), ids)

    # NumPy tables, since JAX cannot update arrays in pinned host memory in place.
    def write(whole: np.ndarray, part: Array) -> np.ndarray:
        whole[at] = np.asarray(part)[(*_every(axis), slice(len(ids)))]
        return whole

    def written(whole: Any, part: Array) -> Any:
        if not _is_key(whole):
            return write(whole, part)
        words, new = jax.random.key_data(whole), jax.random.key_data(part)
        return jax.random.wrap_key_data(
            jnp.asarray(write(np.array(words), new)), impl=jax.random.key_impl(whole)
        )

    return jax.tree.map(written, table, here)


def _every(axis: int) -> tuple[slice, ...]:
    return (slice(None),) * axis


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
