r"""Mime and MimeLite: an optimizer's state that is fixed during local steps.

References:
    Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, "Mime: Mimicking Centralized Stochastic
        Algorithms in Federated Learning", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._optimizers import check_optimizer, own_draws
from fedjax_sim.algorithms._two_phase import (
    PAIRS,
    centred,
    gradient_and_steps,
    sends_gradient,
)
from fedjax_sim.checks import check_choice, check_decay, check_rates, check_unused
from fedjax_sim.local import ScalarOrSchedule, local_steps, optimizer_init, optimizer_update, rate
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Round,
    Scalar,
    Work,
    send_state,
    specified,
)

__all__ = ["mime", "mimelite"]


class MimeLiteState(NamedTuple):
    params: Params  # x
    opt_state: optax.OptState  # s


class MimeState(NamedTuple):
    params: Params  # x
    opt_state: optax.OptState  # s
    control: Params  # c, the mean of the cohort's full gradients at x


@specified
def mimelite(
    lr: ScalarOrSchedule | None = None,
    momentum: Scalar = 0.9,
    optimizer: optax.GradientTransformation | None = None,
    form: Literal["ema", "trace"] = "ema",
) -> FedAlgorithm:
    r"""MimeLite: local steps with the server's optimizer state, which does not change in a visit.

    With an optimizer whose step is -U(g, s) and whose state becomes V(g, s):

    .. math::
        y \leftarrow y - \eta\, U(g_i(y), s), \quad y_0 = x; \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}, \qquad
        s \leftarrow V(\operatorname{mean}_i \nabla F_i(x), s)

    with the full gradients at the received x.  So the state is free of the clients' drift.  Without
    ``optimizer`` the state is a momentum m, in one of two forms with :math:`U = V`:

    .. math::
        \text{"ema"}: \ (1 - \beta) g + \beta m, \qquad \text{"trace"}: \ g + \beta m

    "ema" is the paper's, "trace" that of FedJAX's Mime with momentum and of ``optax.trace``; its
    steps are :math:`1 / (1 - \beta)` times longer in the long run.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.  With ``optimizer``, which
            has its own rate, :math:`\eta` multiplies its updates; default 1.
        momentum: :math:`\beta`, not with ``optimizer``.
        optimizer: any optax optimizer, complete with its learning rate, as ``optax.adam(0.1)``.
            Its schedules count the server's updates of s, as s does not change in a visit.
        form: "ema" or "trace", not with ``optimizer``.

    Raises:
        ValueError: an optimizer that :func:`~fedjax_sim.algorithms.fedavg` refuses, or one beside
            another ``momentum`` or ``form``; neither ``lr`` nor ``optimizer``, a momentum outside
            of [0, 1), another ``form``.

    References:
        Karimireddy et al., 2020, Algorithm 1; "trace": FedJAX 0.0.17, ``mime_lite``.

    Example:
        >>> algorithm = mimelite(lr=0.1)
        >>> adam = mimelite(optimizer=optax.adam(0.01))
    """
    base, eta = _base(lr, momentum, optimizer, form)

    def init(params: Params) -> MimeLiteState:
        if optimizer is not None:
            check_optimizer("optimizer", optimizer, params)
        return MimeLiteState(params, optimizer_init(base, params))

    def local(
        message: MimeLiteState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], tuple]:
        x = message.params
        # Before the steps, which move private leaves.
        gradient = tree.where(work.num_steps > 0, oracle.full_grad(x), tree.zeros_like(x))
        y = _steps(base, rate(eta, work), oracle.grad, message, work)
        return (tree.sub(x, y), gradient), state

    def update(state: MimeLiteState, mean: tuple[Params, Params], round: Round) -> MimeLiteState:
        delta, gradient = mean
        return MimeLiteState(tree.sub(state.params, delta), _next(base, gradient, state, round))

    return FedAlgorithm(init, local, update, send_state)


@specified
def mime(
    lr: ScalarOrSchedule | None = None,
    momentum: Scalar = 0.9,
    optimizer: optax.GradientTransformation | None = None,
    form: Literal["ema", "trace"] = "ema",
) -> FedAlgorithm:
    r"""Mime: MimeLite whose local gradients are corrected to the cohort's full gradient.

    .. math::
        y \leftarrow y - \eta\, U\bigl(g_i(y) - g_i(x) + c, s\bigr), \qquad
        c = \operatorname{mean}_i \nabla F_i(x)

    with both minibatch gradients on the same examples, and x and s updated as in
    :func:`mimelite`.  As c and the steps belong to the same x, every cohort takes part in two
    rounds in a row, as from ``timelines.repeat_rounds(timeline, 2)``: in rounds 0, 2, ... it
    sends full gradients, in rounds 1, 3, ... it takes steps.

    Args:
        lr: as for :func:`mimelite`; a schedule is one over the rounds of the timeline, whose values
            in rounds 1, 3, ... count.
        momentum: as for :func:`mimelite`.
        optimizer: as for :func:`mimelite`; its schedules count the rounds of steps.
        form: as for :func:`mimelite`.

    Raises:
        ValueError: as :func:`mimelite`; at the start of the run, rounds 2t and 2t + 1 have
            different cohorts, or all uploads of round 2t are lost.

    References:
        Karimireddy et al., 2020, Algorithm 1; "trace": FedJAX 0.0.17, ``mime``.

    Example:
        >>> algorithm = mime(lr=0.1)
        >>> adam = mime(optimizer=optax.adam(0.01))
    """
    base, eta = _base(lr, momentum, optimizer, form)

    def init(params: Params) -> MimeState:
        if optimizer is not None:
            check_optimizer("optimizer", optimizer, params)
        return MimeState(params, optimizer_init(base, params), tree.zeros_like(params))

    def local(message: MimeState, state: tuple, oracle: Oracle, work: Work) -> tuple[Params, tuple]:
        x = message.params
        gradient, steps = gradient_and_steps(oracle, x, work)
        grad = centred(oracle, x, message.control)
        y = _steps(base, rate(eta, work), grad, message, steps)
        return tree.add(gradient, tree.sub(x, y)), state  # one of them is 0

    def update(state: MimeState, mean: Params, round: Round) -> MimeState:
        after_steps = MimeState(
            tree.sub(state.params, mean), _next(base, state.control, state, round), state.control
        )
        return tree.where(sends_gradient(round.number), state._replace(control=mean), after_steps)

    return FedAlgorithm(
        init,
        local,
        update,
        send_state,
        requires=PAIRS,
    )


def _base(
    lr: ScalarOrSchedule | None,
    momentum: Scalar,
    optimizer: optax.GradientTransformation | None,
    form: str,
) -> tuple[optax.GradientTransformation, ScalarOrSchedule]:
    """Returns the optimizer, and the factor of its updates."""
    check_rates(lr=lr)
    check_decay(momentum=momentum)
    check_choice(("ema", "trace"), form=form)
    if optimizer is not None:
        check_unused("optimizer", momentum=(momentum, 0.9), form=(form, "ema"))
        check_optimizer("optimizer", optimizer)
        return optimizer, 1.0 if lr is None else lr
    if lr is None:
        raise ValueError("lr is None; expected a learning rate, or optimizer")
    mean = optax.ema(momentum, debias=False) if form == "ema" else optax.trace(momentum)
    return optax.chain(mean, optax.scale(-1.0)), lr


def _steps(
    base: optax.GradientTransformation,
    eta: Scalar,
    grad: Callable[[Params, Array], Params],
    message: MimeLiteState | MimeState,
    work: Work,
) -> Params:
    """Local steps with the server's state of the optimizer."""

    def step(y: Params, k: Array) -> Params:
        # The state stays that of the server, so the step belongs to the key of its draws.
        opt_state = own_draws(message.opt_state, jax.random.fold_in(work.key, k))
        updates, _ = optimizer_update(base, grad(y, k), opt_state, y)
        return tree.add_scale(y, eta, updates)

    return local_steps(step, message.params, work)


def _next(
    base: optax.GradientTransformation,
    gradient: Params,
    state: MimeLiteState | MimeState,
    round: Round,
) -> optax.OptState:
    """Returns the optimizer's state after a gradient at the server's model."""
    opt_state = own_draws(state.opt_state, round.key)
    return optimizer_update(base, gradient, opt_state, state.params)[1]
