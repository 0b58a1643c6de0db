r"""HierFAVG: hierarchical FedAvg, with edge servers between clients and cloud.

References:
    Liu, Zhang, Song, Letaief, "Client-Edge-Cloud Hierarchical Federated Learning", 2020, arXiv
        1905.06641.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import check_per_client
from fedjax_sim.checks import check_count, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.tree import bits_of_arrays, divide_or_keep, weighted, weighted_mean
from fedjax_sim.types import (
    Aggregation,
    Bits,
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Stack,
    Work,
    send_state,
    specified,
)
from fedjax_sim.wrappers import stack_bytes


class HierarchyState(NamedTuple):
    params: Params  # mean of the edges' models by weight: the cloud's model after its rounds
    edges: Params  # [E, ...]    models of the edge servers
    weights: Array  # [E]    weights of the uploads since the cloud's last round


@specified
def hier_fedavg(lr: ScalarOrSchedule, edges: np.ndarray, period: int = 1) -> FedAlgorithm:
    r"""Hierarchical FedAvg: edge servers average their clients, the cloud averages the edges.

    A round is one edge period: with n the weights of the uploads,

    .. math::
        y_i &\leftarrow y_i - \eta\, g_i(y_i), \qquad y_i = x_e \text{ at first}, \quad i \in C_e \\
        x_e &\leftarrow x_e - \sum_{i \in C_e} n_i (x_e - y_i) \Big/ \sum_{i \in C_e} n_i

    and in every ``period``-th round afterwards

    .. math:: x_e \leftarrow \sum_{e'} N_{e'} x_{e'} \Big/ \sum_{e'} N_{e'}

    where N is the weight of an edge's uploads since the cloud's last round.  With all clients in
    all rounds and ``weight_by_examples`` it is in proportion to the edge's examples.  An edge
    without reports keeps its model.
    The paper's :math:`\kappa_1` is the number of local steps, :math:`\kappa_2` the ``period``.
    With ``period=1``, or a single edge, this is FedAvg.  Between the cloud's rounds the model that
    is evaluated is what the cloud would have, and a client's personal model that of its edge.

    Bits in files are those between clients and edges; edges and cloud exchange 2 E models every
    ``period`` rounds.

    Args:
        lr: :math:`\eta`, or a schedule over rounds.
        edges: number of each client's edge server, ``[M]``, from 0 on.
        period: edge periods per period of the cloud.

    Raises:
        ValueError: a number outside its range, edges that are no integers from 0 on, or an edge
            without clients; at the start of the run, another number of clients.

    References:
        Liu et al., 2020, Algorithm 1 (HierFAVG).

    Example:
        >>> algorithm = hier_fedavg(lr=0.1, edges=np.arange(20) // 5, period=4)
    """
    check_rates(lr=lr)
    check_count(1, period=period)
    edges = _checked_edges(edges)
    num_edges = int(edges.max()) + 1

    def init(params: Params) -> HierarchyState:
        every = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_edges, *jnp.shape(x))), params)
        return HierarchyState(params, every, jnp.zeros(num_edges, jnp.result_type(float)))

    def received(message: HierarchyState, work: Work) -> Params:
        own = tree.take(message.edges, jnp.asarray(edges)[work.client])
        # A client that never trains has no edge.
        return tree.where(work.client < len(edges), own, message.params)

    def local(
        message: HierarchyState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[Params, tuple]:
        x = received(message, work)
        return tree.sub(x, local_steps(sgd(rate(lr, work), oracle.grad), x, work)), state

    def update(state: HierarchyState, stack: Stack, round: Round) -> HierarchyState:
        weights, edge = stack.mean_weights, jnp.asarray(edges)[stack.clients]

        def sums(rows: Array) -> Array:
            return jax.ops.segment_sum(rows, edge, num_edges)

        received = sums(weights)
        total = jax.tree.map(sums, weighted(stack.uploads, weights))
        change = jax.vmap(divide_or_keep)(total, received)
        models = tree.sub(state.edges, tree.cast_like(change, state.edges))  # edge aggregation
        counted = state.weights + received
        mean = weighted_mean(models, counted)  # cloud aggregation
        at_cloud = (round.number + 1) % period == 0
        everywhere = jax.tree.map(lambda x, old: jnp.broadcast_to(x, old.shape), mean, models)
        return HierarchyState(
            mean,
            tree.where(at_cloud, everywhere, models),
            jnp.where(at_cloud, 0, counted),
        )

    return FedAlgorithm(
        init,
        local,
        update,
        send_state,
        aggregation=Aggregation(num_bytes=stack_bytes),
        requires=Requires(
            synchronous="an edge averages changes of its current model",
            exact_mean="every edge has a mean of its own",
            exact_messages="a client reads the part of its edge only",
            check=lambda task, timeline: check_per_client("edges", jnp.asarray(edges), task),
            other_uploads="changes of the models of edge servers, which differ",
            bits=Bits(message=lambda message: bits_of_arrays(message.params)),
        ),
        personal=lambda message, state, oracle, work: received(message, work),
    )


def _checked_edges(edges: np.ndarray) -> np.ndarray:
    """Returns the clients' edges as integers, if every edge has clients."""
    if isinstance(edges, Tracer) or np.ndim(edges) != 1 or np.asarray(edges).dtype.kind not in "iu":
        raise ValueError(f"edges is {edges!r:.60}; expected [M] known integers, one per client")
    known = np.asarray(edges, np.int32)
    if sorted(set(known.tolist())) != list(range(int(known.max(initial=0)) + 1)):
        raise ValueError(
            f"edges has the numbers {sorted(set(known.tolist()))}; expected 0 .. E - 1, all of them"
        )
    return known
