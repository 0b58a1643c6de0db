r"""FedVARP: the server reduces the variance of partial participation.

References:
    Jhunjhunwala, Sharma, Nagarkatti, Joshi, "FedVARP: Tackling the Variance Due to Partial Client
        Participation in Federated Learning", 2022.
"""

from __future__ import annotations

from typing import NamedTuple

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import check_none_lost
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Scalar, Work, specified

__all__ = ["fedvarp"]

_MEMORY = "the server's memory is the mean of the displacements that the clients keep"


class FedVarpState(NamedTuple):
    params: Params  # x
    memory: Params  # H, the mean over all clients of their last displacements h_i


@specified
def fedvarp(lr: ScalarOrSchedule, server_lr: Scalar = 1.0) -> FedAlgorithm:
    r"""FedVARP: absent clients are represented by their last displacements.

    A client keeps its last displacement :math:`h_i`, at first 0, and uploads the change:

    .. math::
        x &\leftarrow x - \eta_s \bigl(H + \operatorname{mean}_{i \in S} (\Delta_i - h_i)\bigr),
        \qquad \Delta_i = x - y_{K_i} \\
        H &\leftarrow H + \tfrac{|S|}{M} \operatorname{mean}_{i \in S} (\Delta_i - h_i), \qquad
        h_i \leftarrow \Delta_i

    H is the mean of all :math:`h_i`.  In the paper the clients upload :math:`\Delta_i`, and the
    server stores the :math:`h_i`.  Here the clients keep them, and the messages have the size of
    FedAvg's.  Both are the same as long as every upload arrives: after a lost one the client's
    :math:`h_i` has moved and H has not, so timelines with lost uploads are refused.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_s`.

    Raises:
        ValueError: at the start of the run, a timeline with lost uploads, or weights other than
            equal ones.

    References:
        Jhunjhunwala et al., 2022, Algorithm 2.

    Example:
        >>> algorithm = fedvarp(lr=0.1)
    """

    check_rates(lr=lr)
    check_at_least(0, server_lr=server_lr)

    def init(params: Params) -> FedVarpState:
        return FedVarpState(params, tree.zeros_like(params))

    def local(x: Params, last: Params, oracle: Oracle, work: Work) -> tuple[Params, Params]:
        delta = tree.sub(x, local_steps(sgd(rate(lr, work), oracle.grad), x, work))
        new = tree.where(work.num_steps > 0, delta, last)
        return tree.sub(new, last), new

    def update(state: FedVarpState, change: Params, round: Round) -> FedVarpState:
        direction = tree.add(state.memory, change)
        return FedVarpState(
            tree.add_scale(state.params, -server_lr, direction),
            tree.add_scale(state.memory, round.participation, change),
        )

    return FedAlgorithm(
        init,
        local,
        update,
        init_client=tree.zeros_like,
        requires=Requires(
            check=lambda task, timeline: check_none_lost(timeline, _MEMORY),
            uniform_weights="the server's memory is the unweighted mean over all clients",
            mean_of_states=_MEMORY,
            other_uploads="changes minus those of the client's last visit",
        ),
    )
