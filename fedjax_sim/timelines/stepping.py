"""Laws of the number of local steps that a client has done when the server contacts it.

From "FAVANO: Federated AVeraging with Asynchronous Nodes", Appendix C.2, whose text calls E both a
number of steps and a duration: :func:`renewal_counts` has the number that durations leave time for,
:func:`independent_counts` the law of the paper's theory.  A stepping takes a generator, the number
of clients and the cap K, and returns the functions of a :class:`Stepper`, which run on the host
while a timeline is built.  Closed forms of their moments are in
:mod:`fedjax_sim.theory.step_counts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_sim.checks import check_choice
from fedjax_sim.timelines.durations import Durations, Generator, drawn_durations
from fedjax_sim.types import plain_integers


class Stepper(NamedTuple):
    """Progress of all clients; ``elapsed`` is the time since a client's restart."""

    # (clients [S], elapsed [S], or None at the first start)
    restart: Callable[[np.ndarray, np.ndarray | None], None]
    # (clients [S], elapsed [S]) -> steps done so far [S]
    done: Callable[[np.ndarray, np.ndarray], np.ndarray]
    # (clients [S], elapsed [S]) -> time since the last step [S]
    idle: Callable[[np.ndarray, np.ndarray], np.ndarray]


Stepping = Callable[[Generator, int, int], Stepper]


def renewal_counts(
    durations: Durations, *, strict: bool = False, pending: bool = False
) -> Stepping:
    r"""Number of steps that fit into the time since the last contact, each with its own duration.

    .. math:: E = \max\{j : \tau_1 + \dots + \tau_j \le \text{elapsed time}\}

    The step in progress at a contact is discarded.

    Args:
        durations: law of tau.
        strict: a step that ends at the moment of the contact is not counted.
        pending: the discarded step restarts with the same duration, not with a newly drawn one:
            long steps persist, so fewer steps are done.

    Example:
        >>> from fedjax_sim.timelines.durations import deterministic
        >>> stepper = renewal_counts(deterministic(2.0))(np.random.default_rng(0), 1, 3)
        >>> stepper.restart(np.array([0]), None)
        >>> [int(stepper.done(np.array([0]), np.array([t]))[0]) for t in (1.9, 4.0, 99.0)]
        [0, 2, 3]
    """

    def begin(rng: Generator, num_clients: int, cap: int) -> Stepper:
        ends = np.full((num_clients, cap), np.inf)  # of each step, since the restart
        before = np.less if strict else np.less_equal

        def restart(clients: np.ndarray, elapsed: np.ndarray | None) -> None:
            drawn = np.array(drawn_durations("durations", durations, rng, clients, cap))
            if pending and elapsed is not None:
                steps = done(clients, elapsed)
                cut = steps < cap
                lengths = np.diff(ends[clients], axis=1, prepend=0.0)
                drawn[cut, 0] = lengths[cut, steps[cut]]
            ends[clients] = np.cumsum(drawn, axis=1)

        def done(clients: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
            return before(ends[clients], elapsed[:, None]).sum(axis=1)

        def idle(clients: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
            return np.maximum(elapsed - ends[clients, -1], 0.0)

        return Stepper(restart, done, idle)

    return begin


@plain_integers
def independent_counts(counts: Durations, *, first: int = 1) -> Stepping:
    """Counts drawn independently at every contact, as in the paper's theory.

    The time since the last contact has no influence.  With the paper's parameters (1/2 for fast
    clients, 1/16 for slow clients) the "slow" clients do eight times as many steps as the fast
    ones.

    Args:
        counts: law of the count on 1, 2, ..., e.g. ``geometric(success)``.
        first: smallest count, 1 or 0; 0 subtracts one from each count.

    Raises:
        ValueError: ``first`` is neither 0 nor 1; when a timeline draws, a count below 1 or with a
            fraction.

    Example:
        >>> from fedjax_sim.timelines.durations import geometric
        >>> stepper = independent_counts(geometric(1.0))(np.random.default_rng(0), 1, 20)
        >>> stepper.restart(np.array([0]), None)
        >>> stepper.done(np.array([0]), np.array([1000.0])).tolist()
        [1]
    """
    check_choice((0, 1), first=first)

    def begin(rng: Generator, num_clients: int, cap: int) -> Stepper:
        steps = np.zeros(num_clients, int)

        def restart(clients: np.ndarray, elapsed: np.ndarray | None) -> None:
            del elapsed
            drawn = drawn_durations("counts", counts, rng, clients, 1)[:, 0]
            if (wrong := (drawn < 1) | (drawn != np.floor(drawn))).any():
                raise ValueError(
                    f"counts returns {drawn[wrong][0]}; expected whole numbers from 1 on, as of "
                    "fs.timelines.geometric"
                )
            steps[clients] = np.minimum(drawn, cap + 1 - first) - 1 + first

        def done(clients: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
            del elapsed
            return steps[clients]

        def idle(clients: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
            del clients
            return np.zeros_like(elapsed)

        return Stepper(restart, done, idle)

    return begin
