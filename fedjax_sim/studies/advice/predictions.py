"""Settings that theorems prescribe, and the rounds that they predict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.studies.advice.conditions import Condition, Sizes, constant_condition
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.theorems import Theorem
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import shown

MOST_ROUNDS = 10**12
ENOUGH = 1.1
"""More local steps must save this factor, of rounds or of the bound, to be prescribed."""

POINTS = 64
"""Numbers of rounds that one step of a search compares."""


@shown
class Setting(NamedTuple):
    """Numbers of a run that a theorem prescribes, and the bound after its rounds.

    Example:
        >>> Setting(local_steps=4, rounds=100, lr=0.25, bound=0.01).lr
        0.25
    """

    local_steps: int  # K
    rounds: int  # R
    lr: float
    bound: float
    augmentation: float | None = None  # of FedAc on convex objectives

    @property
    def numbers(self) -> dict[str, float]:
        """Arguments of the theorem's bound and algorithm."""
        augmented = {} if self.augmentation is None else {"augmentation": self.augmentation}
        return {"lr": self.lr, **augmented}


@shown
class Prediction(NamedTuple):
    """Settings and conditions of a theorem on a setup."""

    theorem: Theorem
    conditions: tuple[Condition, ...]  # of the theorem, its constants among them
    here: Setting | None  # at the setup's local steps and rounds; None: there is no rate
    prescribed: Setting | None  # with the best number of local steps, and rounds to the target
    target: float | None  # for the theorem's quantity
    by_local_steps: tuple[Setting, ...] = ()  # after the setup's rounds, for every candidate

    @property
    def applies(self) -> bool:
        """True if no condition fails; some may be undecided."""
        return all(condition.holds is not False for condition in self.conditions)

    @property
    def failed(self) -> list[str]:
        """Conditions that do not hold, with reasons."""
        return [condition.text for condition in self.conditions if condition.holds is False]

    @property
    def undecided(self) -> list[str]:
        """Conditions that hold at the measured models or were not checked, with reasons."""
        return [condition.text for condition in self.conditions if condition.holds is None]


def predict(
    theorem: Theorem,
    measurement: Measurement,
    conditions: Mapping[str, Condition],
    sizes: Sizes,
    *,
    target: float | None,
    local_steps: Sequence[int],
) -> Prediction:
    """Applies a theorem to a setup.

    With a target, the prescribed setting needs the fewest rounds until the bound is at most the
    target; without, it has the smallest bound after the setup's rounds.  Of several numbers of
    local steps (increasing) it has the smallest that is within :data:`ENOUGH` of the best.  There
    are no settings if a condition fails, and no prescribed one if no candidate reaches the target
    within :data:`MOST_ROUNDS` rounds.
    """
    checked = tuple(conditions[name] for name in theorem.assumes)
    needs = [name for name in theorem.needs if name != "mu"]  # mu: F is strongly convex
    checked += tuple(constant_condition(name, measurement) for name in needs)
    prediction = Prediction(theorem, checked, None, None, target)
    if not prediction.applies:
        return prediction
    constants = measurement.constants
    steps = [sizes.local_steps, *local_steps]
    try:
        settings = Settings(theorem, constants, sizes, steps)
        here, *candidates = at_rounds = settings(np.full(len(steps), sizes.rounds))
    except ValueError as error:  # a constant outside the theorem's range
        return _refused(prediction, "the constants are in the theorem's range", str(error))
    costs = [candidate.bound for candidate in candidates]
    if target is not None:
        candidates = fewest_rounds(settings, target)[1:]
        costs = [x.rounds if x.bound <= target else math.inf for x in candidates]
    if all(math.isnan(x.bound) for x in (here, *candidates)):
        return _refused(
            prediction,
            "a rate is in the theorem's range",
            "the bound is NaN, or smallest at rate 0",
        )
    return prediction._replace(
        here=None if math.isnan(here.bound) else here,
        prescribed=_smallest_enough(candidates, costs),
        by_local_steps=tuple({setting.local_steps: setting for setting in at_rounds}.values()),
    )


class Settings:
    """Prescribed settings of a theorem, with their bounds, for k numbers of local steps.

    They are computed in double precision by one program.  Of the sizes, K and R are not used.
    """

    def __init__(
        self,
        theorem: Theorem,
        constants: ProblemConstants,
        sizes: Sizes,
        local_steps: Sequence[int],
    ):
        self.local_steps = tuple(local_steps)
        floats = ProblemConstants(**{name: float(x) for name, x in constants.known.items()})
        counts = {"clients": float(sizes.clients), "cohort_size": float(sizes.cohort_size)}

        @jax.jit
        def both(steps: Array, rounds: Array) -> tuple[dict[str, Array], Array]:
            numbers = {"local_steps": steps, "rounds": rounds, **counts}
            prescribed = theorem.prescribe(floats, **numbers)
            return prescribed, theorem.bound(floats, **prescribed, **numbers)

        self._both = both

    def columns(self, rounds: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the prescribed numbers and the bound for rounds ``[k, n]``, ``[k, n]`` each.

        All searches share a program, since n is :data:`POINTS`.
        """
        steps = np.asarray(self.local_steps, float)[:, None]
        with jax.enable_x64(True), jax.debug_nans(False):  # NaN: outside the theorem's range
            prescribed, bound = self._both(steps, np.asarray(rounds, float))
        columns = {"bound": bound, **prescribed}
        return {name: np.broadcast_to(x, rounds.shape) for name, x in columns.items()}

    def __call__(self, rounds: np.ndarray) -> list[Setting]:
        """Returns the settings for one number of rounds per number of local steps, ``[k]``."""
        columns = self.columns(np.repeat(np.asarray(rounds)[:, None], POINTS, axis=1))
        return [
            Setting(K, int(rounds[i]), **{name: float(x[i, 0]) for name, x in columns.items()})
            for i, K in enumerate(self.local_steps)
        ]


def fewest_rounds(settings: Settings, target: float) -> list[Setting]:
    """Returns the settings with the fewest rounds whose bound is at most the target.

    The rates are those prescribed for these rounds.  The search narrows an interval, so it assumes
    that more rounds do not increase the bound.  Where :data:`MOST_ROUNDS` are not enough, the
    setting has these rounds and a larger bound.
    """
    k = len(settings.local_steps)
    low, high = np.zeros(k), np.full(k, float(MOST_ROUNDS))  # too few; enough, or not known to be
    while (high - low > 1).any():
        first = low + 1
        powers = np.linspace(0, 1, POINTS)
        grid = np.floor(first[:, None] * (high / first)[:, None] ** powers + 1e-9)
        grid[:, -1] = high
        reached = settings.columns(grid)["bound"] <= target
        index = reached.argmax(axis=1)
        before = np.where(index > 0, grid[range(k), index - 1], low)
        low = np.where(reached.any(axis=1), before, high)
        high = grid[range(k), np.where(reached.any(axis=1), index, POINTS - 1)]
    return settings(high)


def _refused(prediction: Prediction, name: str, reason: str) -> Prediction:
    failed = Condition(name, False, reason)
    return prediction._replace(conditions=(*prediction.conditions, failed))


def _smallest_enough(candidates: Sequence[Setting], costs: Sequence[float]) -> Setting | None:
    finite = [cost for cost in costs if math.isfinite(cost)]
    if not finite:
        return None
    enough = ENOUGH * min(finite)
    return next(x for x, cost in zip(candidates, costs, strict=True) if cost <= enough)
