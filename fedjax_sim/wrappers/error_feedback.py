r"""EF14: a client adds what its codec lost to its next upload.

References:
    Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and Its Application to
        Data-Parallel Distributed Training of Speech DNNs", 2014.
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", 2018, https://arxiv.org/abs/1809.07599.
"""

from __future__ import annotations

from fedjax_sim import tree
from fedjax_sim.checks import check_statistics_last
from fedjax_sim.compression import Codec, StatefulCodec, contractive, stateful
from fedjax_sim.tree import with_upload_bits
from fedjax_sim.types import FedAlgorithm, Message, Oracle, Upload, Work, specified
from fedjax_sim.wrappers._memory import (
    MemoryState,
    check_one_kind,
    encode,
    if_present,
    personal_inner,
    visit_of,
    with_memory,
)

__all__ = ["ef14"]


@specified
def ef14(algorithm: FedAlgorithm, codec: Codec | StatefulCodec) -> FedAlgorithm:
    r"""EF14, error feedback: a client keeps the error of its codec and adds it to the next upload.

    With the upload :math:`u_i` of the algorithm (for FedAvg with one step,
    :math:`\gamma \nabla F_i(x)`) and the memory :math:`e_i`, which starts at 0,

    .. math::
        p_i = e_i + u_i, \qquad c_i = C(p_i), \qquad e_i \leftarrow p_i - c_i

    Clients send :math:`c_i`; the server's update receives their mean.  The learning rate is inside
    :math:`p_i`: where rates fall, wrap an algorithm whose uploads contain the rate (``fedavg``, not
    ``fedsgd``).  Absent clients keep :math:`e_i`; a visit without steps sends 0.  A client receives
    no confirmation, so :math:`c_i` is not in :math:`e_i` if the upload is lost.  On heterogeneous
    clients with a constant rate the model does not converge exactly; :func:`ef21` does.

    Args:
        algorithm: an algorithm whose uploads are changes of the model, with the structure, shapes
            and dtypes of the model: fedavg, fedsgd, fedavgm, fedadam, fedyogi, fedadagrad, fedprox,
            fedsam, fedasam, fedlesam, fedswa, feddyn, fedacg, fedavg_subgradient, async_sgd,
            diloco, ditto, apfl, pfedme, perfedavg, fedavg_ft and wrappers of these.  Uploads of a
            part of the model (fedper, fedrep, fedbn, lg_fedavg, fedbabu), uploads with further
            parts (scaffold, ifca), uploads that are gradients in some rounds and changes of the
            model in others (mime, fedlin) and uploaded models (favano, quafl) are refused.  Apply
            ``private`` and ``freeze`` after the memory: ``private(ef14(fedavg(lr), codec), where,
            lr)`` is FedPer, FedBN or LG-FedAvg with error feedback.  Clients that keep what they
            upload (feddyn, fedvarp, scaffnew) count a change as sent of which a part arrives later;
            the limit does not change.
        codec: a contraction, such as :func:`~fedjax_sim.compression.top_k`,
            :func:`~fedjax_sim.compression.scaled_sign` or
            :func:`~fedjax_sim.compression.power_sgd`; an unbiased codec is divided by
            :math:`1 + \omega` (:func:`~fedjax_sim.compression.contractive`).

    Raises:
        ValueError: no codec, or one of no stated kind; an algorithm with other uploads, also in
            some rounds only (FedLin, Mime), at the latest when the visit is traced.

    References:
        Stich et al., 2018, Algorithm 1.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> from fedjax_sim.compression import top_k
        >>> algorithm = ef14(fedavg(lr=0.1), top_k(0.01))
        >>> import jax.numpy as jnp
        >>> algorithm.init_client(jnp.ones(3)).memory.tolist()
        [0.0, 0.0, 0.0]
    """
    check_one_kind(algorithm)
    check_statistics_last("ef14", algorithm, only_uploaded=True)
    coder = stateful(contractive(codec))

    def local(
        message: Message, state: MemoryState, oracle: Oracle, work: Work
    ) -> tuple[Upload, MemoryState]:
        upload, inner = visit_of(algorithm, message, state, oracle, work)
        total = tree.add(state.memory, upload)
        sent, kept = encode(coder, total, state.codec, work)
        return if_present(work, sent, MemoryState(inner, tree.sub(total, sent), kept), state)

    return with_upload_bits(algorithm, coder.bits)._replace(
        local=local, init_client=with_memory(algorithm, coder), personal=personal_inner(algorithm)
    )
