r"""DIANA: clients send compressed differences from shifts that learn their uploads.

References:
    Mishchenko, Gorbunov, Takac, Richtarik, "Distributed Learning with Compressed Gradient
        Differences", 2019, https://arxiv.org/abs/1901.09269.
"""

from __future__ import annotations

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_at_most, check_statistics_last
from fedjax_sim.compression import Codec, StatefulCodec, check_unbiased, stateful
from fedjax_sim.tree import with_upload_bits
from fedjax_sim.types import FedAlgorithm, Message, Oracle, Round, Scalar, Upload, Work, specified
from fedjax_sim.wrappers._memory import (
    ESTIMATES,
    FROM_ESTIMATES,
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
from fedjax_sim.wrappers.received import broadcast_inner

__all__ = ["diana"]


@specified
def diana(algorithm: FedAlgorithm, codec: Codec | StatefulCodec, rate: Scalar) -> FedAlgorithm:
    r"""DIANA: clients send compressed differences of their uploads from shifts.

    With the upload :math:`u_i` of the algorithm (for FedSGD, :math:`\nabla F_i(x)`), the client's
    shift :math:`h_i` and the server's h, which is the mean of the shifts of all M clients and
    starts at 0, too,

    .. math::
        q_i = Q(u_i - h_i), \qquad h_i \leftarrow h_i + \alpha q_i, \qquad
        \hat u = h + \operatorname{mean}_{i \in S} q_i, \qquad
        h \leftarrow h + \alpha \tfrac{|S|}{M} \operatorname{mean}_{i \in S} q_i

    Clients send :math:`q_i`; the server's update receives :math:`\hat u`, which is unbiased.  The
    variance of compression vanishes at the optimum, since the differences do.  Clients that do not
    report keep their shifts, and a visit without steps sends 0.  The state of a client has
    :math:`h_i` as ``memory``, that of the server h as ``estimate``.  With :math:`\alpha = 0` the
    codec has no memory.

    With local steps the shifts are those of the whole upload, see :func:`ef21`.  Weights are as for
    :func:`ef21`.  After uploads that are lost, clipped or noisy
    (:func:`~fedjax_sim.wrappers.privacy.privatize`) h is not the mean of the :math:`h_i`, and
    nothing corrects the difference later, as for :func:`ef21`.

    Args:
        algorithm: an algorithm whose uploads are changes of the model, as for :func:`ef14`.
        codec: an unbiased codec Q, such as :func:`~fedjax_sim.compression.random_k`,
            :func:`~fedjax_sim.compression.natural` or :func:`~fedjax_sim.compression.qsgd`.
        rate: :math:`\alpha`, in [0, 1]; the theorems have :math:`1 / (1 + \omega)`, for random k of
            d entries k / d.

    Raises:
        ValueError: as :func:`ef14`; an algorithm that adds uploads up over the rounds (FedDyn,
            Scaffnew); a codec that is not unbiased; a rate outside [0, 1]; at the start of the run,
            unequal weights with rounds of some clients only, or weights that change between rounds.

    References:
        Mishchenko et al., 2019, Algorithm 1.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> from fedjax_sim.compression import random_k
        >>> algorithm = diana(fedavg(lr=0.1), random_k(0.1), rate=0.1)
    """
    check_at_least(0, rate=rate)
    check_at_most(1, rate=rate)
    check_one_kind(algorithm)
    check_adds_nothing_up(algorithm, ESTIMATES)
    check_statistics_last("diana", algorithm, only_uploaded=True)
    check_unbiased(codec)
    coder = stateful(codec)

    def local(
        message: Message, state: MemoryState, oracle: Oracle, work: Work
    ) -> tuple[Upload, MemoryState]:
        upload, inner = visit_of(algorithm, message, state, oracle, work)
        sent, kept = encode(coder, tree.sub(upload, state.memory), state.codec, work)
        shift = tree.add_scale(state.memory, rate, sent)
        return if_present(work, sent, MemoryState(inner, shift, kept), state)

    def update(state: EstimateState, mean: Upload, round: Round) -> EstimateState:
        inner = algorithm.update(state.inner, tree.add(state.estimate, mean), round)
        return EstimateState(inner, add_share(state.estimate, mean, round, rate))

    wrapped = algorithm.requiring(
        uniform_weights_if_partial=UNWEIGHTED_MEMORY, other_uploads=FROM_ESTIMATES
    )
    return with_upload_bits(wrapped, coder.bits)._replace(
        init=with_estimate(algorithm),
        local=local,
        update=update,
        broadcast=broadcast_inner(algorithm),
        init_client=with_memory(algorithm, coder),
        personal=personal_inner(algorithm),
    )
