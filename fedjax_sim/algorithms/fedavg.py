r"""FedAvg and its server-side variants.

References:
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
        Data", 2017 (FedAvg, FedSGD).
    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019 (FedAvgM).
    Reddi et al., "Adaptive Federated Optimization", 2021 (FedAdagrad, FedAdam, FedYogi).
    Li et al., "Federated Optimization in Heterogeneous Networks", 2020 (FedProx).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax

from fedjax_sim import tree
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.transforms import proximal
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Upload, Work


class FedAvgState(NamedTuple):
    params: Params
    opt_state: optax.OptState


def fedavg(
    lr: ScalarOrSchedule,
    server: optax.GradientTransformation | None = None,
    anchored: Callable[[Oracle, Params], Oracle] = lambda oracle, anchor: oracle,
) -> FedAlgorithm:
    r"""FedAvg: local SGD, then a server optimizer on the mean pseudo-gradient.

    .. math::
        y_i^{k+1} = y_i^k - \eta\, g_i(y_i^k),\quad y_i^0 = x, \qquad
        \Delta = \sum_i w_i (x - y_i^{K_i}), \qquad x \leftarrow \text{server}(x, \Delta)

    Args:
        lr: client learning rate, or a schedule over rounds.
        server: any optax optimizer; it is given :math:`\Delta` as the gradient. Default
            ``optax.sgd(1.0)``, which is averaging.
        anchored: ``(oracle, anchor) -> oracle``, the gradient the local steps descend; the
            anchor is the model the visit started from.

    References:
        McMahan et al., 2017, Algorithm 1; with a server optimizer, Reddi et al., 2021, Algorithm 1.

    Example:
        >>> algorithm = fedavg(lr=0.1)
        >>> slow_server = fedavg(lr=0.1, server=optax.sgd(0.5))
    """
    server = server or optax.sgd(1.0)

    def init(params: Params) -> FedAvgState:
        return FedAvgState(params, server.init(params))

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        step = sgd(rate(lr, work), anchored(oracle, x).grad)
        return tree.sub(x, local_steps(step, x, work)), state

    def update(state: FedAvgState, pseudo_gradient: Upload, round: Round) -> FedAvgState:
        del round
        return _server_step(server, state, pseudo_gradient)

    return FedAlgorithm(init, local, update)


def fedprox(
    lr: ScalarOrSchedule, mu: Scalar, server: optax.GradientTransformation | None = None
) -> FedAlgorithm:
    r"""FedProx: FedAvg whose clients descend :math:`F_i(y) + \frac{\mu}{2}\|y - x\|^2`.

    The proximal problem is solved inexactly, by the visit's local steps.

    References:
        Li et al., 2020, Algorithm 2.

    Example:
        >>> algorithm = fedprox(lr=0.1, mu=0.01)
    """
    return fedavg(lr, server, lambda oracle, anchor: proximal(oracle, mu, anchor))


def fedsgd(lr: Scalar, server: optax.GradientTransformation | None = None) -> FedAlgorithm:
    r"""FedSGD: every client sends one gradient at the server model.

    .. math:: x \leftarrow x - \eta \sum_i w_i g_i(x)

    The gradient is that of the visit's first minibatch: with ``full_batch`` the full local one.
    ``server`` overrides ``optax.sgd(lr)``.

    References:
        McMahan et al., 2017, section 2.

    Example:
        >>> algorithm = fedsgd(lr=0.1)
    """
    optimizer = server or optax.sgd(lr)

    def init(params: Params) -> FedAvgState:
        return FedAvgState(params, optimizer.init(params))

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        gradient = oracle.grad(x, 0)
        return tree.where(work.num_steps > 0, gradient, tree.zeros_like(gradient)), state

    def update(state: FedAvgState, gradient: Upload, round: Round) -> FedAvgState:
        del round
        return _server_step(optimizer, state, gradient)

    return FedAlgorithm(init, local, update)


def fedavgm(lr: ScalarOrSchedule, server_lr: Scalar = 1.0, momentum: Scalar = 0.9) -> FedAlgorithm:
    r"""FedAvgM: server momentum, :math:`v \leftarrow \beta v + \Delta,\ x \leftarrow x - \eta_s v`.

    References:
        Hsu et al., 2019, section 4.

    Example:
        >>> algorithm = fedavgm(lr=0.1, momentum=0.9)
    """
    return fedavg(lr, optax.sgd(server_lr, momentum=momentum))


def fedadagrad(
    lr: ScalarOrSchedule, server_lr: Scalar, initial_accumulator: float = 0.0, eps: Scalar = 1e-3
) -> FedAlgorithm:
    """FedAdagrad: optax's Adagrad on the pseudo-gradient. Reddi et al., 2021, Algorithm 2.

    optax has ``eps`` inside the root, the paper (its tau) outside.

    Example:
        >>> algorithm = fedadagrad(lr=0.1, server_lr=0.1)
    """
    return fedavg(lr, optax.adagrad(server_lr, initial_accumulator, eps))


def fedadam(
    lr: ScalarOrSchedule, server_lr: Scalar, b1: Scalar = 0.9, b2: Scalar = 0.99, eps: Scalar = 1e-3
) -> FedAlgorithm:
    """FedAdam: optax's Adam on the pseudo-gradient. Reddi et al., 2021, Algorithm 2.

    optax corrects the moments' bias, which the paper does not; ``eps`` (the paper's tau) stands
    outside the root in both.  A number too small to matter under the root keeps the derivative
    finite where a gradient has been exactly 0 so far (features that are constantly 0).

    Example:
        >>> algorithm = fedadam(lr=0.1, server_lr=0.01)
    """
    return fedavg(lr, optax.adam(server_lr, b1, b2, eps, eps_root=1e-30))


def fedyogi(
    lr: ScalarOrSchedule, server_lr: Scalar, b1: Scalar = 0.9, b2: Scalar = 0.99, eps: Scalar = 1e-3
) -> FedAlgorithm:
    """FedYogi: optax's Yogi on the pseudo-gradient. Reddi et al., 2021, Algorithm 2.

    optax starts both moments at 1e-6, so that parameters without gradient move a little, too.

    Example:
        >>> algorithm = fedyogi(lr=0.1, server_lr=0.01)
    """
    return fedavg(lr, optax.yogi(server_lr, b1, b2, eps))


def _server_step(
    optimizer: optax.GradientTransformation, state: FedAvgState, gradient: Upload
) -> FedAvgState:
    # optax raises float decays to integer step counts, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    return FedAvgState(optax.apply_updates(state.params, updates), opt_state)
