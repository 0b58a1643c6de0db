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

from experiments.questions.phase_diagram_problem import Family, Problem, constants
from experiments.questions.phase_diagram_runs import Sizes
from experiments.questions.phase_diagram_tables import CELL, PAIRS, RATIO, ratio_columns, sign
from fedjax_sim.theory import ProblemConstants, orders

Assumption = Literal["smooth", "third order"]
ASSUMPTIONS: tuple[Assumption, ...] = ("smooth", "third order")
DECIDED = 2.0  # a rate that is this many times another's is a prediction


def rate(method: str, known: ProblemConstants, sizes: Any, assumption: Assumption) -> np.ndarray:
    """The order of ``F - F*`` of a method.

    Args:
        sizes: M, K and R; arrays broadcast.
        assumption: that functions are smooth, or that Hessians are Lipschitz, too.
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


def ratios(cells: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """A row per pair and cell: measured and predicted log10 ratios, and whether they agree."""
    parts = []
    for pair in PAIRS:
        names = ratio_columns(pair)
        if not set(names) <= set(cells):
            continue
        part: Any = cells[[*CELL, *names]].dropna()
        part.columns = [*CELL, *RATIO]
        part = part.assign(first=pair[0], second=pair[1])
        part["measured"] = [sign(*ends) for ends in zip(part["low"], part["high"], strict=True)]
        parts += [_with_rates(rows, pair, rounds) for _, rows in part.groupby("family")]
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
