"""Common parts of algorithms without a server: the state of a network, and the mixing round."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_MODELS, check_all_clients
from fedjax_sim.local import local_steps, per_step
from fedjax_sim.topologies.topology import Topology
from fedjax_sim.tree import bits_of_arrays
from fedjax_sim.types import (
    Aggregation,
    Bits,
    ClientState,
    FedAlgorithm,
    Oracle,
    Params,
    PyTree,
    Requires,
    Round,
    Stack,
    Task,
    Timeline,
    Work,
    send_state,
)
from fedjax_sim.wrappers import stack_bytes


class NetworkState(NamedTuple):
    """State of all clients between two rounds; the engine keeps it in the place of a server's."""

    params: Params  # mean of the models
    models: Params  # [M, ...]    x_i
    mixed: PyTree  # [M, ...]    what else clients receive: tracked gradients, weights


class Sent(NamedTuple):
    """Upload: what a client sends to its neighbours, and what it adds to the mixed model itself."""

    params: Params
    mixed: PyTree = ()
    kept: Params | tuple = ()  # not sent

    def coded(self) -> Sent:
        """Returns the part that a codec encodes."""
        return self._replace(kept=())

    def restored(self, part: Sent) -> Sent:
        """Returns the upload with a decoded part."""
        return part._replace(kept=self.kept)

    def exact_bits(self) -> int:
        """Returns the bits that are sent as they are."""
        return 0

    def decoded_near(self, message: NetworkState) -> Sent:
        """Returns the vector near which codecs decode: the mean of what all clients have.

        It stands for the receiver's own model: within the radius of a lattice, any near vector
        gives the same result.
        """
        params, mixed = _means(message)
        return self._replace(params=params, mixed=mixed)


# (x_i, what else it received, state, oracle, work) -> (sent, state)
Visit = Callable[[Params, PyTree, ClientState, Oracle, Work], tuple[Sent, ClientState]]


def _nothing(params: Params) -> tuple:
    del params
    return ()


def _as_it_is(x: Params, mixed: PyTree) -> Params:
    del mixed
    return x


def gossip(
    topology: Topology,
    visit: Visit,
    *,
    init_mixed: Callable[[Params], PyTree] = _nothing,
    init_client: Callable[[Params], ClientState] = _nothing,
    model: Callable[[Params, PyTree], Params] = _as_it_is,
) -> FedAlgorithm:
    """Returns the algorithm in which every client sends to its neighbours and mixes.

    Args:
        topology: the network.
        visit: one client's work.
        init_mixed: initial model -> what else a client has received at first.
        init_client: initial model -> state that a client keeps for itself.
        model: (x_i, what else it received) -> the client's own model.
    """
    count = topology.num_clients

    def init(params: Params) -> NetworkState:
        def everywhere(x: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), x)

        params = jax.tree.map(jnp.asarray, params)
        return NetworkState(params, everywhere(params), everywhere(init_mixed(params)))

    def received(message: NetworkState, work: Work) -> tuple[Params, PyTree]:
        row, every = jnp.minimum(work.client, count - 1), (message.models, message.mixed)
        # A client that never trains has no row. A branch, so that others compute no means.
        return jax.lax.cond(
            work.client < count, lambda: tree.take(every, row), lambda: _means(message)
        )

    def local(
        message: NetworkState, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Sent, ClientState]:
        x, mixed = received(message, work)
        return visit(x, mixed, state, oracle, work)

    def update(state: NetworkState, stack: Stack, round: Round) -> NetworkState:
        # Slots are in any order, and some may be empty.
        rows = jnp.where(stack.arrived, stack.clients, count)
        sent = jax.tree.map(
            lambda u: jnp.zeros((count, *u.shape[1:]), u.dtype).at[rows].set(u, mode="drop"),
            stack.uploads,
        )
        models, mixed = topology.mix((sent.params, sent.mixed), round.number)
        if jax.tree.leaves(sent.kept):
            models = tree.add(models, sent.kept)
        return NetworkState(tree.weighted_mean(models, jnp.ones(count)), models, mixed)

    def personal(message: NetworkState, state: ClientState, oracle: Oracle, work: Work) -> Params:
        return model(*received(message, work))

    def check(task: Task, timeline: Timeline) -> None:
        if task.num_clients != count:
            raise ValueError(
                f"topology has {count} clients; expected {task.num_clients}, those of the task"
            )
        check_all_clients(task, timeline, "every client mixes the models of its neighbours")

    return FedAlgorithm(
        init,
        local,
        update,
        send_state,
        init_client=init_client,
        personal=personal,
        aggregation=Aggregation(num_bytes=stack_bytes),
        requires=Requires(
            synchronous="a mixing step takes the models of all clients of one round",
            uniform_weights="the weights are those of the mixing matrix",
            exact_mean=UPLOADS_MODELS,
            exact_messages="clients send to their neighbours, and nobody sends messages",
            check=check,
            uploads_models=True,
            other_uploads="what clients with models of their own send to each other",
            bits=Bits(upload=_sent_bits, links=topology.links_per_client),
        ),
    )


def _sent_bits(upload: Sent) -> int:
    return bits_of_arrays((upload.params, upload.mixed))


def mean_gradient(x: Params, oracle: Oracle, work: Work) -> Params:
    """Returns the mean of a visit's minibatch gradients at one point; 0 without steps."""
    total = local_steps(lambda g, k: tree.add(g, oracle.grad(x, k)), tree.zeros_like(x), work)
    return per_step(total, work)


def _means(state: NetworkState) -> tuple[Params, PyTree]:
    """Returns the mean model, and the mean of what else clients receive."""
    return state.params, tree.weighted_mean(state.mixed, jnp.ones(_count(state)))


def _count(state: NetworkState) -> int:
    return jax.tree.leaves(state.models)[0].shape[0]


def consensus_distance(state: NetworkState) -> Array:
    r"""Returns :math:`\frac{1}{M} \sum_i \lVert x_i - \bar x \rVert^2`, a number.

    As a probe it is part of a run's history.

    Args:
        state: server state of an algorithm without a server, as ``run.server``.

    Example:
        >>> import fedjax_sim as fs
        >>> from fedjax_sim.topologies import d_psgd, ring
        >>> state = d_psgd(0.1, ring(2)).init(jnp.array(2.0))
        >>> float(consensus_distance(state._replace(models=jnp.array([1.0, 3.0]))))
        1.0
        >>> probes = fs.Probes(run={"consensus": lambda run: consensus_distance(run.server)})
    """
    squares = jax.tree.map(
        lambda x, mean: jnp.square(tree.wide(x - mean)).sum(), state.models, state.params
    )
    return sum(jax.tree.leaves(squares), jnp.zeros(())) / _count(state)
