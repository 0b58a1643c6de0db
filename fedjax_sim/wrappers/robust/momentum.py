r"""Worker momentum: clients send exponential means of their uploads.

References:
    Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", 2021,
        https://arxiv.org/abs/2012.10333.
"""

from __future__ import annotations

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_at_most
from fedjax_sim.compression import identity, stateful
from fedjax_sim.tree import with_upload_bits
from fedjax_sim.types import FedAlgorithm, Message, Oracle, Scalar, Upload, Work, specified
from fedjax_sim.wrappers._memory import (
    MemoryState,
    check_one_kind,
    if_present,
    personal_inner,
    visit_of,
    with_memory,
)

__all__ = ["worker_momentum"]


@specified
def worker_momentum(algorithm: FedAlgorithm, beta: Scalar = 0.9) -> FedAlgorithm:
    r"""Worker momentum: a client sends the exponential mean of its uploads.

    .. math:: m_i \leftarrow \beta m_i + (1 - \beta) u_i

    with :math:`m_i = 0` before the first visit.  It averages the noise of honest clients over
    rounds, so that a robust rule has less variance to tolerate.  Absent clients keep :math:`m_i`; a
    visit without steps sends 0.  The authors' program omits the factor :math:`1 - \beta`: uploads
    are then :math:`1 / (1 - \beta)` times larger, as is the radius of
    :func:`~fedjax_sim.wrappers.robust.centred_clipping`.

    Args:
        algorithm: an algorithm whose uploads are changes of the model, as for
            :func:`~fedjax_sim.ef14`.
        beta: :math:`\beta`, in [0, 1]; may be traced.

    Raises:
        ValueError: a ``beta`` outside of [0, 1]; an algorithm with other uploads, at the latest
            when the visit is traced.

    References:
        Karimireddy et al., 2021, Algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = worker_momentum(fedavg(lr=0.1), beta=0.9)
        >>> algorithm.init_client(jnp.ones(2)).memory.tolist()
        [0.0, 0.0]
    """
    check_at_least(0, beta=beta)
    check_at_most(1, beta=beta)
    check_one_kind(algorithm)

    def local(
        message: Message, state: MemoryState, oracle: Oracle, work: Work
    ) -> tuple[Upload, MemoryState]:
        upload, inner = visit_of(algorithm, message, state, oracle, work)
        mean = tree.add_scale(tree.scale(beta, state.memory), 1 - beta, upload)
        return if_present(work, mean, state._replace(inner=inner, memory=mean), state)

    # A mean of decoded uploads over rounds is no code of the codec, so all its entries are sent.
    wrapped = algorithm.requiring(other_uploads="means of changes over rounds")
    return with_upload_bits(wrapped, None)._replace(
        local=local,
        init_client=with_memory(algorithm, stateful(identity())),
        personal=personal_inner(algorithm),
    )
