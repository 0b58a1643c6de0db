"""Effects of the factors of FedMoSWA's factorials, paired by seed."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness.controls import FACTORS, LAST, MEASURES, NONE, OWN
from experiments.harness.tables import select


class Cells:
    """Responses of all settings by seed, for means over the levels that are not given."""

    def __init__(self, scored: pd.DataFrame, measure: str):
        self.table = scored
        self.measure = measure

    def mean(self, **levels: Any) -> np.ndarray:
        """Mean per seed, over controls with equal weights.

        A setting without controls has no gamma: it is the same at every gamma.
        """
        controls = levels.pop("controls", (OWN, NONE, LAST))
        several = (controls,) if isinstance(controls, str) else controls
        parts = []
        for one in several:
            rows = self.table.loc[self.table["controls"] == one, :]
            for name, value in levels.items():
                if name != "gamma" or not rows["gamma"].isna().all():
                    rows = rows.loc[np.isclose(rows[name], value), :]
            parts.append(rows.groupby("seed")[self.measure].mean())
        return np.mean(parts, axis=0)


def levels_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Levels of the factors, from the options of an experiment."""
    return {name: facts["options"][name] for name in ("gammas", "alphas", "rhos")}


def factors(gammas: Sequence[float], alphas: Sequence[float], rhos: Sequence[float]) -> Any:
    """Main effects by name: two levels, and the controls that have the factor.

    A factor with one level has no effect.
    """
    both: dict[str, Any] = {"controls": (OWN, LAST)}
    sides = {
        "gamma": (min(gammas), max(gammas), both),
        "alpha": (max(alphas), min(alphas), {}),
        "rho": (min(rhos), max(rhos), {}),
    }
    return {
        "controls: own - none": ({"controls": OWN}, {"controls": NONE}),
        "controls: own - last on worker": ({"controls": OWN}, {"controls": LAST}),
        "controls: last on worker - none": ({"controls": LAST}, {"controls": NONE}),
    } | {
        f"{name}: {first:g} - {second:g}": (where | {name: first}, where | {name: second})
        for name, (first, second, where) in sides.items()
        if first != second
    }


def effects(scored: pd.DataFrame, measure: str, levels: dict[str, Sequence[float]]) -> pd.DataFrame:
    """Main effects and interactions with 95 % intervals over seeds, a row each.

    An interaction is the effect of the first factor at the first level of the second one, less that
    at its second level.
    """
    cells, mains = Cells(scored, measure), factors(**levels)
    rows = []
    for name, (first, second) in mains.items():
        rows.append(_row(name, "main", cells.mean(**first) - cells.mean(**second)))
    for (name, one), (other, two) in itertools.combinations(mains.items(), 2):
        if name.split(":")[0] == other.split(":")[0]:
            continue
        difference = sum(
            sign * cells.mean(**(two[j] | one[i]))
            for i, j, sign in ((0, 0, 1), (1, 0, -1), (0, 1, -1), (1, 1, 1))
        )
        rows.append(_row(f"({name}) x ({other})", "interaction", np.asarray(difference)))
    return pd.DataFrame(rows)


def best_setting(scored: pd.DataFrame, controls: str) -> np.ndarray:
    """The accuracy per seed at the setting that has the best mean accuracy over other seeds."""
    own = select(scored, controls=controls).assign(cell=lambda t: t[list(FACTORS)].apply(tuple, 1))
    own = own.assign(cell=own["cell"].astype(str))
    wide = own.pivot(index="cell", columns="seed", values=MEASURES[0])
    accuracy = wide.fillna(0).to_numpy()
    chosen = (accuracy.sum(axis=1, keepdims=True) - accuracy).argmax(axis=0)
    return wide.to_numpy()[chosen, np.arange(len(chosen))]


def _row(name: str, kind: str, values: np.ndarray) -> dict[str, Any]:
    found = fs.analysis.mean_interval(values)
    return {"effect": name, "kind": kind, "mean": found.mean, "low": found.low, "high": found.high}


def largest(table: pd.DataFrame, count: int = 2) -> pd.DataFrame:
    """The interactions with the largest means; one per pair of factors."""
    rows = table.loc[table["kind"] == "interaction", :].copy()
    pairs = [
        tuple(part.split(":")[0].strip("( ") for part in x.split(" x ")) for x in rows["effect"]
    ]
    rows = rows.assign(pair=pairs, size=rows["mean"].abs()).sort_values("size", ascending=False)
    return rows.drop_duplicates("pair").head(count).drop(columns=["pair", "size"])
