"""Tables of the phase diagram: scores by cell, method and seed, and what the report needs of them.

The scores of the full size have 2.5 MB; the summary has a row per cell.
"""

from typing import Any

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness import select
from experiments.questions.phase_diagram_problem import Problem

PAIRS = (("FedAvg", "MB-SGD"), ("FedAc", "FedAvg"), ("FedAvg", "single client"))
CELL = ["family", "plane", "M", "K", *Problem._fields]
RATIO = ("ratio", "low", "high")  # log10, with the 95 % interval over seeds
LEAD = 1.05  # a method is ahead if the interval of the ratio of scores is beyond 5 %
LEAST = 1e-12  # of the initial loss: below it scores are rounding
CROSSINGS = ["family", "plane", "noise", "from", "up to", "seeds", "measured", "low", "high"]
DECIMALS = 4  # of logarithms: 0.02 % of a score


def summaries(scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The report's tables: cells, and the crossings of FedAvg and MB-SGD."""
    return {"": summary(scores), "crossings": crossings(scores)}


def summary(scores: pd.DataFrame) -> pd.DataFrame:
    """A row per cell: methods in front, ratios of pairs, mean log10 scores by method."""
    methods, rows = list(dict.fromkeys(scores["method"])), []
    for cell, part in scores.groupby(CELL, sort=False):
        by_method: Any = logs(part).droplevel(CELL).dropna(axis=1, how="all")
        row = dict(zip(CELL, cell, strict=True))  # type: ignore[arg-type]
        whole = len(by_method) == len(methods)
        row |= in_front(by_method) if whole else {"best": np.nan, "in front": np.nan}
        for pair in PAIRS:
            if set(pair) <= set(by_method.index):
                first, second = (by_method.loc[method] for method in pair)
                interval = fs.analysis.mean_interval((first - second).to_numpy())
                values = (interval.mean, interval.low, interval.high)
                row |= dict(zip(ratio_columns(pair), map(float, values), strict=True))
        row |= {method: by_method.loc[method].mean() for method in by_method.index}
        rows.append(row | {"at edge": ", ".join(select(part, **{"at edge": True})["method"])})
    ratios = [name for pair in PAIRS for name in ratio_columns(pair)]
    return pd.DataFrame(rows).round(dict.fromkeys([*methods, *ratios], DECIMALS))


def in_front(by_method: pd.DataFrame) -> dict[str, str]:
    """The method with the least mean of ``[methods, seeds]``, and all that it does not lead."""
    best = str(by_method.mean(axis=1).idxmin())
    front = []
    for method, values in by_method.iterrows():
        interval = fs.analysis.mean_interval((values - by_method.loc[best]).to_numpy())
        if method == best or sign(float(interval.low), float(interval.high)) != 1:
            front.append(str(method))
    return {"best": best, "in front": ", ".join(front)}


def crossings(scores: pd.DataFrame) -> pd.DataFrame:
    """Heterogeneities where FedAvg falls behind MB-SGD by line of cells, with intervals."""
    rows = []
    lines = [("quadratic", "heterogeneity"), ("quadratic", "equal curvature")]
    for family, plane in [*lines, ("logistic", "heterogeneity")]:
        for noise in sorted(set(scores["noise"])):
            part = select(scores, family=family, plane=plane, noise=noise)
            part = part.query("heterogeneity > 0")
            if not set(part["method"]).issuperset(PAIRS[0]):
                continue
            values = against(logs(part), PAIRS[0])
            values = values.droplevel([n for n in CELL if n != "heterogeneity"]).sort_index()
            if len(values) < 2:
                continue
            places, kept = values.index.to_numpy(float), values.dropna(axis=1).to_numpy()
            interval = crossing_interval(places, kept)
            rows.append((family, plane, noise, places[0], places[-1], kept.shape[1], *interval))
    return pd.DataFrame(rows, columns=CROSSINGS)


def ratio_columns(pair: tuple[str, str]) -> tuple[str, str, str]:
    """Columns of a pair's log10 ratio and of its interval."""
    name = f"{pair[0]} / {pair[1]}"
    return name, f"{name}: low", f"{name}: high"


def logs(table: pd.DataFrame) -> pd.DataFrame:
    """log10 of the scores, ``[cells x methods, seeds]``, indexed by cell and method."""
    seeds = [str(name) for name in table.columns if str(name).startswith("seed ")]
    scores: Any = table.set_index([*CELL, "method"])[seeds]
    return np.log10(scores.clip(lower=LEAST))


def against(scores: pd.DataFrame, pair: tuple[str, str]) -> pd.DataFrame:
    """log10 of the ratio of two methods' scores by seed, in the cells that have both."""
    first, second = (scores.xs(method, level="method") for method in pair)
    return (first - second).dropna(how="all")  # planes differ in their number of seeds


def sign(low: float, high: float) -> int:
    """-1: the first method is ahead by more than 5 %; 1: the second; 0: undecided."""
    lead = np.log10(LEAD)
    return int(low > lead) - int(high < -lead)


def crossing(places: np.ndarray, values: np.ndarray) -> float:
    """The place from which on a log ratio is positive, interpolated; NaN without one.

    Args:
        places: ``[cells]``, positive, ascending; interpolated in their logarithms.
        values: log ratios ``[cells]``.

    Returns:
        The first place if all values are positive.

    Example:
        >>> places = np.array([1.0, 4.0, 16.0])
        >>> logs = [-1, -1, 1], [1, -1, 1], [1, 1, 1]
        >>> [round(float(crossing(places, np.array(v))), 6) for v in logs]
        [8.0, 8.0, 1.0]
        >>> crossing(places, np.array([1, 1, -1]))
        nan
    """
    below = np.flatnonzero(np.asarray(values) <= 0)
    if not len(below):
        return float(places[0])
    i = below[-1]
    if i == len(places) - 1:
        return float("nan")
    share = values[i] / (values[i] - values[i + 1])
    logarithms = np.log(places)
    return float(np.exp(logarithms[i] + share * (logarithms[i + 1] - logarithms[i])))


def crossing_interval(
    places: np.ndarray, values: np.ndarray, samples: int = 2000
) -> tuple[float, float, float]:
    """The crossing of the mean over seeds, and the 95 % interval of a bootstrap over seeds.

    Args:
        values: log ratios ``[cells, seeds]``.

    Returns:
        Crossing, low, high; all NaN if the mean, or more than 2.5 % of the samples, have none.
    """
    rng = np.random.default_rng(0)
    chosen = rng.integers(values.shape[1], size=(samples, values.shape[1]))
    found = np.array([crossing(places, values[:, one].mean(1)) for one in chosen])
    middle = crossing(places, values.mean(1))
    if np.isnan(middle) or np.isnan(found).mean() > 0.025:
        return float("nan"), float("nan"), float("nan")
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return middle, float(low), float(high)
