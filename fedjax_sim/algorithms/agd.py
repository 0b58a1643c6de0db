r"""Nesterov's accelerated gradient descent on full gradients.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, Algorithm 3.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import real
from fedjax_sim.algorithms.mb_ac_sgd import mb_ac_sgd
from fedjax_sim.checks import check_positive, is_concrete
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Scalar, Work, specified

__all__ = ["agd"]


@specified
def agd(smoothness: Scalar, mu: Scalar) -> FedAlgorithm:
    r"""AGD: Nesterov's accelerated gradient descent on the mean of the clients' objectives.

    .. math::
        x_{md} &= \frac{x + \sqrt\kappa\, x_{ag}}{\sqrt\kappa + 1}, \qquad
        x_{ag} \leftarrow x_{md} - \frac{1}{L} \nabla F(x_{md}) \\
        x &\leftarrow \Big(1 - \frac{1}{\sqrt\kappa}\Big) x + \frac{1}{\sqrt\kappa} x_{md}
        - \frac{1}{\sqrt{L \mu}} \nabla F(x_{md}), \qquad \kappa = L / \mu

    The step of :func:`~fedjax_sim.algorithms.mb_ac_sgd` with :math:`\eta = 1 / L` on full local
    gradients, one per round however many local steps the timeline allows.  With
    ``weighting=weight_by_examples`` F is the pooled objective.

    Args:
        smoothness: smoothness L of the objective.
        mu: strong convexity of the objective.

    Raises:
        ValueError: a number outside its range.

    References:
        Yuan, 2023, Algorithm 3.

    Example:
        >>> algorithm = agd(smoothness=2.0, mu=1e-3)
    """

    check_positive(smoothness=smoothness, mu=mu)
    if is_concrete(smoothness) and is_concrete(mu) and float(mu) > float(smoothness):
        raise ValueError(f"mu is {mu}; expected at most the smoothness, {smoothness}")

    def local(
        x: Params, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Array], tuple]:
        reports = jnp.asarray(work.num_steps) > 0
        gradient = oracle.full_grad(x)
        upload = tree.where(reports, gradient, tree.zeros_like(gradient))
        return (upload, real(reports)), state

    return mb_ac_sgd(1 / smoothness, mu)._replace(local=local)
