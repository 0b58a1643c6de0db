"""Shapley values by strata of coalition sizes, with Neyman's allocation.

S. Maleki, L. Tran-Thanh, G. Hines, T. Rahwan, A. Rogers, "Bounding the estimation error of
sampling-based Shapley value approximation", 2013.  J. Neyman, "On the two different aspects of the
representative method", 1934.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.studies.valuation.games import Game
from fedjax_sim.studies.valuation.result import Valuation, standard_deviation, valuation_of
from fedjax_sim.timelines import host_generator

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
    check_count(2, pilot=pilot)
    check_count(1, num_marginals=num_marginals)
    n = game.num_clients
    sizes = [math.comb(n - 1, r) for r in range(n)]
    needed = sum(min(size, pilot) for size in sizes)
    if num_marginals < needed:
        raise ValueError(
            f"num_marginals is {num_marginals}; expected at least {needed}, those of the pilot"
        )
    game, rng = game.counted(), host_generator(key)

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
