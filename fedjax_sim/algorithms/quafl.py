r"""QuAFL: server and contacted clients average their models, quantized.

References:
    Zakerinia, Talaei, Nadiradze, Alistarh, "QuAFL: Federated Averaging Can Be Both Asynchronous and
        Communication-Efficient", 2022.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_MODELS, ModelState, average_with_server, real
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    PyTree,
    Requires,
    Round,
    Upload,
    Work,
    specified,
)

__all__ = ["quafl"]

Through = Callable[[Array, PyTree, PyTree], PyTree]  # (key, sent, receiver's model) -> received


@specified
def quafl(
    lr: ScalarOrSchedule, up: Through | None = None, down: Through | None = None
) -> FedAlgorithm:
    r"""QuAFL: server and contacted clients each average in the other's model before the contact.

    .. math::
        w \leftarrow \frac{1}{s + 1} \Bigl(w + \sum_{i \in S} Q(y_i)\Bigr), \qquad
        w_i \leftarrow \frac{1}{s + 1} \bigl(Q(w^{old}) + s\, y_i\bigr)

    where :math:`y_i` is the client's own model after its steps since the last contact and Q the
    quantization.  A client's state is :math:`w_i`.  Runs on
    :func:`~fedjax_sim.timelines.contacts` with ``receives="current"``: the message is the server's
    model and s; the server's model also decodes the clients' uploads.

    Args:
        lr: client learning rate, or a schedule over rounds.
        up, down: Q of uploads and messages, ``(key, sent, receiver's own model) -> received``, for
            example ``Codec.through``; default the identity.

    Raises:
        ValueError: a number outside its range.

    References:
        Zakerinia et al., 2022, Algorithm 1.

    Example:
        >>> algorithm = quafl(lr=0.5)
    """
    check_rates(lr=lr)
    up, down = up or _identity, down or _identity

    def broadcast(state: ModelState, round: Round) -> tuple[Params, Array]:
        return state.params, real(round.num_uploads)

    def local(
        message: tuple[Params, Array], own: Params, oracle: Oracle, work: Work
    ) -> tuple[Upload, Params]:
        w, s = message
        y = local_steps(sgd(rate(lr, work), oracle.grad), own, work)
        up_key, down_key = jax.random.split(work.key)
        received = down(down_key, w, y)
        mixed = tree.divide(tree.add_scale(received, s, y), s + 1)
        return up(up_key, y, w), mixed

    return FedAlgorithm(
        ModelState,
        local,
        average_with_server,
        broadcast,
        init_client=lambda params: params,
        requires=Requires(
            uploads_models=True,
            own_models=True,
            exact_mean=UPLOADS_MODELS,
            synchronous="a contact mixes the client's own model with the server's at that moment",
        ),
    )


def _identity(key: Array, sent: PyTree, own: PyTree) -> PyTree:
    return sent
