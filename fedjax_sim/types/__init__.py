"""Types that all modules share.

A federated algorithm is five pure functions over pytrees (:class:`FedAlgorithm`).  An algorithm
accesses a client's data only through an :class:`Oracle`, a client's visit through :class:`Work` and
the round through :class:`Round`.  A :class:`Timeline` states, as data, which clients report in each
round and from which model they started.  A :class:`Setup` holds everything that stays fixed when
algorithms are compared.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.types.specs import Spec, with_spec

PyTree: TypeAlias = Any
Params: TypeAlias = PyTree
Message: TypeAlias = PyTree  # downlink: server -> client
Upload: TypeAlias = PyTree  # uplink: client -> server
ServerState: TypeAlias = PyTree  # its attribute `params` is the model to evaluate
ClientState: TypeAlias = PyTree  # state that one client keeps between its visits
Step: TypeAlias = Array | int
Device: TypeAlias = Any  # jax.Device, which type checkers reject as a type
Scalar: TypeAlias = Array | float  # a hyper-parameter: a number or a traced scalar


class Oracle(NamedTuple):
    """Access to one client's data during one visit.

    The same ``step`` always gives the same minibatch, so a method that takes two gradients at one
    step (SAM) or revisits a step uses the same examples.

    Example:
        >>> quadratic = Oracle(grad=lambda w, step: w - 3, loss=lambda w, step: (w - 3) ** 2 / 2,
        ...                    full_grad=lambda w: w - 3)
        >>> w = 0.0
        >>> for step in range(2):
        ...     w = w - 0.5 * quadratic.grad(w, step)
        >>> w
        2.25
    """

    grad: Callable[[Params, Step], Params]  # gradient on the step's minibatch
    loss: Callable[[Params, Step], Array]  # loss on the step's minibatch
    full_grad: Callable[[Params], Params]  # gradient on the whole local data set
    # Loss on the whole local data set; None: the task has none. The package's tasks have it.
    full_loss: Callable[[Params], Array] | None = None


class Work(NamedTuple):
    """One client's visit.

    ``max_steps`` is a Python int, the bound of the local loop; all other fields may be traced.

    Example:
        >>> from fedjax_sim.local import rate
        >>> zero, steps, examples = jnp.array(0), jnp.array(3), jnp.array(30)
        >>> work = Work(zero, zero, steps, examples, zero, jax.random.key(0), max_steps=5)
        >>> float(rate(lambda round: 0.5 / (1 + round), work))  # a schedule of learning rates
        0.5
    """

    round: Array  # int    server update that this visit reports to
    client: Array  # int    number of the client
    num_steps: Array  # int    local steps, <= max_steps
    num_examples: Array  # int    size of the client's data set
    staleness: Array  # int    server updates since the client's download; 0 when synchronous
    key: Array  # PRNG key of this visit, independent of the minibatches
    max_steps: int

    def inside(self) -> "Work":
        """Returns the visit with another key, for the algorithm inside a wrapper that draws.

        The draws of two wrappers of the same kind, one inside the other, are then independent.

        Example:
            >>> zero, key = jnp.array(0), jax.random.key(0)
            >>> work = Work(zero, zero, zero, zero, zero, key, max_steps=1)
            >>> bool(work.inside().key == key)
            False
        """
        return self._replace(key=_inside(self.key))


EvalFn: TypeAlias = Callable[[Params], Mapping[str, Array]]
Weighting: TypeAlias = Callable[[Work], Array]  # a batched Work [S] -> weights [S]


class Round(NamedTuple):
    """One server update.

    Example:
        >>> number, uploads = jnp.array(7), jnp.array(2)
        >>> round = Round(number, uploads, num_clients=8, key=jax.random.key(0))
        >>> float(round.num_uploads / round.num_clients)  # the participation
        0.25
    """

    number: Array  # int    server updates before this one
    num_uploads: Array  # int    clients that report in this round
    num_clients: int  # population
    key: Array  # PRNG key of the server in this round
    # int    num_uploads at the broadcast, where that of the update differs; None: the same
    at_broadcast: Array | None = None

    @property
    def announced_uploads(self) -> Array:
        """Number of uploads that clients know from the broadcast, which wrappers do not change."""
        return jnp.asarray(self.num_uploads if self.at_broadcast is None else self.at_broadcast)

    def counting(self, num_uploads: Array) -> "Round":
        """Returns the round of an update whose mean has another number of uploads.

        Example:
            >>> round = Round(jnp.array(0), jnp.array(8), 8, jax.random.key(0))
            >>> fewer = round.counting(jnp.array(5))
            >>> int(fewer.num_uploads), int(fewer.announced_uploads)
            (5, 8)
        """
        return self._replace(num_uploads=num_uploads, at_broadcast=self.announced_uploads)

    def inside(self) -> "Round":
        """Returns the round with another key, for the algorithm inside a wrapper that draws.

        Example:
            >>> round = Round(jnp.array(0), jnp.array(2), 8, jax.random.key(0))
            >>> bool(round.inside().key == round.key)
            False
        """
        return self._replace(key=_inside(self.key))


def _inside(key: Array) -> Array:
    return jax.random.fold_in(key, np.uint32(2**31 + 16))


class Stack(NamedTuple):
    """All uploads of a round, as a server without a mean receives them.

    Example:
        >>> yes = jnp.array([True, False])
        >>> stack = Stack(jnp.array([[2.0], [0.0]]), None, yes, jnp.array([7, 3]))
        >>> stack.mean_weights.tolist()
        [1.0, 0.0]
    """

    uploads: Upload  # [S, ...]; without meaning where nothing arrived
    weights: Array | None  # [S]; None: equal
    arrived: Array  # [S] bool    slots whose upload reaches the server
    clients: Array  # [S] int

    @property
    def mean_weights(self) -> Array:
        """Weights of the mean, ``[S]``: 0 where nothing arrived."""
        weights = self.arrived if self.weights is None else self.weights
        return jnp.where(self.arrived, weights.astype(jnp.result_type(float)), 0)


def _no_limit(timeline: "Timeline") -> None:
    del timeline


def _no_bytes(upload: PyTree, num_slots: int) -> int:
    del upload, num_slots
    return 0


class Aggregation(NamedTuple):
    """Another aggregation of uploads than their weighted mean.

    Example:
        >>> halved = Aggregation(each=lambda state, upload: upload / 2)
        >>> halved.each(None, 4.0)
        2.0
    """

    # (server state, upload) -> what the server averages; runs after the whole visit. None: `update`
    # receives the Stack of all uploads instead of a mean.
    each: Callable[[ServerState, Upload], PyTree] | None = None
    # Raises ValueError for a timeline with rounds of too few uploads; arrays may be traced.
    check: Callable[["Timeline"], None] = _no_limit
    # (shapes of one upload, slots) -> bytes of the uploads that are in memory together.
    num_bytes: Callable[[PyTree, int], int] = _no_bytes
    f: int | None = None  # most attackers per round that it is made for; None: not stated


def _no_state(params: Params) -> ClientState:
    del params
    return ()


def _send_params(state: ServerState, round: Round) -> Message:
    del round
    return state.params


def _no_check(task: "Task", timeline: "Timeline") -> None:
    del task, timeline


def send_state(state: ServerState, round: Round) -> Message:
    """Broadcasts the whole server state."""
    del round
    return state


@dataclasses.dataclass(frozen=True)
class Described:
    """Function ``apply`` of a model, and what objectives and adapters need to know of it.

    Example:
        >>> double = Described(lambda params, x: params * x, vocab_size=65)
        >>> double(2.0, 3.0), double.vocab_size, double.takes_adapters
        (6.0, 65, False)
    """

    function: Callable[[Params, Any], Any]
    vocab_size: int | None = None  # inputs are token ids below it
    takes_adapters: bool = False  # kernels may be fedjax_sim.models.linear.Adapted
    trains_otherwise: bool = False  # it evaluates a model with `train`, so objectives refuse it

    def __call__(self, params: Params, x: Any) -> Any:
        return self.function(params, x)

    @staticmethod
    def of(apply: Callable[[Params, Any], Any], **facts: Any) -> "Described":
        """Returns a function with further facts, beside those that it has."""
        known = apply if isinstance(apply, Described) else Described(apply)
        return dataclasses.replace(known, **facts)


class Bits(NamedTuple):
    """Bits that a client sends and receives, where encoded values have fewer than their arrays."""

    upload: Callable[[Upload], int] | None = None  # None: those of its arrays
    # In rounds in which all clients report. None: the same.
    upload_if_all: Callable[[Upload], int] | None = None
    message: Callable[[Message], int] | None = None  # None: those of its arrays


class RunningStatistics(NamedTuple):
    """Running statistics of a model that an algorithm updates."""

    where: Callable[..., bool] | Any  # a fedjax_sim.tree.leaves.Selection
    uploaded: bool  # clients upload their statistics


class LastWrapper(NamedTuple):
    """Wrapper that no other wrapper may enclose, such as a private one.

    It keeps the functions that it returned, so that :func:`fedjax_sim.checks.setups.last_wrapper`
    notices if another wrapper has replaced one of them.
    """

    name: str
    reason: str  # why it must be the last one
    local: Callable[..., Any]
    update: Callable[..., Any]
    # (timeline, num_clients) -> fedjax_sim.wrappers.privacy.events.Mechanism; None: clients add the
    # noise.
    mechanism: Any = None


class Requires(NamedTuple):
    """Requirements of an algorithm: of a setup, of wrappers around it and of the files of its runs.

    A wrapper inherits all fields, and replaces those that it changes (``algorithm.requiring``).

    Example:
        >>> Requires(synchronous="the controls sum to 0").synchronous
        'the controls sum to 0'
    """

    # The reason why clients must start from the current broadcast; a timeline with staleness is
    # refused with this reason. None: they need not.
    synchronous: str | None = None
    # The reason why all uploads must have the same weight; a setup with another weighting is
    # refused with this reason. None: they need not.
    uniform_weights: str | None = None
    # The same for timelines in which not all clients report in every round.
    uniform_weights_if_partial: str | None = None
    # The reason why the update needs the exact mean of the uploads: wrappers that clip uploads or
    # add noise are refused with it. None: an upload is 0 for a client that does not change the
    # model, and the update may receive a noisy mean.
    exact_mean: str | None = None
    # Raises ValueError, with the reason, for a task or a timeline that does not fit the algorithm.
    # Runs before any compilation; arrays of both may be traced.
    check: Callable[["Task", "Timeline"], None] = _no_check
    # Clients upload models, which the server averages with its own; False: changes of the model.
    uploads_models: bool = False
    # Messages are changes of the last one, so every client needs every message: counted as bits.
    messages_to_all: bool = False
    # Clients keep or train leaves that the server's model does not: its own metrics mean nothing,
    # those of the personal models do.
    partial_model: bool = False
    bits: Bits = Bits()
    statistics: RunningStatistics | None = None
    last: LastWrapper | None = None


class Model(NamedTuple):
    """A model: ``init(key) -> params`` and ``apply(params, x) -> outputs``.

    Both are pure.  ``params`` is any pytree of arrays, ``x`` a batch ``[B, ...]`` of floating
    inputs or of integers (token ids), ``outputs`` is ``[B, ...]`` (logits or predictions).  There
    are no other requirements, so any pair of such functions is a model.

    ``apply`` evaluates.  A model that computes something else in training (dropout, batch
    normalisation) also has ``train(params, x, key, weights) -> (outputs, statistics)``: examples of
    weight 0 (``[B]``) fill up a short batch.  ``statistics`` is a tree as ``params`` with the next
    values of the leaves that the field ``statistics`` selects, and None for all other leaves.

    ``axis_roles(path, leaf)`` has one letter per axis of a kernel, for adapters of low rank
    (:func:`fedjax_sim.models.lora`): "i" for inputs, "o" for outputs, "s" for a stack of matrices;
    None of any other leaf.  The convolution's kernel ``[height, width, inputs, outputs]`` is
    "iiio".  Without the field, leaves of two axes are "oi".

    Example:
        >>> ridge = Model(
        ...     init=lambda key: {"w": jnp.zeros(3)},
        ...     apply=lambda params, x: x @ params["w"],
        ... )
        >>> ridge.apply(ridge.init(jax.random.key(0)), jnp.ones((2, 3))).shape
        (2,)
    """

    init: Callable[[Array], Params]
    apply: Callable[[Params, Any], Any]
    train: Callable[[Params, Any, Array, Array], tuple[Any, PyTree]] | None = None
    # (path, leaf) -> bool: running statistics, which no optimiser may move. None: there are none.
    statistics: Callable[[tuple[str, ...], Any], bool] | None = None
    axis_roles: Callable[[tuple[str, ...], Any], str | None] | None = None


@with_spec
class FedAlgorithm(NamedTuple):
    """A federated algorithm: five pure functions.

    ``local`` is written for ONE client; an execution strategy batches it.  ``update`` receives the
    weighted mean of the uploads, so a round needs one reduction; uploads have floating dtypes.  In
    a round without reports the mean is 0 and the update is discarded; it must still be finite, so
    that derivatives are.

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
    # The model that a client uses itself, from the current broadcast, its state, and the oracle and
    # the visit of its training data; changes no state. None: the server's model.
    personal: Callable[[Message, ClientState, Oracle, Work], Params] | None = None
    # What `update` receives. None: the weighted mean of the uploads.
    aggregation: Aggregation | None = None
    requires: Requires = Requires()
    # The factory and its arguments. None: no factory under `specified` made it.
    spec: Spec | None = None

    def requiring(self, **changes: Any) -> "FedAlgorithm":
        """Returns the algorithm with other fields of ``requires``.

        Example:
            >>> import fedjax_sim as fs
            >>> fs.fedavg(0.1).requiring(synchronous="a reason").requires.synchronous
            'a reason'
        """
        return self._replace(requires=self.requires._replace(**changes))


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
    num_examples: Array | np.ndarray  # [M] int
    num_steps: Array | np.ndarray  # [M] int    local steps of one visit; concrete
    # Static. True: a visit can continue the client's previous visit. `oracle` then takes the first
    # step of the visit as a fourth argument, and its key is the client's, equal in all visits.
    resumable: bool = False
    # A fedjax_sim.engine.execution.placement.Placement (a pytree); None: whole arrays on the
    # device.
    placement: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "oracle", _as_pytree(self.oracle))

    @property
    def num_clients(self) -> int:
        """Number of clients M."""
        return self.num_examples.shape[0]


