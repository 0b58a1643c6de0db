"""Result of a valuation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_sim.types import Summary, shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedjax_sim.studies.valuation.games import Game


@shown
class Valuation(NamedTuple):
    """Contributions of M clients to a metric, in the metric's unit; larger is better.

    Example:
        >>> result = Valuation("exact Shapley value", np.array([0.5, -0.1, 0.2]), None, 7)
        >>> result.ranking().tolist()  # the most valuable client first
        [0, 2, 1]
    """

    method: str
    values: np.ndarray  # [M]
    standard_errors: np.ndarray | None  # [M]; None: the method draws nothing
    num_runs: int  # training runs that the method needs, also those that were cached
    num_evaluations: int = 0  # models that were evaluated without training (per-round methods)
    facts: Mapping[str, float] = {}  # of the method, e.g. the number of permutations
    by_round: np.ndarray | None = None  # [T, M] terms of the sum over rounds, if it is one

    def ranking(self) -> np.ndarray:
        """Returns the clients' numbers ``[M]``, from the largest value to the smallest."""
        return np.argsort(-self.values, kind="stable")

    def to_frame(self) -> pd.DataFrame:
        """Returns a row per client: method, client, value, standard_error (0: exact), rank."""
        import pandas as pd  # slow to import

        rank = np.empty(len(self.values), int)
        rank[self.ranking()] = 1 + np.arange(len(rank))
        errors = 0.0 if self.standard_errors is None else self.standard_errors
        columns = {"client": np.arange(len(rank)), "value": self.values, "standard_error": errors}
        return pd.DataFrame({"method": self.method, **columns, "rank": rank})

    def _summary(self) -> Summary:
        best = ", ".join(f"{i} ({self.values[i]:.4g})" for i in self.ranking()[:5])
        rows = {
            "most valuable": f"clients {best}",
            "sum": f"{self.values.sum():.4g}",
            "training runs": f"{self.num_runs:,}",
        }
        title = f"Valuation of {len(self.values):,} clients: {self.method}"
        return Summary(title, rows)

    def plot(self, **options: Any) -> Figure:
        """Returns a bar per client with two standard errors.

        Args:
            options: as in :func:`fedjax_sim.reports.figures.contributions`.
        """
        from fedjax_sim.reports.figures import contributions  # slow to import

        return contributions(self.to_frame(), **options)


def standard_deviation(samples: np.ndarray) -> np.ndarray:
    """Returns the sample standard deviation (divisor n - 1) over axis 0; NaN of one sample."""
    if len(samples) < 2:
        return np.full(samples.shape[1:], np.nan)
    return samples.std(axis=0, ddof=1)


def valuation_of(
    method: str,
    game: Game,
    values: np.ndarray,
    errors: np.ndarray | None = None,
    **facts: float,
) -> Valuation:
    """Returns the result of a method that used a game made by :meth:`Game.counted`."""
    return Valuation(method, values, errors, game.num_runs, 0, facts)
