r"""Sharpness-aware clients: FedSAM, FedASAM, MoFedSAM, FedLESAM, FedGAMMA.

Every factory has an argument ``transform: Oracle -> Oracle`` for clipping, weight decay and the
like: it acts on the gradient at the perturbed model, before the method's own terms, while the
gradient that perturbs stays that of the data.

References:
    Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022 (FedSAM,
        MoFedSAM).
    Caldarola et al., "Improving Generalization in Federated Learning by Seeking Flat Minima", 2022
        (FedASAM).
    Fan et al., "Locally Estimated Global Perturbations are Better than Local Perturbations for
        Federated Sharpness-aware Minimization", 2024 (FedLESAM).
    Dai et al., "FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization", 2023.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.algorithms.scaffold import scaffold
from fedjax_sim.local import ScalarOrSchedule, local_steps, per_step, rate, sgd
from fedjax_sim.transforms import asam, perturbed, sam, transform_oracle, unchanged
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Upload, Work, send_state

Transform = Callable[[Oracle], Oracle]


def fedsam(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.05,
    server: optax.GradientTransformation | None = None,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedSAM: FedAvg whose clients descend :math:`g_i(y + r\, g_i(y) / \|g_i(y)\|)`.

    Both gradients of a step are those of one minibatch; the norm is global over the parameters.

    References:
        Qu et al., 2022, Algorithm 1.

    Example:
        >>> from fedjax_sim.transforms import add_decayed_weights
        >>> algorithm = fedsam(lr=0.1, transform=lambda oracle: add_decayed_weights(oracle, 1e-3))
    """
    return transform_oracle(fedavg(lr, server), lambda oracle: transform(sam(oracle, radius)))


def fedasam(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.5,
    eta: Scalar = 0.01,
    server: optax.GradientTransformation | None = None,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedASAM: FedSAM with the perturbation :math:`r\, T^2 g / \|T g\|`, :math:`T = |y| + \eta`.

    T is 1 on biases and scales.  The paper's averaging of server models is not part of it.

    References:
        Caldarola et al., 2022, section 4.

    Example:
        >>> algorithm = fedasam(lr=0.1)
    """
    return transform_oracle(fedavg(lr, server), lambda oracle: transform(asam(oracle, radius, eta)))


def fedgamma(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.1,
    server_lr: Scalar = 1.0,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    """FedGAMMA: SCAFFOLD (option II) with sharpness-aware gradients.

    References:
        Dai et al., 2023, Algorithm 1.

    Example:
        >>> algorithm = fedgamma(lr=0.1)
    """
    return transform_oracle(scaffold(lr, server_lr), lambda oracle: transform(sam(oracle, radius)))


class MoFedSamState(NamedTuple):
    params: Params
    direction: Params  # Delta, the mean descent direction of the last round


def mofedsam(
    lr: ScalarOrSchedule, radius: Scalar = 0.1, mix: Scalar = 0.1, transform: Transform = unchanged
) -> FedAlgorithm:
    r"""MoFedSAM: local steps follow the last round's mean direction, too.

    With ``mix`` b and :math:`\Delta` from zero:

    .. math::
        y \leftarrow y - \eta\,\bigl(b\, g_i(y + e) + (1 - b) \Delta\bigr), \qquad
        \Delta \leftarrow \operatorname{mean}_i \frac{x - y_{K_i}}{K_i \eta}, \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}

    Each client's displacement is divided by its own number of steps, so that the direction's
    length does not depend on it.

    References:
        Qu et al., 2022, Algorithm 2.

    Example:
        >>> algorithm = mofedsam(lr=0.1)
    """

    def init(params: Params) -> MoFedSamState:
        return MoFedSamState(params, tree.zeros_like(params))

    def local(
        message: MoFedSamState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], tuple]:
        x, eta = message.params, rate(lr, work)
        sharp = transform(sam(oracle, radius))
        past = tree.scale(1 - mix, message.direction)

        def grad(y: Params, k: Array) -> Params:
            return tree.add_scale(past, mix, sharp.grad(y, k))

        delta = tree.sub(x, local_steps(sgd(eta, grad), x, work))
        return (delta, tree.scale(1 / eta, per_step(delta, work))), state

    def update(state: MoFedSamState, mean: tuple[Params, Params], round: Round) -> MoFedSamState:
        del round
        delta, direction = mean
        return MoFedSamState(tree.sub(state.params, delta), direction)

    return FedAlgorithm(init, local, update, send_state)


class Received(NamedTuple):
    """What a client of FedLESAM keeps."""

    params: Params  # the model received at its last visit
    before: Array  # bool    there was one


class FedLesamState(NamedTuple):
    params: Params
    displacement: Params  # of the last server update: new model minus old


def fedlesam(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.1,
    reference: Literal["client", "server"] = "client",
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedLESAM: the perturbation is estimated from the server's models, without a second gradient.

    .. math::
        y \leftarrow y - \eta\, g_i(y + e_i), \qquad
        e_i = r\, \frac{x_i^{\text{old}} - x}{\|x_i^{\text{old}} - x\| + 10^{-7}}, \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}

    :math:`e_i` is fixed during a visit.  ``reference="client"``, the paper's:
    :math:`x_i^{\text{old}}` is the model of the client's last visit, and :math:`e_i = 0` at its
    first.  ``"server"``, the released program's: the server's model one update ago, for everybody.

    Raises:
        ValueError: another reference.

    References:
        Fan et al., 2024, Algorithm 1.

    Example:
        >>> algorithm = fedlesam(lr=0.1)
    """
    if reference not in ("client", "server"):
        raise ValueError(f"reference is {reference!r}; expected 'client' or 'server'")

    def descend(x: Params, old: Params, oracle: Oracle, work: Work) -> Params:
        back = tree.sub(old, x)
        offset = tree.scale(tree.over_norm(radius, back, 1e-7), back)
        step = sgd(rate(lr, work), transform(perturbed(oracle, offset)).grad)
        return tree.sub(x, local_steps(step, x, work))

    def from_client(
        x: Params, state: Received, oracle: Oracle, work: Work
    ) -> tuple[Upload, Received]:
        delta = descend(x, tree.where(state.before, state.params, x), oracle, work)
        seen = Received(x, jnp.array(True))
        return delta, tree.where(work.num_steps > 0, seen, state)

    def from_server(
        message: FedLesamState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[Upload, tuple]:
        old = tree.sub(message.params, message.displacement)
        return descend(message.params, old, oracle, work), state

    def init(params: Params) -> FedLesamState:
        return FedLesamState(params, tree.zeros_like(params))

    def update(state: FedLesamState, delta: Upload, round: Round) -> FedLesamState:
        del round
        return FedLesamState(tree.sub(state.params, delta), tree.scale(-1, delta))

    if reference == "client":
        return FedAlgorithm(
            init, from_client, update, init_client=lambda x: Received(x, jnp.array(False))
        )
    return FedAlgorithm(init, from_server, update, send_state)
