r"""Batch normalisation: running statistics that clients update and average, or keep.

The wrapped algorithm runs on the trainable leaves only; the model that is evaluated, saved and
exported has all of them.  Apply this wrapper last, so that clipping, weight decay, codecs and
averages over rounds act on the trainable leaves:
``running_statistics(compressed(fedavg(0.1), codec), model.statistics)``.

References:
    Ioffe, Szegedy, "Batch Normalization", 2015.
    Andreux et al., "Siloed Federated Learning for Multi-Centric Histopathology Datasets", 2020
        (SiloBN: private statistics).
    Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", 2021
        (statistics, scales and biases private).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import (
    check_at_least,
    check_at_most,
    check_choice,
    check_is_algorithm,
    is_concrete,
)
from fedjax_sim.local import Carried, carrying
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    Round,
    RunningStatistics,
    Scalar,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers.parts import (
    PartMessage,
    PartState,
    PersonalState,
    part_of,
    rest_at_clients,
    rest_at_server,
)
from fedjax_sim.wrappers.received import WITHOUT_MODEL, check_receives_mean, received_model

__all__ = ["running_statistics"]


class _Visit(NamedTuple):
    upload: Upload
    statistics: Params  # after the visit; zeros after a visit without steps
    present: Array  # 1, or 0 after a visit without steps


@specified
def running_statistics(
    algorithm: FedAlgorithm,
    where: tree.leaves.Selection,
    combine: Literal["averaged", "private"] = "averaged",
    server_rate: Scalar = 1.0,
) -> FedAlgorithm:
    r"""Returns an algorithm that trains a model with batch normalisation.

    The algorithm runs on the other leaves; batches are normalised by their own mean and variance,
    so the statistics do not influence it.  A visit starts from statistics s, and every gradient
    that the algorithm takes updates them as flax does in training,

    .. math:: s \leftarrow \beta s + (1 - \beta)\, m(y, B)

    with the layer's momentum :math:`\beta`, the model y and the minibatch B of that gradient, and
    the biased mean and variance m over the examples of B.  A method with two gradients per step
    (SAM) updates twice.  A full local gradient counts as one update, by the mean of m over its
    blocks of examples, weighted by their sizes.  Visits without steps change nothing.

    With ``combine="averaged"`` a client starts from the server's statistics and uploads its
    own, :math:`s_i`.  The server mixes their weighted mean into its statistics,

    .. math:: s \leftarrow (1 - \rho)\, s + \rho \operatorname{mean}_i s_i

    which is the average of whole models for :math:`\rho = 1`.  It is a convex combination, so
    variances stay non-negative for every algorithm and staleness.  On a timeline with one report
    per update a smaller :math:`\rho` averages over several clients.

    With ``combine="private"`` a client keeps its statistics between its visits and sends none
    (SiloBN).  The server's statistics stay the initial ones, so the value of a function of a model
    is its mean over at most 16 clients at equal distances: of the server's model with the client's
    statistics, or of personal models if the algorithm has them.  Each model on its client's
    examples: :func:`~fedjax_sim.engine.evaluation.personal_evaluator`.
    :func:`~fedjax_sim.algorithms.fedbn` also keeps scales and biases private.

    To keep the statistics of a pretrained model, in training as in evaluation, use
    :func:`fedjax_sim.models.frozen_statistics` and :func:`~fedjax_sim.wrappers.freeze.freeze`.

    A run warns before it starts if more than half of the initial statistics will be left in its
    last evaluation: :math:`\beta^K` after K local steps, so 0.9 suits short visits, not 0.99.

    Args:
        algorithm: any algorithm whose gradients are taken in the steps of
            :func:`fedjax_sim.local.local_steps`, or outside of loops.
        where: the running statistics, ``model.statistics``; a variance has the name "var".
        combine: "averaged" or "private".
        server_rate: :math:`\rho`, in [0, 1].

    Raises:
        ValueError: ``where`` is no predicate, another ``combine``, a ``server_rate`` outside of
            [0, 1], or with "averaged" an algorithm with a robust rule, which must be applied last.

    Example:
        >>> import fedjax_sim as fs
        >>> from flax import nnx
        >>> model = fs.models.from_nnx(lambda rngs: nnx.BatchNorm(2, momentum=0.5, rngs=rngs))
        >>> examples = {"x": jnp.array([[1.0, 2.0], [3.0, 6.0]]), "y": jnp.zeros((2, 2))}
        >>> task = fs.empirical_task(
        ...     fs.objectives.squared_error(model), fs.from_clients([examples]), fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 1, 1), model.init(jax.random.key(0)))
        >>> algorithm = running_statistics(fs.fedavg(0.1), model.statistics)
        >>> state, _ = fs.run(algorithm, setup, jax.random.key(1))
        >>> params = state.server.params
        >>> params["mean"].tolist(), params["var"].tolist()  # (0 + m) / 2 and (1 + m) / 2
        ([1.0, 2.0], [1.0, 2.5])
    """
    check_is_algorithm(algorithm)
    tree.leaves.check_selection(where)
    check_choice(("averaged", "private"), combine=combine)
    check_at_least(0, server_rate=server_rate)
    check_at_most(1, server_rate=server_rate)
    if combine == "averaged":
        check_receives_mean("running_statistics", algorithm)
    known = float(server_rate) if is_concrete(server_rate) else 1.0
    own_models = algorithm.personal is not None
    statistics = RunningStatistics(where, combine == "averaged", known, own_models)

    # The algorithm never has statistics: as coordinates of an optimiser they would follow momentum,
    # controls and adaptive rates, and a variance could become negative.
    part_for = rest_at_clients if combine == "private" else rest_at_server
    part = part_for(algorithm, where).requiring(statistics=statistics)

    def visit(
        message: Message, state: ClientState, start: Params, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState, Params]:
        with carrying(start) as carried:
            upload, state = algorithm.local(message, state, _updating(oracle, carried), work)
            return upload, state, tree.where(work.num_steps > 0, carried.value, start)

    def personal_of(
        message: Message, state: ClientState, start: Params, oracle: Oracle, work: Work
    ) -> Params:
        if algorithm.personal is None:
            try:
                return tree.leaves.join(received_model(message), start)
            except ValueError as error:  # of JAX, for trees that differ
                raise ValueError(WITHOUT_MODEL) from error
        with carrying(start) as carried:
            model = algorithm.personal(message, state, _updating(oracle, carried), work)
            return tree.leaves.join(model, carried.value)

    if combine == "private":

        def local(
            message: Message, state: PersonalState, oracle: Oracle, work: Work
        ) -> tuple[Upload, PersonalState]:
            upload, *new = visit(message, state.inner, state.personal, oracle, work)
            return upload, PersonalState(*new)

        def personal(message: Message, state: PersonalState, oracle: Oracle, work: Work) -> Params:
            return personal_of(message, state.inner, state.personal, oracle, work)

        return part._replace(local=local, personal=personal)

    def local_averaged(
        message: PartMessage, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[_Visit, ClientState]:
        upload, state, new = visit(message.inner, state, message.rest, oracle, work)
        present = work.num_steps > 0
        sent = tree.where(present, new, tree.zeros_like(new))
        return _Visit(upload, sent, present.astype(jnp.result_type(float))), state

    def personal_averaged(
        message: PartMessage, state: ClientState, oracle: Oracle, work: Work
    ) -> Params:
        return personal_of(message.inner, state, message.rest, oracle, work)

    def update(state: PartState, mean: _Visit, round: Round) -> PartState:
        some = mean.present > 0
        average = tree.divide_or_keep(mean.statistics, mean.present)  # over the visits with steps
        # Means are mixed in, no changes are added: sums of stale changes can overshoot.
        mixed = tree.add_scale(tree.scale(1 - server_rate, state.rest), server_rate, average)
        inner = algorithm.update(state.inner, mean.upload, round)
        return PartState(inner, tree.where(some, mixed, state.rest))

    def bits_of_message(message: PartMessage) -> int:
        return tree.message_bits(algorithm)(message.inner) + tree.bits_of_arrays(message.rest)

    wrapped = part._replace(
        local=local_averaged,
        update=update,
        personal=None if algorithm.personal is None else personal_averaged,
    ).requiring(exact_mean="clients also upload the running statistics of their data")
    wrapped = tree.with_further_bits(
        wrapped, lambda sent: sent.upload, lambda sent: (sent.statistics, sent.present)
    )
    return tree.with_message_bits(wrapped, bits_of_message)


def _updating(oracle: Oracle, carried: Carried) -> Oracle:
    """Oracle of the trainable leaves whose gradients update the carried statistics."""

    def update(change: Params) -> None:
        # The gradient of a statistic is its value minus its next value (objectives).
        carried.value = jax.tree_util.tree_map_with_path(_moved, carried.value, change)

    return part_of(oracle, lambda: carried.value, update)


def _moved(path: tuple[Any, ...], statistic: Array, change: Array) -> Array:
    # The weights of a mean sum to 1 up to rounding only, so a difference may be just below 0.
    new = statistic - change
    return jnp.maximum(new, 0) if tree.leaves.names(path)[-1] == "var" else new
