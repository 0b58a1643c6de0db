"""Forms of messages and uploads, for wrappers that depend on them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.checks import check_is_algorithm
from fedjax_sim.tree import bits_of_arrays
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    Round,
    ServerState,
    Task,
    Timeline,
    Upload,
    Work,
)

WITHOUT_MODEL = (
    "algorithm sends a message without a model; expected a model, or a message whose attribute "
    "params is one"
)


def received_model(message: Message) -> Params:
    """Returns the model of a message: its attribute ``params``, or the message itself."""
    return getattr(message, "params", message)


@property
def inner_params(state: Any) -> Params:
    """The model."""
    return state.inner.params


def first_message(algorithm: FedAlgorithm, server: ServerState, num_clients: int = 1000) -> Message:
    """Returns the message of a server before any round, for its form and its initial values."""
    zero = jnp.array(0, jnp.int32)
    return algorithm.broadcast(server, Round(zero, zero, num_clients, jax.random.key(0)))


def check_received(algorithm: FedAlgorithm, params: Params) -> None:
    """Refuses algorithms whose personal model is not in their messages."""
    if algorithm.personal is not None:
        return

    def model(params: Params) -> Params:
        return received_model(first_message(algorithm, algorithm.init(params)))

    expected = jax.eval_shape(lambda params: params, params)
    if _form(jax.eval_shape(model, params)) != _form(expected):
        raise ValueError(WITHOUT_MODEL)


# Errors of functions that get values of other shapes from an oracle without data.
NEEDS_DATA = (TypeError, ValueError, AttributeError, LookupError)


def dry_visit(
    algorithm: FedAlgorithm, params: Params, num_clients: int, max_steps: int
) -> tuple[Message, Upload, ClientState]:
    """Returns one client's message, upload and state, to be traced for their shapes."""
    message = first_message(algorithm, algorithm.init(params), num_clients)
    client = algorithm.init_client(params)
    return message, algorithm.local(message, client, *dry_client(max_steps))[0], client


def dry_client(max_steps: int) -> tuple[Oracle, Work]:
    """Returns an oracle and a visit of the shapes of any client's, without data."""
    oracle = Oracle(
        grad=lambda x, step: x,
        loss=lambda x, step: jnp.zeros(()),
        full_grad=lambda x: x,
        full_loss=lambda x: jnp.zeros(()),
        mean=lambda function, *step: lambda *models: jnp.zeros(()),
    )
    zero, key = jnp.array(0, jnp.int32), jax.random.key(0)
    return oracle, Work(zero, zero, zero, zero, zero, key, max_steps)


def upload_shapes(algorithm: FedAlgorithm, params: Params) -> Upload:
    """Returns the shapes and dtypes of an algorithm's uploads, which only the model may decide."""
    try:
        return jax.eval_shape(lambda x: dry_visit(algorithm, x, 1000, 1)[1], params)
    except NEEDS_DATA as error:
        raise ValueError(
            "algorithm has uploads whose shapes need a task; expected uploads whose shapes follow "
            f"from the model: {error}"
        ) from error


def stack_bytes(upload: Upload, num_slots: int) -> int:
    """Returns the bytes of the uploads of a round that are in memory together."""
    return num_slots * bits_of_arrays(upload) // 8


def broadcast_inner(algorithm: FedAlgorithm) -> Callable[[Any, Round], Message]:
    """Returns the ``broadcast`` of a server whose state contains the algorithm's."""
    return lambda state, round: algorithm.broadcast(state.inner, round)


def update_inner(algorithm: FedAlgorithm) -> Callable[[Any, Any, Round], Any]:
    """Returns the ``update`` of a server that changes only the algorithm's part of its state."""
    return lambda state, mean, round: state._replace(
        inner=algorithm.update(state.inner, mean, round)
    )


def also_checked(algorithm: FedAlgorithm, check: Callable[[Task, Timeline], None]) -> FedAlgorithm:
    """Returns an algorithm with a check of setups that follows its own."""
    before = algorithm.requires.check
    if before is None:
        return algorithm.requiring(check=check)

    def both(task: Task, timeline: Timeline) -> None:
        before(task, timeline)
        check(task, timeline)

    return algorithm.requiring(check=both)


def check_receives_mean(wrapper: str, algorithm: FedAlgorithm) -> None:
    """Refuses an algorithm with another aggregation than the mean, for a wrapper of its mean."""
    check_is_algorithm(algorithm)
    if algorithm.aggregation is not None:
        raise ValueError(
            "algorithm has another aggregation than the mean; expected it around "
            f"{wrapper}(...): apply robust.aggregate and fixed_order last"
        )


def _form(tree: Params) -> tuple:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]
