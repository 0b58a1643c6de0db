"""Who takes part in which round: synchronous timelines.

Every function returns a :class:`~fedjax_sim.types.Timeline` whose round t starts from version t.
All of them are pure functions of their key and run inside jit and vmap; ``num_steps`` (an int or
one int per client, as in ``task.num_steps``) must be concrete, because it bounds the local loop.
Round t draws from ``fold_in(key, t)``: a longer timeline begins like a shorter one.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.timelines.strata import strata
from fedjax_sim.types import Timeline


def full(num_rounds: int, num_clients: int, num_steps: int | np.ndarray | Array) -> Timeline:
    """Every client in every round.

    Example:
        >>> full(num_rounds=2, num_clients=3, num_steps=5).clients.tolist()
        [[0, 1, 2], [0, 1, 2]]
    """
    _check("num_rounds", num_rounds, 1)
    _check("num_clients", num_clients, 1)
    clients = jnp.broadcast_to(jnp.arange(num_clients), (num_rounds, num_clients))
    return _synchronous(clients, jnp.ones_like(clients, dtype=bool), num_clients, num_steps)


def single(
    num_rounds: int, num_clients: int, num_steps: int | np.ndarray | Array, client: int = 0
) -> Timeline:
    """One client in every round, always the same: FedAvg is then SGD on its data.

    Raises:
        ValueError: a client that does not exist, or a count below 1.

    Example:
        >>> single(num_rounds=2, num_clients=3, num_steps=5, client=1).clients.tolist()
        [[1], [1]]
    """
    _check("num_rounds", num_rounds, 1)
    _check("num_clients", num_clients, 1)
    if not 0 <= client < num_clients:
        raise ValueError(f"client is {client}; expected 0..{num_clients - 1}")
    clients = jnp.full((num_rounds, 1), client)
    return _synchronous(clients, jnp.ones_like(clients, dtype=bool), num_clients, num_steps)


def uniform(
    key: Array,
    num_rounds: int,
    num_clients: int,
    cohort_size: int,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """``cohort_size`` clients a round, uniformly without replacement.

    Raises:
        ValueError: a cohort larger than the population, or a count below 1.

    Example:
        >>> timeline = uniform(jax.random.key(0), 3, num_clients=10, cohort_size=4, num_steps=5)
        >>> timeline.clients.shape, len(set(timeline.clients[0].tolist()))
        ((3, 4), 4)
    """
    _check_cohort(cohort_size, num_clients)
    clients = _per_round(
        key, num_rounds, lambda key: sample_without_replacement(key, num_clients, cohort_size)
    )
    return _synchronous(clients, jnp.ones_like(clients, dtype=bool), num_clients, num_steps)


def weighted(
    key: Array,
    num_rounds: int,
    weights: np.ndarray,
    cohort_size: int,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """``cohort_size`` clients a round, drawn one after the other with probability proportional to
    ``weights`` ``[M]`` among those not drawn yet (successive sampling, by the Gumbel trick).

    The uploads are not reweighted for the unequal inclusion probabilities.

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
    if (weights > 0).sum() < cohort_size:
        raise ValueError(
            f"weights has {(weights > 0).sum()} positive entries; "
            f"expected at least cohort_size = {cohort_size}"
        )
    _check_cohort(cohort_size, len(weights))
    with np.errstate(divide="ignore"):
        log_weights = jnp.asarray(np.log(weights / weights.sum()), jnp.float32)

    def draw(key: Array) -> Array:
        return jax.lax.top_k(
            log_weights + jax.random.gumbel(key, log_weights.shape, jnp.float32), cohort_size
        )[1]

    clients = _per_round(key, num_rounds, draw)
    return _synchronous(clients, jnp.ones_like(clients, dtype=bool), len(weights), num_steps)


def bernoulli(
    key: Array,
    num_rounds: int,
    num_clients: int,
    probability: float,
    num_steps: int | np.ndarray | Array,
) -> Timeline:
    """Every client flips its own coin every round; a round may be empty.

    The slots of a round are all M clients, those that stay away being masked, so a round costs
    as much as one with full participation under a vmapped cohort.

    Raises:
        ValueError: a probability outside (0, 1].

    Example:
        >>> timeline = bernoulli(jax.random.key(0), 100, 50, probability=0.1, num_steps=1)
        >>> 0.08 < float(timeline.mask.mean()) < 0.12
        True
    """
    if not isinstance(probability, Tracer) and not 0 < probability <= 1:
        raise ValueError(f"probability is {probability}; expected a number in (0, 1]")
    timeline = full(num_rounds, num_clients, num_steps)
    return _thinned(key, timeline, probability)


