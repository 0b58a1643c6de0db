"""SCAFFOLD: stochastic controlled averaging.

References:
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import MEAN_OF_ALL
from fedjax_sim.checks import check_at_least, check_choice, check_is_setup, check_key, check_rates
from fedjax_sim.engine import weights_of_clients
from fedjax_sim.local import (
    ScalarOrSchedule,
    corrected,
    inverse_rate,
    local_steps,
    per_step,
    rate,
    sgd,
)
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Round,
    Scalar,
    Setup,
    Work,
    send_state,
    specified,
)

__all__ = ["gradient_controls", "scaffold"]


class ScaffoldState(NamedTuple):
    params: Params  # x
    control: Params  # c, the mean of all clients' controls c_i if all start at 0


@specified
def scaffold(
    lr: ScalarOrSchedule, server_lr: Scalar = 1.0, option: Literal["I", "II"] = "II"
) -> FedAlgorithm:
    r"""SCAFFOLD: control variates on the clients and the server correct the local steps.

    The controls :math:`c_i` of the clients and c of the server start at 0.

    .. math::
        y &\leftarrow y - \eta\,(g_i(y) - c_i + c), \qquad y_0 = x \\
        c_i^+ &= \nabla F_i(x) \ \text{(option I)} \quad\text{or}\quad
        c_i - c + \tfrac{1}{K_i \eta}(x - y_{K_i}) \ \text{(option II)} \\
        x &\leftarrow x - \eta_s \operatorname{mean}_i (x - y_{K_i}), \qquad
        c \leftarrow c + \tfrac{|S|}{M} \operatorname{mean}_i (c_i^+ - c_i)

    Option I is the full local gradient at the received model: one more pass over the data, no
    more communication.  A visit of zero steps leaves :math:`c_i`, the client's state, unchanged,
    and with option II so does a visit at the rate 0.

    A client receives no confirmation: after a lost upload
    (:func:`~fedjax_sim.timelines.lose_uploads`) its :math:`c_i` has moved and c has not.  Nothing
    corrects the difference later, and the limit is no longer the optimum: the mean gradient there
    is the mean of the :math:`c_i` minus c.

    With weights :math:`w_i` of the setup both means are weighted, and
    :math:`\sum_{i \in S} w_i / \sum_i w_i` takes the place of :math:`|S| / M`.  So c stays the
    weighted mean of all :math:`c_i` whatever cohorts are drawn, and the limit is the optimum of the
    weighted objective.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_s`.
        option: rule for the clients' controls.

    Raises:
        ValueError: an option other than "I" and "II"; at the start of the run, a client with
            another weight in some round than in others.

    References:
        Karimireddy et al., 2020, Algorithm 1.

    Example:
        >>> algorithm = scaffold(lr=0.1)
    """
    check_rates(lr=lr)
    check_at_least(0, server_lr=server_lr)
    check_choice(("I", "II"), option=option)

    def init(params: Params) -> ScaffoldState:
        return ScaffoldState(params, tree.zeros_like(params))

    def local(
        message: ScaffoldState, control: Params, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], Params]:
        x, eta = message.params, rate(lr, work)
        correction = tree.sub(message.control, control)
        # Before the steps, which move private leaves.
        new = oracle.full_grad(x) if option == "I" else control  # Eq. (4), option I
        y = local_steps(sgd(eta, corrected(oracle, correction).grad), x, work)  # Eq. (3)
        delta = tree.sub(x, y)
        active = work.num_steps > 0
        if option == "II":
            inverse = inverse_rate(eta)
            active &= inverse != 0  # at the rate 0 the path shows no gradient
            descent = per_step(delta, work)
            new = tree.add_scale(tree.scale(-1, correction), inverse, descent)  # Eq. (4), option II
        new = tree.where(active, new, control)
        return (delta, tree.sub(new, control)), new

    def update(state: ScaffoldState, mean: tuple[Params, Params], round: Round) -> ScaffoldState:
        delta, dcontrol = mean
        return ScaffoldState(  # Eq. (5)
            tree.add_scale(state.params, -server_lr, delta),
            tree.add_scale(state.control, round.participation, dcontrol),
        )

    return FedAlgorithm(
        init, local, update, send_state, init_client=tree.zeros_like, requires=MEAN_OF_ALL
    )


# A function of the first state of a run, because `init_client` sees no data.
def gradient_controls(state: Any, setup: Setup, key: Array) -> Any:
    r"""Starts control variates at the local gradients: :math:`c_i = \nabla F_i(x)`, their mean c.

    It takes the state of SCAFFOLD, SCAFFOLD-M, FedMoSWA or FedGAMMA before the first round, whose
    controls are zero otherwise, and costs a pass over all clients' data.

    Args:
        state: a :class:`~fedjax_sim.engine.RunState` of :func:`fedjax_sim.init`.
        setup: of the run; the mean has the weights of ``setup.weighting``.
        key: for objectives that draw random numbers (augmentation).

    Returns:
        The state to pass to :func:`fedjax_sim.advance`.

    Raises:
        ValueError: ``setup`` is no setup, ``key`` is not one key of JAX's default generator, or the
            state is one of another algorithm.

    References:
        Liu et al., "Improving Generalization in Federated Learning with Highly Heterogeneous Data
            via Momentum-Based Stochastic Controlled Weight Averaging", 2025, Appendix G.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.from_clients([{"x": jnp.array([1.0])}, {"x": jnp.array([3.0])}])
        >>> task = fs.empirical_task(
        ...     lambda w, batch, key: (w - batch["x"]) ** 2 / 2, data, fs.full_batch(1))
        >>> timeline = fs.timelines.full(1, 2, task.num_steps)
        >>> setup = fs.Setup(task, timeline, jnp.array(0.0))
        >>> state = fs.init(fs.scaffold(0.1), setup)
        >>> state = gradient_controls(state, setup, jax.random.key(0))
        >>> state.clients.tolist(), float(state.server.control)
        ([-1.0, -3.0], -2.0)
    """
    check_is_setup(setup)
    check_key(key)
    _check_has_controls(state)
    params, task = state.server.params, setup.task

    def local_gradient(client: Array) -> Params:
        oracle = task.oracle(client, jax.random.fold_in(key, client), 1)
        return oracle.full_grad(params)

    # One after the other: as a batch, the gradients of many clients may not fit.
    controls = jax.lax.map(local_gradient, jnp.arange(task.num_clients, dtype=jnp.int32))
    weights = weights_of_clients(task, setup.weighting, setup.timeline.max_steps)
    weights = weights.astype(jnp.result_type(float))
    mean = jax.tree.map(lambda c: jnp.average(c, 0, weights).astype(c.dtype), controls)
    return state._replace(server=state.server._replace(control=mean), clients=controls)


def _check_has_controls(state: Any) -> None:
    """Refuses states in which the server or the clients have no control variates."""
    server, clients = getattr(state, "server", None), getattr(state, "clients", ())
    control = getattr(server, "control", None)
    # Mime's and FedLin's servers have a control, too, but their clients keep nothing.
    if control is None or jax.tree.structure(control) != jax.tree.structure(clients):
        raise ValueError(
            f"state has the server {type(server).__name__}; expected a state of fs.init with a "
            "control at the server and at every client, as of fs.scaffold(0.1)"
        )
