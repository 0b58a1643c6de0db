"""Scores of cells: an algorithm with M clients and K steps per round, at several rates.

The score of a run is the best of its evaluations less the optimum, that of a cell the score of its
best rate.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedac import problem
from experiments.fedac.settings import SETTINGS, Setting
from experiments.harness.runs import sweep

CELL = ["algorithm", "M", "K"]
NEAR = 2  # places of the grid on each side of an expected best rate

Rates = Mapping[tuple[int, int], Sequence[float]]  # of the cells (M, K) of an algorithm


class Study(NamedTuple):
    """A setting and its data."""

    name: str
    setting: Setting
    data: dict[str, np.ndarray]
    minimum: float  # F*, by Newton's method


def load(name: str, data_dir: pathlib.Path | None) -> Study:
    """The study of a setting."""
    setting = SETTINGS[name]
    train = fs.datasets.load(setting.dataset, data_dir).train
    data = {"x": train["x"], "y": train["y"].astype(np.float32)}
    return Study(name, setting, data, problem.minimum(data, setting.l2))


def run(
    study: Study, algorithm: str, rates: Rates, work: pathlib.Path, num_seeds: int = 1
) -> pd.DataFrame:
    """A row per (algorithm, M, K, lr, seed): its score, and its round of divergence (0: none)."""
    value = problem.objective(study.data, study.setting.l2)
    initial = float(value(problem.initial(study.data["x"].shape[1])))
    runs = sweep(
        functools.partial(problem.make_algorithm, algorithm, study.setting.l2),
        functools.partial(problem.make_setup, study.data, algorithm, num_seeds=num_seeds),
        [
            {"lr": lr, "clients": clients, "local_steps": steps}
            for (clients, steps), lrs in rates.items()
            for lr in lrs
        ],
        jax.random.split(jax.random.key(1), num_seeds),
        work / study.name / algorithm,
    ).runs
    values = value(np.stack([run.history.metrics["model"] for run in runs]))
    rows = []
    for result, of_run in zip(runs, values, strict=True):
        c = result.configuration
        rows.append(
            {"algorithm": algorithm, "M": c["clients"], "K": c["local_steps"], "lr": c["lr"]}
            | {"seed": int(result.seed), "score": min(of_run.min(), initial) - study.minimum}
            | {"diverged_at": result.diverged_at}
        )
    return pd.DataFrame(rows)


def search(
    score: Callable[[Rates], pd.DataFrame], rates: Rates, grid: Sequence[float]
) -> pd.DataFrame:
    """Scores at the given rates, and at further ones of the grid until every best one is inside.

    While a cell's best rate of any seed is the least or the largest that ran and the grid has rates
    beyond it, the next :data:`NEAR` of them run.
    """
    done = {cell: set(lrs) for cell, lrs in rates.items()}
    tables = [score(rates)]
    while True:
        further: dict[tuple[int, int], list[float]] = {}
        bests = best(pd.concat(tables), grid, [*CELL, "seed"])
        for cell, lrs in done.items():
            chosen = set(bests.loc[(bests["M"] == cell[0]) & (bests["K"] == cell[1]), "lr"])
            places = [grid.index(lr) for lr in lrs]
            first, last = min(places), max(places)
            below = grid[max(first - NEAR, 0) : first] if grid[first] in chosen else ()
            above = grid[last + 1 : last + 1 + NEAR] if grid[last] in chosen else ()
            if below or above:
                further[cell] = [*below, *above]
                done[cell] |= {*below, *above}
        if not further:
            return pd.concat(tables, ignore_index=True)
        tables.append(score(further))


def near(grid: Sequence[float], lr: float | None) -> tuple[float, ...]:
    """The rates at most :data:`NEAR` places from one of the grid; the whole grid if it is None.

    Example:
        >>> near((0.1, 0.2, 0.5, 1.0, 2.0, 5.0), 0.2), near((0.1, 0.2), None)
        ((0.1, 0.2, 0.5, 1.0), (0.1, 0.2))
    """
    if lr is None:
        return tuple(grid)
    place = list(grid).index(lr)
    return tuple(grid[max(place - NEAR, 0) : place + NEAR + 1])


def best(table: pd.DataFrame, grid: Sequence[float], by: Sequence[str] = CELL) -> pd.DataFrame:
    """Per cell the least score, its rate, and whether it is the grid's first or last.

    A cell of which every run diverged has an infinite score.
    """
    table = table.assign(score=table["score"].fillna(np.inf)).reset_index(drop=True)
    least = table.loc[table.groupby(list(by))["score"].idxmin()]
    ends = np.isclose(np.asarray(least["lr"])[:, None], (min(grid), max(grid))).any(1)
    return least.assign(**{"at edge": ends})[[*by, "score", "lr", "at edge"]]
