"""Leave-one-out values, and Shapley values: exact, by permutations, by strata of sizes.

Values: L. S. Shapley, "A value for n-person games", Contributions to the Theory of Games II, 1953.
Truncated permutations: A. Ghorbani, J. Zou, "Data Shapley: equitable valuation of data for machine
learning", ICML 2019.  Antithetic pairs: R. Mitchell, J. Cooper, E. Frank, G. Holmes, "Sampling
permutations for Shapley value estimation", JMLR 23, 2022.  Strata: S. Maleki, L. Tran-Thanh,
G. Hines, T. Rahwan, A. Rogers, "Bounding the estimation error of sampling-based Shapley value
approximation", 2013, with the allocation of J. Neyman, "On the two different aspects of the
representative method", 1934.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from jax import Array

from fedjax_sim.checks import check_at_least, check_count
from fedjax_sim.studies.valuation.games import Game, check_game
from fedjax_sim.studies.valuation.result import Valuation, standard_deviation, valuation_of

MOST_CLIENTS = 14  # of the exact value: 2^14 runs


def leave_one_out(game: Game) -> Valuation:
    r"""Returns the loss of value when one client leaves, ``v(N) - v(N \ {i})``: M + 1 runs.

    The values do not sum to ``v(N)``, and each of two equal clients has the value 0 if the other
    one makes up for it.

    Raises:
        ValueError: ``game`` is no game.

    Example:
        >>> from fedjax_sim.studies.valuation import from_values
        >>> leave_one_out(from_values(lambda S: S[:, 0] & S[:, 1:].any(1), 3)).values.tolist()
        [1.0, 0.0, 0.0]
    """
    check_game(game)
    game = game.counted()
    n = game.num_clients
    values = game.values(np.concatenate([np.ones((1, n), bool), ~np.eye(n, dtype=bool)]))
    return valuation_of("leave-one-out", game, values[0] - values[1:])


def exact_shapley(game: Game) -> Valuation:
    r"""Returns the Shapley value by all :math:`2^M - 1` coalitions.

    .. math:: \phi_i = \sum_{S \not\ni i} \frac{|S|! \, (M - 1 - |S|)!}{M!}
              \big( v(S \cup i) - v(S) \big)

    It is the only value with :math:`\sum_i \phi_i = v(N)`, equal values of equal clients, 0 for
    clients that change nothing, and additivity over metrics.

    Args:
        game: of at most 14 clients.

    Raises:
        ValueError: more clients.

    Example:
        >>> from fedjax_sim.studies.valuation import from_values
        >>> glove = from_values(lambda S: S[:, 0] & S[:, 1:].any(1), 3)
        >>> exact_shapley(glove).values.round(4).tolist()  # the left glove is scarce
        [0.6667, 0.1667, 0.1667]
    """
    check_game(game)
    n = game.num_clients
    if n > MOST_CLIENTS:
        raise ValueError(
            f"game has {n} clients, so {2**n - 1} coalitions; expected at most {MOST_CLIENTS}. "
            "Estimate with permutation_shapley or stratified_shapley"
        )
    game = game.counted()
    numbers = np.arange(2**n)
    coalitions = (numbers[:, None] >> np.arange(n)) & 1 == 1  # client i is bit i
    values, sizes = game.values(coalitions), coalitions.sum(axis=1)
    weights = np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])
    shapley = np.empty(n)
    for i in range(n):
        without = numbers[~coalitions[:, i]]
        shapley[i] = weights[sizes[without]] @ (values[without | 1 << i] - values[without])
    return valuation_of("exact Shapley value", game, shapley)


_FEWEST = 8  # units before the stopping rule is applied: with few, standard errors are too small


def permutation_shapley(
    game: Game,
    key: Array,
    num_permutations: int,
    *,
    antithetic: bool = True,
    tolerance: float = 0.0,
    target_error: float | None = None,
    batch: int = 16,
) -> Valuation:
    r"""Estimates the Shapley value by marginal contributions along random permutations.

    .. math:: \hat\phi_i = \frac1P \sum_{p=1}^P \big( v(B_i^p \cup i) - v(B_i^p) \big), \qquad
              \mathrm{SE}_i = \mathrm{sd}_i / \sqrt P

    with :math:`B_i^p` the clients before i.  The estimates sum to :math:`v(N)` and are unbiased
    without truncation.  A permutation needs at most M - 1 runs beside that of all clients.  Most of
    the variance comes from the first places, so standard errors of fewer permutations than clients
    are unreliable: a client that was never first seems certain.

    Args:
        game: any number of clients.
        key: PRNG key of the permutations.
        num_permutations: P, at most; even if ``antithetic``.
        antithetic: every permutation is followed by its reverse.  The mean of both is one unit of
            the standard error.
        tolerance: along a permutation, clients after a prefix with
            :math:`|v(N) - v(\mathrm{prefix})| <` ``tolerance`` get 0 without a run.  Their true
            marginals are then missing, which is a bias that standard errors do not show.
        target_error: stop after a batch once all standard errors are at most this number, in the
            unit of the metric (after at least 8 units); None: all permutations.
        batch: permutations between two decisions; their runs are computed together.

    Returns:
        facts: ``permutations`` that were used, ``truncated``: share of marginals set to 0.

    Raises:
        ValueError: a number out of range; an odd number with ``antithetic``.

    Example:
        >>> import jax
        >>> from fedjax_sim.studies.valuation import from_values
        >>> additive = from_values(lambda S: S @ [1.0, 2.0, 4.0], 3)
        >>> result = permutation_shapley(additive, jax.random.key(0), 4)
        >>> result.values.tolist(), result.standard_errors.tolist()
        ([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
    """
    check_game(game)
    check_count(1, num_permutations=num_permutations, batch=batch)
    check_at_least(0.0, tolerance=tolerance, target_error=target_error or 0.0)
    if antithetic and (num_permutations % 2 or batch % 2):
        raise ValueError(
            f"num_permutations is {num_permutations} and batch {batch}; expected even numbers with "
            "antithetic=True"
        )
    game, rng = game.counted(), game.generator(key)
    n = game.num_clients
    units, errors, cut, done = np.empty((0, n)), np.full(n, np.nan), 0, 0
    while done < num_permutations:
        count = min(batch, num_permutations - done)
        orders = np.array([rng.permutation(n) for _ in range(count >> antithetic)])
        if antithetic:
            orders = np.stack([orders, orders[:, ::-1]], axis=1).reshape(count, n)
        new, known = marginals(game, orders, tolerance)
        new = new.reshape(-1, 2, n).mean(axis=1) if antithetic else new
        units, cut, done = np.concatenate([units, new]), cut + int((~known).sum()), done + count
        errors = standard_deviation(units) / np.sqrt(len(units))
        if target_error is not None and len(units) >= _FEWEST and errors.max() <= target_error:
            break
    facts = {"permutations": done, "truncated": cut / (done * n)}
    return valuation_of("permutations", game, units.mean(axis=0), errors, **facts)


def marginals(
    game: Game, orders: np.ndarray, tolerance: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the marginal contributions ``[P, M]`` along permutations ``[P, M]``, by client.

    Also ``[P, M]`` bool: False where truncated.
    """
    count, n = orders.shape
    position = np.argsort(orders, axis=1)
    prefixes = position[:, None, :] < np.arange(n + 1)[:, None]  # [P, M + 1, M]
    if tolerance == 0:
        values = game.values(prefixes.reshape(-1, n)).reshape(count, n + 1)
        active = np.ones((count, n), bool)
    else:
        total, values, active = game.total(), np.zeros((count, n + 1)), np.ones((count, n), bool)
        for j in range(n):  # permutations in step, so that their runs form one batch
            active[:, j] = np.abs(total - values[:, j]) >= tolerance
            values[:, j + 1] = values[:, j]
            rows = np.flatnonzero(active[:, j])
            if len(rows):
                values[rows, j + 1] = game.values(prefixes[rows, j + 1])
    rows = np.arange(count)[:, None]
    steps = np.where(active, np.diff(values, axis=1), 0.0)
    by_client, known = np.empty((count, n)), np.empty((count, n), bool)
    by_client[rows, orders], known[rows, orders] = steps, active
    return by_client, known


_BATCH = 4096  # coalitions that are asked for at once


def stratified_shapley(game: Game, key: Array, num_marginals: int, *, pilot: int = 8) -> Valuation:
    r"""Estimates the Shapley value by sampling within coalition sizes.

    With :math:`\mu_{i,r}` the mean marginal contribution of client i to coalitions of size r,

    .. math:: \phi_i = \frac1M \sum_{r=0}^{M-1} \mu_{i,r}, \qquad
              \mathrm{SE}_i^2 = \frac1{M^2} \sum_r \frac{s_{i,r}^2}{m_{i,r}}

    A stratum with at most ``pilot`` coalitions (r = 0 and r = M - 1 always) is enumerated and has
    no error.  The others get ``pilot`` draws with replacement, which estimate :math:`s_{i,r}`; the
    rest of the client's budget is divided in proportion to :math:`s_{i,r}` (Neyman), which
    minimises the standard error.  A marginal needs two runs, fewer where coalitions are cached.
    The allocation depends on the pilot, whose draws count in the means: with skewed marginals that
    is a bias, which a larger pilot reduces.  A stratum whose pilot shows no spread gets no more.

    Args:
        game: any number of clients.
        key: PRNG key of the coalitions.
        num_marginals: budget per client, pilot included.
        pilot: draws per stratum before the allocation, at least 2.

    Returns:
        facts: ``marginals`` per client that were used, on average.

    Raises:
        ValueError: a pilot below 2, or a budget that does not cover the pilot.

    Example:
        >>> import jax
        >>> from fedjax_sim.studies.valuation import from_values
        >>> additive = from_values(lambda S: S @ [1.0, 2.0, 4.0], 3)
        >>> stratified_shapley(additive, jax.random.key(0), 8).values.tolist()
        [1.0, 2.0, 4.0]
    """
    check_game(game)
    check_count(2, pilot=pilot)
    check_count(1, num_marginals=num_marginals)
    n = game.num_clients
    sizes = [math.comb(n - 1, r) for r in range(n)]
    needed = sum(min(size, pilot) for size in sizes)
    if num_marginals < needed:
        raise ValueError(
            f"num_marginals is {num_marginals}; expected at least {needed}, those of the pilot"
        )
    game, rng = game.counted(), game.generator(key)

    def contributions(requests: list[tuple[int, np.ndarray]]) -> list[float]:
        """Marginals of (client, coalition without the client)."""
        values: list[float] = []
        for first in range(0, len(requests), _BATCH):
            part = requests[first : first + _BATCH]
            without = np.array([coalition for _, coalition in part])
            joined = without.copy()
            joined[np.arange(len(part)), [client for client, _ in part]] = True
            both = game.values(np.concatenate([without, joined])).reshape(2, -1)
            values += (both[1] - both[0]).tolist()
        return values

    samples: dict[tuple[int, int], list[float]] = {(i, r): [] for i in range(n) for r in range(n)}

    def draw(counts: dict[tuple[int, int], int]) -> None:
        strata = [stratum for stratum, count in counts.items() for _ in range(count)]
        drawn = [(i, _draw(rng, n, i, r)) for i, r in strata]
        for stratum, value in zip(strata, contributions(drawn), strict=True):
            samples[stratum].append(value)

    small = [(i, r) for i, r in samples if sizes[r] <= pilot]
    every = [(stratum, c) for stratum in small for c in _all(n, *stratum)]
    exact = contributions([(i, coalition) for (i, _), coalition in every])
    for (stratum, _), value in zip(every, exact, strict=True):
        samples[stratum].append(value)
    large = [stratum for stratum in samples if sizes[stratum[1]] > pilot]
    draw(dict.fromkeys(large, pilot))

    extra: dict[tuple[int, int], int] = {}
    exact_count = sum(size for size in sizes if size <= pilot)
    for i in range(n):
        strata = [stratum for stratum in large if stratum[0] == i]
        spread = np.array([standard_deviation(np.array(samples[s])) for s in strata])
        if len(strata) and spread.sum() > 0:
            ideal = (num_marginals - exact_count) * spread / spread.sum()  # m_r ~ s_r
            rest = num_marginals - needed
            wanted = np.maximum(ideal - pilot, 0)
            counts = np.floor(rest * wanted / max(wanted.sum(), 1e-300)).astype(int)
            counts[np.argmax(wanted)] += rest - counts.sum()
            extra |= dict(zip(strata, counts.tolist(), strict=True))
    draw(extra)

    means = np.array([[np.mean(samples[i, r]) for r in range(n)] for i in range(n)])
    variances = np.zeros((n, n))
    for i, r in large:
        drawn = np.array(samples[i, r])
        variances[i, r] = standard_deviation(drawn) ** 2 / len(drawn)
    errors = np.sqrt(variances.sum(axis=1)) / n
    used = sum(len(drawn) for drawn in samples.values()) / n
    return valuation_of("strata", game, means.mean(axis=1), errors, marginals=used)


def _draw(rng: np.random.Generator, n: int, client: int, size: int) -> np.ndarray:
    """Returns a uniform coalition ``[n]`` of a size without a client."""
    others = np.delete(np.arange(n), client)
    coalition = np.zeros(n, bool)
    coalition[rng.choice(others, size, replace=False)] = True
    return coalition


def _all(n: int, client: int, size: int) -> list[np.ndarray]:
    """Returns all coalitions ``[n]`` of a size without a client."""
    others = [i for i in range(n) if i != client]
    chosen = itertools.combinations(others, size)
    return [np.isin(np.arange(n), members) for members in chosen]
