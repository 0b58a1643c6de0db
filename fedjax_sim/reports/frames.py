"""Helpers for tidy frames: columns, rows, grid order.

Grid order sorts numbers ascending, then strings alphabetically, then NaN; first column first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd


def grid_values(frame: pd.DataFrame, column: str) -> list[Any]:
    """Returns the distinct values of a column, in grid order."""
    check_columns(frame, [column])
    return frame[column].iloc[first_rows(row_ids(frame, [column]))].tolist()


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


def check_columns(frame: pd.DataFrame, needed: Sequence[str], name: str = "frame") -> None:
    """Refuses a frame without the needed columns."""
    if missing := [column for column in needed if column not in frame.columns]:
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
