r"""Minibatch baselines: one server step a round on all gradients of the round, taken at one point.

References:
    Woodworth et al., "Is Local SGD Better than Minibatch SGD?", 2020.
    Yuan and Ma, "Federated Accelerated Stochastic Gradient Descent", 2020, section 5 (MB-AC-SGD).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms.fedac import Coupling, accelerated, coupling, middle_of
from fedjax_sim.local import local_steps
from fedjax_sim.types import FedAlgorithm, Message, Oracle, Params, Round, Scalar, Work


class MinibatchState(NamedTuple):
    params: Params


class AcceleratedState(NamedTuple):
    params: Params  # x_ag
    main: Params  # x


def mb_sgd(lr: Scalar) -> FedAlgorithm:
    r"""Minibatch SGD: :math:`x \leftarrow x - \eta \operatorname{mean}_{i, k} g_i^{(k)}(x)`.

    The mean is over all local steps of all clients that report, so that clients with more steps
    count more.  As many gradients a round as FedAvg, and one step.

    References:
        Woodworth et al., 2020, section 2.

    Example:
        >>> algorithm = mb_sgd(lr=0.5)
    """

    def update(state: MinibatchState, mean: tuple[Params, Array], round: Round) -> MinibatchState:
        del round
        return MinibatchState(tree.add_scale(state.params, -lr, _gradient(mean)))

    return FedAlgorithm(MinibatchState, _gradient_sum, update)


def mb_ac_sgd(lr: Scalar, mu: Scalar) -> FedAlgorithm:
    r"""Minibatch accelerated SGD: one step of vanilla FedAc a round, on all its gradients.

    .. math:: \gamma = \sqrt{\eta / \mu}, \quad \alpha = 1 / (\gamma \mu), \quad \beta = \alpha + 1

    With exact gradients and :math:`\eta = 1 / L` it is Nesterov's accelerated gradient descent.

    Args:
        lr: eta.
        mu: estimate of the strong convexity.

    References:
        Yuan and Ma, 2020, section 5.

    Example:
        >>> algorithm = mb_ac_sgd(lr=0.5, mu=1e-3)
    """
    pair: Coupling = coupling(lr, mu, 1, "vanilla")

    def broadcast(state: AcceleratedState, round: Round) -> Message:
        del round
        return middle_of(state.params, state.main, pair.beta)

    def update(
        state: AcceleratedState, mean: tuple[Params, Array], round: Round
    ) -> AcceleratedState:
        del round
        gradient = _gradient(mean)
        return AcceleratedState(
            *accelerated((state.params, state.main), lambda middle: gradient, lr, pair)
        )

    return FedAlgorithm(
        lambda x: AcceleratedState(x, x),
        _gradient_sum,
        update,
        broadcast,
        synchronous_only="an accelerated step takes its gradient at its own point, not an older one",
    )


def agd(smoothness: Scalar, mu: Scalar) -> FedAlgorithm:
    r"""Nesterov's accelerated gradient descent on the mean of the clients' objectives.

    .. math::
        x_{md} &= \frac{x + \sqrt\kappa\, x_{ag}}{\sqrt\kappa + 1}, \qquad
        x_{ag} \leftarrow x_{md} - \frac{1}{L} \nabla F(x_{md}) \\
        x &\leftarrow \Big(1 - \frac{1}{\sqrt\kappa}\Big) x + \frac{1}{\sqrt\kappa} x_{md}
        - \frac{1}{\sqrt{L \mu}} \nabla F(x_{md}), \qquad \kappa = L / \mu

    The step of :func:`mb_ac_sgd` with :math:`\eta = 1 / L` on full local gradients, one a round
    however many local steps the schedule allows.  By examples weighted, F is the pooled objective.

    Args:
        smoothness: L.
        mu: strong convexity.

    References:
        Yuan, 2023, Algorithm 3.

    Example:
        >>> algorithm = agd(smoothness=2.0, mu=1e-3)
    """

    def local(
        x: Params, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Array], tuple]:
        reports = jnp.asarray(work.num_steps) > 0
        gradient = oracle.full_grad(x)
        upload = tree.where(reports, gradient, tree.zeros_like(gradient))
        return (upload, reports.astype(jnp.result_type(float))), state

    return mb_ac_sgd(1 / smoothness, mu)._replace(local=local)


def _gradient_sum(
    x: Params, state: tuple, oracle: Oracle, work: Work
) -> tuple[tuple[Params, Array], tuple]:
    """A visit's gradients, all taken at the message, and how many they are."""
    total = local_steps(lambda g, k: tree.add(g, oracle.grad(x, k)), tree.zeros_like(x), work)
    return (total, jnp.asarray(work.num_steps).astype(jnp.result_type(float))), state


def _gradient(mean: tuple[Params, Array]) -> Params:
    total, count = mean
    # A round in which nobody reports is computed, then discarded: it must not divide by 0 either.
    return tree.divide(total, jnp.where(count > 0, count, 1.0))
