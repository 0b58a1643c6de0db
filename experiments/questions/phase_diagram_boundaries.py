r"""Rates of theorems beside measured scores: who is ahead of whom in which cell.

Rates are orders with all numbers 1, each the least of what is known with and without strong
convexity (thesis, Table 3.1 and Sections 2.3 and 3.3).  Minibatch SGD is SGD with R steps and
M K gradients per step, a single client SGD with K R steps and one.  FedAvg with different clients
has the further term of Proposition 2.1, :math:`L^{1/3} \zeta^{2/3} B^{4/3} / R^{2/3}`, with
:math:`\zeta_*` for zeta.  FedAc's and the single client's theorems are for equal clients.
"""

from typing import Any, Literal

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.questions.phase_diagram_problem import Family, Problem, constants
from experiments.questions.phase_diagram_runs import Sizes
from fedjax_sim.theory import ProblemConstants, orders

Assumption = Literal["smooth", "third order"]
ASSUMPTIONS: tuple[Assumption, ...] = ("smooth", "third order")
PAIRS = (("FedAvg", "MB-SGD"), ("FedAc", "FedAvg"), ("FedAvg", "single client"))
CELL = ["family", "plane", "M", "K", *Problem._fields]
DECIDED = 2.0  # a rate that is this many times another's is a prediction
LEAD = 1.05  # a method is ahead if the interval of the ratio of scores is beyond 5 %
LEAST = 1e-12  # of the initial loss: below it scores are rounding


def rate(method: str, known: ProblemConstants, sizes: Any, assumption: Assumption) -> np.ndarray:
    """The order of ``F - F*`` of a method.

    Args:
        sizes: M, K and R; arrays broadcast.
        assumption: that functions are smooth, or that Hessians are Lipschitz, too.

    Example:
        >>> known = ProblemConstants(L=1.0, mu=1e-9, sigma=0.0, zeta_star=0.0, Q=0.0, B=1.0)
        >>> sizes = Sizes(4, 8, 16)
        >>> [float(rate(name, known, sizes, "smooth")) for name in ("MB-SGD", "FedAvg")]
        [0.0625, 0.0078125]
    """
    M, K, R = sizes
    general = known if assumption == "third order" else known._replace(Q=None)
    if method in ("MB-SGD", "single client"):
        alone = method == "single client"
        steps = {"rounds": R * K, "clients": 1} if alone else {"rounds": R, "clients": M * K}
        # Without local steps there is no overhead, which Q = 0 removes from the table's rate.
        plain = known._replace(Q=0.0)
        strongly = orders.table_rate(plain, "fedavg", local_steps=1, **steps)
        name = "single_client" if alone else "minibatch"
        convex = orders.baseline_rate(known, name, local_steps=K, rounds=R, clients=M)
        return np.asarray(np.minimum(strongly, convex), np.float64)
    run: dict[str, Any] = {"local_steps": K, "rounds": R, "clients": M}
    name = "fedac" if method == "FedAc" else "fedavg"
    strongly = orders.table_rate(general, name, **run)
    convex = orders.table_rate(general._replace(mu=None), name, **run)
    value = np.asarray(np.minimum(strongly, convex), np.float64)
    if method == "FedAvg":
        L, B, zeta = (np.asarray(x, np.float64) for x in (known.L, known.B, known.zeta_star))
        value = value + (L * zeta**2 * B**4 / np.asarray(R, np.float64) ** 2) ** (1 / 3)
    return value


def predicted(
    pair: tuple[str, str], family: Family, problem: Problem, sizes: Any, assumption: Assumption
) -> np.ndarray:
    """log10 of the first method's rate over the second's; NaN where no theorem holds."""
    known = constants(family, problem)
    first, second = (rate(method, known, sizes, assumption) for method in pair)
    equal = np.asarray(problem.heterogeneity) == 0
    return np.where(equal | (pair == PAIRS[0]), np.log10(first / second), np.nan)


def seeds_of(table: pd.DataFrame) -> list[str]:
    """Columns of the scores by seed."""
    return [str(name) for name in table.columns if str(name).startswith("seed ")]


