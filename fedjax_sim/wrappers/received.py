"""The model in a message, for wrappers that compute with the model that a client receives."""

import jax
import jax.numpy as jnp

from fedjax_sim.types import FedAlgorithm, Message, Params, Round


def received_model(message: Message) -> Params:
    """Returns the model that a message contains: its attribute ``params``, or the message itself.

    Example:
        >>> import fedjax_sim as fs
        >>> state = fs.scaffold(0.1).init(jnp.array(2.0))
        >>> float(received_model(state)), received_model({"w": 1.0})
        (2.0, {'w': 1.0})
    """
    return getattr(message, "params", message)


def check_received(algorithm: FedAlgorithm, params: Params) -> None:
    """Refuses algorithms whose personal model would have to be read from another kind of message.

    Raises:
        ValueError: the algorithm has no personal model, and its message contains no model.

    Example:
        >>> import fedjax_sim as fs
        >>> check_received(fs.fedsmoo(0.1), jnp.zeros(2))
        Traceback (most recent call last):
        ValueError: algorithm sends a message without a model; expected a model, or a message ...
    """
    if algorithm.personal is not None:
        return
    zero, key = jnp.array(0, jnp.int32), jax.random.key(0)

    def model(params: Params) -> Params:
        round = Round(zero, zero, 1, key)
        return received_model(algorithm.broadcast(algorithm.init(params), round))

    expected = jax.eval_shape(lambda params: params, params)
    if _form(jax.eval_shape(model, params)) != _form(expected):
        raise ValueError(
            "algorithm sends a message without a model; expected a model, or a message whose "
            "attribute params is one"
        )


def _form(tree: Params) -> tuple:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]
