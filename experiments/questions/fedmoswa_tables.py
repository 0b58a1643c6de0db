"""Tables of the law of the floor: floors beside the recursion and the law, and exponents."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness import select
from experiments.questions.fedmoswa_floor import law
from experiments.questions.fedmoswa_floor_runs import CLIENTS, Case, step_of

CASE = list(Case._fields)
UP_TO = 0.4  # gamma of the law, and of its exponents
NOTHING = 1e-12  # square distances below are rounding


def groups(rows: pd.DataFrame) -> np.ndarray:
    """Floors by group of seeds, ``[rows, groups]``."""
    return rows.loc[:, [name for name in rows.columns if str(name).startswith("group")]].to_numpy()


def with_law(table: pd.DataFrame) -> pd.DataFrame:
    """A row per case, method, cohort and gamma: the measured floor, the exact one, and the law's.

    ``ratio`` is the measured floor over FedAvg's exact one; ``law`` is for FedMo without noise and
    with equal curvatures, also over FedAvg's; ``off`` is the measured floor over the law's, less 1.
    """
    found = fs.analysis.mean_interval
    rows = []
    for row, own in zip(table.to_dict("records"), groups(table), strict=True):
        interval = found(own)
        new: dict[str, Any] = {
            name: row[name] for name in (*CASE, "method", "cohort", "gamma", "exact")
        }
        new |= {"floor": interval.mean, "low": interval.low, "high": interval.high}
        case = Case(*(row[name] for name in CASE))
        reference = select(table, method="FedAvg", cohort=row["cohort"], **case._asdict())
        fedavg = float(reference["exact"].iloc[0])
        bare = case.noise == case.spread == 0 and row["method"] == "FedMo"
        expected = np.nan
        if bare and row["cohort"] < CLIENTS:
            expected = float(law(step_of(case), row["cohort"] / CLIENTS, row["gamma"]))
            off = found(own / (fedavg * expected) - 1)
            new |= {"off": off.mean, "off low": off.low, "off high": off.high}
        rows.append(new | {"ratio": interval.mean / fedavg, "law": expected})
    return pd.DataFrame(rows)


def exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Exponents of FedMo's floor without noise, with 95 % intervals over groups of seeds.

    In gamma up to ``UP_TO``, in ``1/s - 1/M``, and in the step; ``exact``: of the recursion's
    floors.
    """

    def rows() -> Iterator[dict[str, Any]]:
        bare = select(table, method="FedMo", noise=0.0, spread=0.0)
        bare = bare.loc[bare["cohort"] < CLIENTS, :]
        low = bare.loc[bare["gamma"] <= UP_TO, :]
        for (step, cohort), own in low.groupby(["step", "cohort"], sort=True):
            yield {"of": "gamma", "step": step, "cohort": cohort} | _slope(own, own["gamma"])
        for (step, gamma), own in bare.groupby(["step", "gamma"], sort=True):
            x = 1 / own["cohort"] - 1 / CLIENTS
            yield {"of": "1/s - 1/M", "step": step, "gamma": gamma} | _slope(own, x)
        for (cohort, gamma), own in bare.groupby(["cohort", "gamma"], sort=True):
            yield {"of": "step", "cohort": cohort, "gamma": gamma} | _slope(own, own["step"])

    columns = ["of", "step", "cohort", "gamma", "exponent", "low", "high", "exact"]
    return pd.DataFrame([row for row in rows() if "exponent" in row], columns=columns)


def _slope(rows: pd.DataFrame, x: pd.Series) -> dict[str, float]:
    """Slope of log floor over log x; nothing for a single value."""
    if x.nunique() < 2:
        return {}
    logs = np.log(np.asarray(x, np.float64))
    found = fs.analysis.mean_interval(np.polyfit(logs, np.log(groups(rows)), 1)[0])
    exact = np.polyfit(logs, np.log(rows["exact"]), 1)[0]
    mean, low, high = (float(value) for value in found)
    return {"exponent": mean, "low": low, "high": high, "exact": float(exact)}