def logs(table: pd.DataFrame) -> pd.DataFrame:
    """log10 of the scores, ``[cells x methods, seeds]``, indexed by cell and method."""
    scores: Any = table.set_index([*CELL, "method"])[seeds_of(table)]
    return np.log10(scores.clip(lower=LEAST))


def against(scores: pd.DataFrame, pair: tuple[str, str]) -> pd.DataFrame:
    """log10 of the ratio of two methods' scores by seed, in the cells that have both."""
    first, second = (scores.xs(method, level="method") for method in pair)
    return (first - second).dropna(how="all")  # planes differ in their number of seeds


def ratios(table: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """A row per pair and cell: measured and predicted log10 ratios, and whether they agree."""
    scores, parts = logs(table), []
    for pair in PAIRS:
        if not set(table["method"]).issuperset(pair):
            continue
        rows = []
        for cell, values in against(scores, pair).iterrows():
            row: dict[str, Any] = dict(zip(CELL, cell, strict=True))  # type: ignore[arg-type]
            interval = fs.analysis.mean_interval(values.dropna().to_numpy())
            row |= {"first": pair[0], "second": pair[1], "ratio": float(interval.mean)}
            row |= {"low": float(interval.low), "high": float(interval.high)}
            rows.append(row | {"measured": sign(row["low"], row["high"])})
        parts += [
            _with_rates(part, pair, rounds) for _, part in pd.DataFrame(rows).groupby("family")
        ]
    return pd.concat(parts, ignore_index=True)


def _with_rates(part: pd.DataFrame, pair: tuple[str, str], rounds: int) -> pd.DataFrame:
    """The rows of one family with predicted ratios and verdicts."""
    columns: Any = part.to_dict("list")
    problem = Problem(*(np.asarray(columns[name]) for name in Problem._fields))
    sizes = Sizes(*(np.asarray(columns[name]) for name in ("M", "K")), rounds)  # type: ignore[arg-type]
    for assumption in ASSUMPTIONS:
        values = predicted(pair, columns["family"][0], problem, sizes, assumption)
        verdicts = map(verdict, values, columns["measured"])
        part = part.assign(**{assumption: values, f"{assumption}: verdict": list(verdicts)})
    return part


def sign(low: float, high: float) -> int:
    """-1: the first method is ahead by more than 5 %; 1: the second; 0: undecided."""
    lead = np.log10(LEAD)
    return int(low > lead) - int(high < -lead)


def verdict(value: float, measured: int) -> str:
    """Agreement of a predicted log10 ratio with the sign of the measured one.

    Example:
        >>> [verdict(value, 1) for value in (0.5, -0.5, 0.1, float("nan"))]
        ['agrees', 'disagrees', 'undecided', 'no theorem']
    """
    if np.isnan(value):
        return "no theorem"
    expected = int(np.sign(value)) if abs(value) >= np.log10(DECIDED) else 0
    if not (expected and measured):
        return "undecided"
    return "agrees" if expected == measured else "disagrees"


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


def in_front(table: pd.DataFrame) -> pd.DataFrame:
    """A row per cell: the method of the least mean log score, and all that it does not lead.

    Cells in which some methods have not run are left out.
    """
    rows, scores = [], logs(table)
    for cell, part in scores.groupby(level=CELL, sort=False):
        by_method: Any = part.droplevel(CELL).dropna(axis=1, how="all")
        if len(by_method) < len(set(table["method"])):
            continue
        best = str(by_method.mean(axis=1).idxmin())
        front = []
        for method, values in by_method.iterrows():
            interval = fs.analysis.mean_interval((values - by_method.loc[best]).to_numpy())
            if method == best or sign(float(interval.low), float(interval.high)) != 1:
                front.append(str(method))
        rows.append(
            dict(zip(CELL, cell, strict=True))  # type: ignore[arg-type]
            | {"best": best, "in front": ", ".join(front), "count": len(front)}
        )
    return pd.DataFrame(rows)
