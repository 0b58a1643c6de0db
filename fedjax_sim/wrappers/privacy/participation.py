"""Visits of one client to a concrete timeline: their number, and the rounds between them."""

import numpy as np
from jax.core import Tracer

from fedjax_sim.types import Timeline


def most_visits(timeline: Timeline) -> int:
    """Returns the largest number of reports of one client, over all replicas of a batch."""
    counts = [np.bincount(clients, minlength=1).max() for clients, _ in _visits(timeline)]
    return int(max(counts, default=0))


def min_separation(timeline: Timeline) -> int | None:
    """Returns the fewest rounds from one visit of a client to its next; None: no client returns.

    Rounds in which nobody reports do not count, since the server's noise does not move in them.
    """
    gaps = []
    for clients, rounds in _visits(timeline):
        order = np.lexsort((rounds, clients))
        returns = clients[order][1:] == clients[order][:-1]
        gaps += [np.diff(rounds[order])[returns]]
    gaps = np.concatenate(gaps) if gaps else np.array([])
    return int(gaps.min()) if gaps.size else None


def repeated_client(timeline: Timeline, num_rounds: int) -> tuple[int, int] | None:
    """Returns a client that visits twice in one pass of ``num_rounds``, and the pass's number.

    None: every client visits at most once per pass.  Rounds in which nobody reports do not count.
    """
    for clients, rounds in _visits(timeline):
        pairs, counts = np.unique(
            np.stack([clients, rounds // num_rounds], axis=1), axis=0, return_counts=True
        )
        for client, number in pairs[counts > 1]:
            return int(client), int(number)
    return None


def check_independent_of_data(timeline: Timeline) -> None:
    """Refuses a timeline whose times may depend on the clients' data."""
    rule = timeline.sampling
    asynchronous = bool(timeline.max_staleness) or timeline.first_step is not None
    if (rule is None and asynchronous) or (rule is not None and rule.kind == "durations"):
        raise ValueError(
            "timeline has reports at times that clients' durations decide; expected "
            "timelines.independent_of_data(timeline), which declares that these do not depend on "
            "the clients' data"
        )


def num_draws(timeline: Timeline) -> int:
    """Returns the number of rounds with a report, the largest of a batch."""
    return int(_concrete(timeline, "arrived").any(-1).sum(-1).max())


def _visits(timeline: Timeline) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the clients of all visits and the numbers of their rounds, per replica."""
    clients, mask = _concrete(timeline, "clients"), _concrete(timeline, "arrived")
    shape = (-1, *clients.shape[-2:])
    visits = []
    for who, present in zip(clients.reshape(shape), mask.reshape(shape), strict=True):
        rounds, slots = np.nonzero(present)
        numbers = np.cumsum(present.any(1)) - 1  # of the rounds with a report
        visits.append((who[rounds, slots], numbers[rounds]))
    return visits


def _concrete(timeline: Timeline, name: str) -> np.ndarray:
    value = getattr(timeline, name)
    if isinstance(value, Tracer):
        raise ValueError(
            f"timeline.{name} is traced; expected a concrete timeline, since visits are counted "
            "before compilation"
        )
    return np.asarray(value)
