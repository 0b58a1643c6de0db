"""Result of a fork: histories of all alternatives and their paired differences."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from fedjax_sim.engine import History, RunState, headline
from fedjax_sim.reports import finite_part, paired_difference, runs_table
from fedjax_sim.reports.figures import fork_curves
from fedjax_sim.runs import melted
from fedjax_sim.types import Summary, listed, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@shown
class Fork(NamedTuple):
    """Continuations of a run from round t."""

    round: int  # t
    reference: str  # the alternative that the others are compared with
    histories: dict[str, History]  # by alternative, arrays [n, E, ...]; the first is of round t
    states: dict[str, RunState]  # by alternative, final
    seeds: list[Any]

    def to_frame(self) -> pd.DataFrame:
        """Returns columns ``alternative``, ``seed``, ``diverged_at``, ``round``, ``metric``,
        ``value``.

        Metrics are those of :meth:`fedjax_sim.runs.result.Simulation.to_frame`: arrays are
        ``name/0``, ``name/1``, ..., and rounds that do not measure a metric have no row.
        """
        rows = []
        for name, history in self.histories.items():
            diverged_at = np.atleast_1d(np.asarray(self.states[name].diverged_at))
            for i, seed in enumerate(self.seeds):
                one = jax.tree.map(lambda x, i=i: np.asarray(x)[i], history)
                rows += [
                    (name, seed, int(diverged_at[i]), done, metric, float(value))
                    for done, metric, value in melted(one)
                ]
        columns = ["alternative", "seed", "diverged_at", "round", "metric", "value"]
        return pd.DataFrame(rows, columns=columns)

    def differences(self, metric: str, level: float = 0.95) -> pd.DataFrame:
        """Returns paired differences to the reference, seed by seed, per round.

        A seed does not count from the round on in which one of the two diverged.

        Args:
            metric: a metric of the histories.
            level: level of the intervals.

        Returns:
            columns ``alternative``, ``round``, ``mean``, ``low``, ``high`` (Student's t interval
            of the mean difference), ``p_value``, ``num_seeds``, and ``variance_ratio``: the
            variance of the difference over the sum of both variances, which is what common random
            numbers leave of the variance with independent runs.
        """
        frame = self.to_frame()
        if metric not in set(frame["metric"]):
            known = ", ".join(map(repr, frame["metric"].unique()))
            raise ValueError(f"metric is {metric!r}; expected one of {known}")
        frame = finite_part(frame.loc[frame["metric"] == metric])
        rows = []
        for name in self.histories:
            if name == self.reference:
                continue
            for done in sorted(frame["round"].unique()):
                now = frame.loc[frame["round"] == done, ["alternative", "seed", "value"]]
                scores = now.rename(columns={"value": "score"})
                pair = paired_difference(
                    scores, "alternative", name, self.reference, mode="min", level=level
                )
                by_seed = now.pivot(index="seed", columns="alternative", values="value")
                ratio = _variance_ratio(
                    by_seed[name].to_numpy(), by_seed[self.reference].to_numpy()
                )
                rows.append((name, done, *pair[1:6], ratio))
        columns = [
            "alternative", "round", "mean", "low", "high", "p_value", "num_seeds",
            "variance_ratio",
        ]  # fmt: skip
        frame = pd.DataFrame(rows, columns=columns)
        frame.attrs["level"] = level  # for the text under a figure
        return frame

    def plot(self, metric: str | None = None, level: float = 0.95) -> "Figure":
        """Returns curves of all alternatives, and their differences to the reference.

        Args:
            metric: a metric of the histories; default: the most important one.
            level: level of the intervals.
        """
        frame = self.to_frame()
        metric = metric or next(iter(headline(frame["metric"].unique())), "")
        return fork_curves(
            frame, self.differences(metric, level), metric, self.round, self.reference
        )

    def _summary(self) -> Summary:
        frame = self.to_frame().rename(columns={"alternative": "algorithm"})
        rows = {"reference": self.reference, "seeds": listed(self.seeds)}
        return Summary(f"Fork at round {self.round}", rows, lambda form: runs_table(frame, form))


def _variance_ratio(one: np.ndarray, other: np.ndarray) -> float:
    """Returns Var(X - Y) / (Var X + Var Y), NaN for one seed or values without variance.

    Of the seeds where both values are finite, as all of the differences.
    """
    with np.errstate(invalid="ignore"):
        counted = np.isfinite(one - other)
    one, other = one[counted], other[counted]
    if len(one) < 2:
        return math.nan
    total = np.var(one, ddof=1) + np.var(other, ddof=1)
    return float(np.var(one - other, ddof=1) / total) if total > 0 else math.nan
