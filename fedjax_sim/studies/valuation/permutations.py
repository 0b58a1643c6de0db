"""Shapley values by sampled permutations.

A. Ghorbani, J. Zou, "Data Shapley: equitable valuation of data for machine learning", ICML 2019
(truncation).  Antithetic pairs: R. Mitchell, J. Cooper, E. Frank, G. Holmes, "Sampling permutations
for Shapley value estimation", JMLR 23, 2022.
"""

from __future__ import annotations

import numpy as np
from jax import Array

from fedjax_sim.checks import check_at_least, check_count
from fedjax_sim.studies.valuation.games import Game
from fedjax_sim.studies.valuation.result import Valuation, standard_deviation, valuation_of
from fedjax_sim.timelines import host_generator

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
    check_count(1, num_permutations=num_permutations, batch=batch)
    check_at_least(0.0, tolerance=tolerance, target_error=target_error or 0.0)
    if antithetic and (num_permutations % 2 or batch % 2):
        raise ValueError(
            f"num_permutations is {num_permutations} and batch {batch}; expected even numbers with "
            "antithetic=True"
        )
    game, rng = game.counted(), host_generator(key)
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
