"""Leave-one-out values and exact Shapley values.

L. S. Shapley, "A value for n-person games", Contributions to the Theory of Games II, 1953.
"""

from __future__ import annotations

import math

import numpy as np

from fedjax_sim.studies.valuation.games import Game
from fedjax_sim.studies.valuation.result import Valuation, valuation_of

MOST_CLIENTS = 14  # of the exact value: 2^14 runs


def leave_one_out(game: Game) -> Valuation:
    r"""Returns the loss of value when one client leaves, ``v(N) - v(N \ {i})``: M + 1 runs.

    The values do not sum to ``v(N)``, and each of two equal clients has the value 0 if the other
    one makes up for it.

    Example:
        >>> from fedjax_sim.studies.valuation import from_values
        >>> leave_one_out(from_values(lambda S: S[:, 0] & S[:, 1:].any(1), 3)).values.tolist()
        [1.0, 0.0, 0.0]
    """
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
