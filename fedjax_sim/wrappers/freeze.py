"""Training of a part of the model; the other leaves stay as they are.

Apply this wrapper last, so that clipping, weight decay, codecs and averages over rounds act on the
trainable leaves: ``freeze(compressed(fedavg(0.1), codec), where)``.
"""

from __future__ import annotations

import jax

from fedjax_sim import tree
from fedjax_sim.checks import check_is_algorithm
from fedjax_sim.tree import Selection, message_bits, with_message_bits
from fedjax_sim.types import ClientState, FedAlgorithm, Oracle, Params, Upload, Work, specified
from fedjax_sim.wrappers.parts import PartMessage, PartState, part_of, rest_at_server

__all__ = ["freeze"]


@specified
def freeze(algorithm: FedAlgorithm, where: Selection) -> FedAlgorithm:
    """Returns an algorithm that does not train some leaves of the model.

    The trainable leaves follow exactly the run of a model that closes over the frozen ones.  Frozen
    leaves are in neither uploads, optimiser states nor client states.  They are stored once, beside
    the server's state; on a timeline with staleness each buffer for a past broadcast holds a copy.
    They never change, so, as the initial model, they are not sent: counted bits leave them out.

    Args:
        algorithm: any algorithm.
        where: ``(path, leaf) -> bool``, True for frozen leaves; the path is a tuple of strings.
            Filters of flax, such as ``nnx.Not(nnx.PathContains("adapter"))``, are such predicates.

    Raises:
        ValueError: ``where`` is no predicate; at the start of the run, all leaves are selected or
            none, or running statistics that the algorithm updates.

    Example:
        An adapter of rank 2 beside a frozen kernel:

        >>> import jax.numpy as jnp
        >>> import fedjax_sim as fs
        >>> x = jnp.arange(12.0).reshape(4, 3)
        >>> data = fs.FederatedData({"x": x, "y": x @ jnp.ones((3, 3))}, jnp.array([0, 2, 4]))
        >>> apply = lambda p, x: x @ (p["kernel"] + p["adapter"]["a"] @ p["adapter"]["b"])
        >>> task = fs.empirical_task(
        ...     fs.objectives.squared_error(apply), data, fs.epochs(1, batch_size=2))
        >>> adapter = {"a": jnp.ones((3, 2)) / 10, "b": jnp.zeros((2, 3))}
        >>> params = {"kernel": jnp.eye(3), "adapter": adapter}
        >>> setup = fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), params)
        >>> algorithm = freeze(fs.fedadam(0.01, 0.1), lambda path, leaf: path[0] != "adapter")
        >>> state, _ = fs.run(algorithm, setup, jax.random.key(0))
        >>> bool((state.server.params["kernel"] == jnp.eye(3)).all())
        True
        >>> bool((state.server.params["adapter"]["b"] != 0).all())
        True
    """
    check_is_algorithm(algorithm)
    tree.leaves.check_selection(where)

    part = rest_at_server(algorithm, where)

    def init(params: Params) -> PartState:
        frozen, trainable = tree.leaves.split(params, where)
        for name, selected in (("all", trainable), ("none", frozen)):
            if not jax.tree.leaves(selected):
                raise tree.leaves.unexpected(name, params)
        _check_statistics(algorithm, params, frozen)
        return part.init(params)

    def local(
        message: PartMessage, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState]:
        trained = part_of(oracle, lambda: message.rest)
        return algorithm.local(message.inner, state, trained, work)

    def personal(message: PartMessage, state: ClientState, oracle: Oracle, work: Work) -> Params:
        assert algorithm.personal is not None
        trained = part_of(oracle, lambda: message.rest)
        return tree.leaves.join(
            algorithm.personal(message.inner, state, trained, work), message.rest
        )

    inner_bits = message_bits(algorithm)
    return with_message_bits(part, lambda message: inner_bits(message.inner))._replace(
        init=init, local=local, personal=None if algorithm.personal is None else personal
    )


def _check_statistics(algorithm: FedAlgorithm, params: Params, frozen: Params) -> None:
    """Refuses frozen leaves that are running statistics which the algorithm would update."""
    statistics = algorithm.requires.statistics
    if statistics is None:
        return
    updated, _ = tree.leaves.split(params, statistics.where)
    both = sorted(_paths(frozen) & _paths(updated))
    if both:
        raise ValueError(
            f"where selects running statistics that the algorithm updates, such as {both[0]}; "
            "expected running_statistics(freeze(...)): apply running_statistics last"
        )


def _paths(x: Params) -> set[str]:
    return {"/".join(tree.names(path)) for path, _ in jax.tree_util.tree_leaves_with_path(x)}
