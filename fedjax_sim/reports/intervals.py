"""Means over seeds and their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fedjax_sim.checks import check_one_number
from fedjax_sim.types import shown

FEWEST = 3  # values of which an interval is shown


@shown
class Interval(NamedTuple):
    """A mean over seeds and its confidence interval."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_interval(
    values: Any, level: float = 0.95, bounds: tuple[float, float] | None = None
) -> Interval:
    """Returns Student's t interval of the mean over the first axis: mean +- t s / sqrt(n).

    s is the sample standard deviation, t the (1 + level) / 2 quantile for n - 1 degrees of freedom.
    The bounds are NaN if n = 1 or a value is not finite.

    Args:
        values: [n, ...].
        bounds: range of the values, such as (0, 1) for accuracies.  The interval is cut to it; the
            mean lies inside, so the interval covers it as often as before.

    Raises:
        ValueError: no values; a level outside (0, 1).

    Example:
        >>> [round(float(bound), 3) for bound in mean_interval([1.0, 2.0, 3.0])]
        [2.0, -0.484, 4.484]
        >>> float(mean_interval([0.9, 1.0], bounds=(0, 1)).high)
        1.0
    """
    check_level(level)
    values = np.asarray(values, np.float64)
    if values.ndim == 0 or not len(values):
        raise ValueError(f"values has shape {values.shape}; expected [n, ...] with n >= 1")
    half = stdtrit(len(values) - 1, (1 + level) / 2) * standard_error(values)
    with np.errstate(invalid="ignore"):
        mean = values.mean(axis=0)
        low, high = mean - half, mean + half
    # Cut, and not on a logit scale, where a seed at 1 has no value.
    return Interval(mean, *(np.clip([low, high], *bounds) if bounds else (low, high)))


def shown_interval(
    values: Any, level: float = 0.95, bounds: tuple[float, float] | None = None
) -> Interval:
    """Returns the interval that all tables, figures and sweeps show; NaN for two values.

    It is :func:`mean_interval`.  Of two values t is 12.7 at 95 %, and the interval says nothing.

    Example:
        >>> float(shown_interval([0.9, 1.0]).low), round(float(shown_interval([1, 2, 3]).low), 3)
        (nan, -0.484)
    """
    interval = mean_interval(values, level, bounds)
    if len(values) >= FEWEST:
        return interval
    none = np.full(np.shape(interval.mean), math.nan)[()]  # of one mean a number, for tables
    return interval._replace(low=none, high=none)


def interval_note(num_seeds: Iterable[int], level: float = 0.95) -> str:
    """Returns the sentence on the means and the intervals of results of so many seeds.

    Example:
        >>> interval_note([1]), interval_note([2, 2])
        ('One seed.', 'Mean over 2 seeds, without an interval, which needs 3.')
    """
    counts = list(num_seeds)
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "One seed."
    seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    if most < FEWEST:
        return f"Mean over {seeds} seeds, without an interval, which needs {FEWEST}."
    needs = f", from {FEWEST} seeds on" if fewest < FEWEST else ""
    return f"Mean over {seeds} seeds and its {100 * level:g} % interval (Student's t){needs}."


def standard_error(values: np.ndarray) -> Any:
    """Returns the standard error of the mean over the first axis; NaN for one value."""
    if len(values) < 2:
        return np.full(values.shape[1:], math.nan)
    with np.errstate(invalid="ignore"):
        return values.std(axis=0, ddof=1) / math.sqrt(len(values))


def is_symmetric(mean: float, low: float, high: float) -> bool:
    """Returns True for an interval around its mean, False for one that was cut at a bound."""
    return math.isclose(mean - low, high - mean, rel_tol=1e-6, abs_tol=1e-12)


def check_level(level: float) -> None:
    """Raises ValueError unless the level of an interval is between 0 and 1."""
    check_one_number(level=level)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a number between 0 and 1")
