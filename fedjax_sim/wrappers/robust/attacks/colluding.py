r"""Attacks by clients that know the honest uploads of the round: ALIE and inner product.

They replace uploads after all have arrived, so the uploads of a round are in memory together.

References:
    Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
        2019, https://arxiv.org/abs/1902.06156.
    Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
        Manipulation", 2020, https://arxiv.org/abs/1903.03936.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least
from fedjax_sim.types import (
    FedAlgorithm,
    Round,
    Scalar,
    ServerState,
    Stack,
    Timeline,
    Upload,
    specified,
)
from fedjax_sim.wrappers.received import also_checked
from fedjax_sim.wrappers.robust.aggregation import stacked
from fedjax_sim.wrappers.robust.attacks.attackers import (
    Attackers,
    as_attackers,
    attackers_per_round,
    checked,
)
from fedjax_sim.wrappers.robust.rules import per_slot

_COIN = 2**31 + 9  # branch of the round's key


class Seen(NamedTuple):
    """Uploads of a round as colluding attackers see them."""

    uploads: Upload  # [S, ...]
    honest: Array  # [S] bool    finite uploads of honest clients
    attacks: Array  # [S] bool    uploads of attackers
    arrived: Array  # [S] bool
    clients: Array  # [S] int

    @property
    def number(self) -> Array:
        """Number of honest uploads, at least 1."""
        return jnp.maximum(self.honest.sum(), 1)

    def mean(self) -> Upload:
        """Returns the mean of the honest uploads."""

        def of(x: Array) -> Array:
            return jnp.where(per_slot(self.honest, x), x, 0).sum(0) / self.number.astype(x.dtype)

        return jax.tree.map(of, self.uploads)

    def deviation(self, mean: Upload) -> Upload:
        """Returns the standard deviation of the honest uploads per entry; 0 for a single one."""
        below = jnp.maximum(self.number - 1, 1)

        def of(x: Array, mean: Array) -> Array:
            squares = jnp.where(per_slot(self.honest, x), jnp.square(x - mean), 0)
            variance = squares.sum(0) / below.astype(x.dtype)
            positive = variance > 0  # the root has no derivative at 0
            return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)

        return jax.tree.map(of, self.uploads, mean)


@specified
def alie(
    algorithm: FedAlgorithm, attackers: Attackers | Array | np.ndarray, z: Scalar | None = None
) -> FedAlgorithm:
    r"""ALIE ("a little is enough"): attackers hide within the spread of the honest uploads.

    They send :math:`\mu - z\,\sigma`, with the mean and the standard deviation (divisor
    :math:`|H| - 1`) of the honest uploads per entry.  By default, with f attackers among the n
    uploads of a round,

    .. math::
        z = \Phi^{-1}\Bigl(\frac{n - f - s}{n - f}\Bigr), \qquad s = \lfloor n / 2 + 1 \rfloor - f

    Of normal uploads, s honest ones are then expected to be farther from the mean than the
    attackers, on the same side; with the attackers these are a majority.  In a round without honest
    uploads attackers are honest.

    Args:
        algorithm: any algorithm, with a robust rule or not.
        attackers: who attacks.
        z: any number; may be traced.  The authors' program has 1.5; ByzFL adds 1.5 sd (z = -1.5).

    Raises:
        ValueError: attackers that are no mask; before a run, attackers of another number of
            clients, more per round than the robust rule is made for, or without ``z`` a round whose
            argument of :math:`\Phi^{-1}` is outside (0, 1), or attackers that attack in some visits
            only.

    References:
        Baruch et al., 2019, Algorithm 3.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0, 1], num_clients=10)
        >>> algorithm = alie(fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median()), attackers)
    """
    known = as_attackers(attackers)

    def forge(seen: Seen) -> Upload:
        mean = seen.mean()
        number = _largest(seen) if z is None else jnp.asarray(z)
        return tree.add_scale(mean, -number, seen.deviation(mean))

    attacked = colluding(algorithm, known, forge)
    if z is not None:
        return attacked
    if not known.always:
        raise ValueError(
            "z is None; expected a number for attackers that attack in some visits only, whose "
            "number per round is not known before"
        )
    return also_checked(attacked, lambda task, timeline: _check_quantiles(known, timeline))


@specified
def inner_product(
    algorithm: FedAlgorithm, attackers: Attackers | Array | np.ndarray, eps: Scalar = 0.1
) -> FedAlgorithm:
    r"""Inner product manipulation ("fall of empires"): attackers send :math:`-\epsilon \mu`.

    :math:`\mu` is the mean of the honest uploads of the round.  In a round without honest uploads
    attackers are honest.

    Args:
        algorithm, attackers: as for :func:`alie`.
        eps: :math:`\epsilon`, at least 0; may be traced.  ByzFL's tau is :math:`1 + \epsilon`.

    Raises:
        ValueError: a negative ``eps``, attackers that are no mask; before a run, attackers of
            another number of clients, or more per round than the robust rule is made for.

    References:
        Xie et al., 2020, Section 4.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0, 1], num_clients=10)
        >>> algorithm = inner_product(fs.fedavg(lr=0.1), attackers, eps=2.0)
    """
    check_at_least(0, eps=eps)
    return colluding(
        algorithm, as_attackers(attackers), lambda seen: tree.scale(-jnp.asarray(eps), seen.mean())
    )


def colluding(
    algorithm: FedAlgorithm, attackers: Attackers, forge: Callable[[Seen], Upload]
) -> FedAlgorithm:
    """Returns an algorithm whose attackers all send ``forge(seen)``, one upload."""
    inner = with_key_inside(stacked(algorithm))

    def update(state: ServerState, stack: Stack, round: Round) -> ServerState:
        seen = seen_by(attackers, stack, round)
        return inner.update(state, replaced(stack, seen, forge(seen)), round)

    return checked(inner._replace(update=update), attackers)


def with_key_inside(algorithm: FedAlgorithm) -> FedAlgorithm:
    """Returns an algorithm whose server has another key, for an attack around it that draws.

    Broadcast and update of a round have the same one: a server may draw in both (MARINA's coin).
    """
    return algorithm._replace(
        broadcast=lambda state, round: algorithm.broadcast(state, round.inside()),
        update=lambda state, uploads, round: algorithm.update(state, uploads, round.inside()),
    )


def seen_by(attackers: Attackers, stack: Stack, round: Round) -> Seen:
    """Returns the uploads of a round as the attackers see them."""
    key = jax.random.fold_in(round.key, np.uint32(_COIN))

    def attack(client: Array) -> Array:
        return attackers.attack(client, round.number, jax.random.fold_in(key, client))

    attacks = jax.vmap(attack)(stack.clients) & stack.arrived
    honest = stack.arrived & ~attacks & jax.vmap(tree.all_finite)(stack.uploads)
    return Seen(stack.uploads, honest, attacks, stack.arrived, stack.clients)


def replaced(stack: Stack, seen: Seen, forged: Upload, among: Array | bool = True) -> Stack:
    """Returns a stack whose attackers' uploads are ``forged``; unchanged unless ``among``."""
    slots = seen.attacks & seen.honest.any() & among

    def put(x: Array, new: Array) -> Array:
        return jnp.where(per_slot(slots, x), new.astype(x.dtype), x)

    return stack._replace(uploads=jax.tree.map(put, stack.uploads, forged))


def quantile(n: Array | np.ndarray, f: Array | np.ndarray) -> Array | np.ndarray:
    r"""Returns the argument of :math:`\Phi^{-1}` for ALIE's z, ``(n - f - s) / (n - f)``."""
    supporters = (n + 2) // 2 - f  # s
    return (n - f - supporters) / (n - f)


def _largest(seen: Seen) -> Array:
    """Returns the default z of a round."""
    n, f = seen.arrived.sum(), seen.attacks.sum()
    attacked = (f > 0) & (f < n)  # in other rounds nothing is replaced
    share = jnp.asarray(quantile(jnp.maximum(n, 1), jnp.where(attacked, f, 0)))
    return ndtri(jnp.where(attacked, share, 0.5))


def _check_quantiles(attackers: Attackers, timeline: Timeline) -> None:
    f = attackers_per_round(attackers, timeline)
    if f is None:
        return
    n = np.asarray(timeline.arrived).sum(axis=-1)
    attacked = (f > 0) & (f < n)
    share = np.where(attacked, quantile(np.maximum(n, 1), np.where(attacked, f, 0)), 0.5)
    wrong = (share <= 0) | (share >= 1)
    if wrong.any():
        *_, number = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"z is None, and attackers send {f[wrong][0]} of {n[wrong][0]} uploads in round "
            f"{number}, for which (n - f - s) / (n - f) is {share[wrong][0]:g}; expected a number "
            "in (0, 1), or z"
        )
