r"""pFedMe: personal models by Moreau envelopes.

References:
    Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", 2020,
        arXiv 2006.08848.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, ModelState, real
from fedjax_sim.checks import check_at_least, check_count, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, proximal, rate, sgd
from fedjax_sim.timelines import sample_without_replacement
from fedjax_sim.tree import divide_or_keep
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Task,
    Timeline,
    Upload,
    Work,
    specified,
)

__all__ = ["pfedme"]


class PFedMeMessage(NamedTuple):
    params: Params  # x
    averaged: Array | None  # [n] clients whose models are averaged; None: all that report


class PFedMeUpload(NamedTuple):
    delta: Params  # x - w, or 0
    averaged: Array  # 1, or 0 for a client whose model is not averaged


@specified
def pfedme(
    lr: ScalarOrSchedule,
    mu: Scalar = 15.0,
    personal_lr: ScalarOrSchedule = 0.09,
    inner_steps: int = 5,
    server_lr: Scalar = 1.0,
    num_averaged: int | None = None,
) -> FedAlgorithm:
    r"""pFedMe: gradient steps on the Moreau envelopes of the clients' objectives.

    A visit starts with :math:`w = \theta = x`.  Each of its R local steps takes ``inner_steps``
    gradients on one minibatch, which approximate the proximal point :math:`\theta`, and then moves
    the local copy w of the global model:

    .. math::
        \theta &\leftarrow \theta - p\,\bigl(g_i(\theta) + \mu\,(\theta - w)\bigr)
            \quad\text{(inner steps)} \\
        w &\leftarrow w - \eta\, \mu\, (w - \theta) \\
        x &\leftarrow x - \beta \operatorname{mean}_i (x - w_R)

    The client keeps :math:`\theta` of its last visit, which is its personal model and starts at the
    initial model.

    The released program adds :math:`0.001\, \theta` to the inner gradients; here that is
    :func:`~fedjax_sim.local.transforms.add_decayed_weights`.  It also trains all clients in every
    round
    and averages the models of some: that is ``num_averaged`` on a timeline with all clients.

    Args:
        lr: rate :math:`\eta` of w, or a schedule over rounds; w moves by the share
            :math:`\eta \mu`, which should be below 1.
        mu: weight of the proximal term, the paper's :math:`\lambda`.
        personal_lr: rate p of the inner steps, or a schedule over rounds.
        inner_steps: inner steps per local step, the paper's K.
        server_lr: share :math:`\beta` of the mean in the server's model.
        num_averaged: clients whose models are averaged in a round, drawn from all clients; others
            that report keep their personal models only. Default: all that report.

    Raises:
        ValueError: ``inner_steps`` or ``num_averaged`` below 1; at the start of the run, more
            ``num_averaged`` than clients.

    References:
        Dinh et al., 2020, Algorithm 1.

    Example:
        >>> algorithm = pfedme(lr=0.005)
    """
    check_rates(lr=lr, personal_lr=personal_lr)
    check_at_least(0, mu=mu, server_lr=server_lr)
    check_count(1, inner_steps=inner_steps)
    if num_averaged is not None:
        check_count(1, num_averaged=num_averaged)

    def broadcast(state: ModelState, round: Round) -> PFedMeMessage:
        if num_averaged is None:
            return PFedMeMessage(state.params, None)
        # Drawn here and not by the server's update, which receives a mean only: the other clients
        # upload zeros.
        drawn = sample_without_replacement(round.key, round.num_clients, num_averaged)
        return PFedMeMessage(state.params, drawn.astype(jnp.int32))

    def local(
        message: PFedMeMessage, theta: Params, oracle: Oracle, work: Work
    ) -> tuple[Upload, Params]:
        x, eta, p = message.params, rate(lr, work), rate(personal_lr, work, "personal_lr")

        def step(carry: tuple[Params, Params], j: Array) -> tuple[Params, Params]:
            w, theta = carry
            theta = sgd(p, proximal(oracle, mu, w).grad)(theta, j // inner_steps)
            moved = tree.add_scale(w, -eta, tree.scale(mu, tree.sub(w, theta)))
            return tree.where((j + 1) % inner_steps == 0, moved, w), theta

        visit = work._replace(
            num_steps=inner_steps * work.num_steps, max_steps=inner_steps * work.max_steps
        )
        w, new = local_steps(step, (x, x), visit)
        new = tree.where(work.num_steps > 0, new, theta)
        delta = tree.sub(x, w)
        if message.averaged is None:
            return delta, new
        present = (message.averaged == work.client).any() & (work.num_steps > 0)
        delta = tree.where(present, delta, tree.zeros_like(delta))
        return PFedMeUpload(delta, real(present)), new

    def update(state: ModelState, mean: Upload, round: Round) -> ModelState:
        if num_averaged is not None:  # the mean over the drawn clients
            mean = divide_or_keep(mean.delta, mean.averaged)
        return ModelState(tree.add_scale(state.params, -server_lr, mean))

    def check(task: Task, timeline: Timeline) -> None:
        if num_averaged is not None and num_averaged > task.num_clients:
            raise ValueError(
                f"num_averaged is {num_averaged}; expected at most {task.num_clients}, the clients "
                "of the task"
            )

    return FedAlgorithm(
        ModelState,
        local,
        update,
        broadcast,
        init_client=lambda params: params,
        requires=Requires(check=check, exact_mean=None if num_averaged is None else UPLOADS_COUNTS),
        personal=lambda message, theta, oracle, work: theta,
    )
