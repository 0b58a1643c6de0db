r"""APFL: each client's model is a mixture of a personal and the global model.

References:
    Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import real, real_vdot
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_choice, check_share
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Scalar, Upload, Work, specified

__all__ = ["apfl"]


class ApflState(NamedTuple):
    """State of a client."""

    params: Params  # v
    alpha: Array


@specified
def apfl(
    lr: ScalarOrSchedule,
    alpha: Scalar = 0.5,
    adaptive: bool = False,
    order: Literal["before", "after"] = "before",
    server: optax.GradientTransformation | None = None,
) -> FedAlgorithm:
    r"""APFL: FedAvg, and a model per client that is trained inside a mixture with the global one.

    .. math::
        m_i &= \alpha_i v_i + (1 - \alpha_i)\, y, \qquad y_0 = x \\
        y &\leftarrow y - \eta\, g_i(y), \qquad
        v_i \leftarrow v_i - \eta\, \alpha_i\, g_i(m_i) \\
        \alpha_i &\leftarrow \operatorname{clip}\bigl(
            \alpha_i - \eta \langle v_i - y, g_i(m_i) \rangle, 0, 1\bigr)
            \quad\text{(adaptive)} \\
        x &\leftarrow x - \operatorname{mean}_i (x - y_{K_i})

    The right-hand sides have :math:`v_i`, :math:`\alpha_i` and y before the step.  With
    ``order="after"`` the mixture and the inner product have the updated y.

    The client keeps :math:`v_i`, which starts at the initial model, and :math:`\alpha_i`.  Its
    personal model is :math:`\alpha_i v_i + (1 - \alpha_i)\, x` with the current x.  The server's
    model is that of FedAvg for every :math:`\alpha`.

    The program of the authors mixes outputs of the two models, not their weights; a gradient at a
    model, which is all that an oracle offers, cannot express that.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        alpha: weight :math:`\alpha` of the personal model, in [0, 1]; the initial one if adaptive.
        adaptive: every local step also changes the client's weight.
        order: the mixture of a local step has y "before" or "after" the update of y in that step.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: ``alpha`` outside of [0, 1], another ``order``, ``server`` is one that
            FedAvg refuses.

    References:
        Deng et al., 2020, Algorithm 1.

    Example:
        >>> algorithm = apfl(lr=0.1, alpha=0.25, adaptive=True)
    """
    check_share(alpha=alpha)
    check_choice(("before", "after"), order=order)

    def local(x: Params, state: ApflState, oracle: Oracle, work: Work) -> tuple[Upload, ApflState]:
        eta = real(rate(lr, work))

        def step(carry: tuple[Params, ApflState], k: Array) -> tuple[Params, ApflState]:
            y, (v, weight) = carry
            new_y = sgd(eta, oracle.grad)(y, k)
            other = new_y if order == "after" else y
            gradient = oracle.grad(mixture(weight, v, other), k)
            new_v = tree.add_scale(v, -eta * weight, gradient)
            if adaptive:
                slope = real_vdot(tree.sub(v, other), gradient)
                weight = jnp.clip(weight - eta * slope, 0, 1)
            return new_y, ApflState(new_v, weight)

        y, new = local_steps(step, (x, state), work)
        return tree.sub(x, y), new

    def personal(x: Params, state: ApflState, oracle: Oracle, work: Work) -> Params:
        return mixture(state.alpha, state.params, x)

    return fedavg(lr, server)._replace(
        local=local, init_client=lambda params: ApflState(params, real(alpha)), personal=personal
    )


def mixture(weight: Scalar, v: Params, y: Params) -> Params:
    """Returns ``weight * v + (1 - weight) * y``."""
    return tree.add(tree.scale(weight, v), tree.scale(1 - weight, y))
