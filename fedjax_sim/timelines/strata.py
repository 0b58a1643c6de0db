"""A population cut into strata: blocks of consecutive clients whose sizes differ by at most one."""

from typing import NamedTuple

import numpy as np
from jax import Array


class Strata(NamedTuple):
    """``number`` strata of ``num_clients`` clients; the first ones are the larger ones.

    Tables of clients give every stratum ``width`` rows, the last of which may be empty: client i is
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
        """Clients of the largest stratum."""
        return -(-self.num_clients // self.number)

    @property
    def num_rows(self) -> int:
        """Rows of a table of all strata."""
        return self.width * self.number

    @property
    def _large(self) -> int:
        """Strata that are full."""
        return self.num_clients - (self.width - 1) * self.number

    def clients(self, stratum: int) -> range:
        """The clients of one stratum."""
        first = stratum * self.width - max(stratum - self._large, 0)
        return range(first, first + self.width - (stratum >= self._large))

    def row(self, clients: Array | np.ndarray) -> Array | np.ndarray:
        """Where clients are in a table with ``width`` rows for every stratum."""
        # Every smaller stratum before a client leaves one row empty.
        small = max(self.width - 1, 1)
        beyond = clients - self._large * self.width
        return clients + beyond.clip(min=0) // small

    def of(self, clients: Array | np.ndarray) -> Array | np.ndarray:
        """The strata of clients."""
        return self.row(clients) // self.width


def strata(num_clients: int, number: int) -> Strata:
    """The strata of a population.

    Raises:
        ValueError: fewer clients than strata, or no strata.

    Example:
        >>> strata(num_clients=2, number=3)
        Traceback (most recent call last):
        ValueError: num_strata is 3; expected 1 .. num_clients = 2
    """
    if not 1 <= number <= num_clients:
        raise ValueError(f"num_strata is {number}; expected 1 .. num_clients = {num_clients}")
    return Strata(num_clients, number)
