r"""DiLoCo, and MuLoCo with Muon inside.

References:
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    Therien, Huang, Rish, Belilovsky, "MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo",
        2025.
"""

from __future__ import annotations

import functools
from typing import Literal

import optax

from fedjax_sim.algorithms._local_optimizer import locally_optimized
from fedjax_sim.algorithms._muon import is_matrix, muon_or_adam
from fedjax_sim.algorithms._optimizers import check_optimizer
from fedjax_sim.algorithms.fedavg import _served
from fedjax_sim.checks import check_at_least, check_choice, check_decay, check_rates
from fedjax_sim.local import ScalarOrSchedule, rate
from fedjax_sim.tree import leaves
from fedjax_sim.types import FedAlgorithm, Scalar, specified

__all__ = ["diloco"]


@specified
def diloco(
    lr: ScalarOrSchedule | None = None,
    server_lr: optax.ScalarOrSchedule = 0.7,
    momentum: Scalar = 0.9,
    weight_decay: Scalar = 0.1,
    b1: Scalar = 0.9,
    b2: Scalar = 0.95,
    inner: Literal["adamw", "muon"] = "adamw",
    *,
    local_optimizer: optax.GradientTransformation | None = None,
    matrices: leaves.Selection = is_matrix,
) -> FedAlgorithm:
    r"""DiLoCo: local AdamW whose state each worker keeps, and Nesterov's momentum on the server.

    .. math::
        (y_i, s_i) &\leftarrow \text{AdamW}(g_i(y_i), s_i, y_i) \ \text{ for } H \text{ steps},
        \quad y_i^0 = x, \qquad \Delta = \operatorname{mean}_i (x - y_i^H) \\
        v &\leftarrow \beta v + \Delta, \qquad x \leftarrow x - \eta_s (\Delta + \beta v)

    The visit's steps are H, the clients are the workers.  With ``inner="muon"`` (MuLoCo) matrices
    take steps of Muon with the momentum ``b1``, scaled by the shapes of kernels stored as
    [outputs, inputs] as in :func:`~fedjax_sim.algorithms.fedmuon`, and all other leaves steps of
    AdamW with the decays 0.9 and ``b2``.  The weight decay applies to all leaves, and AdamW's
    epsilon is 1e-8.  With SGD as the local optimizer and the server's (1, 0) this is FedAvg.  Outer
    momentum helps if a round moves a small part of the way only.

    Args:
        lr: rate of the local steps, or a schedule over rounds; not with ``local_optimizer``.
        server_lr: server learning rate :math:`\eta_s`, or a schedule over server updates.
        momentum: :math:`\beta` of the server.
        weight_decay: decoupled weight decay of the local steps, in units of ``lr``.
        b1: AdamW's decay of the mean of gradients; with ``inner="muon"`` Muon's momentum.
        b2: AdamW's decay of the mean of squares, 0.95 as in OpenDiLoCo.
        inner: the optimizer of the local steps.
        local_optimizer: any optax optimizer for the local steps, which replaces the one that
            ``inner``, ``weight_decay``, ``b1`` and ``b2`` describe.  Its schedules count the
            worker's steps in all rounds.
        matrices: the leaves that Muon updates, as for :func:`~fedjax_sim.algorithms.fedmuon`.

    Raises:
        ValueError: both or neither of ``lr`` and ``local_optimizer``, another ``inner``, or an
            optimizer that :func:`~fedjax_sim.algorithms.fedavg` refuses; at the start of the run,
            matrices with one axis.

    References:
        Douillard et al., 2023, Algorithm 1; with Muon, Therien et al., 2025.

    Example:
        >>> algorithm = diloco(lr=4e-4)
        >>> cosine = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 2000)
        >>> scheduled = diloco(local_optimizer=optax.adamw(cosine, b2=0.95, weight_decay=0.1))
    """
    serve = functools.partial(_served, nesterov(server_lr, momentum))
    local, scale = local_transform(lr, weight_decay, b1, b2, inner, local_optimizer, matrices)
    return locally_optimized(serve, local, "keep", scale=scale)


def nesterov(server_lr: optax.ScalarOrSchedule, momentum: Scalar) -> optax.GradientTransformation:
    """Returns the server's optimizer; a schedule counts server updates."""
    check_rates(server_lr=server_lr)
    check_decay(momentum=momentum)
    return optax.sgd(server_lr, momentum, nesterov=True)


def local_transform(
    lr: ScalarOrSchedule | None,
    weight_decay: Scalar,
    b1: Scalar,
    b2: Scalar,
    inner: str,
    local_optimizer: optax.GradientTransformation | None,
    matrices: leaves.Selection,
):
    """Returns the transform of a worker's steps, and the factor of its updates in a visit."""
    check_rates(lr=lr)
    check_at_least(0, weight_decay=weight_decay)
    check_decay(b1=b1, b2=b2)
    check_choice(("adamw", "muon"), inner=inner)
    if local_optimizer is not None:
        check_optimizer("local_optimizer", local_optimizer)
        if lr is not None:
            raise ValueError(
                f"lr is {lr} beside local_optimizer, which has its own rate; expected one of them"
            )
        return local_optimizer, None
    if lr is None:
        raise ValueError("lr is None; expected a learning rate, or local_optimizer")
    if inner == "muon":
        direction = muon_or_adam(b1, 0.9, b2, matrices)
    else:
        direction = optax.scale_by_adam(b1, b2, eps_root=1e-30)
    transform = optax.chain(direction, optax.add_decayed_weights(weight_decay))
    return transform, lambda work: -rate(lr, work)
