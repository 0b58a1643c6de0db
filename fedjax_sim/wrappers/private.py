r"""Private leaves: a part of the model that clients keep, while an algorithm trains the others.

References:
    Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (private heads).
    Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
        Representations", 2020 (private bodies).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_is_algorithm, check_rates, check_statistics_last
from fedjax_sim.local import Carried, ScalarOrSchedule, carrying, rate
from fedjax_sim.tree import Selection
from fedjax_sim.types import (
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    Scalar,
    Step,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers.parts import PartState, PersonalState, part_of, rest_at_clients
from fedjax_sim.wrappers.received import check_received, received_model

__all__ = ["private"]


class _Moving(NamedTuple):
    """Private leaves during a visit."""

    base: Params  # before the current local step
    value: Params  # after it
    step: Array  # the current local step, -1 before the first


@specified
def private(algorithm: FedAlgorithm, where: Selection, lr: ScalarOrSchedule) -> FedAlgorithm:
    r"""Returns an algorithm for the shared leaves, while clients keep and train the private ones.

    The model has shared leaves x and private leaves :math:`v_i`.  The algorithm runs on the shared
    leaves: server, messages, uploads, optimizers and the algorithm's own client states have no
    others.  In a local step k the algorithm takes its gradient at :math:`(y, v_i)`, and the private
    leaves move by the other part of the same gradient,

    .. math:: (a, b) = g_i\bigl((y, v_i), k\bigr), \qquad v_i \leftarrow v_i - \eta_v\, b

    so FedAvg takes joint SGD steps (FedPer, LG-FedAvg).  If the algorithm takes several gradients
    in one step k (SAM), all are taken at the :math:`v_i` before the step, and the last one moves
    :math:`v_i`; of Mime's and FedLin's two that is the one at the local model.  An algorithm that
    passes over the minibatches of a visit twice (Ditto) moves :math:`v_i` in both passes, or in a
    visit of one step in the second pass only.  A gradient or a loss over all local data does not
    move :math:`v_i`; at the received model (SCAFFOLD's option I, MimeLite, q-FedAvg, TERM) it has
    the :math:`v_i` before the visit.  The algorithm's own terms (proximal terms, controls,
    momentum) act on the shared leaves only; transforms of the gradient act on all leaves if they
    are applied last: ``transform_oracle(private(algorithm, where, lr), transform)``.

    A client starts with the private leaves of the initial model and keeps them while it is absent.
    The server's private leaves stay the initial ones.  The personal model joins the received shared
    leaves and the client's private ones.

    Args:
        algorithm: any algorithm whose gradients are taken in the steps of
            :func:`fedjax_sim.local.local_steps`, or outside of loops, and whose message contains
            the model.
        where: True for private leaves, for example :data:`fedjax_sim.tree.leaves.last_layer`.
        lr: learning rate :math:`\eta_v` of the private leaves, or a schedule over rounds.

    Raises:
        ValueError: a negative ``lr``; ``where`` is no predicate; the algorithm updates running
            statistics (apply
            :func:`~fedjax_sim.wrappers.running_statistics.running_statistics` last); at the start
            of the run, a message without a model, or a predicate that selects no leaves.

    Example:
        SCAFFOLD on the body, while every client keeps a head:

        >>> import fedjax_sim as fs
        >>> body_only = private(fs.scaffold(0.1), fs.tree.leaves.last_layer, lr=0.1)
        >>> params = {"body": jnp.ones(3), "head": {"kernel": jnp.zeros(2)}}
        >>> body_only.init(params).inner.control["body"].shape
        (3,)
        >>> body_only.init_client(params).personal["head"]["kernel"].shape
        (2,)
    """
    check_is_algorithm(algorithm)
    check_rates(lr=lr)
    tree.leaves.check_selection(where)
    check_statistics_last("private", algorithm)

    part = rest_at_clients(algorithm, where)

    def init(params: Params) -> PartState:
        _, shared = tree.leaves.split_some(params, where)
        check_received(algorithm, shared)
        return part.init(params)

    def local(
        message: Message, state: PersonalState, oracle: Oracle, work: Work
    ) -> tuple[Upload, PersonalState]:
        own = state.personal
        with carrying(_Moving(own, own, jnp.array(-1, jnp.int32))) as carried:
            stepping = _stepping(oracle, carried, rate(lr, work))
            upload, inner = algorithm.local(message, state.inner, stepping, work)
            moved = carried.value.value
        return upload, PersonalState(inner, tree.where(work.num_steps > 0, moved, own))

    def personal(message: Message, state: PersonalState, oracle: Oracle, work: Work) -> Params:
        if algorithm.personal is None:
            shared = received_model(message)
        else:
            beside = part_of(oracle, lambda: state.personal)
            shared = algorithm.personal(message, state.inner, beside, work)
        return tree.leaves.join(state.personal, shared)

    return part.requiring(partial_model=True)._replace(init=init, local=local, personal=personal)


def _stepping(oracle: Oracle, carried: Carried, lr: Scalar) -> Oracle:
    """Oracle of the shared leaves whose minibatch gradients move the private ones."""

    def grad(y: Params, k: Step) -> Params:
        step = jnp.asarray(k, jnp.int32)
        moving: _Moving = carried.value
        # One step per local step: one per gradient would double the private rate of methods that
        # take two.
        own = tree.where(step == moving.step, moving.base, moving.value)
        whole = oracle.grad(tree.leaves.join(y, own), k)
        value = tree.add_scale(own, -lr, tree.leaves.without(whole, y))
        carried.value = _Moving(own, value, step)
        return tree.leaves.without(whole, own)

    return part_of(oracle, lambda: carried.value.value)._replace(grad=grad)
