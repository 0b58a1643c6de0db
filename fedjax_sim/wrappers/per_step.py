"""Uploads in the units of a gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_sim import tree
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, per_step, rate
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    PyTree,
    ServerState,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers._memory import check_adds_nothing_up, check_one_kind
from fedjax_sim.wrappers.received import upload_shapes

__all__ = ["per_step_uploads"]


@specified
def per_step_uploads(algorithm: FedAlgorithm, lr: ScalarOrSchedule) -> FedAlgorithm:
    r"""Divides uploads by the client rate and by the number of local steps.

    For FedAvg the upload becomes the mean gradient of the visit, up to the drift of its steps,

    .. math:: u_i = \frac{x - y_{K_i}}{\eta_l K_i}

    which takes the place of :math:`\nabla F_i(x)` in methods for gradients.  Memories of
    compression (:func:`ef21`, :func:`diana`) then stay in the same units if rates or numbers of
    steps change.  The server's update receives the mean of these, so the rate of the server's
    optimizer is the step size :math:`\gamma` of the gradient method:
    ``per_step_uploads(fedavg(lr, server=optax.sgd(gamma)), lr)``.  At the rate 0, at which the
    model does not move, the upload is 0.

    Args:
        algorithm: an algorithm whose uploads are changes of the model, or of a part of it, and
            nothing else: controls and counts (scaffold, fedbuff) have other units.
        lr: the client rate of the algorithm, or its schedule over rounds.

    Raises:
        ValueError: a value that is no algorithm, one whose uploads are models, as those of FAVANO,
            gradients in some rounds (FedLin, Mime), one that adds uploads up over the rounds
            (FedDyn, Scaffnew, EF21), or a negative ``lr``; at the start of the run, uploads with
            further parts.

    Example:
        >>> import optax
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = per_step_uploads(fedavg(0.1, server=optax.sgd(0.5)), lr=0.1)
    """
    check_one_kind(algorithm)
    check_adds_nothing_up(algorithm, "what clients keep stays in the units of the model")
    check_rates(lr=lr)

    def init(params: Params) -> ServerState:
        uploads, model = (_shapes(x) for x in (upload_shapes(algorithm, params), params))
        if not uploads.items() <= model.items():
            raise ValueError(
                f"algorithm has uploads of the form {uploads}; expected changes of the model, "
                f"{model}, and no further parts, which have other units: wrappers that add parts, "
                "such as skip_nonfinite, come after per_step_uploads"
            )
        return algorithm.init(params)

    def local(
        message: Message, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState]:
        upload, new = algorithm.local(message, state, oracle, work)
        eta = rate(lr, work)
        return tree.divide(per_step(upload, work), jnp.where(eta == 0, 1, eta)), new

    wrapped = algorithm.requiring(other_uploads="changes per step and rate")
    return wrapped._replace(init=init, local=local)


def _shapes(x: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(x)
    return {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in leaves}
