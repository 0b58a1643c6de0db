"""Poisson sampling with few slots: cohorts of random size at the cost of a fixed one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.checks import (
    check_at_least,
    check_at_most,
    check_count,
    check_one_number,
    check_positive,
)
from fedjax_sim.timelines.rules import Sampling
from fedjax_sim.timelines.sampling import (
    check_cohort,
    per_round,
    rounds_of,
    sample_without_replacement,
)
from fedjax_sim.tree.keys import fast
from fedjax_sim.types import Timeline


def poisson(
    key: Array,
    num_rounds: int,
    num_clients: int,
    probability: float,
    num_steps: int | np.ndarray | Array,
    *,
    slots: int,
) -> Timeline:
    r"""Cohorts of clients that take part independently with ``probability``, in ``slots`` slots.

    A round with n clients fills n slots; the others are empty.  If more clients would take part
    than there are slots, a uniformly random subset of that size does.  The number of clients is
    drawn from Binomial(M, q), then the clients without replacement, so that a round needs
    O(slots) memory and work for any population, where :func:`bernoulli` has a slot per client.
    :func:`slots_for` returns a number of slots with which that hardly ever happens, as accountants
    of privacy need it, and :func:`overflow_probability` how probable it is.

    The number of clients is decided by 64 random bits and the tails of its law, which are computed
    in float64 on the host.  So its probabilities are multiples of 2^-64, in either precision.

    The expected number of uploads is recorded as :math:`E[\min(N, S)]`, which is a little less than
    :math:`q M`.

    Args:
        key: PRNG key of the cohorts.
        num_rounds: T.
        num_clients: M.
        probability: q, concrete.
        num_steps: local steps per visit: one number, or ``[M]``, for example ``task.num_steps``.
        slots: S, the largest cohort.

    Raises:
        ValueError: a probability outside (0, 1] or traced, more slots than clients, or a count
            below 1.

    Example:
        >>> timeline = poisson(jax.random.key(0), 50, 10**6, 1e-5, num_steps=1, slots=20)
        >>> timeline.clients.shape, 9 < float(timeline.mask.sum(1).mean()) < 11
        ((50, 20), True)
    """
    if isinstance(probability, Tracer):
        raise ValueError("probability is traced; expected a number, which accountants need")
    check_one_number(probability=probability)
    check_positive(probability=probability)
    check_at_most(1, probability=probability)
    check_count(1, num_clients=num_clients)
    check_count(slots=slots)
    if not 1 <= slots <= num_clients:
        raise ValueError(f"slots is {slots}; expected 1 .. num_clients = {num_clients}")
    check_cohort(num_rounds, num_clients, slots)

    # P(N > k) of the number N of clients, in two words: slot k is filled if N > k.
    tails = _tail(num_clients, probability, np.arange(slots))
    high = np.minimum(np.floor(tails * 2.0**32), 2.0**32 - 1)
    low = np.minimum((tails * 2.0**32 - high) * 2.0**32, 2.0**32 - 1)
    high, low = jnp.asarray(high.astype(np.uint32)), jnp.asarray(low.astype(np.uint32))

    def draw(key: Array) -> tuple[Array, Array]:
        size_key, key_of_clients, order = jax.random.split(fast(key), 3)
        first, second = jax.random.bits(size_key, (2,), jnp.uint32)
        filled = (first < high) | ((first == high) & (second < low))
        # In random order: the first ones of a subset must be a uniformly random subset themselves.
        clients = sample_without_replacement(key_of_clients, num_clients, slots)
        return jax.random.permutation(order, clients), filled

    clients, mask = per_round(key, num_rounds, draw)
    expected = float(tails.sum())  # of min(N, S), the number of k < S with N > k
    rule = Sampling("poisson", expected, num_clients, probability=probability, slots=slots)
    return dataclasses.replace(rounds_of(clients, rule, num_clients, num_steps), mask=mask)


def overflow_probability(num_clients: int, probability: float, slots: int) -> float:
    """Returns the probability that more clients take part in a round than there are slots.

    Raises:
        ValueError: a probability outside [0, 1], no clients, or a negative number of slots.

    Example:
        >>> round(overflow_probability(1000, 0.05, 70), 4)
        0.0023
    """
    check_count(1, num_clients=num_clients)
    check_count(slots=slots)
    check_at_least(0, probability=probability)
    check_at_most(1, probability=probability)
    return float(_tail(num_clients, probability, np.asarray(slots)))


def slots_for(num_clients: int, probability: float, num_rounds: int, delta: float) -> int:
    """Returns the smallest number of slots that cuts a cohort of a run with probability delta / 10.

    That is the smallest S with ``num_rounds * P(N > S) <= delta / 10`` for N from Binomial(M, q).
    Then epsilon at this ``delta`` is almost that of Poisson sampling without a limit.

    Args:
        num_clients: M.
        probability: q.
        num_rounds: T.
        delta: of the guarantee, in (0, 1).

    Raises:
        ValueError: a number out of range.

    Example:
        >>> slots_for(10_000, 0.01, num_rounds=1000, delta=1e-5)
        165
    """
    check_count(1, num_clients=num_clients, num_rounds=num_rounds)
    check_positive(probability=probability)
    check_at_most(1, probability=probability)
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}; expected a number in (0, 1)")
    low, high = 1, num_clients  # bisection: the tail falls in the number of slots
    while low < high:
        slots = (low + high) // 2
        if num_rounds * overflow_probability(num_clients, probability, slots) <= delta / 10:
            high = slots
        else:
            low = slots + 1
    return low


def _tail(num_clients: int, probability: float, counts: np.ndarray) -> np.ndarray:
    """Returns the probabilities that more than ``counts`` clients take part."""
    from scipy.special import betainc  # not at the top: it would slow down `import fedjax_sim`

    others = np.maximum(num_clients - counts, 1.0)
    return np.where(counts < num_clients, betainc(counts + 1.0, others, probability), 0.0)
