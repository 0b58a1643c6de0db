r"""Streaming DiLoCo: workers synchronise one fragment of the model at a time.

References:
    Douillard et al., "Streaming DiLoCo with Overlapping Communication: Towards a Distributed Free
        Lunch", 2025.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._muon import is_matrix
from fedjax_sim.algorithms._optimizers import check_optimizer, own_draws
from fedjax_sim.algorithms._shared import check_all_clients
from fedjax_sim.algorithms.diloco import local_transform, nesterov
from fedjax_sim.checks import check_count, check_share, is_traced
from fedjax_sim.local import ScalarOrSchedule, local_steps, optimizer_init, optimizer_update
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Task,
    Timeline,
    Work,
    specified,
)

__all__ = ["streaming_diloco"]

Fragment = Callable[[tuple[str, ...], Any], int]


class StreamingDiLoCoState(NamedTuple):
    params: Params  # the global model; each fragment is that of its last synchronisation
    opt_states: tuple[optax.OptState, ...]  # of the server, one per fragment


class Worker(NamedTuple):
    model: Params  # y
    received: Params  # global fragments as received last
    opt_state: optax.OptState


class _Message(NamedTuple):
    fragment: Array  # the global fragment that was synchronised in the last round, as a vector
    round: Array  # int


@specified
def streaming_diloco(
    lr: ScalarOrSchedule | None = None,
    server_lr: optax.ScalarOrSchedule = 0.4,
    momentum: Scalar = 0.9,
    weight_decay: Scalar = 0.1,
    b1: Scalar = 0.9,
    b2: Scalar = 0.95,
    inner: Literal["adamw", "muon"] = "adamw",
    num_fragments: int = 2,
    delay: int = 1,
    mix: Scalar = 0.5,
    *,
    fragment: Fragment | None = None,
    local_optimizer: optax.GradientTransformation | None = None,
    matrices: tree.leaves.Selection = is_matrix,
) -> FedAlgorithm:
    r"""Streaming DiLoCo: DiLoCo that sends one of P fragments per round, P times as often.

    A round has H / P local steps; every fragment is synchronised once in H steps.  At the end of
    round r the workers send fragment :math:`p = (r + 1) \bmod P`, if :math:`r + 1 \ge P`, and the
    server takes an outer step on it,

    .. math::
        \Delta_p = \operatorname{mean}_i (\theta_p - y_{i,p}), \qquad
        v_p \leftarrow \beta v_p + \Delta_p, \qquad
        \theta_p \leftarrow \theta_p - \eta_s (\Delta_p + \beta v_p)

    While the message is under way, the workers continue; after :math:`\tau` further steps they mix
    it into their models,

    .. math:: y_{i,p} \leftarrow \alpha\, y_{i,p} + (1 - \alpha)\, \theta_p

    So the largest message is the largest fragment, 1 / P of the model if the fragments have equal
    sizes.  A worker keeps its model, the global fragments that it received last and the optimizer's
    state.  With P = 1, :math:`\tau = 0` and :math:`\alpha = 0` this is
    :func:`~fedjax_sim.algorithms.diloco`.

    Args:
        lr: rate of the local steps, or a schedule over rounds; not with ``local_optimizer``.
        server_lr: server learning rate :math:`\eta_s`, or a schedule over the synchronisations of
            a fragment, which every fragment counts for itself.
        momentum: :math:`\beta` of the server.
        weight_decay: as for :func:`~fedjax_sim.algorithms.diloco`.
        b1: as for :func:`~fedjax_sim.algorithms.diloco`.
        b2: as for :func:`~fedjax_sim.algorithms.diloco`.
        inner: the optimizer of the local steps.
        num_fragments: P.
        delay: local steps :math:`\tau` until a fragment arrives, fewer than those of a round.
        mix: share :math:`\alpha` of the worker's own model, in [0, 1].
        fragment: ``(path, leaf) -> number of the leaf's fragment``.  By default the layers,
            from the largest to the smallest, go to the fragment that is smallest so far, so layers
            of equal size are dealt out in turn.  A layer consists of the leaves with the same path
            but for its last part.
        local_optimizer: as for :func:`~fedjax_sim.algorithms.diloco`.
        matrices: as for :func:`~fedjax_sim.algorithms.diloco`.

    Raises:
        ValueError: as :func:`~fedjax_sim.algorithms.diloco`; a count outside its range; at the
            start of the run, a fragment without leaves, a round without some of the clients, or
            one with no more steps than ``delay``.

    References:
        Douillard et al., 2025, Algorithm 2.

    Example:
        >>> algorithm = streaming_diloco(lr=4e-4, num_fragments=3, delay=5)
    """
    check_share(mix=mix)
    check_count(1, num_fragments=num_fragments)
    check_count(0, delay=delay)
    outer = nesterov(server_lr, momentum)
    transform, factor = local_transform(lr, weight_decay, b1, b2, inner, local_optimizer, matrices)

    def parts(params: Params) -> list[Params]:
        """The fragments; each has None instead of the other leaves."""
        numbers = fragments(params, num_fragments, fragment)
        structure = jax.tree.structure(params)
        return [
            structure.unflatten(
                leaf if number == p else None
                for leaf, number in zip(jax.tree.leaves(params), numbers, strict=True)
            )
            for p in range(num_fragments)
        ]

    # A vector, so that the arrays of a round have the size that is sent, and the counted bits fall
    # with the number of fragments.
    def packed(params: Params, p: Array) -> Array:
        """Fragment p as a vector of the length of the largest."""
        with jax.numpy_dtype_promotion("standard"):  # fragments of different precision
            dtype = jnp.result_type(*jax.tree.leaves(params))
        vectors = [_flat(part).astype(dtype) for part in parts(params)]
        longest = max(vector.size for vector in vectors)
        padded = [jnp.pad(vector, (0, longest - vector.size)) for vector in vectors]
        return jax.lax.select_n(p, *padded) if num_fragments > 1 else padded[0]

    def unpacked(vector: Array, p: Array, params: Params, function: Callable) -> Params:
        """Applies ``function(old, new)`` to the leaves of fragment p."""
        result = params
        for number, part in enumerate(parts(params)):
            new = jax.tree.map(function, part, _unflat(vector, part))
            result = tree.leaves.join(tree.where(p == number, new, part), result)
        return result

    def init(params: Params) -> StreamingDiLoCoState:
        if local_optimizer is not None:
            check_optimizer("local_optimizer", local_optimizer, params)
        return StreamingDiLoCoState(
            params, tuple(optimizer_init(outer, part) for part in parts(params))
        )

    def init_client(params: Params) -> Worker:
        return Worker(params, params, optimizer_init(transform, params))

    def broadcast(state: StreamingDiLoCoState, round: Round) -> _Message:
        return _Message(packed(state.params, round.number % num_fragments), round.number)

    def local(
        message: _Message, worker: Worker, oracle: Oracle, work: Work
    ) -> tuple[Array, Worker]:
        arriving = message.round % num_fragments
        due = (message.round + 1) % num_fragments
        arrives = message.round >= num_fragments

        def merged(y: Params, now: Array) -> Params:
            def mixed(old: Array, new: Array) -> Array:
                share = jnp.asarray(mix).astype(old.dtype)
                return share * old + (1 - share) * new

            return jax.lax.cond(
                now, lambda y: unpacked(message.fragment, arriving, y, mixed), lambda y: y, y
            )

        def step(carry: tuple[Params, optax.OptState], k: Array) -> tuple:
            y, opt_state = carry
            y = merged(y, arrives & (k == delay))
            updates, new = optimizer_update(transform, oracle.grad(y, k), opt_state, y)
            updates = updates if factor is None else tree.scale(factor(work), updates)
            return optax.apply_updates(y, updates), new

        start = worker.model, own_draws(worker.opt_state, work.key)
        y, opt_state = local_steps(step, start, work)
        y = merged(y, arrives & (work.num_steps == delay) & (work.num_steps > 0))
        received = unpacked(message.fragment, arriving, worker.received, lambda old, new: new)
        received = tree.where(arrives, received, worker.received)
        present = work.num_steps > 0
        new = tree.where(present, Worker(y, received, opt_state), worker)
        upload = packed(tree.sub(received, y), due)
        sends = present & (message.round + 1 >= num_fragments)
        return jnp.where(sends, upload, 0), new

    def update(state: StreamingDiLoCoState, mean: Array, round: Round) -> StreamingDiLoCoState:
        due = (round.number + 1) % num_fragments
        params, opt_states = state.params, []
        for p, (part, old) in enumerate(zip(parts(params), state.opt_states, strict=True)):
            updates, new = optimizer_update(outer, _unflat(mean, part), old, part)
            now = (due == p) & (round.number + 1 >= num_fragments)
            params = tree.leaves.join(
                tree.where(now, optax.apply_updates(part, updates), part), params
            )
            opt_states.append(tree.where(now, new, old))
        return StreamingDiLoCoState(params, tuple(opt_states))

    def check(task: Task, timeline: Timeline) -> None:
        check_all_clients(
            task,
            timeline,
            "a worker that is absent misses a fragment",
            empty_rounds=num_fragments == 1,
        )
        if is_traced(timeline):
            return
        steps = np.asarray(timeline.num_steps)[np.asarray(timeline.mask)]
        if steps.min(initial=delay + 1) <= delay:
            raise ValueError(
                f"delay is {delay}; expected less than {steps.min()}, the steps of a visit"
            )

    return FedAlgorithm(
        init,
        local,
        update,
        broadcast,
        init_client,
        requires=Requires(
            synchronous="a worker mixes fragments into its own model in the order of the rounds",
            check=check,
        ),
    )


def fragments(params: Params, count: int, fragment: Fragment | None = None) -> Sequence[int]:
    """Returns the number 0 .. count - 1 of each leaf's fragment; refuses ones without leaves."""
    paths = [
        (tree.leaves.names(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]
    if fragment is None:
        layers = [path[:-1] or path for path, _ in paths]
        sizes = Counter[tuple[str, ...]]()
        for layer, (_, leaf) in zip(layers, paths, strict=True):
            sizes[layer] += np.size(leaf)
        fragment_of, filled = {}, [0] * count
        for layer, size in sizes.most_common():  # the largest first, equal ones in their order
            fragment_of[layer] = filled.index(min(filled))
            filled[fragment_of[layer]] += size
        numbers = [fragment_of[layer] for layer in layers]
    else:
        numbers = [int(fragment(path, leaf)) for path, leaf in paths]
    if set(numbers) != set(range(count)):
        raise ValueError(
            f"num_fragments is {count}; the leaves are in fragments {sorted(set(numbers))}; "
            f"expected leaves in each of 0 .. {count - 1}"
        )
    return numbers


def _flat(part: Params) -> Array:
    vectors = [leaf.reshape(-1) for leaf in jax.tree.leaves(part)]
    with jax.numpy_dtype_promotion("standard"):  # models of mixed precision
        return jnp.concatenate(vectors)


def _unflat(vector: Array, part: Params) -> Params:
    """Returns the leaves of a fragment from its vector."""
    values, structure = jax.tree.flatten(part)
    ends = np.cumsum([leaf.size for leaf in values])
    return structure.unflatten(
        vector[end - leaf.size : end].reshape(leaf.shape).astype(leaf.dtype)
        for leaf, end in zip(values, ends, strict=True)
    )
