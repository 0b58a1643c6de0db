"""Setups: everything that stays fixed when algorithms are compared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.types.aliases import Params
from fedjax_sim.types.arrays import readable, tree_text
from fedjax_sim.types.specs import value_text
from fedjax_sim.types.summaries import Summary, rows_of, shown
from fedjax_sim.types.visits import EvalFn, Oracle, Weighting, Work


@shown
@dataclasses.dataclass(frozen=True)
class Task:
    """Objectives of all clients: a gradient oracle per client, and the clients' sizes.

    A task is a pytree.  An oracle that carries data is a :class:`jax.tree_util.Partial`; pass such
    a task to a jitted function as an argument.  If the function closes over it, XLA embeds the
    data set in the program as a constant.

    Example:
        >>> def oracle(client, key, max_steps):  # F_i(w) = (w - i)^2 / 2
        ...     grad = lambda w, step=0: w - client
        ...     return Oracle(grad, lambda w, step: (w - client) ** 2 / 2, grad)
        >>> task = Task(oracle, num_examples=np.ones(3, int), num_steps=np.full(3, 5))
        >>> task.num_clients
        3
    """

    oracle: Callable[..., Oracle]  # (client, key, max_steps) -> Oracle
    num_examples: Array | np.ndarray  # [M] int    size of each client's data set
    num_steps: Array | np.ndarray  # [M] int    local steps of one visit; concrete
    # Static. True: a visit can continue the client's previous visit. `oracle` then takes the first
    # step of the visit as a fourth argument, and its key is the client's, equal in all visits.
    resumable: bool = False
    # A fedjax_sim.engine.execution.placement.Placement (a pytree); None: whole arrays on the
    # device.
    placement: Any = None

    def __post_init__(self) -> None:
        """Converts lists to NumPy arrays."""
        object.__setattr__(self, "oracle", _as_pytree(self.oracle))
        for name in ("num_examples", "num_steps"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, np.array(value))

    @property
    def num_clients(self) -> int:
        """Number of clients M."""
        return self.num_examples.shape[0]

    def _summary(self) -> Summary:
        rows = rows_of(getattr(self.oracle, "func", None), *getattr(self.oracle, "args", ()))
        rows |= {"clients": sizes_text(self.num_clients, self.num_examples)}
        if steps := range_text(self.num_steps):
            rows |= {"local steps": f"{steps} per visit"}
        if self.placement is not None:
            rows |= {"placement": type(self.placement).__name__}
        return Summary(f"Task: {self.num_clients:,} clients", rows)


jax.tree_util.register_dataclass(
    Task,
    data_fields=["oracle", "num_examples", "num_steps", "placement"],
    meta_fields=["resumable"],
)


@shown
@dataclasses.dataclass(frozen=True)
class Timeline:
    """Reports of clients: T server updates with S slots each.

    A synchronous timeline has ``version[t] == t``.  A slot with ``mask == False`` is empty: no
    client was selected, or the client dropped out; it changes neither the server nor the client's
    state.  A slot that is ``lost`` changes the client's state only: the client does its work, and
    the upload does not arrive.  Within a round the clients of unmasked slots are distinct.

    Past broadcasts are stored in a ring of ``max_staleness + 1`` buffers, or in ``num_buffers``
    buffers that :func:`~fedjax_sim.timelines.allocate_buffers` assigned, as few as possible.

    Simulated times are NumPy arrays in double precision, whatever JAX's precision: single precision
    cannot distinguish successive units of time beyond 2^24.  Only the host reads them.

    Example:
        >>> timeline = Timeline(
        ...     clients=[[0, 1], [2, 0]],  # two rounds of two clients
        ...     version=[[0, 0], [0, 1]],  # client 2 starts from the first broadcast
        ...     num_steps=[[5, 5], [9, 5]],
        ...     mask=[[True, True], [True, False]],  # client 0 drops out of the second round
        ...     time=[1.0, 2.0],
        ...     max_steps=9,
        ...     max_staleness=1,
        ... )
        >>> timeline.num_rounds, timeline.cohort_size, timeline[1:].clients.tolist()
        (2, 2, [[2, 0]])
    """

    clients: Array | np.ndarray  # [T, S] int    number of the client in each slot
    # [T, S] int    server update whose broadcast the client started from
    version: Array | np.ndarray
    num_steps: Array | np.ndarray  # [T, S] int    local steps done
    mask: Array | np.ndarray  # [T, S] bool    False: the slot is empty
    time: Array | np.ndarray  # [T] float    simulated time of each server update
    max_steps: int  # static: bounds num_steps
    max_staleness: int = 0  # static: bounds t - version[t]
    first_step: Array | np.ndarray | None = None  # [T, S] int    steps of the client before
    idle: Array | np.ndarray | None = None  # [T, S] float    waiting time before the report
    # [T] int    buffer of broadcast t; num_buffers: none
    write_buffer: Array | np.ndarray | None = None
    # [T, S] int    buffer that the client starts from
    read_buffer: Array | np.ndarray | None = None
    num_buffers: int = 0  # static: buffers for past broadcasts; 0: a ring of max_staleness + 1
    # Static. True: a client starts from its own model and mixes the server's model into it at the
    # report (QuAFL). False: it starts from the broadcast that `version` names.
    own_models: bool = False
    # [T, S] bool: the upload does not arrive, although the client does its work and its state
    # moves. None: all arrive.
    lost: Array | np.ndarray | None = None
    # Static. A fedjax_sim.timelines.Sampling: the rule that drew the clients. None: unknown.
    # An accountant needs the rule, which cohorts do not show; as a static field it survives `vmap`
    # and slices.
    sampling: Any = None

    def __post_init__(self) -> None:
        """Converts lists to NumPy arrays."""
        for name in _TIMELINE_DATA:
            if isinstance(value := getattr(self, name), list):
                try:
                    object.__setattr__(self, name, np.array(value))
                except ValueError as error:
                    raise ValueError(
                        f"timeline.{name} is {value}; expected an array or lists of equal lengths"
                    ) from error

    @property
    def num_rounds(self) -> int:
        return self.clients.shape[-2]

    @property
    def cohort_size(self) -> int:
        return self.clients.shape[-1]

    @property
    def arrived(self) -> Array | np.ndarray:
        """Slots whose upload reaches the server, ``[T, S]``: not empty and not lost."""
        return self.mask if self.lost is None else self.mask & ~self.lost

    def __getitem__(self, rounds: slice) -> Timeline:
        """Returns the given rounds of a timeline ``[T, S]`` or of a batch ``[n, T, S]``.

        Rounds that are not consecutive have no sampling rule.

        Raises:
            ValueError: no slice.  The first timeline of a batch is
                ``jax.tree.map(lambda x: x[0], batch)``.
        """
        if not isinstance(rounds, slice):
            raise ValueError(
                f"rounds is {rounds!r:.60}; expected a slice, such as timeline[:9]; the first "
                "timeline of a batch is jax.tree.map(lambda x: x[0], batch)"
            )

        start, stop, step = rounds.indices(self.num_rounds)
        values = {name: getattr(self, name) for name in _TIMELINE_DATA}
        values = {name: value for name, value in values.items() if value is not None}
        arrays = {name: x for name, x in values.items() if isinstance(x, Array)}
        if step == 1 and not any(isinstance(x, Tracer) for x in arrays.values()):
            # One program cuts all fields, wherever the rounds begin.
            cut = _consecutive(arrays, np.int32(start), max(stop - start, 0))
        else:
            cut = {name: _cut(name, x, rounds) for name, x in arrays.items()}
        on_host = values.keys() - arrays.keys()
        cut |= {name: _cut(name, values[name], rounds) for name in on_host}
        # The rule is that of consecutive rounds: others have other distances between visits.
        return dataclasses.replace(self, **cut, sampling=self.sampling if step == 1 else None)

    def _summary(self) -> Summary:
        rounds = f"{self.num_rounds:,}, with {self.cohort_size:,} slots each"
        if self.sampling is not None:
            rounds += f", {str(getattr(self.sampling, 'kind', 'unknown')).replace('_', ' ')}"
        if batch := self.clients.shape[:-2]:
            rounds += f"; batch of {' x '.join(map(str, batch))} timelines"
        rows = {"rounds": rounds}
        mask, lost = readable(self.mask), readable(self.lost)
        if mask is not None and (lost is None) == (self.lost is None):
            mean = (mask if lost is None else mask & ~lost).sum(axis=-1).mean()
            rows["rounds"] += f"; {mean:.4g} uploads per round"
        if self.max_staleness:
            rows["staleness"] = f"at most {self.max_staleness:,} rounds"
        if self.own_models:
            rows["start"] = "clients start from their own models"
        return Summary(f"Timeline: {self.num_rounds:,} rounds", rows)


_OF_ROUNDS = ("time", "write_buffer")  # without an axis of slots


def _cut(name: str, x: Array | np.ndarray, rounds: slice) -> Array | np.ndarray:
    return x[..., rounds] if name in _OF_ROUNDS else x[..., rounds, :]


@functools.partial(jax.jit, static_argnums=2)
def _consecutive(arrays: dict[str, Array], start: np.int32, count: int) -> dict[str, Array]:
    def cut(name: str, x: Array) -> Array:
        axis = x.ndim - (1 if name in _OF_ROUNDS else 2)
        return jax.lax.dynamic_slice_in_dim(x, start, count, axis)

    return {name: cut(name, x) for name, x in arrays.items()}


_TIMELINE_DATA = [
    "clients", "version", "num_steps", "mask", "time", "first_step", "idle",
    "write_buffer", "read_buffer", "lost",
]  # fmt: skip
jax.tree_util.register_dataclass(
    Timeline,
    data_fields=_TIMELINE_DATA,
    meta_fields=["max_steps", "max_staleness", "num_buffers", "own_models", "sampling"],
)


def uniform_weights(work: Work) -> Array:
    """Returns weight 1 for every upload, ``[S]``.

    Example:
        >>> clients = jnp.array([4, 7])
        >>> work = Work(clients, clients, clients, clients, clients, clients, max_steps=9)
        >>> uniform_weights(work).tolist()
        [1.0, 1.0]
    """
    return jnp.ones(work.client.shape)


def weight_by_examples(work: Work) -> Array:
    """Returns the number of examples of each upload's client, ``[S]``.

    Methods whose server keeps a mean over all clients (the control of SCAFFOLD, for example) keep
    it with these weights, and find the optimum of the weighted objective.

    Example:
        >>> clients, sizes = jnp.array([4, 7]), jnp.array([30, 20])
        >>> work = Work(clients, clients, clients, sizes, clients, clients, max_steps=9)
        >>> weight_by_examples(work).tolist()
        [30, 20]
    """
    return work.num_examples


# Rows of a setup that results of several algorithms or configurations show beside their table.
KEY_ROWS = ("clients", "examples", "local steps", "rounds", "model")


@shown
@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything that stays fixed when algorithms are compared.

    A setup is a pytree: pass it to a jitted function as one argument.  For n seeds, ``params`` has
    a leading axis n and ``timeline`` may have one.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.ones((6, 1), np.float32)}, np.array([0, 2, 6]))
        >>> loss = lambda w, batch, key: (batch["x"][:, 0] * w - 2) ** 2
        >>> task = fs.empirical_task(loss, data, fs.epochs(1, batch_size=2))
        >>> setup = fs.Setup(task, fs.timelines.full(30, 2, task.num_steps), np.float32(0))
        >>> state, _ = fs.run(fs.fedavg(0.1), setup, jax.random.key(0))
        >>> round(float(state.server.params), 3)
        2.0
    """

    task: Task  # objectives of all clients
    timeline: Timeline  # [T, S], or one per seed [n, T, S]
    params: Params  # initial model [...], or one per seed [n, ...]
    eval_fn: EvalFn | None = None  # params -> metrics by name; carries the evaluation set
    eval_every: int = 1  # static: rounds between evaluations; the last round is always evaluated
    # Static: weights of the uploads. A negative weight makes the model NaN.
    weighting: Weighting = uniform_weights

    def __post_init__(self) -> None:
        object.__setattr__(self, "eval_fn", _as_pytree(self.eval_fn))

    def _summary(self) -> Summary:
        rows = rows_of(self.task, self.timeline) | {"model": tree_text(self.params)}
        rows |= self._other_steps()
        every = "every round" if self.eval_every == 1 else f"every {self.eval_every} rounds"
        rows["evaluation"] = "none" if self.eval_fn is None else every
        if self.weighting is not uniform_weights:
            rows["weighting"] = value_text(self.weighting)
        return Summary(f"Setup: {rows['clients'].partition(',')[0]} clients", rows)

    def _other_steps(self) -> dict[str, str]:
        """Returns the timeline's local steps where visits leave the range of the task's."""
        own, steps, mask = map(
            readable, (self.task.num_steps, self.timeline.num_steps, self.timeline.mask)
        )
        if own is None or steps is None or mask is None or steps.shape != mask.shape:
            return {}
        if not own.size or not mask.any():
            return {}
        visits = steps[mask]
        if own.min() <= visits.min() and visits.max() <= own.max():
            return {}
        return {"local steps": f"{range_text(visits)} per visit"}


jax.tree_util.register_dataclass(
    Setup,
    data_fields=["task", "timeline", "params", "eval_fn"],
    meta_fields=["eval_every", "weighting"],
)


def sizes_text(num_clients: int, sizes: Any) -> str:
    """Returns the number of clients with their sizes, where these can be read."""
    known = readable(sizes)
    about = "" if known is None else f", with {range_text(known)} examples; {known.sum():,} in all"
    return f"{num_clients:,}{about}"


def range_text(numbers: Any) -> str:
    """Returns the smallest and the largest number; nothing of numbers that cannot be read."""
    known = readable(numbers)
    if known is None or not known.size:
        return ""
    low, high = known.min(), known.max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _as_pytree(function: Any) -> Any:
    """Wraps a plain function in a Partial without data, which jit accepts as an argument."""
    wrap = callable(function) and not isinstance(function, jax.tree_util.Partial)
    return jax.tree_util.Partial(function) if wrap else function
