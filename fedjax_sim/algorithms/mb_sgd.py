r"""Minibatch SGD: one server step per round on all gradients of the round, taken at one point.

References:
    Woodworth et al., "Is Local SGD Better than Minibatch SGD?", 2020.
"""

from __future__ import annotations

from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import GRADIENTS, UPLOADS_COUNTS, ModelState, real
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, server_rate
from fedjax_sim.tree import divide_or_keep
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Work, specified

__all__ = ["mb_sgd"]


@specified
def mb_sgd(lr: ScalarOrSchedule) -> FedAlgorithm:
    r"""Minibatch SGD: one step per round along the mean of all gradients at the server's model.

    .. math:: x \leftarrow x - \eta \operatorname{mean}_{i, k} g_i^{(k)}(x)

    The mean is over all local steps of all clients that report, so clients with more steps count
    more.  It takes as many gradients per round as FedAvg, and one step.

    Args:
        lr: learning rate :math:`\eta`, or a schedule over rounds.

    Raises:
        ValueError: a number outside its range.

    References:
        Woodworth et al., 2020, section 2.

    Example:
        >>> algorithm = mb_sgd(lr=0.5)
    """

    check_rates(lr=lr)

    def update(state: ModelState, mean: tuple[Params, Array], round: Round) -> ModelState:
        eta = server_rate(lr, round)
        return ModelState(tree.add_scale(state.params, -eta, mean_gradient(mean)))

    requires = Requires(exact_mean=UPLOADS_COUNTS, other_uploads=GRADIENTS)
    return FedAlgorithm(ModelState, gradient_sum, update, requires=requires)


def gradient_sum(
    x: Params, state: tuple, oracle: Oracle, work: Work
) -> tuple[tuple[Params, Array], tuple]:
    """Uploads the sum of the gradients of one visit, all taken at the message, and their number."""
    total = local_steps(lambda g, k: tree.add(g, oracle.grad(x, k)), tree.zeros_like(x), work)
    return (total, real(work.num_steps)), state


def mean_gradient(mean: tuple[Params, Array]) -> Params:
    """Returns the mean over all gradients from the mean of the uploads of :func:`gradient_sum`."""
    return divide_or_keep(*mean)
