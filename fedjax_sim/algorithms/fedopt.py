r"""FedAvg with server momentum or an adaptive server: FedAvgM, FedAdagrad, FedAdam, FedYogi.

References:
    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019 (FedAvgM).
    Reddi et al., "Adaptive Federated Optimization", 2021 (FedAdagrad, FedAdam, FedYogi).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms.fedavg import served_by
from fedjax_sim.checks import check_at_least, check_choice, check_decay, check_positive, check_rates
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.types import FedAlgorithm, Params, Scalar, specified

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi"]

Rule = Literal["optax", "paper"]


@specified
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
    return served_by(optax.sgd(server_lr, momentum=momentum), lr)


@specified
def fedadagrad(
    lr: ScalarOrSchedule,
    server_lr: optax.ScalarOrSchedule,
    initial_accumulator: float = 0.0,
    eps: Scalar = 1e-3,
    rule: Rule = "optax",
) -> FedAlgorithm:
    r"""FedAdagrad: Adagrad on the pseudo-gradient.

    .. math::
        v \leftarrow v + \Delta^2, \qquad
        x \leftarrow x - \eta_s \frac{\Delta}{\sqrt{v + \epsilon}}, \qquad
        \Delta = \operatorname{mean}_i (x - y_{K_i})

    with the clients' models y as in :func:`~fedjax_sim.algorithms.fedavg`.  The paper has
    ``eps`` (its tau) outside the root, and v starts at :math:`\epsilon^2`: ``rule="paper"``,

    .. math:: x \leftarrow x - \eta_s \frac{\Delta}{\sqrt{v} + \epsilon}

    without momentum (:math:`\beta_1 = 0`), as in its experiments.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate, or a schedule over server updates.
        initial_accumulator: initial sum of squares; with the paper's rule beside
            :math:`\epsilon^2`.
        eps: number under the root, or beside it, which limits the step of small gradients.
        rule: "optax" or "paper".

    Raises:
        ValueError: a number outside its range, another ``rule``.

    References:
        Reddi et al., 2021, Algorithm 2.

    Example:
        >>> algorithm = fedadagrad(lr=0.1, server_lr=0.1)
    """
    check_rates(server_lr=server_lr)
    check_at_least(0, initial_accumulator=initial_accumulator, eps=eps)
    if _is_paper(rule, eps):
        start = initial_accumulator + eps**2
        return served_by(_paper(server_lr, 0.0, eps, start, lambda v, square: v + square), lr)
    return served_by(optax.adagrad(server_lr, initial_accumulator, eps), lr)


@specified
def fedadam(
    lr: ScalarOrSchedule,
    server_lr: optax.ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-3,
    rule: Rule = "optax",
) -> FedAlgorithm:
    r"""FedAdam: Adam on the pseudo-gradient.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) \Delta, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) \Delta^2, \qquad
        \Delta = \operatorname{mean}_i (x - y_{K_i}) \\
        x &\leftarrow x - \eta_s \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    in round t = 1, 2, ..., with the clients' models y as in
    :func:`~fedjax_sim.algorithms.fedavg`.
    This is optax's Adam.  A number too small to matter under the root keeps the derivative
    finite where a gradient has been exactly 0 so far (features that are constantly 0).

    The paper does not correct the moments' bias, and v starts at :math:`\epsilon^2` (its tau
    squared) and not at 0: ``rule="paper"``,

    .. math:: x \leftarrow x - \eta_s \frac{m}{\sqrt{v} + \epsilon}

    In 60 rounds of a constant pseudo-gradient of 1, with the server rate 0.1, the paper's rule
    moves the model by 10.76 and optax's by 5.99; in :func:`fedyogi` by 10.05 and 5.59.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate, or a schedule over server updates.
        b1: decay of the mean of gradients.
        b2: decay of the mean of squares.
        eps: number beside the root, the paper's tau, which limits the step of small gradients.
        rule: "optax" or "paper".

    Raises:
        ValueError: a number outside its range, another ``rule``.

    References:
        Reddi et al., 2021, Algorithm 2.

    Example:
        >>> algorithm = fedadam(lr=0.1, server_lr=0.01)
    """
    check_rates(server_lr=server_lr)
    check_at_least(0, eps=eps)
    check_decay(b1=b1, b2=b2)
    if _is_paper(rule, eps):

        def second(v: Array, square: Array) -> Array:
            return b2 * v + (1 - b2) * square

        return served_by(_paper(server_lr, b1, eps, eps**2, second), lr)
    return served_by(optax.adam(server_lr, b1, b2, eps, eps_root=1e-30), lr)


@specified
def fedyogi(
    lr: ScalarOrSchedule,
    server_lr: optax.ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-3,
    rule: Rule = "optax",
) -> FedAlgorithm:
    r"""FedYogi: Yogi on the pseudo-gradient.

    .. math::
        v \leftarrow v - (1 - \beta_2) \operatorname{sign}(v - \Delta^2) \Delta^2

    and everything else as in :func:`fedadam`, also the two rules.  optax's Yogi corrects the bias
    of both moments and starts them at 1e-6, so parameters without gradient move a little, too.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate, or a schedule over server updates.
        b1: decay of the mean of gradients.
        b2: decay of the mean of squares, which changes by (1 - b2) times the new square.
        eps: number beside the root, the paper's tau, which limits the step of small gradients.
        rule: "optax" or "paper".

    Raises:
        ValueError: a number outside its range, another ``rule``.

    References:
        Reddi et al., 2021, Algorithm 2.

    Example:
        >>> algorithm = fedyogi(lr=0.1, server_lr=0.01)
    """
    check_rates(server_lr=server_lr)
    check_at_least(0, eps=eps)
    check_decay(b1=b1, b2=b2)
    if _is_paper(rule, eps):

        def second(v: Array, square: Array) -> Array:
            return v - (1 - b2) * jnp.sign(v - square) * square

        return served_by(_paper(server_lr, b1, eps, eps**2, second), lr)
    return served_by(optax.yogi(server_lr, b1, b2, eps), lr)


class PaperState(NamedTuple):
    """Moments of the paper's servers."""

    first: Params  # m
    second: Params  # v


def _is_paper(rule: str, eps: Scalar) -> bool:
    """Returns whether the rule is the paper's, after its checks."""
    check_choice(("optax", "paper"), rule=rule)
    if rule == "paper":
        check_positive(eps=eps)  # v starts at its square
    return rule == "paper"


def _paper(
    server_lr: optax.ScalarOrSchedule,
    b1: Scalar,
    eps: Scalar,
    start: Scalar,
    second: Callable[[Array, Array], Array],
) -> optax.GradientTransformation:
    """Server of Reddi et al., 2021, Algorithm 2, whose second moment begins with ``start``."""

    def init(params: Params) -> PaperState:
        return PaperState(
            tree.zeros_like(params), jax.tree.map(lambda x: jnp.full_like(x, start), params)
        )

    def update(
        updates: Params, state: PaperState, params: Params | None = None
    ) -> tuple[Params, PaperState]:
        # Algorithm 2: m_t, v_t and the step, whose tau is eps.
        m = tree.add_scale(tree.scale(b1, state.first), 1 - b1, updates)
        v = jax.tree.map(lambda v, g: second(v, g**2), state.second, updates)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), m, v)
        return direction, PaperState(m, v)

    return optax.chain(
        optax.GradientTransformation(init, update),  # pyright: ignore[reportArgumentType]
        optax.scale_by_learning_rate(server_lr),
    )
