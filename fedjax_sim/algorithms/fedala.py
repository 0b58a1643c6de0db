r"""FedALA: clients learn entry by entry how much of the received model they take.

References:
    Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for Personalized
        Federated Learning", 2023, arXiv 2212.01197.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import cycled
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least, check_count
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Scalar,
    ServerState,
    Upload,
    Work,
    specified,
)

__all__ = ["fedala"]


class FedAlaClient(NamedTuple):
    params: Params  # v_i, the model at the end of the client's last visit
    weights: Params  # w_i, with None instead of the leaves that are taken as received
    started: Array  # bool    the weights have been learned


@specified
def fedala(
    lr: ScalarOrSchedule,
    weight_lr: Scalar = 1.0,
    weight_steps: int = 1,
    start_steps: int = 10,
    where: tree.leaves.Selection = tree.leaves.last_layer,
    server: optax.GradientTransformation | None = None,
) -> FedAlgorithm:
    r"""FedALA: FedAvg whose visits start between the received and the client's own last model.

    With :math:`v_i` the model at the end of the client's last visit (first the initial one), the
    weights :math:`w_i` of all entries, from one, and products entry by entry:

    .. math::
        m(w) &= v_i + (x - v_i)\, w \\
        w_i &\leftarrow \operatorname{clip}\bigl(w_i - \eta_w\, (x - v_i)\, g_i(m(w_i)), 0, 1\bigr),
            \qquad \text{then} \quad
        y \leftarrow y - \eta\, g_i(y), \quad y_0 = m(w_i) \\
        v_i &\leftarrow y_{K_i}, \qquad x \leftarrow \operatorname{mean}_i y_{K_i}

    Leaves that ``where`` does not select have the weight 1: they are taken as received.  Weights
    are learned on the first minibatches of the visit, of which there are as many as steps of the
    weights; more steps take them again.  The personal model is :math:`m(w_i)` with weights that are
    learned for the current model.

    The paper and the authors' program learn the weights on a random part of the data: at a client's
    first time until the losses of the last ten passes have a standard deviation below 0.1, later in
    one pass.  Here both are numbers of steps, and the paper's 80 % of the data are 0.8 times the
    minibatches of an epoch.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        weight_lr: learning rate :math:`\eta_w` of the weights.
        weight_steps: steps of the weights per visit.
        start_steps: the same at the first visit at which the received model is not the client's.
        where: True for leaves whose weights are learned; default: the last layer.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: a number outside its range, ``where`` is no predicate, ``server`` is one that
            FedAvg refuses; at the start of the run, a predicate that selects no leaves.

    References:
        Zhang et al., 2023, Algorithm 1.

    Example:
        >>> algorithm = fedala(lr=0.1, weight_steps=4)
    """
    check_at_least(0, weight_lr=weight_lr)
    check_count(0, weight_steps=weight_steps, start_steps=start_steps)
    tree.leaves.check_selection(where)
    plain = fedavg(lr, server)

    def init(params: Params) -> ServerState:
        tree.leaves.split_some(params, where)
        return plain.init(params)

    def init_client(params: Params) -> FedAlaClient:
        learned, _ = tree.leaves.split(params, where)
        return FedAlaClient(params, jax.tree.map(jnp.ones_like, learned), jnp.array(False))

    def learned(x: Params, state: FedAlaClient, oracle: Oracle, work: Work) -> FedAlaClient:
        """Returns the client with its weights for the received model, and the model m(w)."""
        _, received = tree.leaves.split(x, where)
        apart = tree.sub(x, state.params)
        gap = tree.leaves.without(apart, received)

        def mixed(weights: Params) -> Params:
            change = jax.tree.map(jnp.multiply, gap, weights)
            own = tree.leaves.without(state.params, received)
            return tree.leaves.join(tree.add(own, change), received)  # m(w)

        def step(weights: Params, k: Array) -> Params:
            gradient = tree.leaves.without(oracle.grad(mixed(weights), k), received)
            slope = jax.tree.map(jnp.multiply, gap, gradient)
            moved = tree.add_scale(weights, -weight_lr, slope)
            return jax.tree.map(lambda w: jnp.clip(w, 0, 1), moved)

        count = jnp.where(state.started, weight_steps, start_steps)
        visit = work._replace(
            num_steps=jnp.where(work.num_steps > 0, count, 0),
            max_steps=max(weight_steps, start_steps),
        )
        weights = local_steps(cycled(step, work), state.weights, visit)
        started = state.started | (tree.safe_norm(apart) > 0)
        return FedAlaClient(mixed(weights), weights, started)

    def local(
        x: Params, state: FedAlaClient, oracle: Oracle, work: Work
    ) -> tuple[Upload, FedAlaClient]:
        new, active = learned(x, state, oracle, work), work.num_steps > 0
        y = local_steps(sgd(rate(lr, work), oracle.grad), new.params, work)
        upload = tree.where(active, tree.sub(x, y), tree.zeros_like(x))
        return upload, tree.where(active, new._replace(params=y), state)

    def personal(x: Params, state: FedAlaClient, oracle: Oracle, work: Work) -> Params:
        return learned(x, state, oracle, work).params

    return plain._replace(init=init, local=local, init_client=init_client, personal=personal)
