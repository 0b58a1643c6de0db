"""Tables of the bias of asynchrony: means and intervals over seeds, times, slopes over sizes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness import select
from experiments.questions import asynchrony_times as times

CASE = ["method", "corrected", "clients", "slow", "part"]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds with 95 % intervals, a row per case."""
    rows = []
    for _, part in table.groupby(CASE, sort=False):
        row: dict[str, Any] = {name: part[name].iloc[0] for name in CASE}
        row["seeds"] = len(part)
        for name in ("lack", "distance"):
            interval = fs.analysis.mean_interval(part[name].to_numpy())
            row |= {name: interval.mean, f"{name} low": interval.low, f"{name} high": interval.high}
            row |= {f"{name} by formula": np.mean(part[f"{name} by formula"])}
        rows.append(row | {"spread": np.mean(part["spread"])})
    return pd.DataFrame(rows)


def combined(table: pd.DataFrame, h: float, gap: float, hessians: str = "") -> pd.DataFrame:
    """Root mean square distances for minimisers ``h v_i + gap slow_i``, a row per run.

    A run is linear in the minimisers.  The two parts are independent, so the squares add up to the
    mean square over the signs of v.
    """
    keys = ["method", "corrected", "clients", "slow", "seed"]
    speed = select(table, part=f"speed{hessians}").set_index(keys)
    scatter = select(table, part=f"scatter{hessians}").set_index(keys)
    rows = speed.loc[:, []]
    for name in ("distance", "distance by formula"):
        rows[name] = np.sqrt((gap * speed[name]) ** 2 + (h * scatter[name]) ** 2)
    return rows.reset_index()


def slopes(table: pd.DataFrame, part: str) -> pd.DataFrame:
    """Slope of log distance over log M, a row per method without correction and seed."""
    rows = []
    uncorrected = select(table, part=part, corrected=False)
    uncorrected = uncorrected.loc[np.isclose(uncorrected["slow"], 2 / 3), :]
    for method, own in uncorrected.groupby("method", sort=False):
        sizes = own["clients"].nunique()
        for seed, run in own.groupby("seed"):
            if len(run) == sizes and sizes > 1:
                x, y = np.log(run["clients"]), np.log(run["distance"])
                slope = float(np.polyfit(x, y, 1)[0])
                rows.append({"method": method, "seed": seed, "slope": slope})
    return pd.DataFrame(rows, columns=["method", "seed", "slope"])


def stationary(clocks: pd.DataFrame, constants: Mapping[str, Any]) -> pd.DataFrame:
    """Times from which slow clients' share is stationary, a row per number of clients and steps."""
    rows = []
    for _, case in clocks.groupby(["clients", "steps"], sort=False):
        clients, steps, limit = (case[name].iloc[0] for name in ("clients", "steps", "limit"))
        window = int(steps / constants["fast"])
        found = [
            times.stationary_from(own["share"].to_numpy(), limit, window)
            for _, own in case.groupby("group")
        ]
        interval = fs.analysis.mean_interval(np.asarray(found))
        one = case.loc[case["group"] == case["group"].iloc[0], :]
        free = constants["slow"] / constants["fast"] / 2  # a third slow, without waits
        expected = times.stationary_from(one["expected"].to_numpy(), free / (1 + free), window)
        row = {"clients": clients, "steps": steps, "time": interval.mean}
        row |= {"low": interval.low, "high": interval.high, "renewal equation": expected}
        row["first harmonic"] = times.law_of_time(constants["slow"], int(steps), limit)
        row["FedBuff's updates"] = interval.mean * one["updates per time"].iloc[0]
        rows.append(row)
    return pd.DataFrame(rows)
