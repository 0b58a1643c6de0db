r"""Fine-tuning before evaluation: a client's personal model is the trained one after local steps.

References:
    Oh, Kim, Yun, "FedBABU: Towards Enhanced Representation for Federated Image Classification",
        2022 (fine-tuning of a global model is a strong baseline).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count, check_is_algorithm, check_rates, check_statistics_last
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, unchanged
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    ServerState,
    Work,
    specified,
)
from fedjax_sim.wrappers.received import check_received, received_model

__all__ = ["fine_tuned"]


@specified
def fine_tuned(
    algorithm: FedAlgorithm,
    lr: ScalarOrSchedule,
    *,
    visits: int | None = None,
    steps: int | None = None,
    where: tree.leaves.Selection | None = None,
    transform: Callable[[Oracle], Oracle] = unchanged,
) -> FedAlgorithm:
    r"""Returns an algorithm whose personal models take local SGD steps before they are evaluated.

    Training does not change.  The personal model starts from that of the algorithm (the received
    model if it has none) and takes steps

    .. math:: y \leftarrow y - \eta\, g_i(y, k \bmod K_i), \qquad k = 0, 1, \dots

    on the client's training data; :math:`K_i` is the client's number of local steps in the task, at
    most ``timeline.max_steps``.  With minibatches in epochs and one local epoch per visit,
    ``visits=5`` are five epochs over the client's data, in one order.  A client without training
    data keeps its model.

    Args:
        algorithm: any algorithm whose message contains the model, or that has personal models.
        lr: learning rate :math:`\eta`, or a schedule over rounds, whose value for the next round
            tunes the models of an evaluation.
        visits: as many steps as in this number of visits.
        steps: number of steps, instead of ``visits``.
        where: leaves that are trained; default: all.
        transform: function of the oracle of these steps, such as clipping or weight decay.

    Raises:
        ValueError: a negative ``lr``; not exactly one of ``visits`` and ``steps``, or one below 1;
            ``where`` is no predicate; the algorithm updates running statistics (apply
            :func:`~fedjax_sim.wrappers.running_statistics.running_statistics` last); at the start
            of the run, a message without a model, or a predicate that selects no leaves.

    Example:
        F(x) = (x - 1)^2 / 2, two steps of rate 1/2 from the server's model 0:

        >>> import fedjax_sim as fs
        >>> algorithm = fine_tuned(fs.fedavg(0.1), 0.5, steps=2)
        >>> oracle = fs.Oracle(lambda x, k: x - 1, lambda x, k: (x - 1) ** 2 / 2, lambda x: x - 1)
        >>> work = fs.Work(*[jnp.array(1)] * 5, None, max_steps=1)
        >>> float(algorithm.personal(jnp.array(0.0), (), oracle, work))
        0.75
    """
    check_is_algorithm(algorithm)
    check_rates(lr=lr)
    if (visits is None) == (steps is None):
        raise ValueError(f"visits is {visits} and steps is {steps}; expected exactly one of them")
    for name, count in (("visits", visits), ("steps", steps)):
        if count is not None:
            check_count(1, **{name: count})
    trained = _every_leaf if where is None else where
    tree.leaves.check_selection(trained)
    check_statistics_last("fine_tuned", algorithm)

    def init(params: Params) -> ServerState:
        check_received(algorithm, params)
        tree.leaves.split_some(params, trained)
        return algorithm.init(params)

    def personal(message: Message, state: ClientState, oracle: Oracle, work: Work) -> Params:
        if algorithm.personal is None:
            model = received_model(message)
        else:
            model = algorithm.personal(message, state, oracle, work)
        start, rest = tree.leaves.split(model, trained)
        eta, present, transformed = rate(lr, work), jnp.asarray(work.num_steps), transform(oracle)

        def step(y: Params, k: Array) -> Params:
            # The minibatches of one visit again, since an oracle has no others.
            gradient = transformed.grad(tree.leaves.join(y, rest), k % jnp.maximum(present, 1))
            return tree.add_scale(y, -eta, tree.leaves.without(gradient, rest))

        if steps is None:
            assert visits is not None
            longer = work._replace(num_steps=visits * present, max_steps=visits * work.max_steps)
        else:
            longer = work._replace(num_steps=jnp.where(present > 0, steps, 0), max_steps=steps)
        return tree.leaves.join(local_steps(step, start, longer), rest)

    return algorithm._replace(init=init, personal=personal)


def _every_leaf(path: tree.leaves.Path, leaf: Any) -> bool:
    return True
