r"""MARINA and PP-MARINA: compressed differences of gradients, and sometimes whole gradients.

References:
    Gorbunov, Burlachenko, Li, Richtarik, "MARINA: Faster Non-Convex Distributed Learning with
        Compression", 2021, https://arxiv.org/abs/2102.07845.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim import tree
from fedjax_sim.checks import (
    check_at_most,
    check_positive,
    check_statistics_last,
    is_concrete,
    partial_rounds,
)
from fedjax_sim.compression import Codec, bernoulli, check_unbiased, decoded
from fedjax_sim.local import carried_unchanged
from fedjax_sim.tree import bits_of_arrays, message_bits, with_message_bits, with_upload_bits
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    Round,
    Scalar,
    ServerState,
    Task,
    Timeline,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers._memory import (
    COIN,
    FROM_ESTIMATES,
    UNWEIGHTED_MEMORY,
    UPLOAD,
    check_form,
    check_one_kind,
)
from fedjax_sim.wrappers.received import also_checked, first_message, inner_params, received_model

__all__ = ["marina", "pp_marina"]


class MarinaState(NamedTuple):
    """State of a server that estimates the mean upload by differences."""

    inner: ServerState
    previous: Message  # of the last round
    estimate: Params  # of the mean upload
    full: Array  # bool: the uploads of the last round were not compressed
    num_rounds: Array  # with reports

    params = inner_params


class MarinaMessage(NamedTuple):
    current: Message
    previous: Message
    full: Array  # bool: clients send whole uploads

    @property
    def params(self) -> Params:
        """The model, if the current message contains one."""
        return received_model(self.current)


Coin = Callable[[Round], Array]


@specified
def marina(algorithm: FedAlgorithm, codec: Codec, probability: Scalar) -> FedAlgorithm:
    r"""MARINA: clients send compressed changes of their uploads, and sometimes whole uploads.

    With the upload :math:`u_i(m)` of the algorithm for the message m (for FedSGD,
    :math:`\nabla F_i(x)`), the current and the previous message, and a coin that is 1 with the
    probability p, and 1 in the first round, for all clients together,

    .. math::
        \bar g \leftarrow \begin{cases}
            \operatorname{mean}_i u_i(m) & \text{coin } 1 \\
            \bar g + \operatorname{mean}_i Q(u_i(m) - u_i(m_{\text{previous}})) & \text{coin } 0
        \end{cases}

    The server's update receives :math:`\bar g`.  Both uploads of a visit use the same minibatches,
    so a visit has twice the local steps.  Both have the rate and the number of steps of their
    round: where these change, :math:`\bar g` keeps those of earlier rounds until the next coin 1,
    and :func:`per_step_uploads` takes their factor out of the uploads.

    Clients keep no state.  The message consists of two messages and the coin, which is drawn from
    the round's key; the state's ``full`` is the coin of the last round, for counting bits
    (:func:`~fedjax_sim.timelines.bits_moved`).  With :math:`p = 1` nothing is compressed.

    Args:
        algorithm: an algorithm whose uploads are changes of the model, as for :func:`ef14`, and
            whose clients keep no state.
        codec: an unbiased codec Q without memory, such as
            :func:`~fedjax_sim.compression.random_k`.
        probability: p, in (0, 1]; the theorems have :math:`1 / (1 + \omega)`.

    Raises:
        ValueError: as :func:`ef14`; a codec that is not unbiased or has a memory, clients with
            memory, a probability outside (0, 1], a timeline with staleness or in which not every
            client reports in every round, or weights that change between rounds.

    References:
        Gorbunov et al., 2021, Algorithm 1.

    Example:
        >>> from fedjax_sim.algorithms import fedsgd
        >>> from fedjax_sim.compression import random_k
        >>> algorithm = marina(fedsgd(lr=0.1), random_k(0.1), probability=0.1)
        >>> bool(algorithm.init(jnp.ones(3)).full)
        False
    """
    check_positive(probability=probability)
    check_at_most(1, probability=probability)

    def coin(round: Round) -> Array:
        return bernoulli(jax.random.fold_in(round.key, COIN), jnp.asarray(probability)) > 0

    def check(task: Task, timeline: Timeline) -> None:
        partial = timeline.cohort_size < task.num_clients
        if partial or len(partial_rounds(task, timeline)):
            raise ValueError(
                f"timeline has rounds with fewer than all {task.num_clients} clients; expected all "
                "clients in every round, or fs.pp_marina, whose rounds have all or some"
            )

    def expected_bits(upload: Upload) -> int:
        whole, sent = bits_of_arrays(upload), codec.bits(upload)
        return round(float(probability) * whole + (1 - float(probability)) * sent)

    wrapped = also_checked(_marina(algorithm, codec, coin), check)
    wrapped = wrapped.requiring(uniform_weights_if_partial=UNWEIGHTED_MEMORY)
    check_statistics_last("marina", algorithm, only_uploaded=True)
    return with_upload_bits(wrapped, expected_bits if is_concrete(probability) else None)


@specified
def pp_marina(algorithm: FedAlgorithm, codec: Codec) -> FedAlgorithm:
    r"""PP-MARINA: :func:`marina` whose compressed rounds have a part of the clients only.

    The coin belongs to the timeline, see :func:`fedjax_sim.timelines.full_or_uniform`: in a round
    in which all clients report, they send whole uploads; in other rounds the clients that report
    send :math:`Q(u_i(m) - u_i(m_{\text{previous}}))`, whose mean the server adds to
    :math:`\bar g`.  The paper draws the r clients of such a round with replacement; a timeline has
    distinct clients.  A private server does not see the number of uploads, so
    :func:`~fedjax_sim.wrappers.privacy.privatize` refuses the algorithm.

    Args:
        algorithm, codec: as for :func:`marina`.

    Raises:
        ValueError: as :func:`marina`; a timeline in whose first round not all clients report, or
            that has rounds of some clients and weights that are not equal.

    References:
        Gorbunov et al., 2021, Algorithm 4.

    Example:
        >>> from fedjax_sim.algorithms import fedsgd
        >>> from fedjax_sim.compression import random_k
        >>> algorithm = pp_marina(fedsgd(lr=0.1), random_k(0.1))
    """

    def check(task: Task, timeline: Timeline) -> None:
        mask = timeline.arrived
        if isinstance(mask, Tracer):
            return
        first = np.asarray(mask)[..., 0, :].sum(-1)
        if (first < task.num_clients).any():
            raise ValueError(
                f"timeline has {first.min()} clients in its first round; expected all "
                f"{task.num_clients}, as in timelines.full_or_uniform"
            )

    wrapped = also_checked(_marina(algorithm, codec, _all_report), check)
    check_statistics_last("pp_marina", algorithm, only_uploaded=True)
    return with_upload_bits(wrapped, codec.bits, bits_of_arrays).requiring(
        exact_mean="the number of uploads tells the server whether they are whole",
        # The weighted mean of a drawn cohort is no unbiased estimate of that of all clients.
        uniform_weights_if_partial=UNWEIGHTED_MEMORY,
    )


def _all_report(round: Round) -> Array:
    return round.announced_uploads == round.num_clients


def _marina(algorithm: FedAlgorithm, codec: Codec, coin: Coin) -> FedAlgorithm:
    check_one_kind(algorithm)
    if not isinstance(codec, Codec):
        raise ValueError(
            f"codec is {codec!r:.60}; expected an unbiased compression.Codec without memory, for "
            "example compression.random_k(10)"
        )
    check_unbiased(codec)

    def init(params: Params) -> MarinaState:
        inner = algorithm.init(params)
        zero = jnp.array(0, jnp.int32)
        # Its value is not used: the first round has whole uploads.
        previous = first_message(algorithm, inner)
        return MarinaState(inner, previous, tree.zeros_like(params), jnp.array(False), zero)

    def is_full(state: MarinaState, round: Round) -> Array:
        return (state.num_rounds == 0) | coin(round)

    def broadcast(state: MarinaState, round: Round) -> MarinaMessage:
        current = algorithm.broadcast(state.inner, round.inside())
        return MarinaMessage(current, state.previous, is_full(state, round))

    def local(
        message: MarinaMessage, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState]:
        # Private leaves and running statistics, which both visits start from, move in one of them.
        with carried_unchanged():
            old, _ = algorithm.local(message.previous, state, oracle, work.inside())
        # Two uploads of one visit see the same minibatches: those of a step do not depend on the
        # model.
        new, _ = algorithm.local(message.current, state, oracle, work.inside())
        difference = tree.sub(new, old)
        key = jax.random.fold_in(work.key, UPLOAD)
        sent = decoded(codec, key, difference, tree.zeros_like(difference))
        sent = tree.where(message.full, new, sent)
        return tree.where(work.num_steps > 0, sent, tree.zeros_like(sent)), state

    def update(state: MarinaState, mean: Upload, round: Round) -> MarinaState:
        check_form(mean, state.estimate)
        full = is_full(state, round)
        estimate = tree.where(full, mean, tree.add(state.estimate, mean))
        current = algorithm.broadcast(state.inner, round.inside())
        inner = algorithm.update(state.inner, estimate, round.inside())
        return MarinaState(inner, current, estimate, full, state.num_rounds + 1)

    def init_client(params: Params) -> ClientState:
        state = algorithm.init_client(params)
        if jax.tree.leaves(state):
            raise ValueError(
                "algorithm has clients that keep state; expected none: MARINA takes two uploads "
                "per visit, of the current and of the previous message"
            )
        return state

    def bits(message: MarinaMessage) -> int:
        of_inner = message_bits(algorithm)
        return of_inner(message.current) + of_inner(message.previous) + bits_of_arrays(message.full)

    personal = algorithm.personal
    wrapped = algorithm.requiring(
        synchronous="MARINA adds changes since the previous message to its estimate",
        other_uploads=FROM_ESTIMATES,
    )
    return with_message_bits(wrapped, bits)._replace(
        init=init,
        local=local,
        update=update,
        broadcast=broadcast,
        init_client=init_client,
        personal=personal
        and (
            lambda message, state, oracle, work: personal(
                message.current, state, oracle, work.inside()
            )
        ),
    )
