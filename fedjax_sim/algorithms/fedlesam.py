r"""FedLESAM: sharpness-aware clients without a second gradient.

References:
    Fan et al., "Locally Estimated Global Perturbations are Better than Local Perturbations for
        Federated Sharpness-aware Minimization", 2024.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState, Transform
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, perturbed, rate, sgd, unchanged
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Upload, Work, specified

__all__ = ["fedlesam"]


class FedLesamClient(NamedTuple):
    params: Params  # x_i^old, the model that the client received at its last visit
    visited: Array  # bool    there was a last visit


@specified
def fedlesam(
    lr: ScalarOrSchedule, radius: Scalar = 0.1, transform: Transform = unchanged
) -> FedAlgorithm:
    r"""FedLESAM: the perturbation is estimated from the models that the client has received.

    .. math::
        y \leftarrow y - \eta\, g_i(y + e_i), \qquad
        e_i = r\, \frac{x_i^{\text{old}} - x}{\|x_i^{\text{old}} - x\| + 10^{-7}}, \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}

    :math:`e_i` is fixed during a visit.  :math:`x_i^{\text{old}}` is the model of the client's last
    visit; :math:`e_i = 0` at its first.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        radius: norm r of the perturbation.
        transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    Raises:
        ValueError: a number outside its range.

    References:
        Fan et al., 2024, Algorithm 1.

    Example:
        >>> algorithm = fedlesam(lr=0.1)
    """

    check_rates(lr=lr)
    check_at_least(0, radius=radius)

    def local(
        x: Params, state: FedLesamClient, oracle: Oracle, work: Work
    ) -> tuple[Upload, FedLesamClient]:
        back = tree.sub(tree.where(state.visited, state.params, x), x)
        offset = tree.scale(tree.over_norm(radius, back, 1e-7), back)
        step = sgd(rate(lr, work), transform(perturbed(oracle, offset)).grad)
        delta = tree.sub(x, local_steps(step, x, work))
        new = FedLesamClient(x, jnp.array(True))
        return delta, tree.where(work.num_steps > 0, new, state)

    def update(state: ModelState, delta: Upload, round: Round) -> ModelState:
        return ModelState(tree.sub(state.params, delta))

    return FedAlgorithm(
        ModelState, local, update, init_client=lambda x: FedLesamClient(x, jnp.array(False))
    )