def cyclic(
    num_rounds: int, num_clients: int, cohort_size: int, num_steps: int | np.ndarray | Array
) -> Timeline:
    """Clients in turn: 0 .. S - 1, then S .. 2 S - 1, ..., wrapping around.

    Example:
        >>> cyclic(3, num_clients=5, cohort_size=2, num_steps=1).clients.tolist()
        [[0, 1], [2, 3], [4, 0]]
    """
    _check_cohort(cohort_size, num_clients)
    _check("num_rounds", num_rounds, 1)
    clients = jnp.arange(num_rounds * cohort_size).reshape(num_rounds, cohort_size) % num_clients
    return _synchronous(clients, jnp.ones_like(clients, dtype=bool), num_clients, num_steps)


def stratified(
    key: Array,
    num_rounds: int,
    num_clients: int,
    cohort_size: int,
    num_steps: int | np.ndarray | Array,
    *,
    num_strata: int,
) -> Timeline:
    r"""From every stratum as many clients a round, uniformly without replacement.

    Strata are blocks of consecutive clients whose sizes differ by at most one, and own consecutive
    slots.  A client of a stratum of ``m`` takes part with probability
    ``cohort_size / (num_strata m)``: the same for all if strata have the same size.  The mean over
    a cohort varies less than under uniform sampling, by how much the strata's means differ.

    Raises:
        ValueError: a cohort that strata do not divide or that is larger than the population, a
            number below 1, or more strata than clients.

    Example:
        >>> timeline = stratified(jax.random.key(0), 3, 10, 4, num_steps=5, num_strata=2)
        >>> bool((timeline.clients[:, :2] < 5).all()), bool((timeline.clients[:, 2:] >= 5).all())
        (True, True)
    """
    _check_cohort(cohort_size, num_clients)
    blocks = strata(num_clients, num_strata)
    sizes = [len(blocks.clients(s)) for s in range(num_strata)]
    each = cohort_size // num_strata
    if cohort_size % num_strata or each > min(sizes):
        raise ValueError(
            f"cohort_size is {cohort_size}; expected a multiple of num_strata = {num_strata} of at "
            f"most {num_strata * min(sizes)}"
        )

    def draw(key: Array) -> Array:
        # A vmap for each size of a stratum, of which there are two at most.
        parts = []
        for size in dict.fromkeys(sizes):
            some = np.array([s for s in range(num_strata) if sizes[s] == size])
            keys = jax.vmap(lambda s: jax.random.fold_in(key, s))(some)
            drawn = jax.vmap(lambda k, n=size: sample_without_replacement(k, n, each))(keys)
            first = np.array([blocks.clients(int(s)).start for s in some])
            parts.append(drawn.astype(jnp.int32) + first[:, None].astype(np.int32))
        return jnp.concatenate(parts).reshape(-1)

    clients = _per_round(key, num_rounds, draw)
    return _synchronous(clients, jnp.ones_like(clients, dtype=bool), num_clients, num_steps)


def arrange_by_stratum(timeline: Timeline, num_clients: int, num_strata: int) -> Timeline:
    """The same schedule with every stratum's clients in slots of their own.

    What :func:`stratified` samples like that from the beginning, this does to any timeline, also an
    asynchronous one: who reports when is as before.  Strata have as many slots as the busiest
    of them needs in its busiest round, the others being empty.

    Args:
        timeline: concrete; ``[T, S]``, or a batch ``[n, T, S]`` that gets as many slots for all.
        num_clients: the population.
        num_strata: blocks of consecutive clients.

    Raises:
        ValueError: more strata than clients.

    Example:
        >>> from fedjax_sim import participation
        >>> drawn = participation.cyclic(2, num_clients=4, cohort_size=3, num_steps=1)
        >>> spread = dealt(drawn, num_clients=4, num_strata=2)
        >>> spread.clients.tolist(), spread.mask.tolist()
        ([[0, 1, 2, 2], [0, 1, 3, 3]], [[True, True, True, False], [True, True, True, False]])
    """
    batch = timeline.clients.shape[:-1]

    def flat(x: np.ndarray | Array) -> np.ndarray:
        return np.asarray(x).reshape(-1, timeline.cohort_size)

    clients, mask = flat(timeline.clients), flat(timeline.mask)
    of = np.where(mask, strata(num_clients, num_strata).of(clients), num_strata)
    # Slots of a stratum in their order, the empty ones last.
    order = np.argsort(of, axis=1, kind="stable")
    counts = (of[:, None, :] == np.arange(num_strata)[:, None]).sum(axis=2)  # [T, strata]
    width = max(int(counts.max()), 1)
    first = np.cumsum(counts, axis=1) - counts
    slot = np.minimum(np.arange(width), np.maximum(counts[..., None] - 1, 0))  # repeats the last
    places = np.minimum(first[..., None] + slot, clients.shape[1] - 1).reshape(len(clients), -1)
    picked = np.take_along_axis(order, places, axis=1)
    filled = (np.arange(width) < counts[..., None]).reshape(picked.shape)

    def rearranged(name: str) -> np.ndarray | None:
        value = getattr(timeline, name)
        if value is None:
            return None
        return np.take_along_axis(flat(value), picked, axis=1).reshape(*batch, -1)

    filled = filled.reshape(*batch, -1)
    names = ("clients", "version", "num_steps", "first_step", "idle", "read_buffer")
    return dataclasses.replace(timeline, mask=filled, **{name: rearranged(name) for name in names})


