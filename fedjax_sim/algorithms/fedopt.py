r"""FedAvg with server momentum or an adaptive server: FedAvgM, FedAdagrad, FedAdam, FedYogi.

References:
    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019 (FedAvgM).
    Reddi et al., "Adaptive Federated Optimization", 2021 (FedAdagrad, FedAdam, FedYogi).
"""

import optax

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least, check_decay, check_rates
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.types import FedAlgorithm, Scalar

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi"]


def fedavgm(
    lr: ScalarOrSchedule, server_lr: optax.ScalarOrSchedule = 1.0, momentum: Scalar = 0.9
) -> FedAlgorithm:
    r"""FedAvgM: FedAvg with momentum on the server.

    .. math:: v \leftarrow \beta v + \Delta, \qquad x \leftarrow x - \eta_s v

    The optimizer's trace is v.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_s`, or a schedule over server updates.
        momentum: decay of the momentum, :math:`\beta`.

    Raises:
        ValueError: a number outside its range.

    References:
        Hsu et al., 2019, section 4.

    Example:
        >>> algorithm = fedavgm(lr=0.1, momentum=0.9)
    """
    check_rates(server_lr=server_lr)
    check_decay(momentum=momentum)
    return fedavg(lr, optax.sgd(server_lr, momentum=momentum))


def fedadagrad(
    lr: ScalarOrSchedule,
    server_lr: optax.ScalarOrSchedule,
    initial_accumulator: float = 0.0,
    eps: Scalar = 1e-3,
) -> FedAlgorithm:
    r"""FedAdagrad: optax's Adagrad on the pseudo-gradient.

    .. math::
        v \leftarrow v + \Delta^2, \qquad
        x \leftarrow x - \eta_s \frac{\Delta}{\sqrt{v + \epsilon}}, \qquad
        \Delta = \operatorname{mean}_i (x - y_{K_i})

    with the clients' models y as in :func:`~fedjax_sim.algorithms.fedavg`.
    optax has ``eps`` inside the root, the paper (its tau) outside.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate, or a schedule over server updates.
        initial_accumulator: initial sum of squares.
        eps: number under the root, which limits the step of small gradients.

    Raises:
        ValueError: a number outside its range.

    References:
        Reddi et al., 2021, Algorithm 2.

    Example:
        >>> algorithm = fedadagrad(lr=0.1, server_lr=0.1)
    """
    check_rates(server_lr=server_lr)
    check_at_least(0, initial_accumulator=initial_accumulator, eps=eps)
    return fedavg(lr, optax.adagrad(server_lr, initial_accumulator, eps))


def fedadam(
    lr: ScalarOrSchedule,
    server_lr: optax.ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-3,
) -> FedAlgorithm:
    r"""FedAdam: optax's Adam on the pseudo-gradient.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) \Delta, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) \Delta^2, \qquad
        \Delta = \operatorname{mean}_i (x - y_{K_i}) \\
        x &\leftarrow x - \eta_s \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    in round t = 1, 2, ..., with the clients' models y as in
    :func:`~fedjax_sim.algorithms.fedavg`.
    optax corrects the moments' bias, which the paper does not; ``eps`` (the paper's tau) is
    outside the root in both.  A number too small to matter under the root keeps the derivative
    finite where a gradient has been exactly 0 so far (features that are constantly 0).

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate, or a schedule over server updates.
        b1: decay of the mean of gradients.
        b2: decay of the mean of squares.
        eps: number beside the root, the paper's tau, which limits the step of small gradients.

    Raises:
        ValueError: a number outside its range.

    References:
        Reddi et al., 2021, Algorithm 2.

    Example:
        >>> algorithm = fedadam(lr=0.1, server_lr=0.01)
    """
    check_rates(server_lr=server_lr)
    check_at_least(0, eps=eps)
    check_decay(b1=b1, b2=b2)
    return fedavg(lr, optax.adam(server_lr, b1, b2, eps, eps_root=1e-30))


def fedyogi(
    lr: ScalarOrSchedule,
    server_lr: optax.ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-3,
) -> FedAlgorithm:
    r"""FedYogi: optax's Yogi on the pseudo-gradient.

    .. math::
        v \leftarrow v - (1 - \beta_2) \operatorname{sign}(v - \Delta^2) \Delta^2

    and everything else as in :func:`fedadam`.
    optax starts both moments at 1e-6, so parameters without gradient move a little, too.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate, or a schedule over server updates.
        b1: decay of the mean of gradients.
        b2: decay of the mean of squares, which changes by (1 - b2) times the new square.
        eps: number beside the root, the paper's tau, which limits the step of small gradients.

    Raises:
        ValueError: a number outside its range.

    References:
        Reddi et al., 2021, Algorithm 2.

    Example:
        >>> algorithm = fedyogi(lr=0.1, server_lr=0.01)
    """
    check_rates(server_lr=server_lr)
    check_at_least(0, eps=eps)
    check_decay(b1=b1, b2=b2)
    return fedavg(lr, optax.yogi(server_lr, b1, b2, eps))
