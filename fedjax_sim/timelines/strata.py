"""Strata of a population: blocks of consecutive clients whose sizes differ by at most one."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jax import Array

from fedjax_sim.checks import check_part, check_population
from fedjax_sim.types import Timeline, plain_integers


class Strata(NamedTuple):
    """Partition of ``num_clients`` clients into ``number`` strata, the larger strata first.

    Tables of clients have ``width`` rows per stratum, the last of which may be empty.  Client i is
    in row ``row(i)``.

    Example:
        >>> strata = Strata(num_clients=5, number=2)
        >>> [strata.clients(s) for s in range(2)], strata.row(np.arange(5)).tolist()
        ([range(0, 3), range(3, 5)], [0, 1, 2, 3, 4])
    """

    num_clients: int
    number: int

    @property
    def width(self) -> int:
        """Number of clients in the largest stratum."""
        return -(-self.num_clients // self.number)

    @property
    def num_rows(self) -> int:
        """Number of rows in a table of all strata."""
        return self.width * self.number

    @property
    def _large(self) -> int:
        """Number of strata with ``width`` clients."""
        return self.num_clients - (self.width - 1) * self.number

    def clients(self, stratum: int) -> range:
        """Clients of one stratum."""
        first = stratum * self.width - max(stratum - self._large, 0)
        return range(first, first + self.width - (stratum >= self._large))

    def row(self, clients: Array | np.ndarray) -> Array | np.ndarray:
        """Rows of clients in a table with ``width`` rows per stratum."""
        # Each smaller stratum before the client's leaves one row empty.
        small = max(self.width - 1, 1)
        beyond = clients - self._large * self.width
        return clients + beyond.clip(min=0) // small

    def of(self, clients: Array | np.ndarray) -> Array | np.ndarray:
        """Numbers of the strata of clients."""
        return self.row(clients) // self.width


def strata(num_clients: int, number: int) -> Strata:
    """Returns the strata of a population."""
    check_part("num_clients", num_clients, num_strata=number)
    return Strata(num_clients, number)


@plain_integers
def arrange_by_stratum(timeline: Timeline, num_clients: int, num_strata: int) -> Timeline:
    """Rearranges the slots of a timeline so that every stratum has slots of its own.

    The visits stay the same.  It applies to any timeline, also an asynchronous one;
    :func:`~fedjax_sim.timelines.stratified` samples timelines that already have this form.  Every
    stratum gets as many slots as any stratum needs in any round; the unused slots are empty.

    Args:
        timeline: concrete; ``[T, S]``, or a batch ``[n, T, S]`` with one number of slots for all.
        num_clients: the population.
        num_strata: blocks of consecutive clients.

    Raises:
        ValueError: more strata than clients, or a report of a client outside of the population.

    Example:
        >>> from fedjax_sim.timelines import cyclic
        >>> timeline = cyclic(2, num_clients=4, cohort_size=3, num_steps=1)
        >>> arranged = arrange_by_stratum(timeline, num_clients=4, num_strata=2)
        >>> arranged.clients.tolist(), arranged.mask.tolist()
        ([[0, 1, 2, 2], [0, 1, 3, 3]], [[True, True, True, False], [True, True, True, False]])
    """
    batch, blocks = timeline.clients.shape[:-1], strata(num_clients, num_strata)

    def flat(x: np.ndarray | Array) -> np.ndarray:
        return np.asarray(x).reshape(-1, timeline.cohort_size)

    clients, mask = flat(timeline.clients), flat(timeline.mask)
    check_population(clients, mask, num_clients)
    stratum = np.where(mask, blocks.of(clients), num_strata)
    # The old slots of each stratum in their order, the empty slots last.
    order = np.argsort(stratum, axis=1, kind="stable")
    counts = (stratum[:, None, :] == np.arange(num_strata)[:, None]).sum(axis=2)  # [T, strata]
    width = max(int(counts.max()), 1)
    first = np.cumsum(counts, axis=1) - counts
    # A stratum's empty slots repeat its last visit, but are masked.
    slot = np.minimum(np.arange(width), np.maximum(counts[..., None] - 1, 0))
    rank = np.minimum(first[..., None] + slot, clients.shape[1] - 1).reshape(len(clients), -1)
    old_slots = np.take_along_axis(order, rank, axis=1)
    new_mask = (np.arange(width) < counts[..., None]).reshape(*batch, -1)

    def rearranged(name: str) -> np.ndarray | None:
        value = getattr(timeline, name)
        if value is None:
            return None
        return np.take_along_axis(flat(value), old_slots, axis=1).reshape(*batch, -1)

    names = ("clients", "version", "num_steps", "first_step", "idle", "read_buffer", "lost")
    fields = {name: rearranged(name) for name in names}
    return dataclasses.replace(timeline, mask=new_mask, **fields)