def dropout(key: Array, timeline: Timeline, probability: float) -> Timeline:
    """Each sampled client fails to report with the given probability, independently.

    Raises:
        ValueError: a probability outside [0, 1).

    Example:
        >>> sampled = cyclic(200, num_clients=10, cohort_size=5, num_steps=1)
        >>> 0.25 < 1 - float(dropout(jax.random.key(0), sampled, 0.3).mask.mean()) < 0.35
        True
    """
    if not isinstance(probability, Tracer) and not 0 <= probability < 1:
        raise ValueError(f"probability is {probability}; expected a number in [0, 1)")
    return _thinned(key, timeline, 1 - probability)


def sample_without_replacement(key: Array, population: int, size: int) -> Array:
    """A uniformly random subset of ``0 .. population - 1``, int ``[size]``, in no meaningful order.

    A subset small against the population is drawn in O(size^2) by Floyd's algorithm (Bentley and
    Floyd, 1987) instead of permuting the whole population, which takes 0.1 s for a million.

    Example:
        >>> len(set(sample_without_replacement(jax.random.key(0), 10**6, 100).tolist()))
        100
    """
    if size * size >= 4 * population or size * 8 >= population:
        return jax.random.permutation(key, population)[:size]

    first = population - size
    steps = jnp.arange(size, dtype=jnp.int32)
    # One draw per step from 0 .. first + step, all at once.
    draws = jax.random.randint(key, (size,), 0, first + 1 + steps, jnp.int32)

    def insert(chosen: Array, step: Array) -> tuple[Array, None]:
        taken = jnp.any(chosen == draws[step])
        return chosen.at[step].set(jnp.where(taken, first + step, draws[step])), None

    return jax.lax.scan(insert, jnp.full((size,), -1, jnp.int32), steps)[0]


def _synchronous(
    clients: Array, mask: Array, num_clients: int, num_steps: int | np.ndarray | Array
) -> Timeline:
    if isinstance(num_steps, Tracer):
        raise ValueError("num_steps is traced; expected a concrete int or array, it bounds a loop")
    steps = np.asarray(num_steps)
    if steps.shape not in ((), (num_clients,)):
        raise ValueError(
            f"num_steps has shape {steps.shape}; expected an int or one per client: {num_clients}"
        )
    steps = np.broadcast_to(steps, (num_clients,))
    if not np.issubdtype(steps.dtype, np.integer) or (steps < 0).any():
        raise ValueError(f"num_steps must be integers >= 0; got {num_steps!r}")
    num_rounds = clients.shape[0]
    rounds = jnp.arange(num_rounds, dtype=jnp.int32)
    clients = clients.astype(jnp.int32)
    return Timeline(
        clients=clients,
        version=jnp.broadcast_to(rounds[:, None], clients.shape),
        num_steps=jnp.asarray(steps, jnp.int32)[clients],
        mask=mask,
        time=(rounds + 1).astype(jnp.float32),
        max_steps=int(steps.max()),
    )


def _per_round(key: Array, num_rounds: int, draw) -> Array:
    """One draw per round, one after the other: a vmap would hold all rounds' work at once."""
    _check("num_rounds", num_rounds, 1)
    return jax.lax.map(lambda t: draw(jax.random.fold_in(key, t)), jnp.arange(num_rounds))


def _thinned(key: Array, timeline: Timeline, keep: float) -> Timeline:
    shape = (timeline.cohort_size,)
    threshold = jnp.asarray(keep).astype(jnp.float32)  # the same coins in either precision
    stays = _per_round(
        key,
        timeline.num_rounds,
        lambda key: jax.random.uniform(key, shape, jnp.float32) < threshold,
    )
    return dataclasses.replace(timeline, mask=timeline.mask & stays)


def _check(name: str, value: int, low: int) -> None:
    if value < low:
        raise ValueError(f"{name} is {value}; expected an integer of at least {low}")


def _check_cohort(cohort_size: int, num_clients: int) -> None:
    if not 1 <= cohort_size <= num_clients:
        raise ValueError(f"cohort_size is {cohort_size}; expected 1 .. num_clients = {num_clients}")
