"""Records of runs: states, histories, and what probes receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import Array

from fedjax_sim.types import (
    ClientState,
    Message,
    Oracle,
    PyTree,
    Round,
    ServerState,
    Upload,
    Work,
    shown,
)


@shown
class Selected(NamedTuple):
    """Record of the selection of clients so far."""

    state: PyTree  # of the selector
    visits: Array  # [M] int    how often each client was chosen
    local_steps: Array  # int    of all visits so far


@shown
class RunState(NamedTuple):
    """State from which a run continues."""

    round: Array  # int    server updates done
    server: ServerState  # its attribute `params` is the model
    clients: ClientState  # [M, ...] states of all clients
    past: Message  # [buffers, ...] past broadcasts; () when synchronous
    # In the state, so that a sweep records it for each of its configurations.
    diverged_at: Array  # int    first server update that is not finite, counted from 1; 0: none
    selection: Any = ()  # Selected; (): the algorithm has no selector


@shown
class History(NamedTuple):
    """Records of a run: E evaluations, T rounds, S slots."""

    round: Array  # [E] int    server updates done at each evaluation
    metrics: dict[str, Array]  # [E, ...] of eval_fn
    probes: dict[str, Array]  # [T, S, ...] of client probes, [T, ...] of the others


@shown
class Visit(NamedTuple):
    """Argument of a client probe: one client's visit.

    Example:
        >>> import jax.numpy as jnp
        >>> length = lambda visit: jnp.abs(visit.upload - visit.message)
        >>> visit = Visit(jnp.array(1.0), jnp.array(3.0), (), (), None, None)
        >>> float(length(visit))  # a client probe: Probes(client={"length": length})
        2.0
    """

    message: Message  # that the client received
    upload: Upload  # that it sends
    state: ClientState  # before the visit
    new_state: ClientState  # after the visit
    oracle: Oracle  # access to the client's data
    work: Work  # the visit


@shown
class Update(NamedTuple):
    """Argument of a server probe: one server update.

    Example:
        >>> step = lambda update: update.new_state.params - update.state.params
        >>> State = NamedTuple("State", [("params", float)])
        >>> step(Update(State(1.0), State(0.5), mean=0.5, round=None))
        -0.5
    """

    state: ServerState  # before the update
    new_state: ServerState  # after the update
    # Of the uploads; or the Stack of all uploads, for an algorithm with such an aggregation.
    mean: Upload
    round: Round  # the server update


@shown
class Probes(NamedTuple):
    """Diagnostics evaluated inside every round and recorded in the history.

    Values of client probes in empty slots have no meaning: apply the timeline's mask.  A run probe
    receives the state after the round, with the states of all clients.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda params, examples, key: (params - examples["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(num_steps=1))
        >>> setup = fs.Setup(task, fs.timelines.full(2, 2, task.num_steps), jnp.array(0.0))
        >>> probes = Probes(client={"upload": lambda visit: visit.upload})
        >>> _, history = fs.run(fs.fedavg(0.25), setup, jax.random.key(0), probes=probes)
        >>> history.probes["upload"].tolist()  # [T, S]
        [[-0.5, -1.5], [0.0, -1.0]]
    """

    client: Mapping[str, Callable[[Visit], Array]] = {}  # by name, of every visit
    server: Mapping[str, Callable[[Update], Array]] = {}  # by name, of every server update
    run: Mapping[str, Callable[[RunState], Array]] = {}  # by name, of every state after a round


NO_PROBES = Probes()
