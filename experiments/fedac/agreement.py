"""The authors' scores beside ours, and the range in which one run of another seed lies.

The authors have one seed, and so have most of our cells.  Ten seeds of some cells estimate the
spread of a score's decimal logarithm; from it follows a range that contains a further seed's score
with probability 0.95 if the logarithms are normal.
"""

import pathlib
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.fedac.cells import CELL, best
from experiments.fedac.settings import EVERY_RATE, Setting

CLOSE = 0.15  # decades, not the paper's
LEVEL = 0.95
# The codes of the authors' summary.csv.
CODES = {
    -1: "vanilla_fedac", 0: "fedavg", 1: "fedac_i", 2: "fedac_ii_code", 3: "mb_sgd", 4: "mb_ac_sgd",
}  # fmt: skip


def published(folder: str | None, setting: Setting, beyond: bool = False) -> pd.DataFrame | None:
    """The authors' best scores over the rates, a row per cell; None without their file."""
    if folder is None:
        return None
    path = pathlib.Path(folder) / f"summary_{setting.dataset}_{setting.l2:.0e}.csv"
    if not path.exists():
        raise ValueError(f"FEDAC_PUBLISHED is a folder without {path.name}; expected it there")
    grid = EVERY_RATE if beyond else setting.lrs
    runs = pd.read_csv(path)
    in_grid = np.isclose(np.asarray(runs["eta"])[:, None], grid).any(1)
    runs = runs.loc[in_grid & np.isclose(runs["lambd"], setting.l2) & runs["T"].eq(4096)]
    runs = runs.assign(
        algorithm=[CODES[code] for code in runs["alg"]],
        lr=runs["eta"],
        score=runs["best_loss"] - setting.optimum,
    )
    columns = {"score": "authors", "lr": "lr of authors"}
    return best(runs, grid).drop(columns="at edge").rename(columns=columns)


def merged(rows: pd.DataFrame, earlier: pd.DataFrame) -> pd.DataFrame:
    """The rows, and those of the earlier table that are about other cells."""
    both = pd.concat([rows, earlier.filter(rows.columns)])
    return both.drop_duplicates(subset=CELL).sort_values(CELL, ignore_index=True)


def beside(ours: pd.DataFrame, authors: pd.DataFrame | None) -> pd.DataFrame:
    """Our cells with the authors' scores and rates, NaN where they have none."""
    return ours if authors is None else ours.merge(authors, on=CELL, how="left")


def seed_spread(scores: pd.DataFrame) -> pd.DataFrame:
    """A row per cell: seeds, mean and standard deviation of their scores' decimal logarithms."""
    logarithms = scores.assign(log=np.log10(scores["score"]))
    spread = logarithms.groupby(CELL)["log"].agg(["count", "mean", "std"]).reset_index()
    return spread.rename(columns={"count": "seeds"})


def ranges(cells: pd.DataFrame, spread: pd.DataFrame) -> pd.DataFrame:
    r"""The cells of algorithms with a spread, and the ends of the range of a further seed's score.

    With n seeds of the cell itself, of mean m and standard deviation s, the range of the logarithm
    is :math:`m \pm t s \sqrt{1 + 1 / n}`, t the quantile of Student's distribution with n - 1
    degrees of freedom.  Otherwise s is that of the nearest cell by the ratios of M and of K, and
    the range is that around a single seed, :math:`\log_{10}(\text{score}) \pm t s \sqrt 2`.

    Returns:
        the cells with the columns ``low`` and ``high``, and ``std``, the standard deviation used.
    """
    parts = []
    for name, known in spread.groupby("algorithm"):
        part = cells.loc[cells["algorithm"] == name]
        distances = sum(
            np.abs(np.log2(np.asarray(part[of])[:, None] / np.asarray(known[of])))
            for of in ("M", "K")
        )
        nearest = known.iloc[np.argmin(distances, axis=1)].set_index(part.index)
        n, std = nearest["seeds"], nearest["std"]
        is_own = np.min(distances, axis=1) == 0
        centre = np.where(is_own, nearest["mean"], np.log10(part["score"]))
        half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * std * np.sqrt(np.where(is_own, 1 + 1 / n, 2))
        ends = {"low": 10 ** (centre - half), "high": 10 ** (centre + half)}
        parts.append(part.assign(**ends, std=std))
    return pd.concat(parts, ignore_index=True)


def agreement(cells: pd.DataFrame, spread: pd.DataFrame | None) -> pd.DataFrame:
    """Per algorithm and for all: cells near the authors' score, and those whose range has it."""
    known = cells.dropna(subset=["authors"])
    known = known.assign(gap=np.log10(known["score"]) - np.log10(known["authors"]))
    predicted = None if spread is None else ranges(known, spread)

    def row(name: str) -> dict[str, Any]:
        part = known if name == "all" else known.loc[known["algorithm"] == name]
        close = (part["gap"].abs() <= CLOSE).sum()
        result: dict[str, Any] = {
            "algorithm": name,
            f"within {CLOSE} decades": f"{close} of {len(part)}",
        }
        if predicted is not None:
            some = predicted if name == "all" else predicted.loc[predicted["algorithm"] == name]
            inside = some["authors"].between(some["low"], some["high"])
            result["inside the range"] = f"{inside.sum()} of {len(some)}"
            half = np.log10(some["high"] / some["low"]) / 2
            result["median half width, decades"] = np.median(half)
        return result | {
            "median log10 ratio": part["gap"].median(),
            "median |log10 ratio|": part["gap"].abs().median(),
            "least": part["gap"].min(),
            "largest": part["gap"].max(),
            "same rate": f"{np.isclose(part['lr'], part['lr of authors']).mean():.1%}",
        }

    return pd.DataFrame([row(str(name)) for name in [*known["algorithm"].unique(), "all"]])


def spread_table(spread: pd.DataFrame) -> pd.DataFrame:
    """The standard deviations in decades: a row per algorithm and M, a column per K."""
    wide = spread.pivot_table(index=["algorithm", "M"], columns="K", values="std")
    wide.columns = [f"K = {k}" for k in wide.columns]
    return wide.reset_index()
