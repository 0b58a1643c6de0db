"""Poisson sampling with few slots: cohorts of random size at the cost of a fixed one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

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
    check_part,
    check_positive,
)
from fedjax_sim.timelines.rules import Sampling
from fedjax_sim.timelines.sampling import (
    check_cohort,
    per_round,
    rounds_of,
    sample_without_replacement,
)
from fedjax_sim.tree import fast
from fedjax_sim.types import Timeline, plain_integers

_BLOCK = 256  # terms of a tail that are summed at once


@plain_integers
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
    check_part("num_clients", num_clients, slots=slots)
    check_cohort(num_rounds, num_clients, slots)

    # P(N > k) of the number N of clients, in two words: slot k is filled if N > k.
    tails = _tail(num_clients, float(probability), slots - 1)
    high = np.minimum(np.floor(tails * 2.0**32), 2.0**32 - 1)
    low = np.minimum((tails * 2.0**32 - high) * 2.0**32, 2.0**32 - 1)
    words = high.astype(np.uint32), low.astype(np.uint32)
    clients, mask = per_round(key, num_rounds, _cohort(num_clients, slots), *words)
    expected = float(tails.sum())  # of min(N, S), the number of k < S with N > k
    rule = Sampling("poisson", expected, num_clients, probability=probability, slots=slots)
    return dataclasses.replace(rounds_of(clients, rule, num_clients, num_steps), mask=mask)


@functools.cache
def _cohort(num_clients: int, slots: int) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    def draw(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
        size_key, key_of_clients, order = jax.random.split(fast(key), 3)
        first, second = jax.random.bits(size_key, (2,), jnp.uint32)
        filled = (first < high) | ((first == high) & (second < low))
        # In random order: the first ones of a subset must be a uniformly random subset themselves.
        clients = sample_without_replacement(key_of_clients, num_clients, slots)
        return jax.random.permutation(order, clients), filled

    return draw


@plain_integers
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
    return _last_tail(num_clients, float(probability), int(slots))


@plain_integers
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
    check_one_number(delta=delta)
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


def _tail(num_clients: int, probability: float, slots: int) -> np.ndarray:
    """Returns the probabilities ``[slots + 1]`` that more than 0, 1, ..., ``slots`` take part."""
    counts = np.arange(1, slots + 1)
    last = _last_tail(num_clients, probability, slots)
    masses = _mass(num_clients, probability, counts)
    tails = np.append(last + np.cumsum(masses[::-1])[::-1], last)
    return np.minimum(tails, 1.0)


def _last_tail(num_clients: int, probability: float, slots: int) -> float:
    """Returns P(N > slots), a sum over the shorter side of the law of N, whose terms fall."""
    if slots >= num_clients or probability == 0:
        return 0.0
    if probability == 1:
        return 1.0
    above = slots + 1 > num_clients * probability
    terms, k, total = 1.0, np.arange(_BLOCK), 0.0
    start = slots + 1 if above else slots
    first = float(_mass(num_clients, probability, np.array([start]))[0])
    odds = probability / (1 - probability)
    while terms > 1e-18 * total:
        if above:  # of the mass at start + k + 1 over that at start + k
            ratios = np.maximum(num_clients - start - k, 0) / (start + k + 1) * odds
        else:
            ratios = np.maximum(start - k, 0) / (num_clients - start + k + 1) / odds
        products = terms * np.cumprod(ratios)
        total += terms + float(products[:-1].sum())
        terms, k = float(products[-1]), k + _BLOCK
    return first * total if above else 1 - first * total


def _mass(num_clients: int, probability: float, counts: np.ndarray) -> np.ndarray:
    """Returns the probabilities of ``counts`` clients, with a relative error of about 1e-11.

    By the deviations of both counts from their means instead of factorials, whose logarithms would
    cancel for large populations.

    References:
        Loader, "Fast and Accurate Computation of Binomial Probabilities", 2000.
    """
    m, q = float(num_clients), probability
    if q in (0, 1):
        return np.where(counts == m * q, 1.0, 0.0)
    masses = np.zeros(counts.shape)
    masses[counts == 0] = math.exp(m * math.log1p(-q))
    masses[counts == num_clients] = math.exp(m * math.log(q))
    inside = (counts > 0) & (counts < num_clients)
    k = counts[inside].astype(float)
    logs = _stirling(m) - _stirling(k) - _stirling(m - k)
    logs = logs - _deviation(k, m * q) - _deviation(m - k, m * (1 - q))
    masses[inside] = np.sqrt(m / (2 * np.pi * k * (m - k))) * np.exp(logs)
    return masses


def _deviation(count: np.ndarray, mean: float) -> np.ndarray:
    """Returns ``count log(count / mean) + mean - count``."""
    over = (mean - count) / count
    with np.errstate(divide="ignore"):  # of means that round to 0 in `over`
        near = count * (over - np.log1p(over))
    return np.where(np.abs(over) < 0.5, near, count * np.log(count / mean) + mean - count)


def _stirling(count: float | np.ndarray) -> np.ndarray:
    """Returns the logarithm of ``count!`` minus that of Stirling's formula."""
    n = np.asarray(count)
    few = np.array([0.0, *(
        math.lgamma(i + 1) - (i + 0.5) * math.log(i) + i - math.log(2 * math.pi) / 2
        for i in range(1, 16)
    )])  # fmt: skip
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / n**2) / n**2) / n**2) / n
    return np.where(n < 16, few[np.minimum(n, 15).astype(int)], series)
