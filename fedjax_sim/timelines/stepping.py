"""How many local steps a client has done when the server contacts it.

From "FAVANO: Federated AVeraging with Asynchronous Nodes", Appendix C.2, whose law of the count E
has several readings (docs/design.md).  A stepping is given a generator, the number of clients and
the cap K, and returns the functions of a :class:`Stepper`, which are called on the host while a
timeline is built.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_sim.timelines.durations import Durations, Generator


class Stepper(NamedTuple):
    """The clients' progress; ``elapsed`` is the time since the restart."""

    restart: Callable[[np.ndarray, np.ndarray | None], None]  # clients [S], elapsed; None: at first
    done: Callable[[np.ndarray, np.ndarray], np.ndarray]  # clients, elapsed [S] -> steps so far
    idle: Callable[[np.ndarray, np.ndarray], np.ndarray]  # the same -> time since the last step


Stepping = Callable[[Generator, int, int], Stepper]


def renewal_counts(
    durations: Durations, *, strict: bool = False, pending: bool = False
) -> Stepping:
    r"""Steps follow each other from the contact on, each with a duration of its own.

    .. math:: E = \max\{j : \tau_1 + \dots + \tau_j \le \text{elapsed time}\}

    The step in progress at a contact is thrown away.

    Args:
        durations: law of tau.
        strict: a step that ends at the moment of the contact is not counted.
        pending: the step that was thrown away is begun again with the same duration, instead of a
            fresh one: long steps survive, so fewer steps are done.

    Example:
        >>> from fedjax_sim.timelines.durations import deterministic
        >>> stepper = renewal(deterministic(2.0))(np.random.default_rng(0), 1, 3)
        >>> stepper.restart(np.array([0]), None)
        >>> [int(stepper.done(np.array([0]), np.array([t]))[0]) for t in (1.9, 4.0, 99.0)]
        [0, 2, 3]
    """

    def begin(rng: Generator, num_clients: int, cap: int) -> Stepper:
        ends = np.full((num_clients, cap), np.inf)  # of each step, since the restart
        before = np.less if strict else np.less_equal

        def restart(clients: np.ndarray, elapsed: np.ndarray | None) -> None:
            drawn = np.array(durations(rng, clients, cap))
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


def independent_counts(counts: Durations, *, first: int = 1) -> Stepping:
    """A fresh count at every contact, whatever time has passed: the model of the paper's theory.

    Read with the paper's numbers (1/2 fast, 1/16 slow) clients called slow do eight times as many
    steps as the fast ones.

    Args:
        counts: law of the count on 1, 2, ..., e.g. ``geometric(success)``.
        first: 1, or 0 to subtract one from each.

    Raises:
        ValueError: another ``first``.

    Example:
        >>> from fedjax_sim.timelines.durations import geometric
        >>> stepper = literal(geometric(1.0))(np.random.default_rng(0), 1, 20)
        >>> stepper.restart(np.array([0]), None)
        >>> stepper.done(np.array([0]), np.array([1000.0])).tolist()
        [1]
    """
    if first not in (0, 1):
        raise ValueError(f"first is {first}; expected 0 or 1")

    def begin(rng: Generator, num_clients: int, cap: int) -> Stepper:
        steps = np.zeros(num_clients, int)

        def restart(clients: np.ndarray, elapsed: np.ndarray | None) -> None:
            del elapsed
            drawn = counts(rng, clients, 1)[:, 0].astype(int) - 1 + first
            steps[clients] = np.minimum(drawn, cap)

        def done(clients: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
            del elapsed
            return steps[clients]

        def idle(clients: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
            del clients
            return np.zeros_like(elapsed)

        return Stepper(restart, done, idle)

    return begin
