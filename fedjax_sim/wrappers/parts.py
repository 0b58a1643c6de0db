r"""Algorithms that have a part of the model: states, messages and oracles.

The algorithm sees a model of its own leaves only; the other leaves are beside its state and in its
messages, or with the clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax import Array

from fedjax_sim import tree
from fedjax_sim.types import ClientState, FedAlgorithm, Message, Oracle, Params, ServerState, Step
from fedjax_sim.wrappers.received import broadcast_inner, received_model, update_inner

__all__ = ["personal_model"]


class PartState(NamedTuple):
    """State of a server whose algorithm has a part of the model."""

    inner: ServerState
    rest: Params  # the other leaves

    @property
    def params(self) -> Params:
        """The model."""
        return self.completed(self.inner.params)

    def completed(self, part: Params) -> Params:
        """Returns a model of the algorithm with the other leaves."""
        return tree.leaves.join(part, self.rest)


class PersonalState(NamedTuple):
    """State of a client that keeps a part of the model."""

    inner: ClientState
    personal: Params


class PartMessage(NamedTuple):
    """Message of a server whose algorithm has a part of the model."""

    inner: Message
    rest: Params  # the other leaves

    @property
    def params(self) -> Params:
        """The model."""
        return tree.leaves.join(received_model(self.inner), self.rest)


def personal_model(params: Params, client: PersonalState) -> Params:
    """Returns one client's model: the server's leaves and the ones that the client keeps.

    For clients' states after a run; during a run
    :func:`~fedjax_sim.engine.evaluation.personal_evaluator` evaluates these models.

    Args:
        params: the server's model, ``state.server.params``.
        client: state of one client; the models of all clients are
            ``jax.vmap(personal_model, (None, 0))(state.server.params, state.clients)``.

    Raises:
        ValueError: the state of a client that keeps no leaves.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fedjax_sim.algorithms import fedavg
        >>> from fedjax_sim.wrappers.running_statistics import running_statistics
        >>> params = {"scale": jnp.array(2.0), "mean": jnp.array(0.0)}
        >>> mean = lambda path, leaf: path == ("mean",)
        >>> algorithm = running_statistics(fedavg(0.1), mean, combine="private")
        >>> client = algorithm.init_client(params)._replace(
        ...     personal={"scale": None, "mean": jnp.array(5.0)}
        ... )
        >>> jax.tree.map(float, personal_model(params, client))
        {'mean': 5.0, 'scale': 2.0}
    """
    if not hasattr(client, "personal"):
        raise ValueError(
            f"client is a {type(client).__name__}; expected the state of a client with leaves of "
            "its own, as private, running_statistics(..., combine='private') and the algorithms "
            "made of these have; evaluation.personal_evaluator takes every algorithm"
        )
    return tree.leaves.join(client.personal, params)


def rest_at_server(algorithm: FedAlgorithm, where: tree.leaves.Selection) -> FedAlgorithm:
    """Returns the algorithm of a part of the model, whose server keeps and sends the leaves."""

    def init(params: Params) -> PartState:
        rest, part = tree.leaves.split(params, where)
        return PartState(algorithm.init(part), rest)

    return algorithm._replace(
        init=init,
        update=update_inner(algorithm),
        broadcast=lambda state, round: PartMessage(
            algorithm.broadcast(state.inner, round), state.rest
        ),
        init_client=lambda params: algorithm.init_client(tree.leaves.split(params, where)[1]),
    )


def rest_at_clients(algorithm: FedAlgorithm, where: tree.leaves.Selection) -> FedAlgorithm:
    """Returns the algorithm of a part of the model, whose clients keep leaves of their own."""

    def init_client(params: Params) -> PersonalState:
        own, part = tree.leaves.split(params, where)
        return PersonalState(algorithm.init_client(part), own)

    return rest_at_server(algorithm, where)._replace(
        broadcast=broadcast_inner(algorithm), init_client=init_client
    )


def part_of(
    oracle: Oracle,
    rest: Callable[[], Params],
    observe: Callable[[Params], None] = lambda gradient: None,
) -> Oracle:
    """Returns the oracle of a part of the model beside the leaves ``rest()``.

    ``observe`` receives the gradient of these leaves, whenever a gradient is taken.
    """

    def gradient(function: Callable[..., Params]) -> Callable[..., Params]:
        def of_part(y: Params, *step: Step) -> Params:
            others = rest()
            whole = function(tree.leaves.join(y, others), *step)
            observe(tree.leaves.without(whole, y))
            return tree.leaves.without(whole, others)

        return of_part

    def loss(function: Callable[..., Array]) -> Callable[..., Array]:
        return lambda y, *step: function(tree.leaves.join(y, rest()), *step)

    def mean(function: Callable[..., Array], *step: Step) -> Callable[..., Array]:
        assert oracle.mean is not None
        of_models, others = oracle.mean(function, *step), rest()  # before any transformation
        return lambda *parts: of_models(*(tree.leaves.join(y, others) for y in parts))

    return Oracle(
        gradient(oracle.grad),
        loss(oracle.loss),
        gradient(oracle.full_grad),
        oracle.full_loss and loss(oracle.full_loss),
        oracle.mean and mean,
    )
