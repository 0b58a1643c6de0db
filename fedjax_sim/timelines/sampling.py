"""Cohorts of synchronous rounds: full participation and sampling schemes.

Every function returns a :class:`~fedjax_sim.types.Timeline` whose round t starts from version t.
All functions are pure functions of their key and run inside jit and vmap.  ``num_steps`` (one int,
or one per client as in ``task.num_steps``) must be concrete, because it bounds the local loop.
Round t draws from ``fold_in(key, t)``, so the first rounds do not depend on ``num_rounds``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.checks import (
    INT32_MAX,
    check_at_most,
    check_choice,
    check_count,
    check_decay,
    check_key,
    check_one_timeline,
    check_part,
    check_positive,
    check_probability,
    check_timeline_size,
)
from fedjax_sim.timelines.coins import occurs
from fedjax_sim.timelines.rules import Sampling, thinned
from fedjax_sim.timelines.strata import strata
from fedjax_sim.tree import Repeated, fast, usual
from fedjax_sim.types import Scalar, Timeline, plain_integers


@plain_integers
def full(num_rounds: int, num_clients: int, num_steps: int | np.ndarray | Array) -> Timeline:
    """All clients in every round.

    Args:
        num_rounds: T.
        num_clients: M.
        num_steps: local steps per visit: one number, or ``[M]``, for example ``task.num_steps``.

    Raises:
        ValueError: a count below 1, or a timeline that is too large.

    Example:
        >>> full(num_rounds=2, num_clients=3, num_steps=5).clients.tolist()
        [[0, 1, 2], [0, 1, 2]]
    """
    return _everybody(np, num_rounds, num_clients, num_steps)


@plain_integers
def cohort_of(
    num_clients: int, fraction: float, *, rule: Literal["nearest", "flower"] = "nearest"
) -> int:
    r"""Returns the number of clients per round that a fraction C of M clients means.

    Args:
        num_clients: M.
        fraction: C, in (0, 1].
        rule: "nearest": :math:`\max(1, \lfloor C M + 1/2 \rfloor)`.  "flower": Flower's
            :math:`\max(2, \lfloor C M \rfloor)`, with its default minimum of two clients, and its
            ``int()`` of the product in double precision: 0.29 of 100 clients are 28.

    Raises:
        ValueError: no clients, a fraction outside (0, 1], an unknown rule, or one client with
            "flower", whose server would wait for a second one.

    Example:
        >>> cohort_of(15, 0.1), cohort_of(15, 0.1, rule="flower")
        (2, 2)
        >>> cohort_of(100, 0.29), cohort_of(100, 0.29, rule="flower")
        (29, 28)
    """
    check_count(1, num_clients=num_clients)
    check_positive(fraction=fraction)
    check_at_most(1, fraction=fraction)
    check_choice(("nearest", "flower"), rule=rule)
    if rule == "nearest":
        # The decimal number that is typed, not its binary neighbour.
        return max(1, math.floor(Fraction(str(fraction)) * num_clients + Fraction(1, 2)))
    if num_clients < 2:
        raise ValueError("num_clients is 1; expected at least 2, the minimum of rule='flower'")
    return max(2, int(num_clients * fraction))


@plain_integers
def single(
    num_rounds: int, num_clients: int, num_steps: int | np.ndarray | Array, client: int = 0
) -> Timeline:
    """Timeline of one client in every round; FedAvg is then SGD on its data.

    The other arguments are those of :func:`uniform`.

    Raises:
        ValueError: a client that does not exist, or a count below 1.

    Example:
        >>> single(num_rounds=2, num_clients=3, num_steps=5, client=1).clients.tolist()
        [[1], [1]]
    """
    check_cohort(num_rounds, num_clients, 1)
    check_count(client=client)
    if client >= num_clients:
        raise ValueError(f"client is {client}; expected 0 .. {num_clients - 1}")
    clients = np.full((num_rounds, 1), client)
    return rounds_of(clients, _fixed(1), num_clients, num_steps)


@plain_integers
def uniform(
    key: Array,
    num_rounds: int,
    num_clients: int,
    cohort_size: int,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """Cohorts of ``cohort_size`` clients, drawn uniformly without replacement.

    Args:
        key: PRNG key of the cohorts.
        num_rounds: T.
        num_clients: M.
        cohort_size: S, clients per round.
        num_steps: local steps per visit: one number, or ``[M]``, for example ``task.num_steps``.

    Raises:
        ValueError: a cohort larger than the population, or a count below 1.

    Example:
        >>> timeline = uniform(jax.random.key(0), 3, num_clients=10, cohort_size=4, num_steps=5)
        >>> timeline.clients.shape, len(set(timeline.clients[0].tolist()))
        ((3, 4), 4)
    """
    check_cohort(num_rounds, num_clients, cohort_size)
    clients = per_round(key, num_rounds, _cohort(num_clients, cohort_size))
    rule = Sampling("without_replacement", float(cohort_size), num_clients, cohort_size)
    return rounds_of(clients, rule, num_clients, num_steps)


@plain_integers
def weighted(
    key: Array,
    num_rounds: int,
    weights: np.ndarray,
    cohort_size: int,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """Cohorts of ``cohort_size`` clients, drawn without replacement by ``weights``, ``[M]``.

    Clients are drawn one after the other, with probability proportional to their weights among the
    clients not drawn yet (successive sampling, by the Gumbel trick).  The uploads are not
    reweighted for the unequal inclusion probabilities.

    Args:
        weights: ``[M]``, not negative.  The other arguments are those of :func:`uniform`.

    Raises:
        ValueError: weights negative, not finite, or with fewer positive entries than the cohort.

    Example:
        >>> timeline = weighted(jax.random.key(0), 2, np.array([1.0, 0.0, 3.0]), 2, num_steps=1)
        >>> sorted(timeline.clients[0].tolist())
        [0, 2]
    """
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"weights must be a vector of finite numbers >= 0; got {weights!r}")
    check_count(cohort_size=cohort_size)
    if (weights > 0).sum() < cohort_size:
        raise ValueError(
            f"weights has {(weights > 0).sum()} positive entries; "
            f"expected at least cohort_size = {cohort_size}"
        )
    check_cohort(num_rounds, len(weights), cohort_size)
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights / weights.sum()).astype(np.float32)
    clients = per_round(key, num_rounds, _by_weights(cohort_size), log_weights)
    return rounds_of(clients, _fixed(cohort_size), len(weights), num_steps)


@plain_integers
def bernoulli(
    key: Array,
    num_rounds: int,
    num_clients: int,
    probability: float,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """Cohorts of clients that take part independently with ``probability``; may be empty.

    A round has one slot for each of the M clients, and absent clients are masked.  Under vmapped
    execution a round costs as much as one with full participation.  The probability is rounded to
    a multiple of 2^-32.

    The other arguments are those of :func:`uniform`.

    Raises:
        ValueError: a probability outside (0, 1].

    Example:
        >>> timeline = bernoulli(jax.random.key(0), 100, 50, probability=0.1, num_steps=1)
        >>> 0.08 < float(timeline.mask.mean()) < 0.12
        True
    """
    check_probability(probability=probability)
    check_count(1, num_clients=num_clients)
    rule = Sampling("poisson", float(num_clients), num_clients)
    everybody = _everybody(_arrays(key), num_rounds, num_clients, num_steps)
    return _thinned(key, dataclasses.replace(everybody, sampling=rule), probability)


@plain_integers
def full_or_uniform(
    key: Array,
    num_rounds: int,
    num_clients: int,
    cohort_size: int,
    probability: float,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """Rounds of all clients with ``probability``, other rounds of ``cohort_size`` of them.

    The first round has all clients; cohorts are drawn uniformly without replacement.  This is the
    timeline of :func:`fedjax_sim.pp_marina`.  A round has one slot for each of the M clients, and
    absent clients are masked.

    Raises:
        ValueError: a probability outside (0, 1], a cohort larger than the population, or a count
            below 1.

    Example:
        >>> timeline = full_or_uniform(jax.random.key(0), 50, 10, 2, probability=0.1, num_steps=1)
        >>> reports = timeline.mask.sum(1)
        >>> int(reports[0]), sorted(set(reports.tolist()))
        (10, [2, 10])
    """
    check_probability(probability=probability)
    check_cohort(num_rounds, num_clients, cohort_size)
    timeline = _everybody(_arrays(key), num_rounds, num_clients, num_steps)
    draw = _all_or_some(num_clients, cohort_size)
    mask = per_round(key, num_rounds, draw, probability).at[0].set(True)
    return dataclasses.replace(timeline, mask=mask, sampling=None)


@plain_integers
def cyclic(
    num_rounds: int, num_clients: int, cohort_size: int, num_steps: int | np.ndarray | Array
) -> Timeline:
    """Cohorts of consecutive clients: 0 .. S - 1, then S .. 2 S - 1, ..., wrapping around.

    The other arguments are those of :func:`uniform`.

    Raises:
        ValueError: a count below 1, more slots than clients, or a timeline that is too large.

    Example:
        >>> cyclic(3, num_clients=5, cohort_size=2, num_steps=1).clients.tolist()
        [[0, 1], [2, 3], [4, 0]]
    """
    check_cohort(num_rounds, num_clients, cohort_size)
    first = np.arange(num_rounds, dtype=np.int64) * cohort_size
    clients = (first[:, None] + np.arange(cohort_size)) % num_clients
    return rounds_of(clients, _fixed(cohort_size), num_clients, num_steps)


@plain_integers
def stratified(
    key: Array,
    num_rounds: int,
    num_clients: int,
    cohort_size: int,
    num_steps: int | np.ndarray | Array,
    *,
    num_strata: int,
) -> Timeline:
    r"""Cohorts with equally many clients of every stratum, drawn uniformly without replacement.

    Strata are blocks of consecutive clients whose sizes differ by at most one; each has
    consecutive slots.  A client in a stratum of ``m`` clients takes part with probability
    ``cohort_size / (num_strata m)``, which is equal for all clients if all strata have the same
    size.  The variance of the mean over a cohort is smaller than under uniform sampling, by the
    variance between the strata's means.

    The other arguments are those of :func:`uniform`.

    Raises:
        ValueError: a cohort size that is not a multiple of the number of strata or exceeds the
            population, a number below 1, or more strata than clients.

    Example:
        >>> timeline = stratified(jax.random.key(0), 3, 10, 4, num_steps=5, num_strata=2)
        >>> bool((timeline.clients[:, :2] < 5).all()), bool((timeline.clients[:, 2:] >= 5).all())
        (True, True)
    """
    check_cohort(num_rounds, num_clients, cohort_size)
    blocks = strata(num_clients, num_strata)
    sizes = [len(blocks.clients(s)) for s in range(num_strata)]
    each = cohort_size // num_strata
    if cohort_size % num_strata or each > min(sizes):
        raise ValueError(
            f"cohort_size is {cohort_size}; expected a multiple of num_strata = {num_strata} of at "
            f"most {num_strata * min(sizes)}"
        )
    clients = per_round(key, num_rounds, _of_strata(num_clients, num_strata, each))
    # A change of one client changes one stratum; the smallest is sampled most densely.
    rule = Sampling("without_replacement", float(cohort_size), min(sizes), each)
    return rounds_of(clients, rule, num_clients, num_steps)


def dropout(key: Array, timeline: Timeline, probability: float) -> Timeline:
    """Removes each sampled client independently with the given probability.

    Args:
        timeline: any timeline ``[T, S]``.
        probability: probability that a sampled client does not report; it is rounded to a
            multiple of 2^-24, and that of a report to a multiple of 2^-32.

    Raises:
        ValueError: a probability outside [0, 1), or a batch of timelines.

    Example:
        >>> sampled = cyclic(200, num_clients=10, cohort_size=5, num_steps=1)
        >>> 0.25 < 1 - float(dropout(jax.random.key(0), sampled, 0.3).mask.mean()) < 0.35
        True
    """
    check_decay(probability=probability)
    check_one_timeline(timeline.clients)
    return _thinned(key, timeline, 1 - probability)


@plain_integers
def sample_without_replacement(key: Array, population: int, size: int) -> Array:
    """Uniformly random subset of ``0 .. population - 1``, int ``[size]``, in arbitrary order.

    Small subsets are drawn by Floyd's algorithm (Bentley and Floyd, 1987) in O(size) memory: a
    permutation of the whole population takes 0.1 s for a million.  Its step j draws from
    ``0 .. population - size + j``.  If the draw is an element already, the step inserts the largest
    number of that range, which no earlier step can have drawn.  Every subset has equal probability.

    All steps are evaluated together, in O(size log size).  A draw is an element already if an
    earlier draw had its value, or if it is the number that an earlier step inserted because its own
    draw was an element already.  Such chains of steps are followed by doubling.

    Raises:
        ValueError: a size above the population, or a negative one.

    Example:
        >>> len(set(sample_without_replacement(jax.random.key(0), 10**6, 100).tolist()))
        100
    """
    check_key(key)
    check_count(population=population, size=size)
    if size > population:
        raise ValueError(f"size is {size}; expected 0 .. population = {population}")
    if size * size >= 4 * population or size * 8 >= population:
        return jax.random.permutation(fast(key), population)[:size]

    first = population - size
    steps = jnp.arange(size, dtype=jnp.int32)
    # One draw per step from 0 .. first + step, all at once.
    draws = jax.random.randint(fast(key), (size,), 0, first + 1 + steps, jnp.int32)

    values, which = jax.lax.sort((draws, steps), num_keys=1, is_stable=True)
    equal = jnp.concatenate([jnp.zeros(1, bool), values[1:] == values[:-1]])
    repeated = jnp.zeros(size, bool).at[which].set(equal, unique_indices=True)
    # The step that may have inserted the draw; the step itself: none.
    earlier = jnp.where((draws >= first) & (draws - first < steps), draws - first, steps)

    def double(_: int, chains: tuple[Array, Array]) -> tuple[Array, Array]:
        repeated, earlier = chains
        return repeated | repeated[earlier], earlier[earlier]

    repeated, _ = jax.lax.fori_loop(0, size.bit_length(), double, (repeated, earlier))
    return jnp.where(repeated, first + steps, draws)


def _fixed(cohort_size: int) -> Sampling:
    """Rule of cohorts whose sampling has no known amplification of privacy."""
    return Sampling("fixed", float(cohort_size))


def _everybody(
    arrays: ModuleType, num_rounds: int, num_clients: int, num_steps: int | np.ndarray | Array
) -> Timeline:
    """Timeline of all clients, computed by NumPy or ``jax.numpy``."""
    check_cohort(num_rounds, num_clients, num_clients)
    clients = arrays.broadcast_to(arrays.arange(num_clients), (num_rounds, num_clients))
    return rounds_of(clients, _fixed(num_clients), num_clients, num_steps)


def _arrays(x: Any) -> ModuleType:
    """Module that computes with an array: NumPy, which compiles no programs, unless it is traced.

    A traced program does not get the arrays of all rounds as constants.
    """
    return jnp if isinstance(x, Tracer) else np


def rounds_of(
    clients: Array | np.ndarray,
    rule: Sampling,
    num_clients: int,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """Timeline of these clients, without empty slots."""
    if isinstance(num_steps, Tracer):
        raise ValueError(
            "num_steps is traced; expected a concrete int or array, since it bounds a loop"
        )
    # Equal numbers stay one number, whatever the population.
    steps = np.asarray(num_steps.value if isinstance(num_steps, Repeated) else num_steps)
    if steps.shape not in ((), (num_clients,)):
        raise ValueError(
            f"num_steps has shape {steps.shape}; expected one int or one per client, {num_clients}"
        )
    if not np.issubdtype(steps.dtype, np.integer) or (steps < 0).any():
        raise ValueError(f"num_steps is {num_steps!r:.60}; expected integers of at least 0")
    check_at_most(INT32_MAX, num_steps=steps.max())
    arrays = _arrays(clients)
    clients = arrays.asarray(clients, np.int32)
    num_rounds = clients.shape[0]
    rounds = arrays.arange(num_rounds, dtype=np.int32)
    values = arrays.asarray(steps, np.int32)
    each = values[clients] if values.ndim else arrays.broadcast_to(values, clients.shape)
    version = arrays.broadcast_to(rounds[:, None], clients.shape)
    mask = arrays.ones(clients.shape, bool)
    if arrays is np:
        clients, version, each, mask = jax.device_put((clients, version, each, mask))
    return Timeline(
        clients=clients,
        version=version,
        num_steps=each,
        mask=mask,
        time=np.arange(1.0, num_rounds + 1),
        max_steps=int(steps.max()),
        sampling=rule,
    )


def per_round(key: Array, num_rounds: int, draw: Callable[..., Any], *arguments: Any) -> Any:
    """One draw per round, sequentially, to limit the memory that a draw needs.

    The same ``draw`` of a key and the arguments has one program, so callers make it once.
    """
    check_key(key)
    return _per_round(key, num_rounds, draw, *arguments)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _per_round(key: Array, num_rounds: int, draw: Callable[..., Any], *arguments: Any) -> Any:
    key = fast(key)
    rounds = jnp.arange(num_rounds)
    return jax.lax.map(lambda t: draw(usual(jax.random.fold_in(key, t)), *arguments), rounds)


@functools.cache
def _cohort(num_clients: int, cohort_size: int) -> Callable[[Array], Array]:
    return lambda key: sample_without_replacement(key, num_clients, cohort_size)


@functools.cache
def _by_weights(cohort_size: int) -> Callable[[Array, Array], Array]:
    def draw(key: Array, log_weights: Array) -> Array:
        # Mode "low" has so few large values that clients with small numbers would win ties.
        noise = jax.random.gumbel(fast(key), log_weights.shape, jnp.float32, mode="high")
        return jax.lax.top_k(log_weights + noise, cohort_size)[1]

    return draw


@functools.cache
def _all_or_some(num_clients: int, cohort_size: int) -> Callable[[Array, Scalar], Array]:
    def draw(key: Array, probability: Scalar) -> Array:
        coin, cohort = jax.random.split(fast(key))
        chosen = sample_without_replacement(cohort, num_clients, cohort_size)
        some = jnp.zeros(num_clients, bool).at[chosen].set(True)
        return some | occurs(jax.random.bits(coin, (), jnp.uint32), probability)

    return draw


@functools.cache
def _of_strata(num_clients: int, num_strata: int, each: int) -> Callable[[Array], Array]:
    blocks = strata(num_clients, num_strata)
    sizes = [len(blocks.clients(s)) for s in range(num_strata)]

    def draw(key: Array) -> Array:
        # One vmap per size of a stratum; there are at most two sizes.
        parts = []
        for size in dict.fromkeys(sizes):
            equal = np.array([s for s in range(num_strata) if sizes[s] == size])
            keys = jax.vmap(lambda s: jax.random.fold_in(key, s))(equal)
            drawn = jax.vmap(lambda k, n=size: sample_without_replacement(k, n, each))(keys)
            first = np.array([blocks.clients(int(s)).start for s in equal])
            parts.append(drawn.astype(jnp.int32) + first[:, None].astype(np.int32))
        return jnp.concatenate(parts).reshape(-1)

    return draw


@functools.cache
def _stays(cohort_size: int) -> Callable[[Array, Scalar], Array]:
    return lambda key, keep: occurs(jax.random.bits(fast(key), (cohort_size,), jnp.uint32), keep)


def _thinned(key: Array, timeline: Timeline, keep: Scalar) -> Timeline:
    stays = per_round(key, timeline.num_rounds, _stays(timeline.cohort_size), keep)
    rule = thinned(timeline.sampling, keep)
    return dataclasses.replace(timeline, mask=timeline.mask & stays, sampling=rule)


def check_cohort(num_rounds: int, num_clients: int, cohort_size: int) -> None:
    check_count(1, num_rounds=num_rounds, num_clients=num_clients)
    check_at_most(INT32_MAX, num_clients=num_clients)
    check_part("num_clients", num_clients, cohort_size=cohort_size)
    check_timeline_size(num_rounds, cohort_size)
