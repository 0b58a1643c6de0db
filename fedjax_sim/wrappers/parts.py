r"""Algorithms that have a part of the model: states, messages and oracles.

The algorithm sees a model of its own leaves only; the other leaves are beside its state and in its
messages, or with the clients.
"""

from collections.abc import Callable
from typing import NamedTuple

from jax import Array

from fedjax_sim.tree import leaves
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    Round,
    ServerState,
    Upload,
)
from fedjax_sim.wrappers.received import received_model

__all__ = ["personal_model"]


class PartState(NamedTuple):
    """State of a server whose algorithm has a part of the model."""

    inner: ServerState
    rest: Params  # the other leaves

    @property
    def params(self) -> Params:
        """The model."""
        return leaves.join(self.inner.params, self.rest)


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
        return leaves.join(received_model(self.inner), self.rest)


def personal_model(params: Params, client: PersonalState) -> Params:
    """Returns one client's model: the server's leaves and the ones that the client keeps.

    For clients' states after a run; during a run
    :func:`~fedjax_sim.engine.evaluation.personal_evaluator` evaluates these models.

    Args:
        params: the server's model, ``state.server.params``.
        client: state of one client; the models of all clients are
            ``jax.vmap(personal_model, (None, 0))(state.server.params, state.clients)``.

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
    return leaves.join(client.personal, params)


def part_of(oracle: Oracle, rest: Params) -> Oracle:
    """Returns the oracle of a model's other leaves, with the leaves ``rest`` as constants.

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x["a"] * x["b"], lambda x: x)
        >>> part = part_of(oracle, {"a": None, "b": 3.0})
        >>> part.loss({"a": 2.0, "b": None}, 0), part.grad({"a": 2.0, "b": None}, 0)
        (6.0, {'a': 2.0, 'b': None})
    """

    def gradient(function: Callable[..., Params]) -> Callable[..., Params]:
        return lambda y, *step: leaves.without(function(leaves.join(y, rest), *step), rest)

    def loss(function: Callable[..., Array]) -> Callable[..., Array]:
        return lambda y, *step: function(leaves.join(y, rest), *step)

    return Oracle(
        gradient(oracle.grad),
        loss(oracle.loss),
        gradient(oracle.full_grad),
        oracle.full_loss and loss(oracle.full_loss),
    )


def update_inner(algorithm: FedAlgorithm) -> Callable[[PartState, Upload, Round], PartState]:
    """Returns the server update of an algorithm that has a part of the model.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = fedavg(0.1)
        >>> state = PartState(algorithm.init({"a": jnp.zeros(2), "b": None}), {"a": None, "b": 3.0})
        >>> mean = {"a": jnp.ones(2), "b": None}
        >>> round = Round(jnp.array(0), jnp.array(1), num_clients=1, key=jax.random.key(0))
        >>> update_inner(algorithm)(state, mean, round).params["b"]
        3.0
    """
    return lambda state, mean, round: state._replace(
        inner=algorithm.update(state.inner, mean, round)
    )