jax.tree_util.register_dataclass(
    Task,
    data_fields=["oracle", "num_examples", "num_steps", "placement"],
    meta_fields=["resumable"],
)


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

    clients: Array | np.ndarray  # [T, S] int
    # [T, S] int    server update whose broadcast the client started from
    version: Array | np.ndarray
    num_steps: Array | np.ndarray  # [T, S] int    local steps done
    mask: Array | np.ndarray  # [T, S] bool
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

    def __getitem__(self, rounds: slice) -> "Timeline":
        """Returns the given rounds of a timeline ``[T, S]`` or of a batch ``[n, T, S]``.

        Raises:
            ValueError: no slice.  The first timeline of a batch is
                ``jax.tree.map(lambda x: x[0], batch)``.
        """
        if not isinstance(rounds, slice):
            raise ValueError(
                f"rounds is {rounds!r:.60}; expected a slice, such as timeline[:9]; the first "
                "timeline of a batch is jax.tree.map(lambda x: x[0], batch)"
            )

        def cut(name: str) -> Array | np.ndarray | None:
            value = getattr(self, name)
            if value is None:
                return None
            return value[..., rounds] if name in ("time", "write_buffer") else value[..., rounds, :]

        return dataclasses.replace(self, **{name: cut(name) for name in _TIMELINE_DATA})


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

    Methods that turn the mean into a sum over the cohort (the server control of SCAFFOLD, for
    example) multiply by the number of uploads; with these weights that is a weighted sum.

    Example:
        >>> clients, sizes = jnp.array([4, 7]), jnp.array([30, 20])
        >>> work = Work(clients, clients, clients, sizes, clients, clients, max_steps=9)
        >>> weight_by_examples(work).tolist()
        [30, 20]
    """
    return work.num_examples


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

    task: Task
    timeline: Timeline  # [T, S], or one per seed [n, T, S]
    params: Params  # initial model [...], or one per seed [n, ...]
    eval_fn: EvalFn | None = None  # carries the evaluation set
    eval_every: int = 1  # static: rounds between evaluations; the last round is always evaluated
    weighting: Weighting = uniform_weights  # static; a negative weight makes the model NaN

    def __post_init__(self) -> None:
        object.__setattr__(self, "eval_fn", _as_pytree(self.eval_fn))


jax.tree_util.register_dataclass(
    Setup,
    data_fields=["task", "timeline", "params", "eval_fn"],
    meta_fields=["eval_every", "weighting"],
)


def _as_pytree(function: Any) -> Any:
    """Wraps a plain function in a Partial without data, which jit accepts as an argument."""
    wrap = callable(function) and not isinstance(function, jax.tree_util.Partial)
    return jax.tree_util.Partial(function) if wrap else function
