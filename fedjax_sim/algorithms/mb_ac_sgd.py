r"""Minibatch accelerated SGD.

References:
    Yuan and Ma, "Federated Accelerated Stochastic Gradient Descent", 2020, section 5.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from fedjax_sim.algorithms._shared import GRADIENTS, UPLOADS_COUNTS
from fedjax_sim.algorithms.fedac import accelerated, coupling, middle_of
from fedjax_sim.algorithms.mb_sgd import gradient_sum, mean_gradient
from fedjax_sim.types import FedAlgorithm, Message, Params, Requires, Round, Scalar, specified

__all__ = ["mb_ac_sgd"]


class AcceleratedState(NamedTuple):
    params: Params  # x_ag
    main: Params  # x


@specified
def mb_ac_sgd(lr: Scalar, mu: Scalar) -> FedAlgorithm:
    r"""Minibatch accelerated SGD: one step of vanilla FedAc per round, on all its gradients.

    .. math:: \gamma = \sqrt{\eta / \mu}, \quad \alpha = 1 / (\gamma \mu), \quad \beta = \alpha + 1

    With exact gradients and :math:`\eta = 1 / L` it is Nesterov's accelerated gradient descent.

    Args:
        lr: learning rate eta.
        mu: estimate of the strong convexity, positive.

    Raises:
        ValueError: a number outside its range.

    References:
        Yuan and Ma, 2020, section 5.

    Example:
        >>> algorithm = mb_ac_sgd(lr=0.5, mu=1e-3)
    """
    numbers = coupling(lr, mu, 1, "vanilla")

    def broadcast(state: AcceleratedState, round: Round) -> Message:
        return middle_of(state.params, state.main, numbers.beta)

    def update(
        state: AcceleratedState, mean: tuple[Params, Array], round: Round
    ) -> AcceleratedState:
        gradient = mean_gradient(mean)
        return AcceleratedState(
            *accelerated((state.params, state.main), lambda middle: gradient, lr, numbers)
        )

    return FedAlgorithm(
        lambda x: AcceleratedState(x, x),
        gradient_sum,
        update,
        broadcast,
        requires=Requires(
            synchronous="an accelerated step takes its gradient at its own, current point",
            exact_mean=UPLOADS_COUNTS,
            other_uploads=GRADIENTS,
        ),
    )
