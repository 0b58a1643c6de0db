r"""Mimic: attackers repeat an honest client, so that its data count more than they should.

References:
    Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
        2022, https://arxiv.org/abs/2006.09365.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least
from fedjax_sim.tree import normal
from fedjax_sim.types import (
    FedAlgorithm,
    Params,
    Round,
    ServerState,
    Stack,
    Upload,
    shown,
    specified,
)
from fedjax_sim.wrappers.received import broadcast_inner, inner_params, upload_shapes
from fedjax_sim.wrappers.robust.aggregation import stacked
from fedjax_sim.wrappers.robust.attacks.attackers import Attackers, as_attackers, checked
from fedjax_sim.wrappers.robust.attacks.colluding import Seen, replaced, seen_by, with_key_inside
from fedjax_sim.wrappers.robust.rules import per_slot


@shown
class MimicState(NamedTuple):
    """State of a server whose clients are observed by mimics.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0], num_clients=10)
        >>> mimic(fs.fedavg(0.1), attackers).init(jnp.ones(3)).mean.tolist()
        [0.0, 0.0, 0.0]
    """

    inner: ServerState
    mean: Upload  # mu, the mean of the honest uploads over the rounds of the warm-up
    direction: Upload  # z, in which the honest uploads differ most
    rounds: Array  # observed so far
    target: Array  # the client that is repeated

    params = inner_params


@specified
def mimic(
    algorithm: FedAlgorithm,
    attackers: Attackers | Array | np.ndarray,
    warmup: int = 20,
    target: int | None = None,
) -> FedAlgorithm:
    r"""Mimic: all attackers send the upload of one honest client.

    Every upload is an honest one, but the rule sees one client f + 1 times, which matters for
    heterogeneous clients.  During the first ``warmup`` rounds attackers estimate the direction in
    which the honest uploads x vary most, by steps of the power method,

    .. math::
        \mu &\leftarrow \tfrac{t}{t+1} \mu + \tfrac{1}{t+1} \operatorname{mean}_H x, \qquad
        c = \sum_H \langle x - \mu, z \rangle (x - \mu) \\
        z &\leftarrow \frac{z'}{\|z'\|}, \qquad
        z' = \tfrac{t}{t+1} z + \tfrac{1}{t+1} \frac{c}{\|c\|}

    from normal numbers z, equal for all seeds, and send the x with the largest
    :math:`\langle x, z \rangle`.  A round with c = 0, for example of one honest client, leaves z as
    it is.  Afterwards they repeat the last one of these clients; in rounds without it they are
    honest.

    Args:
        algorithm: any algorithm, with a robust rule or not.
        attackers: who attacks.
        warmup: number of rounds W with an honest upload; may be traced.
        target: the client that is repeated in all rounds, without a warm-up (ByzFL: 0).

    Raises:
        ValueError: a warm-up below 1, attackers that are no mask, or a target that is one of them
            or does not exist; before a run, attackers of another number of clients, or more per
            round than the robust rule is made for; an algorithm whose upload has no shape without
            data, which ``target`` avoids.

    References:
        Karimireddy et al., 2022, section 3 and appendix; the order of the updates is that of the
        authors' program.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0, 1], num_clients=10)
        >>> algorithm = mimic(fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median()), attackers)
        >>> int(algorithm.init(jnp.zeros(3)).rounds)
        0
    """
    check_at_least(1, warmup=warmup)
    known, inner = as_attackers(attackers), with_key_inside(stacked(algorithm))
    if target is not None:
        _check_target(known, target)
        return checked(inner._replace(update=_fixed(inner, known, target)), known)

    def init(params: Params) -> MimicState:
        shapes = upload_shapes(algorithm, params)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        start = normal(jax.random.key(0), 1.0, shapes)
        none = jnp.array(0, jnp.int32)
        return MimicState(algorithm.init(params), zeros, start, none, none)

    def update(state: MimicState, stack: Stack, round: Round) -> MimicState:
        seen = seen_by(known, stack, round)
        learns = state.rounds < jnp.asarray(warmup)
        mean, direction = _observed(state, seen)
        along = jax.vmap(lambda x: tree.vdot(x, direction))(_safe(seen))
        slot = jnp.argmax(jnp.where(seen.honest, along, -jnp.inf))
        best = stack.clients[slot].astype(jnp.int32)
        target = jnp.where(learns & seen.honest.any(), best, state.target)
        new_inner = inner.update(state.inner, _repeated(stack, seen, target), round)
        observed = MimicState(new_inner, mean, direction, state.rounds + 1, target)
        return tree.where(learns & seen.honest.any(), observed, state._replace(inner=new_inner))

    wrapped = inner._replace(init=init, update=update, broadcast=broadcast_inner(inner))
    return checked(wrapped, known)


def _fixed(inner: FedAlgorithm, attackers: Attackers, target: int):
    """Returns the update of a server whose attackers repeat one client."""

    def update(state: ServerState, stack: Stack, round: Round) -> ServerState:
        seen = seen_by(attackers, stack, round)
        number = jnp.array(target, stack.clients.dtype)
        return inner.update(state, _repeated(stack, seen, number), round)

    return update


def _repeated(stack: Stack, seen: Seen, target: Array) -> Stack:
    """Returns a stack in which attackers repeat the target, if its upload is there."""
    is_target = seen.honest & (stack.clients == target.astype(stack.clients.dtype))
    slot = jnp.argmax(is_target)
    return replaced(stack, seen, tree.take(_safe(seen), slot), among=is_target.any())


def _observed(state: MimicState, seen: Seen) -> tuple[Upload, Upload]:
    """Returns the mean and the direction after one more round."""
    count = state.rounds.astype(jnp.result_type(float))
    old = count / (count + 1)
    mean = tree.add_scale(tree.scale(old, state.mean), 1 - old, seen.mean())

    def term(x: Upload, honest: Array) -> Upload:
        change = tree.where(honest, tree.sub(x, mean), tree.zeros_like(x))
        return tree.scale(tree.vdot(change, state.direction), change)

    terms = jax.vmap(term)(_safe(seen), seen.honest)
    total = jax.tree.map(lambda x: x.sum(0), terms)
    unit = tree.scale(tree.over_norm(1.0, total), total)
    direction = tree.add_scale(tree.scale(old, state.direction), 1 - old, unit)
    direction = tree.scale(tree.over_norm(1.0, direction), direction)
    # A single honest upload has no direction.
    differ = tree.safe_norm(total) > 0
    return mean, tree.where(differ, direction, state.direction)


def _safe(seen: Seen) -> Upload:
    """Returns the uploads ``[S, ...]``, zeros where not honest or not finite."""
    return jax.tree.map(lambda x: jnp.where(per_slot(seen.honest, x), x, 0), seen.uploads)


def _check_target(attackers: Attackers, target: int) -> None:
    if attackers.mask is None:
        raise ValueError("attackers are all clients; expected some, with an honest target")
    mask = np.asarray(attackers.mask)
    if not 0 <= target < len(mask) or mask[target]:
        raise ValueError(f"target is {target}; expected an honest client, 0 .. {len(mask) - 1}")
