"""The types every other module speaks.

A federated algorithm is five pure functions over pytrees (:class:`FedAlgorithm`).
It sees one client's data only through an :class:`Oracle`, one client's visit
through :class:`Work` and the round through :class:`Round`.  Who reports when, and
from which model, is data: a :class:`Timeline`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax import Array

PyTree: TypeAlias = Any
Params: TypeAlias = PyTree
Message: TypeAlias = PyTree  # downlink: server -> client
Upload: TypeAlias = PyTree  # uplink: client -> server
ServerState: TypeAlias = PyTree  # has an attribute `params`: the model to evaluate
ClientState: TypeAlias = PyTree  # what one client keeps between its visits
Step: TypeAlias = Array | int
Device: TypeAlias = Any  # jax.Device, which type checkers take for a variable
Scalar: TypeAlias = Array | float  # a hyper-parameter: a number, or a traced one


class Oracle(NamedTuple):
    """What one client can ask of its own data during one visit.

    The same ``step`` always gives the same minibatch, so a method that takes two
    gradients at one step (SAM) or revisits a step sees the same examples.
    """

    grad: Callable[[Params, Step], Params]  # gradient on the step's minibatch
    loss: Callable[[Params, Step], Array]  # loss on the step's minibatch
    full_grad: Callable[[Params], Params]  # gradient on the whole local data set


class Work(NamedTuple):
    """One client's visit, as the client sees it.

    ``max_steps`` is a Python int (it bounds the local loop); everything else may be traced.
    """

    round: Array  # int     server update this visit reports to
    client: Array  # int    which client
    num_steps: Array  # int    local steps to do, <= max_steps
    num_examples: Array  # int    size of the client's data set
    staleness: Array  # int    server updates since the client's download; 0 when synchronous
    key: Array  # PRNG key of this visit, independent of the minibatch draws
    max_steps: int


class Round(NamedTuple):
    """One server update, as the server sees it."""

    number: Array  # int    server updates done before this one
    num_uploads: Array  # int    clients that report in this round
    num_clients: int  # population
    key: Array  # PRNG key of the server in this round


def _no_state(params: Params) -> ClientState:
    del params
    return ()


def _send_params(state: ServerState, round: Round) -> Message:
    del round
    return state.params


def send_state(state: ServerState, round: Round) -> Message:
    """The broadcast of a server that sends all it has."""
    del round
    return state


class FedAlgorithm(NamedTuple):
    """A federated algorithm: five pure functions.

    ``local`` is written for ONE client; a cohort strategy batches it.  ``update``
    receives the weighted mean of the uploads, so a round costs one reduction; uploads are
    floating.  Of a round in which nobody reports the mean is 0 and the update is discarded; for
    derivatives' sake it must be finite there, too.

    Example:
        >>> import jax.numpy as jnp
        >>> from typing import NamedTuple
        >>> class State(NamedTuple):
        ...     params: dict
        >>> one_step = FedAlgorithm(
        ...     init=State,
        ...     local=lambda x, state, oracle, work: (oracle.grad(x, 0), state),
        ...     update=lambda s, g, round: State({"w": s.params["w"] - 0.1 * g["w"]}),
        ... )
        >>> one_step.init({"w": jnp.zeros(2)}).params["w"].shape
        (2,)
    """

    init: Callable[[Params], ServerState]
    local: Callable[[Message, ClientState, Oracle, Work], tuple[Upload, ClientState]]
    update: Callable[[ServerState, Upload, Round], ServerState]
    broadcast: Callable[[ServerState, Round], Message] = _send_params
    init_client: Callable[[Params], ClientState] = _no_state
    # Why clients must start from the current broadcast; None: they need not. A timeline with
    # staleness is refused with this reason.
    synchronous_only: str | None = None


class Task(NamedTuple):
    """What the clients minimise: a gradient oracle per client, and the clients' sizes.

    ``oracle`` is a :class:`jax.tree_util.Partial` when it carries data, so that a task
    is a pytree: pass it to a jitted function as an argument rather than closing over
    it, or XLA embeds the data set in the program as a constant.
    """

    oracle: Callable[..., Oracle]  # (client, key, max_steps) -> Oracle
    num_examples: Array | np.ndarray  # [M] int
    num_steps: Array | np.ndarray  # [M] int    local steps of one visit; concrete
    # (): visits can continue each other; `oracle` takes the visit's first step as a fourth argument
    # and then the client's key, the same in all its visits. Empty, since a flag would be traced.
    continues: tuple[()] | None = None
    # A fedjax_sim.execution.placement.Placement, static; None: data and states of clients in whole arrays.
    placement: Any = None

    @property
    def num_clients(self) -> int:
        return self.num_examples.shape[0]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Who reports when: T server updates with S slots each.

    A synchronous schedule has ``version[t] == t``.  A slot with ``mask == False`` is
    empty: nobody was there, or the client dropped out; it changes neither the server
    nor the client's state.  Within a round the clients of unmasked slots are distinct.

    Past broadcasts are kept in a ring of the last ``max_staleness + 1``, or in ``num_buffers``
    buffers that :func:`~fedjax_sim.timelines.allocate_buffers` assigned, as few as possible.
    """

    clients: Array | np.ndarray  # [T, S] int
    version: (
        Array | np.ndarray
    )  # [T, S] int    server update whose broadcast the client started from
    num_steps: Array | np.ndarray  # [T, S] int    local steps done
    mask: Array | np.ndarray  # [T, S] bool
    time: Array | np.ndarray  # [T] float    simulated time of each server update
    max_steps: int  # static: bounds num_steps
    max_staleness: int = 0  # static: bounds t - version[t]
    first_step: Array | np.ndarray | None = None  # [T, S] int    steps the client did before
    idle: Array | np.ndarray | None = None  # [T, S] float    time the client waited with its report
    write_buffer: Array | np.ndarray | None = None  # [T] int    of broadcast t; num_buffers: none
    read_buffer: Array | np.ndarray | None = None  # [T, S] int    of the broadcast started from
    num_buffers: int = 0  # static: buffers for past broadcasts; 0: a ring of max_staleness + 1

    @property
    def num_rounds(self) -> int:
        return self.clients.shape[-2]

    @property
    def cohort_size(self) -> int:
        return self.clients.shape[-1]

    def __getitem__(self, rounds: slice) -> "Timeline":
        """The given rounds, of one timeline ``[T, S]`` or of a batch ``[n, T, S]``."""

        def cut(name: str) -> Array | np.ndarray | None:
            value = getattr(self, name)
            if value is None:
                return None
            return value[..., rounds] if name in ("time", "write_buffer") else value[..., rounds, :]

        return dataclasses.replace(self, **{name: cut(name) for name in _TIMELINE_DATA})


_TIMELINE_DATA = [
    "clients", "version", "num_steps", "mask", "time", "first_step", "idle",
    "write_buffer", "read_buffer",
]  # fmt: skip
jax.tree_util.register_dataclass(
    Timeline,
    data_fields=_TIMELINE_DATA,
    meta_fields=["max_steps", "max_staleness", "num_buffers"],
)
