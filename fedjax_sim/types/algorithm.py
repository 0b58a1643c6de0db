"""Algorithms: five pure functions, and what they require of setups and wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from fedjax_sim.types.aliases import ClientState, Message, Params, PyTree, ServerState, Upload
from fedjax_sim.types.setup import Task, Timeline
from fedjax_sim.types.specs import Spec, changed_texts, with_spec
from fedjax_sim.types.summaries import Summary, shown
from fedjax_sim.types.visits import Oracle, Round, Work


def _no_limit(timeline: Timeline) -> None:
    del timeline


def _no_bytes(upload: PyTree, num_slots: int) -> int:
    del upload, num_slots
    return 0


@shown
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
    check: Callable[[Timeline], None] = _no_limit
    # (shapes of one upload, slots) -> bytes of the uploads that are in memory together.
    num_bytes: Callable[[PyTree, int], int] = _no_bytes
    f: int | None = None  # most attackers per round that it is made for; None: not stated


@shown
class Candidates(NamedTuple):
    """Clients of a round among whom a selector chooses: the filled slots of the timeline."""

    clients: Array  # [S] int
    present: Array  # [S] bool    False: the slot is empty
    num_examples: Array  # [S] int
    num_steps: Array  # [S] int    local steps that the timeline gives
    weights: Array  # [S]    of the setup's weighting; 0 where no upload would arrive
    scores: PyTree  # values of `Selector.score`, leaves [S, ...]; (): there is none


@shown
class Choice(NamedTuple):
    """Visits that a selector chose."""

    chosen: Array  # [S] bool    empty slots do not count
    # [S] factors of the weights, 1 / (probability of being chosen): the mean becomes the sum of the
    # weighted uploads over the weights of all candidates. None: the mean over the chosen clients.
    factors: Array | None = None
    num_steps: Array | None = None  # [S] int    local steps, at most the timeline's. None: these


def _nothing_known(num_clients: int) -> PyTree:
    del num_clients
    return ()


def _learn_nothing(state: PyTree, clients: Array, reports: PyTree, arrived: Array) -> PyTree:
    del clients, reports, arrived
    return state


@with_spec
@shown
class Selector(NamedTuple):
    """Choice of a round's visits among the candidates of the timeline, from the state of the run.

    Example:
        >>> first = Selector(lambda state, candidates, round: (Choice(candidates.clients < 2), ()))
        >>> import jax.numpy as jnp
        >>> clients = jnp.array([0, 5])
        >>> candidates = Candidates(clients, clients >= 0, clients, clients, clients, ())
        >>> first.choose((), candidates, None)[0].chosen.tolist()
        [True, False]
    """

    # (state, candidates, round) -> (choice, new state). `round.key` is the selector's own.
    choose: Callable[[PyTree, Candidates, Round], tuple[Choice, PyTree]]
    # Clients that it chooses at most, all if there are fewer; None: all candidates.
    size: int | None = None
    init: Callable[[int], PyTree] = _nothing_known  # number of clients -> state
    # (model, oracle, visit) -> values that every candidate computes before the choice. None: none.
    score: Callable[[Params, Oracle, Work], PyTree] | None = None
    # (model, oracle, visit) -> values that a chosen client sends with its upload. None: none.
    report: Callable[[Params, Oracle, Work], PyTree] | None = None
    # (state, clients [m], reports [m, ...], arrived [m]) -> new state, after the visits. What did
    # not arrive may have the number of a client that did: an empty slot has any.
    learn: Callable[[PyTree, Array, PyTree, Array], PyTree] = _learn_nothing
    unbiased: bool = False  # its choices have factors
    # It always chooses so many, and other numbers make the model NaN; False: perhaps fewer, so an
    # algorithm that needs more than one upload is refused.
    exact: bool = False
    spec: Spec | None = None  # the factory and its arguments


def _no_state(params: Params) -> ClientState:
    del params
    return ()


def _send_params(state: ServerState, round: Round) -> Message:
    del round
    return state.params


def send_state(state: ServerState, round: Round) -> Message:
    """Broadcasts the whole server state."""
    del round
    return state


@shown
class Bits(NamedTuple):
    """Bits that a client sends and receives, where encoded values have fewer than their arrays."""

    upload: Callable[[Upload], int] | None = None  # None: those of its arrays
    # In rounds in which all clients report. None: the same.
    upload_if_all: Callable[[Upload], int] | None = None
    message: Callable[[Message], int] | None = None  # None: those of its arrays
    # Mean number of clients that a client sends its upload to, where there is no server: these bits
    # are all that is sent. None: one upload to the server, which sends messages.
    links: float | None = None


@shown
class RunningStatistics(NamedTuple):
    """Running statistics of a model that an algorithm updates."""

    where: Callable[..., bool] | Any  # a fedjax_sim.tree.leaves.Selection
    uploaded: bool  # clients upload their statistics
    server_rate: float = 1.0  # with which the server mixes the uploaded ones in, where it is known
    # The algorithm that they were added to has personal models of its own; False: a client's model
    # is the server's, but for the statistics.
    personal: bool = False


@shown
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


Check = Callable[[Task, Timeline], None]  # raises ValueError for what does not fit


@shown
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
    # The same for timelines in which not all clients report in every round; where they do, the
    # weights must be the same in all rounds.
    uniform_weights_if_partial: str | None = None
    # What the server keeps the weighted mean of: states of all clients, to which it adds
    # ``round.participation`` of the mean upload.  A client must then have the same weight in all
    # rounds, and ef21, diana and per_step_uploads are refused, whose errors would add up; after
    # clipped, noisy or lost uploads and robust rules it is no mean of the states any more.  None:
    # nothing; the participation is that of the clients' number.
    mean_of_states: str | None = None
    # What uploads are in rounds of different kinds (gradients in some, changes of the model in
    # others): wrappers that keep or rescale uploads are refused with it. None: of one kind.
    kinds_of_uploads: str | None = None
    # What uploads, or their first part, are instead of changes of the model, such as gradients:
    # diagnostics that take a client's model from its upload are refused with it. None: changes.
    other_uploads: str | None = None
    # The reason why the update needs the exact mean of the uploads: wrappers that clip uploads or
    # add noise are refused with it. None: an upload is 0 for a client that does not change the
    # model, and the update may receive a noisy mean.
    exact_mean: str | None = None
    # The reason why messages must arrive as they are: wrappers that encode them are refused with
    # it. None: they need not.
    exact_messages: str | None = None
    # The reason why the timeline alone must say who works in a round, and for how many steps: a
    # selection of clients is refused with it. None: it need not.
    no_selection: str | None = None
    # Raises ValueError, with the reason, for a task or a timeline that does not fit the algorithm.
    # Runs before any compilation; arrays of both may be traced. None: all fit.
    check: Check | None = None
    # Clients upload models, which the server averages with its own; False: changes of the model.
    uploads_models: bool = False
    # Clients start from models of their own, so a timeline with `own_models` fits (QuAFL); False:
    # it is refused, since its clients have not received the model that they would start from.
    own_models: bool = False
    # Messages are changes of the last one, so every client needs every message: counted as bits.
    messages_to_all: bool = False
    # Clients keep or train leaves that the server's model does not: its own metrics mean nothing,
    # those of the personal models do.
    partial_model: bool = False
    bits: Bits = Bits()  # that a client sends and receives
    statistics: RunningStatistics | None = None  # that the algorithm updates; None: none
    last: LastWrapper | None = None  # the wrapper that no other may enclose; None: none


@with_spec
@shown
class FedAlgorithm(NamedTuple):
    """A federated algorithm: five pure functions.

    ``local`` is written for ONE client; an execution strategy batches it.  ``update`` receives the
    weighted mean of the uploads, so a round needs one reduction.  What is averaged has floating
    dtypes; uploads that an ``aggregation`` decodes, or that ``update`` receives one by one, may
    have others.  In a round without reports the mean is 0 and the update is discarded; it must
    still be finite, so that derivatives are.

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

    init: Callable[[Params], ServerState]  # initial model -> state with an attribute `params`
    # (message, state of the client, oracle, work) -> (upload, new state). One client's visit.
    local: Callable[[Message, ClientState, Oracle, Work], tuple[Upload, ClientState]]
    # (state, weighted mean of the uploads, round) -> new state.
    update: Callable[[ServerState, Upload, Round], ServerState]
    # (state, round) -> what clients receive. Default: the model `state.params`.
    broadcast: Callable[[ServerState, Round], Message] = _send_params
    # Initial model -> state that each client keeps between its visits. Default: ().
    init_client: Callable[[Params], ClientState] = _no_state
    # The model that a client uses itself, from the current broadcast, its state, and the oracle and
    # the visit of its training data; changes no state. None: the server's model.
    personal: Callable[[Message, ClientState, Oracle, Work], Params] | None = None
    # What `update` receives. None: the weighted mean of the uploads.
    aggregation: Aggregation | None = None
    # Choice among the candidates of a round. None: all of the timeline's clients take part.
    selection: Selector | None = None
    requires: Requires = Requires()  # of setups, wrappers and files
    # The factory and its arguments. None: no factory under `specified` made it.
    spec: Spec | None = None

    def requiring(self, **changes: Any) -> FedAlgorithm:
        """Returns the algorithm with other fields of ``requires``.

        Example:
            >>> import fedjax_sim as fs
            >>> fs.fedavg(0.1).requiring(synchronous="a reason").requires.synchronous
            'a reason'
        """
        return self._replace(requires=self.requires._replace(**changes))

    def _summary(self) -> Summary:
        if self.spec is not None:
            return Summary(repr(self.spec), {})
        return Summary("FedAlgorithm without a spec", changed_texts(self))
