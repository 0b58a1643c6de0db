r"""FedRep: clients fit their own heads to the received body before they move the body.

References:
    Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized
        Federated Learning", 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState, real, step_range
from fedjax_sim.checks import check_at_least, check_rates, check_share, is_concrete
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate
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
from fedjax_sim.wrappers import PartState

__all__ = ["fedrep"]


class FedRepClient(NamedTuple):
    head: Params  # h_i, with None instead of the shared leaves


@specified
def fedrep(
    lr: ScalarOrSchedule,
    head_lr: ScalarOrSchedule | None = None,
    head_share: Scalar = 0.5,
    head_steps: Scalar | None = None,
    where: tree.leaves.Selection = tree.leaves.last_layer,
) -> FedAlgorithm:
    r"""FedRep: first steps on the private head under the received body, then steps on the body.

    .. math::
        h &\leftarrow h - \eta_h\, \nabla_h F_i(x, h), \qquad k < K_h, \quad h_0 = h_i \\
        y &\leftarrow y - \eta\, \nabla_y F_i(y, h), \qquad K_h \le k < K_i, \quad y_0 = x \\
        h_i &\leftarrow h, \qquad x \leftarrow x - \operatorname{mean}_i (x - y)

    The gradients are those of the step's minibatch.  The personal model is :math:`(x, h_i)`.

    A visit of one step is a step of the head if ``head_share`` is at least 1/2, as by default, and
    then the client uploads 0; with a smaller share it is a step of the body.

    The published experiments count epochs: a visit of E local epochs, of which the first
    :math:`E_h` train the head, has the share :math:`E_h / E` of head steps, for every client
    exactly: 10/11 (CIFAR-10), 10/15 (CIFAR-100).

    Args:
        lr: learning rate of the body :math:`\eta`, or a schedule over rounds.
        head_lr: learning rate of the head, or a schedule over rounds; default: lr.
        head_share: share of a visit's steps that train the head, rounded to whole steps.
        head_steps: number of head steps of every visit, which replaces head_share.
        where: True for private leaves; default: the last layer.

    Raises:
        ValueError: a share outside of [0, 1], a negative number of steps, ``where`` is no
            predicate; at the start of the run, a predicate that selects no leaves, or
            ``head_steps`` that leave no visit a step of the body.

    References:
        Collins et al., 2021, Algorithm 1.

    Example:
        >>> published = fedrep(lr=0.01, head_share=10 / 11)  # with fs.epochs(11, batch_size=10)
        >>> params = {"body": jnp.ones(3), "head": {"kernel": jnp.zeros(2)}}
        >>> published.init_client(params).head
        {'body': None, 'head': {'kernel': Array([0., 0.], dtype=float32)}}
    """
    check_rates(lr=lr, head_lr=head_lr)
    tree.leaves.check_selection(where)
    check_share(head_share=head_share)
    if head_steps is not None:
        check_at_least(0, head_steps=head_steps)
        if is_concrete(head_steps) and float(head_steps) % 1:
            raise ValueError(f"head_steps is {head_steps}; expected a whole number")

    def init(params: Params) -> PartState:
        head, body = tree.leaves.split_some(params, where)
        return PartState(ModelState(body), head)

    def local(
        x: Params, state: FedRepClient, oracle: Oracle, work: Work
    ) -> tuple[Upload, FedRepClient]:
        eta = rate(lr, work)
        eta_head = eta if head_lr is None else rate(head_lr, work, "head_lr")
        if head_steps is None:
            steps = real(head_share) * real(work.num_steps)
            count = jnp.floor(steps + 0.5).astype(jnp.int32)
        else:
            count = jnp.asarray(head_steps).astype(jnp.int32)

        def step(model: tuple[Params, Params], k: Array) -> tuple[Params, Params]:
            y, h = model
            gradient = oracle.grad(tree.leaves.join(y, h), k)
            of_head = k < count
            new_y = tree.add_scale(y, -eta, tree.leaves.without(gradient, h))
            new_h = tree.add_scale(h, -eta_head, tree.leaves.without(gradient, y))
            return tree.where(of_head, y, new_y), tree.where(of_head, new_h, h)

        y, h = local_steps(step, (x, state.head), work)
        return tree.sub(x, y), FedRepClient(h)

    def update(state: PartState, mean: Upload, round: Round) -> PartState:
        return state._replace(inner=ModelState(tree.sub(state.inner.params, mean)))

    def check(task: Task, timeline: Timeline) -> None:
        if head_steps is None or not is_concrete(head_steps):
            return
        if float(head_steps) >= (most := step_range(timeline)[1]):
            raise ValueError(
                f"head_steps is {head_steps}; expected less than {most}, the most local steps of a "
                "visit in the timeline: without further steps the body never moves"
            )

    return FedAlgorithm(
        init,
        local,
        update,
        broadcast=lambda state, round: state.inner.params,
        init_client=lambda params: FedRepClient(tree.leaves.split(params, where)[0]),
        requires=Requires(check=check, partial_model=True),
        personal=lambda x, state, oracle, work: tree.leaves.join(state.head, x),
    )
