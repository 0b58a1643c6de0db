r"""Scaffnew, the federated form of ProxSkip: communication in random rounds.

References:
    Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
        Communication Acceleration! Finally!", 2022.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState, check_all_clients, real
from fedjax_sim.checks import check_probability, check_rates, is_traced
from fedjax_sim.local import ScalarOrSchedule, corrected, inverse_rate, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Task,
    Timeline,
    Work,
    specified,
)

__all__ = ["scaffnew"]


class ScaffnewClient(NamedTuple):
    control: Params  # h_i
    sent: Params  # y_i, the model that the client sent last
    factor: Array  # p / eta of the visit whose result is y_i


@specified
def scaffnew(lr: ScalarOrSchedule, probability: Scalar) -> FedAlgorithm:
    r"""Scaffnew: controls as SCAFFOLD's, with a random number of local steps per round.

    After each local step all clients communicate with probability p.  So the number of steps K of a
    round has a geometric law, one draw per round for all clients, as in
    ``timelines.geometric_steps(key, timeline, p, max_steps)``.  A client first corrects its control
    by the model that it receives, except at its first visit:

    .. math::
        h_i \leftarrow h_i + \tfrac{p}{\eta} (x - y_i), \qquad
        y_i \leftarrow y_i - \eta\,(g_i(y_i) - h_i), \quad y_i^0 = x, \qquad
        x \leftarrow \operatorname{mean}_i y_i

    where :math:`\eta` of the correction is the rate of the steps that led to the old :math:`y_i`,
    which differs from that of the new ones if ``lr`` is a schedule.  All :math:`h_i` start at 0
    and sum to 0.  With K fixed and p = 1 / K this is SCAFFOLD with
    option II; with p = 1 gradient descent.  For L-smooth :math:`\mu`-strongly convex functions,
    :math:`\eta \le 1 / L` and :math:`p = \sqrt{\mu / L}`, the number of rounds grows as
    :math:`\sqrt{L / \mu}`.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        probability: p, in (0, 1].

    Raises:
        ValueError: at the start of the run, a round without some of the clients or their
            uploads, clients with different numbers of steps in a round, or weights other than
            equal ones.

    References:
        Mishchenko et al., 2022, Algorithm 2.

    Example:
        >>> algorithm = scaffnew(lr=0.1, probability=0.2)
    """

    check_rates(lr=lr)
    check_probability(probability=probability)

    def local(
        x: Params, state: ScaffnewClient, oracle: Oracle, work: Work
    ) -> tuple[Params, ScaffnewClient]:
        eta = rate(lr, work)
        control = tree.add_scale(state.control, state.factor, tree.sub(x, state.sent))
        grad = corrected(oracle, tree.scale(-1, control)).grad
        y = local_steps(sgd(eta, grad), x, work)
        factor = real(probability) * real(inverse_rate(eta))
        new = tree.where(work.num_steps > 0, ScaffnewClient(control, y, factor), state)
        return tree.sub(x, y), new

    def update(state: ModelState, mean: Params, round: Round) -> ModelState:
        return ModelState(tree.sub(state.params, mean))

    return FedAlgorithm(
        ModelState,
        local,
        update,
        init_client=lambda x: ScaffnewClient(tree.zeros_like(x), x, real(0)),
        requires=Requires(
            synchronous="the clients' controls sum to zero only if all receive the same model",
            no_selection="all clients do equally many steps, whose numbers are random",
            check=_check,
            uniform_weights="the clients' controls sum to zero",
            mean_of_states="the clients' controls, which sum to zero",
        ),
    )


def _check(task: Task, timeline: Timeline) -> None:
    check_all_clients(task, timeline, "the controls of the clients sum to zero")
    if is_traced(timeline):
        return
    steps, mask = np.asarray(timeline.num_steps), np.asarray(timeline.mask)
    most = np.where(mask, steps, 0).max(axis=-1)
    least = np.where(mask, steps, timeline.max_steps).min(axis=-1)
    differ = mask.any(axis=-1) & (most != least)
    if differ.any():
        raise ValueError(
            f"a round of the timeline has visits of {least[differ][0]} to {most[differ][0]} steps; "
            "expected the same number for all clients, as from timelines.geometric_steps or "
            "sampling:geometric"
        )
