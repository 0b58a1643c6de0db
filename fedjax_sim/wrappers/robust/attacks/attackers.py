"""Attackers: who attacks in which visit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_key, check_share, is_concrete, is_traced, last_wrapper
from fedjax_sim.types import FedAlgorithm, Scalar, Task, Timeline, shown
from fedjax_sim.wrappers.received import also_checked

# One number, one per client [M], or a schedule over rounds.
Probability = Scalar | np.ndarray | Callable[[Array], Scalar]


@shown
class Attackers(NamedTuple):
    """The clients that attack: all visits of some clients, or a random part of them.

    The attacks take attackers, or only the mask.  Their other visits are honest.

    Example:
        >>> attackers = some_clients([0, 3], num_clients=4)
        >>> attackers.mask.tolist()
        [True, False, False, True]
        >>> from_round_50 = attackers.sometimes(lambda round: round >= 50)
    """

    # Attackers belong to clients, not to the timeline, so all algorithms of a comparison have the
    # same ones.
    mask: Array | np.ndarray | None  # [M] bool    who may attack; None: every client
    probability: Probability | None = None  # of an attack in a visit; None: every visit is one

    def sometimes(self, probability: Probability) -> Attackers:
        """Returns the same clients, which attack in each visit with a probability.

        The draws depend on the run's key, the round and the client.

        Args:
            probability: one number, one per client ``[M]``, or a function of the round; may be
                traced.
        """
        one = isinstance(probability, float | int) and probability == 1
        return self._replace(probability=None if one else probability)

    @property
    def always(self) -> bool:
        """True if every visit of the clients is an attack."""
        return self.probability is None

    def attack(self, client: Array, round: Array, key: Array) -> Array:
        """Returns True if a visit is an attack.

        Args:
            client: number of the client.
            round: number of the round.
            key: decides the draw.
        """
        may = True if self.mask is None else jnp.asarray(self.mask)[client]
        if self.always:
            return jnp.asarray(may)
        given = self.probability
        value = jnp.asarray(given(round) if callable(given) else given).astype(jnp.float32)
        value = value[client] if value.ndim else value
        return may & (jax.random.uniform(key, (), jnp.float32) < value)


def some_clients(clients: Sequence[int] | np.ndarray, num_clients: int) -> Attackers:
    """Attackers with the given numbers.

    Raises:
        ValueError: a client that does not exist, or values that are no integers.

    Example:
        >>> some_clients([1], num_clients=3).mask.tolist()
        [False, True, False]
    """
    numbers = np.asarray(clients)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(
            f"clients has dtype {numbers.dtype}; expected integers, the numbers of clients; a mask "
            "[M] of booleans replaces the attackers"
        )
    numbers = numbers.astype(np.int64)
    if numbers.size and (numbers.min() < 0 or numbers.max() >= num_clients):
        raise ValueError(f"clients is {numbers.tolist()}; expected 0 .. {num_clients - 1}")
    mask = np.zeros(num_clients, bool)
    mask[numbers] = True
    return Attackers(mask)


def random_clients(key: Array, num_clients: int, fraction: float) -> Attackers:
    """Attackers drawn uniformly without replacement.

    A larger fraction adds attackers to those of a smaller one.

    Args:
        key: decides who attacks.
        num_clients: population M.
        fraction: of the clients; their number is rounded to the nearest integer.

    Raises:
        ValueError: a fraction outside [0, 1].

    Example:
        >>> int(random_clients(jax.random.key(0), num_clients=10, fraction=0.2).mask.sum())
        2
    """
    check_key(key)
    check_share(fraction=fraction)
    count = int(np.floor(fraction * num_clients + 0.5))
    return some_clients(np.asarray(jax.random.permutation(key, num_clients))[:count], num_clients)


def as_attackers(value: Any) -> Attackers:
    """Returns attackers that are given as such or as a mask."""
    attackers = value if isinstance(value, Attackers) else Attackers(value)
    if isinstance(attackers.mask, list | tuple):
        attackers = attackers._replace(mask=np.asarray(attackers.mask))
    mask, probability = attackers.mask, attackers.probability
    if mask is not None and (np.ndim(mask) != 1 or mask.dtype != np.bool_):
        raise ValueError(
            f"attackers is {mask!r}; expected booleans [M], or robust.attacks.some_clients or "
            "random_clients"
        )
    if is_concrete(probability):
        given = np.asarray(probability)
        if given.ndim > 1 or not ((given >= 0) & (given <= 1)).all():
            raise ValueError(f"probability is {probability}; expected numbers in [0, 1]")
    return attackers


def mask_of(attackers: Any) -> np.ndarray:
    """Returns the clients whose data an attack changes."""
    known = as_attackers(attackers)
    if known.mask is None or not known.always:
        raise ValueError("attackers attack in some visits only; expected clients that always do")
    return np.asarray(known.mask)


def attackers_per_round(attackers: Attackers, timeline: Timeline) -> np.ndarray | None:
    """Returns the numbers of uploads of attackers, ``[T]`` or ``[n, T]``; None: not known."""
    values = timeline.clients, timeline.mask, timeline.lost, attackers.mask
    if is_traced(values) or not attackers.always or attackers.mask is None:
        return None
    attack = np.asarray(attackers.mask)[np.asarray(timeline.clients)]
    return (attack & np.asarray(timeline.arrived)).sum(axis=-1)


def checked(algorithm: FedAlgorithm, attackers: Attackers) -> FedAlgorithm:
    """Returns an algorithm under attack, as a wrapper returns it, with a check of its attackers."""
    last_wrapper(algorithm)
    aggregation = algorithm.aggregation

    def check(task: Task, timeline: Timeline) -> None:
        values = {"attackers": attackers.mask, "probability": attackers.probability}
        for name, value in values.items():
            if np.ndim(value) and np.shape(value) != (task.num_clients,):  # pyright: ignore
                raise ValueError(
                    f"{name} has the shape {np.shape(value)}; expected ({task.num_clients},), one "  # pyright: ignore
                    "entry per client of the task"
                )
        counts = attackers_per_round(attackers, timeline)
        if counts is None or aggregation is None or aggregation.f is None:
            return
        if (counts > aggregation.f).any():
            *_, number = np.argwhere(counts > aggregation.f)[0].tolist()
            raise ValueError(
                f"attackers send {counts[counts > aggregation.f][0]} uploads in round {number}; "
                f"expected at most f = {aggregation.f}, for which the robust rule is made"
            )

    return also_checked(algorithm, check)
