"""When clients are there: periods of presence, and the time a client could compute in them.

A client computes only while it is present; what it has done waits for its return.
"""

from typing import NamedTuple

import numpy as np
from jax import Array

from fedjax_sim.timelines.durations import host_generator


class Availability(NamedTuple):
    """Periods of presence ``[M, P]``, ordered, from ``start`` to before ``end``; inf fills up.

    Example:
        >>> away = Availability(np.array([[0.0, 10.0]]), np.array([[4.0, np.inf]]))
        >>> away.present(5.0).tolist(), away.active(12.0).tolist()
        ([False], [6.0])
        >>> away.when(np.array([0]), np.array([6.0])).tolist()
        [12.0]
    """

    start: np.ndarray  # [M, P]
    end: np.ndarray  # [M, P]

    def present(self, time: np.ndarray | float) -> np.ndarray:
        """Who is there, ``[M]``."""
        time = np.asarray(time)[..., None]
        return np.any((self.start <= time) & (time < self.end), axis=-1)

    def active(self, time: np.ndarray | float) -> np.ndarray:
        """Time each client has been present for up to ``time``, ``[M]``."""
        time = np.asarray(time)[..., None]
        # An unused period starts and ends at inf.
        return (np.minimum(self.end, time) - np.minimum(self.start, time)).sum(axis=-1)

    def when(self, clients: np.ndarray, active: np.ndarray) -> np.ndarray:
        """When the clients will have been present for ``active``; inf: never."""
        start, end = self.start[clients], self.end[clients]
        used = np.isfinite(start)
        lengths = np.where(used, end, 0.0) - np.where(used, start, 0.0)
        before = np.cumsum(np.pad(lengths, ((0, 0), (1, 0))), axis=-1)[:, :-1]
        # Behind a period without end comes none.
        rest = active[:, None] - np.where(np.isfinite(before), before, 0.0)
        fits = used & (rest <= lengths)
        first = np.argmax(fits, axis=-1)
        rows = np.arange(len(clients))
        return np.where(fits.any(axis=-1), start[rows, first] + rest[rows, first], np.inf)


def always(num_clients: int) -> Availability:
    """Everyone, all the time.

    Example:
        >>> bool(always(3).present(1e9).all())
        True
    """
    return Availability(np.zeros((num_clients, 1)), np.full((num_clients, 1), np.inf))


def alternating(
    key: Array, num_clients: int, horizon: float, *, mean_present: float, mean_absent: float
) -> Availability:
    """Clients that leave and rejoin: exponential periods of presence and absence.

    Each begins present with the long-run probability.  Beyond the horizon a client stays as it is.

    Raises:
        ValueError: a mean or a horizon that is not positive and finite.

    Example:
        >>> import jax
        >>> who = alternating(jax.random.key(0), 1000, 50.0, mean_present=30.0, mean_absent=10.0)
        >>> 0.7 < float(who.present(25.0).mean()) < 0.8
        True
    """
    for name, value in [
        ("horizon", horizon),
        ("mean_present", mean_present),
        ("mean_absent", mean_absent),
    ]:
        if not 0 < value < np.inf:
            raise ValueError(f"{name} is {value}; expected a positive finite number")
    rng = host_generator(key)
    periods: list[list[tuple[float, float]]] = []
    for _ in range(num_clients):
        own, time = [], 0.0
        present = rng.random() < mean_present / (mean_present + mean_absent)
        while time < horizon:
            length = rng.exponential(mean_present if present else mean_absent)
            if present:
                own.append((time, np.inf if time + length >= horizon else time + length))
            time, present = time + length, not present
        periods.append(own)
    most = max(1, *map(len, periods))
    table = np.full((num_clients, most, 2), np.inf)
    for client, own in enumerate(periods):
        if own:
            table[client, : len(own)] = own
    return Availability(table[..., 0], table[..., 1])
