"""Runs whose server state became infinite or NaN.

Their values from that round on are no results: the accuracy of a model of NaN is that of one class.
A mean over seeds therefore exists only where all its seeds are finite; dropping the seeds that
diverged would reward an algorithm for diverging.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd


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
