"""Helpers for tidy frames: columns, rows, grid order, runs that diverged.

Grid order sorts numbers ascending, then strings alphabetically, then NaN; first column first.

A run diverges when its server state becomes infinite or NaN.  Its values from that round on are no
results: the accuracy of a model of NaN is that of one class.  A mean over seeds therefore exists
only where all its seeds are finite; dropping the others would reward an algorithm for diverging.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd


def grid_values(frame: pd.DataFrame, column: str) -> list[Any]:
    """Returns the distinct values of a column, in grid order."""
    check_columns(frame, [column])
    return frame[column].iloc[first_rows(row_ids(frame, [column]))].tolist()


def value_texts(values: Sequence[Any]) -> dict[str, str]:
    """Returns short texts by the full ones; the full ones where two short ones would be equal."""
    full = {str(value): value for value in values}
    short = {key: f"{v:g}" if isinstance(v, float) else key for key, v in full.items()}
    twice = collections.Counter(short.values())
    return {key: text if twice[text] == 1 else key for key, text in short.items()}


def rows_with(frame: pd.DataFrame, column: str, value: Any) -> pd.DataFrame:
    """Returns the rows with that value; NaN selects the rows without one.

    Raises:
        ValueError: the frame lacks the column.

    Example:
        >>> frame = pd.DataFrame({"lr": [0.1, float("nan")], "score": [1, 2]})
        >>> rows_with(frame, "lr", float("nan"))["score"].tolist()
        [2]
    """
    check_columns(frame, [column])
    same = frame[column].isna() if pd.isna(value) else frame[column] == value
    return frame.loc[np.asarray(same), :]


def score_values(rows: pd.DataFrame) -> np.ndarray:
    """Returns the column ``score`` as float64."""
    return np.asarray(rows["score"], np.float64)


def configuration_columns(scores: pd.DataFrame) -> list[str]:
    """Returns the columns of the configuration in a frame of scores."""
    check_columns(scores, ["seed", "score"])
    if not len(scores):
        raise ValueError("scores has no rows; expected some")
    return [name for name in scores.columns if name not in ("seed", "score", "diverged_at")]


def check_columns(frame: pd.DataFrame, needed: Sequence[str | None], name: str = "frame") -> None:
    """Refuses a frame without the needed columns; None is no column."""
    if missing := [x for x in needed if x is not None and x not in frame.columns]:
        raise ValueError(f"{name} lacks the columns {missing}; it has {list(frame.columns)}")


def row_ids(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Returns the number of each row's values among the distinct ones in grid order, ``[rows]``."""
    if not columns:
        return np.zeros(len(frame), int)
    return frame.groupby(list(columns), dropna=False, observed=True).ngroup().to_numpy()


def first_rows(ids: np.ndarray) -> np.ndarray:
    """Returns the position of the first row of every number."""
    return np.unique(ids, return_index=True)[1]


def check_unique(frame: pd.DataFrame, columns: Sequence[str], name: str = "frame") -> None:
    """Refuses two rows with the same values of the columns."""
    repeated = frame.duplicated(list(columns))
    if repeated.any():
        row = frame.loc[repeated, list(columns)].iloc[0].to_dict()
        raise ValueError(f"{name} has two rows for {row}; expected one (is another column varied?)")


def divergence_text(diverged_at: Iterable[int]) -> str:
    """Returns "diverged in round 3", and how many seeds did unless all; empty if none did.

    Args:
        diverged_at: per seed the first round whose server state was not finite, or 0.

    Example:
        >>> divergence_text([3, 3]), divergence_text([0, 7, 3, 0]), divergence_text([0])
        ('diverged in round 3', 'diverged in rounds 3 to 7 (2 of 4 seeds)', '')
    """
    every = [int(at) for at in diverged_at]
    rounds = sorted(at for at in every if at)
    if not rounds:
        return ""
    first, last = rounds[0], rounds[-1]
    text = f"round {first}" if first == last else f"rounds {first} to {last}"
    seeds = "" if len(rounds) == len(every) else f" ({len(rounds)} of {len(every)} seeds)"
    return f"diverged in {text}{seeds}"


def first_divergences(history: pd.DataFrame) -> list[int]:
    """Returns per seed, in increasing order, the round of its divergence, or 0.

    Args:
        history: rows of one algorithm or configuration, with columns ``seed`` and
            ``diverged_at``; without the second, no seed diverged.

    Example:
        >>> rows = [(1, 0), (0, 3), (0, 3)]
        >>> first_divergences(pd.DataFrame(rows, columns=["seed", "diverged_at"]))
        [3, 0]
    """
    if "diverged_at" not in history:
        return [0] * len(history["seed"].unique())
    return [
        int(np.nan_to_num(np.asarray(rows["diverged_at"], float)).max())  # NaN: not recorded
        for _, rows in history.groupby("seed", sort=True)
    ]


def finite_part(history: pd.DataFrame) -> pd.DataFrame:
    """Returns the history with NaN as value in every round of a model that was not finite."""
    if not {"round", "diverged_at"} <= set(history.columns):
        return history
    diverged_at, rounds = np.asarray(history["diverged_at"]), np.asarray(history["round"])
    after = (diverged_at > 0) & (rounds >= diverged_at)
    return history.assign(value=np.where(after, np.nan, np.asarray(history["value"], np.float64)))
