r"""EF21 and EF21-P: client and server send compressed changes of estimates that both keep.

References:
    Richtarik, Sokolov, Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically
        Faster Error Feedback", 2021, https://arxiv.org/abs/2106.05203.
    Fatkhullin, Sokolov, Gorbunov, Li, Richtarik, "EF21 with Bells & Whistles: Practical Algorithmic
        Extensions of Modern Error Feedback", 2021, https://arxiv.org/abs/2110.03294 (EF21-PP).
    Gruntkowska, Tyurin, Richtarik, "EF21-P and Friends: Improved Theoretical Communication
        Complexity for Distributed Optimization with Bidirectional Compression", 2022,
        https://arxiv.org/abs/2209.15218 (messages of the server).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import (
    check_choice,
    check_is_algorithm,
    check_messages_encode,
    check_statistics_last,
)
from fedjax_sim.compression import Codec, StatefulCodec, contractive, stateful
from fedjax_sim.tree import with_message_bits, with_upload_bits
from fedjax_sim.types import (
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    PyTree,
    Round,
    ServerState,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers._memory import (
    ESTIMATES,
    FROM_ESTIMATES,
    MESSAGE,
    UNWEIGHTED_MEMORY,
    EstimateState,
    MemoryState,
    add_share,
    check_adds_nothing_up,
    check_one_kind,
    encode,
    if_present,
    personal_inner,
    visit_of,
    with_estimate,
    with_memory,
)
from fedjax_sim.wrappers.received import broadcast_inner, first_message, inner_params

__all__ = ["ef21", "ef21_p"]


class Ef21PState(NamedTuple):
    """State of a server whose messages are compressed changes."""

    inner: ServerState
    copy: Message  # w, the message that all clients have
    codec: PyTree  # of a codec with memory, else ()

    params = inner_params


class _FirstVisit(NamedTuple):
    """Client state of EF21 whose first upload is not compressed."""

    inner: MemoryState
    visited: Array  # bool


@specified
def ef21(
    algorithm: FedAlgorithm, codec: Codec | StatefulCodec, start: Literal["zero", "full"] = "zero"
) -> FedAlgorithm:
    r"""EF21: clients send compressed changes of estimates of their uploads.

    With the upload :math:`u_i` of the algorithm (for FedSGD, :math:`\nabla F_i(x)`), the client's
    estimate :math:`g_i` and the server's :math:`\bar g`, which is the mean of the :math:`g_i` of
    all M clients,

    .. math::
        c_i = C(u_i - g_i), \qquad g_i \leftarrow g_i + c_i, \qquad
        \bar g \leftarrow \bar g + \tfrac{|S|}{M} \operatorname{mean}_{i \in S} c_i

    Clients send :math:`c_i`; the server's update receives :math:`\bar g`.  The state of a client
    has :math:`g_i` as ``memory``, that of the server :math:`\bar g` as ``estimate``.  A visit
    without steps sends 0 and keeps :math:`g_i`.  Under partial participation this is EF21-PP: only
    clients that report change their estimates, and the model moves by :math:`\bar g` in every round
    with a report.  Unlike :func:`ef14` it converges on heterogeneous clients with a constant rate;
    :func:`fedjax_sim.theory.compression.ef21_lr` and
    :func:`~fedjax_sim.theory.compression.ef21_pp_lr` are the rates of the theorems.

    With local steps the estimates are those of the whole upload; to keep them in the units of a
    gradient, for rates or numbers of steps that vary, wrap :func:`per_step_uploads`.  With
    weights (:class:`~fedjax_sim.Setup`), :math:`\bar g` is the weighted mean of the :math:`g_i` if
    all clients report in every round and the weights of all rounds are the same ones; otherwise it
    would be no mean of them, so other weights are refused, and other timelines need equal ones.

    A client receives no confirmation, so it adds :math:`c_i` to :math:`g_i` although the server may
    have received nothing (:func:`~fedjax_sim.timelines.lose_uploads`) or something else: with
    :func:`~fedjax_sim.wrappers.privacy.privatize` the clipped :math:`c_i` and noise.  Nothing
    corrects the difference between :math:`\bar g` and the mean of the :math:`g_i` later; that of
    noise is a random walk over the rounds.

    Args:
        algorithm: an algorithm whose uploads are changes of the model, as for :func:`ef14`.
        codec: a contraction or an unbiased codec, as for :func:`ef14`.
        start: "zero", all estimates start at 0, so the first upload is :math:`C(u_i)`; or "full",
            a client sends its first upload without compression, which the bits of a history do
            not contain.

    Raises:
        ValueError: as :func:`ef14`; an algorithm that adds uploads up over the rounds (FedDyn,
            Scaffnew); another ``start``; at the start of the run, unequal weights with rounds of
            some clients only, or weights that change between rounds.

    References:
        Richtarik et al., 2021, Algorithm 2; Fatkhullin et al., 2021, EF21-PP.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> from fedjax_sim.compression import top_k
        >>> algorithm = ef21(fedavg(lr=0.1), top_k(0.01))
        >>> algorithm.init(jnp.ones(3)).estimate.tolist()
        [0.0, 0.0, 0.0]
    """
    check_choice(("zero", "full"), start=start)
    check_one_kind(algorithm)
    check_adds_nothing_up(algorithm, ESTIMATES)
    check_statistics_last("ef21", algorithm, only_uploaded=True)
    coder = stateful(contractive(codec))
    init_client = with_memory(algorithm, coder)

    def change(
        message: Message, state: MemoryState, oracle: Oracle, work: Work, first: Array | bool
    ) -> tuple[Upload, MemoryState]:
        upload, inner = visit_of(algorithm, message, state, oracle, work)
        difference = tree.sub(upload, state.memory)
        sent, kept = encode(coder, difference, state.codec, work)
        sent = tree.where(first, difference, sent)
        return if_present(work, sent, MemoryState(inner, tree.add(state.memory, sent), kept), state)

    def local(
        message: Message, state: MemoryState, oracle: Oracle, work: Work
    ) -> tuple[Upload, MemoryState]:
        return change(message, state, oracle, work, first=False)

    def local_from_full(
        message: Message, state: _FirstVisit, oracle: Oracle, work: Work
    ) -> tuple[Upload, _FirstVisit]:
        sent, inner = change(message, state.inner, oracle, work, first=~state.visited)
        return sent, _FirstVisit(inner, state.visited | (work.num_steps > 0))

    def update(state: EstimateState, mean: Upload, round: Round) -> EstimateState:
        estimate = add_share(state.estimate, mean, round)
        return EstimateState(algorithm.update(state.inner, estimate, round), estimate)

    wrapped = algorithm.requiring(
        uniform_weights_if_partial=UNWEIGHTED_MEMORY, other_uploads=FROM_ESTIMATES
    )
    wrapped = with_upload_bits(wrapped, coder.bits)._replace(
        init=with_estimate(algorithm),
        local=local,
        update=update,
        broadcast=broadcast_inner(algorithm),
        init_client=init_client,
        personal=personal_inner(algorithm),
    )
    if start == "zero":
        return wrapped
    personal = wrapped.personal
    return wrapped._replace(
        local=local_from_full,
        init_client=lambda params: _FirstVisit(init_client(params), jnp.array(False)),
        personal=None
        if personal is None
        else lambda message, state, oracle, work: personal(message, state.inner, oracle, work),
    )


@specified
def ef21_p(algorithm: FedAlgorithm, codec: Codec | StatefulCodec) -> FedAlgorithm:
    r"""EF21-P: the server sends compressed changes of its message.

    With the message m of the algorithm (for FedAvg, the model) and its copy w, which all clients
    and the server have and which starts at the first message,

    .. math:: w \leftarrow w + C(m - w)

    in every round with a report, and clients start from w, as does the evaluation of personal
    models.  The model that is evaluated is exact.  If m is the model and the codec odd, w follows
    exactly the model of a server with error feedback (DoubleSqueeze), which sends
    :math:`c = C(e + \Delta)` and keeps :math:`e \leftarrow e + \Delta - c`.

    Every client has to receive every change, also in rounds in which it does not report, and files
    of runs count it so (:func:`~fedjax_sim.timelines.bits_moved` with ``to_all``).  For both
    directions compose: ``ef21(ef21_p(fedavg(0.1), down), up)``.

    Args:
        algorithm: an algorithm whose message does not depend on the round: not marina, which is
            applied after EF21-P.
        codec: a contraction or an unbiased codec, as for :func:`ef14`.

    Raises:
        ValueError: no codec, or one of no stated kind; an algorithm that sends running statistics
            (apply :func:`~fedjax_sim.wrappers.running_statistics.running_statistics` last), or
            requires exact messages; at the start of the run, a message with the coin of
            :func:`marina`.

    References:
        Gruntkowska et al., 2022, Algorithm 1; Tang et al., "DoubleSqueeze", 2019.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> from fedjax_sim.compression import top_k
        >>> algorithm = ef21_p(fedavg(lr=0.1), top_k(0.1))
        >>> algorithm.init(jnp.ones(3)).copy.tolist()
        [1.0, 1.0, 1.0]
    """
    check_is_algorithm(algorithm)
    check_statistics_last("ef21_p", algorithm, only_uploaded=True)
    check_messages_encode(algorithm)
    coder = stateful(contractive(codec))

    def init(params: Params) -> Ef21PState:
        inner = algorithm.init(params)
        first = first_message(algorithm, inner)
        if any(leaf.dtype == bool for leaf in jax.tree.leaves(first)):
            raise ValueError(
                "algorithm sends messages that depend on the round, with truth values; expected "
                "one whose messages do not, such as fedavg: apply marina after ef21_p, as in "
                "marina(ef21_p(fedavg(0.1), down), up, probability)"
            )
        return Ef21PState(inner, first, coder.init(first))

    def sent(state: Ef21PState, round: Round) -> tuple[Message, PyTree]:
        difference = tree.sub(algorithm.broadcast(state.inner, round.inside()), state.copy)
        key = jax.random.fold_in(round.key, MESSAGE)
        change, kept = coder.through(key, difference, state.codec)
        return tree.add(state.copy, change), kept

    def update(state: Ef21PState, mean: Upload, round: Round) -> Ef21PState:
        copy, kept = sent(state, round)  # the same as in the broadcast
        return Ef21PState(algorithm.update(state.inner, mean, round.inside()), copy, kept)

    return with_message_bits(algorithm.requiring(messages_to_all=True), coder.bits)._replace(
        init=init, update=update, broadcast=lambda state, round: sent(state, round)[0]
    )
