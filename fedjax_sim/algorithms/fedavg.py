r"""FedAvg and FedSGD.

References:
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
        Data", 2017.
    Reddi et al., "Adaptive Federated Optimization", 2021 (server optimizers).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import optax

from fedjax_sim import tree
from fedjax_sim.algorithms._local_optimizer import LocalState, check_local_state, locally_optimized
from fedjax_sim.algorithms._optimizers import check_optimizer, own_draws
from fedjax_sim.algorithms._shared import GRADIENTS
from fedjax_sim.checks import check_rates
from fedjax_sim.local import (
    ScalarOrSchedule,
    local_steps,
    optimizer_init,
    optimizer_update,
    rate,
    sgd,
)
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Upload, Work, specified

__all__ = ["fedavg", "fedsgd"]


class FedAvgState(NamedTuple):
    params: Params  # x
    opt_state: optax.OptState  # of the server optimizer


def _unchanged(oracle: Oracle, anchor: Params) -> Oracle:
    return oracle


@specified
def fedavg(
    lr: ScalarOrSchedule | None = None,
    server: optax.GradientTransformation | None = None,
    anchored: Callable[[Oracle, Params], Oracle] = _unchanged,
    *,
    local_optimizer: optax.GradientTransformation | None = None,
    local_state: LocalState | None = None,
) -> FedAlgorithm:
    r"""FedAvg: local SGD, then a server optimizer on the mean pseudo-gradient.

    .. math::
        y_i^{k+1} = y_i^k - \eta\, g_i(y_i^k),\quad y_i^0 = x, \qquad
        \Delta = \sum_i w_i (x - y_i^{K_i}), \qquad x \leftarrow \text{server}(x, \Delta)

    With ``local_optimizer`` the clients take its steps instead of SGD's.  ``local_state`` decides
    where its state comes from at the start of a visit:

    * ``"reset"``: the optimizer's initial state.
    * ``"keep"``: the state at the end of the client's previous visit, which is client state.
    * ``"mean"``: the server's state.  The server averages the floating leaves of the clients'
      states at the end of their visits, and adds the mean number of steps, rounded to an integer,
      to integer leaves.  Both means are over the visits with steps.  Messages and uploads contain
      the state.

    Kept states bias the limit most, since each follows the client's own objective.  A random key in
    an optimizer's state, as that of ``optax.add_noise``, is joined with the key of the visit or,
    on the server, of the round, so every visit, round and run has draws of its own; "mean" neither
    sends nor averages it.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds; not with
            ``local_optimizer``, which has its own.
        server: any optax optimizer; it receives :math:`\Delta` as the gradient. Default
            ``optax.sgd(1.0)``, which is averaging.
        anchored: ``(oracle, anchor) -> oracle``, the gradient that local steps descend; the
            anchor is the model that the visit started from.
        local_optimizer: any optax optimizer for the local steps.  Its schedules count the steps
            since the state was initialised: of one visit, or of all with "keep" and "mean".
        local_state: "reset" (the default), "keep" or "mean"; only with ``local_optimizer``.

    Raises:
        ValueError: an optimizer that is not one of optax, that climbs (as those without a learning
            rate), or whose random numbers do not come from a key in its state; both or neither of
            ``lr`` and ``local_optimizer``, another ``local_state``, or one without
            ``local_optimizer``.

    References:
        McMahan et al., 2017, Algorithm 1; with a server optimizer, Reddi et al., 2021, Algorithm 1.

    Example:
        >>> algorithm = fedavg(lr=0.1)
        >>> slow_server = fedavg(lr=0.1, server=optax.sgd(0.5))
        >>> adamw = fedavg(local_optimizer=optax.adamw(1e-3), local_state="keep")
    """
    check_rates(lr=lr)
    if server is not None:
        check_optimizer("server", server)
    check_local_state(lr, local_optimizer, local_state)
    if local_optimizer is not None:
        serve = functools.partial(_served, server, probed=True)
        return locally_optimized(serve, local_optimizer, local_state or "reset", anchored)
    assert lr is not None
    return _served(server, _sgd_visit(lr, anchored), probed=True)


def served_by(server: optax.GradientTransformation, lr: ScalarOrSchedule) -> FedAlgorithm:
    """FedAvg with a server optimizer of the package, which needs no probe."""
    check_rates(lr=lr)
    return _served(server, _sgd_visit(lr, _unchanged))


def _sgd_visit(lr: ScalarOrSchedule, anchored: Callable[[Oracle, Params], Oracle]) -> Callable:
    """Returns the visit whose upload is the change of the model by local SGD."""

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        step = sgd(rate(lr, work), anchored(oracle, x).grad)
        return tree.sub(x, local_steps(step, x, work)), state

    return local


@specified
def fedsgd(
    lr: optax.ScalarOrSchedule, server: optax.GradientTransformation | None = None
) -> FedAlgorithm:
    r"""FedSGD: every client sends one gradient at the server model.

    .. math:: x \leftarrow x - \eta \sum_i w_i g_i(x)

    The gradient is that of the visit's first minibatch: with ``full_batch`` the full local one.

    Args:
        lr: learning rate :math:`\eta` of the server's step, or a schedule over server updates.
        server: any optax optimizer, which replaces ``optax.sgd(lr)``.

    Raises:
        ValueError: ``server`` is refused as by :func:`fedavg`.

    References:
        McMahan et al., 2017, section 2.

    Example:
        >>> algorithm = fedsgd(lr=0.1)
    """
    check_rates(lr=lr)
    if server is not None:
        check_optimizer("server", server)

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        gradient = oracle.grad(x, 0)
        return tree.where(work.num_steps > 0, gradient, tree.zeros_like(gradient)), state

    return _served(server, local, lr, probed=True).requiring(other_uploads=GRADIENTS)


def _served(
    server: optax.GradientTransformation | None,
    local: Callable,
    lr: optax.ScalarOrSchedule = 1.0,
    probed: bool = False,
) -> FedAlgorithm:
    """An algorithm whose server optimizer, by default SGD, receives the mean upload as gradient.

    A server of the user is ``probed`` with the model; those of the package are known to descend.
    """
    optimizer = optax.sgd(lr) if server is None else server

    def init(params: Params) -> FedAvgState:
        if probed and server is not None:
            check_optimizer("server", server, params)
        return FedAvgState(params, optimizer_init(optimizer, params))

    def update(state: FedAvgState, gradient: Upload, round: Round) -> FedAvgState:
        opt_state = own_draws(state.opt_state, round.key)
        updates, opt_state = optimizer_update(optimizer, gradient, opt_state, state.params)
        return FedAvgState(optax.apply_updates(state.params, updates), opt_state)

    return FedAlgorithm(init, local, update)
