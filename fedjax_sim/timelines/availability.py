"""Periods during which clients are present.

A client computes only while it is present and reports only when it has returned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, check_one_number
from fedjax_sim.timelines.durations import host_generator, numbers
from fedjax_sim.types import plain_integers, shown


@shown
class Availability(NamedTuple):
    """Periods of presence ``[M, P]``, ordered, from ``start`` to before ``end``.

    Clients with fewer than P periods are padded with periods that start and end at infinity.

    Example:
        >>> available = Availability(np.array([[0.0, 10.0]]), np.array([[4.0, np.inf]]))
        >>> available.present(5.0).tolist(), available.active(12.0).tolist()
        ([False], [6.0])
        >>> available.when(np.array([0]), np.array([6.0])).tolist()
        [12.0]
    """

    start: np.ndarray  # [M, P]
    end: np.ndarray  # [M, P]

    def present(self, time: np.ndarray | float) -> np.ndarray:
        """Returns which clients are present, bool ``[M]``."""
        time = np.asarray(time)[..., None]
        return np.any((self.start <= time) & (time < self.end), axis=-1)

    def active(self, time: np.ndarray | float) -> np.ndarray:
        """Total time that each client has been present until ``time``, ``[M]``."""
        time = np.asarray(time)[..., None]
        # A padded period starts and ends at infinity.
        return (np.minimum(self.end, time) - np.minimum(self.start, time)).sum(axis=-1)

    def when(self, clients: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Times at which clients have been present for ``active`` in total; infinity: never."""
        start, end = self.start[clients], self.end[clients]
        used = np.isfinite(start)
        lengths = np.where(used, end, 0.0) - np.where(used, start, 0.0)
        before = np.cumsum(np.pad(lengths, ((0, 0), (1, 0))), axis=-1)[:, :-1]
        # No period follows one without end.
        rest = active[:, None] - np.where(np.isfinite(before), before, 0.0)
        fits = used & (rest <= lengths)
        first = np.argmax(fits, axis=-1)
        rows = np.arange(len(clients))
        return np.where(fits.any(axis=-1), start[rows, first] + rest[rows, first], np.inf)


@plain_integers
def always(num_clients: int) -> Availability:
    """All clients present at all times.

    Raises:
        ValueError: a number of clients that is negative or no integer.

    Example:
        >>> bool(always(3).present(1e9).all())
        True
    """
    check_count(num_clients=num_clients)
    return Availability(np.zeros((num_clients, 1)), np.full((num_clients, 1), np.inf))


def checked_availability(availability: Availability | None, num_clients: int) -> Availability:
    """Returns the periods of presence of a population; None: all clients are always present."""
    if availability is None:
        return always(num_clients)
    if not isinstance(availability, Availability):
        raise ValueError(
            f"availability is a {type(availability).__name__}; expected an "
            "fs.timelines.Availability, as from fs.timelines.alternating"
        )
    start, end = (_times(name, getattr(availability, name)) for name in ("start", "end"))
    if start.shape != end.shape:
        raise ValueError(
            f"availability.end has shape {end.shape}; expected {start.shape}, as availability.start"
        )
    if len(start) != num_clients:
        raise ValueError(
            f"availability has {len(start)} clients; expected {num_clients}, num_clients"
        )
    # Both clocks take the periods of a client in turn: they would count overlaps twice.
    turns = np.stack([start, end], axis=-1).reshape(num_clients, -1)
    if (falls := turns[:, 1:] < turns[:, :-1]).any():
        client = np.argmax(falls.any(axis=1))
        first = int(np.argmax(falls[client]))
        before, after = ("start", "end") if first % 2 == 0 else ("end", "start")
        raise ValueError(
            f"availability of client {client} has {before} {turns[client, first]} and then {after} "
            f"{turns[client, first + 1]}; expected periods in order that do not overlap"
        )
    return Availability(start, end)


def _times(name: str, values: np.ndarray) -> np.ndarray:
    times = numbers(f"availability.{name}", values)
    if times.ndim != 2 or not times.shape[1] or np.isnan(times).any() or (times == -np.inf).any():
        raise ValueError(
            f"availability.{name} has shape {times.shape} and {np.isnan(times).sum()} NaN; "
            "expected times [M, P], of which those of absent periods are infinity"
        )
    return times


@plain_integers
def alternating(
    key: Array, num_clients: int, horizon: float, *, mean_present: float, mean_absent: float
) -> Availability:
    """Clients that leave and return, with exponential periods of presence and absence.

    A client is present at time 0 with the long-run probability.  After the horizon it stays as it
    is then.

    Raises:
        ValueError: a mean or a horizon that is not positive and finite.

    Example:
        >>> import jax
        >>> available = alternating(
        ...     jax.random.key(0), 1000, 50.0, mean_present=30.0, mean_absent=10.0)
        >>> 0.7 < float(available.present(25.0).mean()) < 0.8
        True
    """
    check_count(num_clients=num_clients)
    for name, value in [
        ("horizon", horizon),
        ("mean_present", mean_present),
        ("mean_absent", mean_absent),
    ]:
        check_one_number(**{name: value})
        if not 0 < value < np.inf:
            raise ValueError(f"{name} is {value}; expected a positive finite number")
    rng = host_generator(key)
    periods: list[list[tuple[float, float]]] = []
    for _ in range(num_clients):
        client_periods, time = [], 0.0
        present = rng.random() < mean_present / (mean_present + mean_absent)
        while time < horizon:
            length = rng.exponential(mean_present if present else mean_absent)
            if present:
                client_periods.append((time, np.inf if time + length >= horizon else time + length))
            time, present = time + length, not present
        periods.append(client_periods)
    most = max(1, *map(len, periods))
    table = np.full((num_clients, most, 2), np.inf)
    for client, client_periods in enumerate(periods):
        if client_periods:
            table[client, : len(client_periods)] = client_periods
    return Availability(table[..., 0], table[..., 1])
