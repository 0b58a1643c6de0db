r"""AFL: agnostic federated learning, the worst mixture of the clients.

References:
    Mohri, Sivek, Suresh, "Agnostic Federated Learning", 2019, arXiv 1902.00146.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import GRADIENTS, real
from fedjax_sim.checks import check_at_least, check_count, check_rates
from fedjax_sim.local import ScalarOrSchedule, server_rate
from fedjax_sim.prox import Simplex
from fedjax_sim.tree import bits_of_arrays, scalar_bits
from fedjax_sim.types import (
    Bits,
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Task,
    Timeline,
    Work,
    send_state,
    specified,
)
from fedjax_sim.wrappers import average_rounds

__all__ = ["afl"]


class AflState(NamedTuple):
    params: Params  # x
    weights: Array  # lambda [M]


class _Visit(NamedTuple):
    gradient: Params  # M lambda_i g_i(x)
    losses: Array  # [M] F_i(x) in the entry of client i, else 0

    def coded(self) -> Params:
        """Returns the part that a codec encodes."""
        return self.gradient

    def restored(self, gradient: Params) -> _Visit:
        """Returns the upload with another gradient."""
        return self._replace(gradient=gradient)

    def exact_bits(self) -> int:
        """Returns the bits of the one loss that a client sends."""
        return scalar_bits(self.losses)


def _sent_bits(upload: _Visit) -> int:
    return bits_of_arrays(upload.gradient) + upload.exact_bits()


@specified
def afl(
    lr: ScalarOrSchedule, num_clients: int, ascent_lr: Scalar = 0.1, average: bool = True
) -> FedAlgorithm:
    r"""AFL: descent of the model and ascent of the clients' weights on the worst mixture of losses.

    .. math::
        \min_x \max_{\lambda \in \Delta_M} \sum_i \lambda_i F_i(x)

    .. math::
        x &\leftarrow x - \gamma_x \sum_i \lambda_i g_i(x) \\
        \lambda &\leftarrow
            \Pi_{\Delta_M} \bigl(\lambda + \gamma_\lambda (F_1(x), \ldots, F_M(x))\bigr)

    with the losses at the old x, and :math:`\lambda = 1/M` at first.  Gradient and loss are those
    of the first minibatch of a visit: with ``full_batch`` those of all the client's data.  In a
    round of S of the M clients both sums are over them, times M / S: without bias if every client
    is equally likely to take part.

    Every client downloads :math:`\lambda`, M numbers, and sends its loss beside the gradient: runs
    count the bits of these, and codecs leave the loss as it is.  The simulation's upload has M
    losses, of which all but one are 0.

    Args:
        lr: :math:`\gamma_x`, or a schedule over rounds.
        num_clients: population M; the command line sets it.
        ascent_lr: :math:`\gamma_\lambda`.
        average: the model that is evaluated is the mean over the rounds, which the paper's theorem
            is about; False: the last iterate.

    Raises:
        ValueError: fewer than one client; at the start of the run, a task with another number.

    References:
        Mohri et al., 2019, section 4 (Stochastic-AFL).

    Example:
        >>> algorithm = afl(lr=0.1, num_clients=100, ascent_lr=0.01)
        >>> algorithm.init(jnp.zeros(3)).inner.weights.shape
        (100,)
    """
    check_rates(lr=lr)
    check_at_least(0, ascent_lr=ascent_lr)
    check_count(1, num_clients=num_clients)

    def init(params: Params) -> AflState:
        return AflState(params, jnp.full(num_clients, 1 / num_clients, jnp.result_type(float)))

    def local(message: AflState, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        x = message.params
        entry = jnp.arange(num_clients, dtype=jnp.int32) == jnp.asarray(work.client, jnp.int32)
        weight = num_clients * jnp.sum(jnp.where(entry, message.weights, 0))
        visit = _Visit(
            tree.scale(weight, oracle.grad(x, 0)), jnp.where(entry, real(oracle.loss(x, 0)), 0)
        )
        return tree.where(work.num_steps > 0, visit, tree.zeros_like(visit)), state

    def update(state: AflState, mean: _Visit, round: Round) -> AflState:
        params = tree.add_scale(state.params, -server_rate(lr, round), mean.gradient)
        raised = state.weights + num_clients * real(ascent_lr) * mean.losses
        return AflState(params, Simplex().prox(raised, 0.0))

    def check(task: Task, timeline: Timeline) -> None:
        if task.num_clients != num_clients:
            raise ValueError(
                f"num_clients is {num_clients}; expected {task.num_clients}, the clients of the "
                "task"
            )

    algorithm = FedAlgorithm(
        init,
        local,
        update,
        send_state,
        requires=Requires(
            check=check,
            uniform_weights="the clients' weights are lambda, which the server adapts",
            exact_mean="clients also upload their losses",
            other_uploads=GRADIENTS,
            bits=Bits(upload=_sent_bits),
        ),
    )
    return average_rounds(algorithm) if average else algorithm
