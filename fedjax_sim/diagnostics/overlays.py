"""Bounds at the rounds of a run, and the reasons why some of them do not apply to it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.engine import History
from fedjax_sim.theory import ProblemConstants, fedac, fedavg
from fedjax_sim.types import shown


@shown
class Bound(NamedTuple):
    """A bound that holds for any learning rate.

    Example:
        >>> by_distance = Bound(
        ...     "distance", lambda constants, *, lr, rounds, **_: constants.B**2 / (lr * rounds),
        ...     of="F - F*", homogeneous=False)
        >>> by_distance.name
        'distance'
    """

    name: str
    formula: Callable[..., Array]  # (constants, *, lr, local_steps, rounds, clients)
    of: str  # the quantity that it bounds
    homogeneous: bool  # whether its theorem assumes one objective for all clients


_OVER_SHADOW = "mean of F - F* over all shadow iterates"
_AT_WEIGHTED_MEAN = "F - F* at the weighted mean of all shadow iterates"

FEDAVG = (
    Bound("convex", partial(fedavg.bound, regime="convex"), _OVER_SHADOW, False),
    *(
        Bound(name, partial(fedavg.bound, regime=name), _AT_WEIGHTED_MEAN, True)
        for name in ("third order", "strongly convex")
    ),
)
"""Equation 2.1 and Theorems 2.19 and B.18 of Yuan (2023)."""

SHADOW = Bound("convex, measured drift", fedavg.shadow_bound, _OVER_SHADOW, False)
"""Lemma 2.3; its argument ``drift`` is the mean of the rounds so far, at the history's rounds
above 0."""

_FEDAC_I, _FEDAC_II = (
    partial(fedac.bound, regime="strongly convex", variant=variant) for variant in ("I", "II")
)
FEDAC_I = (Bound("FedAc-I", _FEDAC_I, "F - F* at the model, mean over clients", True),)
FEDAC_II = (Bound("FedAc-II", _FEDAC_II, "F - F* at the model", True),)


@shown
class Row(NamedTuple):
    """The value of a bound after a number of rounds."""

    round: int
    bound: str
    value: float  # NaN where invalid
    valid: bool


@shown
class Overlay(NamedTuple):
    """Bounds at a run's rounds."""

    rows: list[Row]  # bounds in the order given, rounds ascending; pandas.DataFrame(rows) is tidy
    skipped: dict[str, str]  # bound -> why it has no valid row


def overlay(
    history: History,
    constants: ProblemConstants,
    *,
    lr: float,
    local_steps: int,
    clients: int,
    bounds: Iterable[Bound] = FEDAVG,
    **numbers: Any,
) -> Overlay:
    """Bounds as functions of the number of rounds, at the rounds of a history's evaluations.

    They are evaluated in double precision.  A bound is skipped if it needs a constant that is
    unknown, if its theorem assumes one objective for all clients and zeta is not 0, or if its
    theorem does not allow the rate; :attr:`Overlay.skipped` gives the reason.  The other
    assumptions on the run (all clients in every round, K steps each, independent minibatches) are
    not checked.

    Args:
        history: of one run, ``history.round`` ``[E]``; round 0 is left out.
        constants: as measured.
        lr: client rate of the run, the same in every round.
        local_steps: per round.
        clients: in every round.
        bounds: e.g. :data:`FEDAVG`, :data:`FEDAC_I`.
        numbers: further arguments (``gamma``, ``potential``, ``drift``) of the bounds that take
            them: one number, or one per round above 0.

    Raises:
        ValueError: no round above 0; two bounds of one name; a number that no bound takes; numbers
            for other rounds.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, sigma4=0.0, zeta=0.0, B=2.0)
        >>> history = History(np.array([0, 1, 10]), {}, {})
        >>> result = overlay(history, constants, lr=0.1, local_steps=5, clients=4)
        >>> [(row.round, row.bound, round(row.value, 2)) for row in result.rows]
        [(1, 'convex', 4.0), (10, 'convex', 0.4)]
        >>> result.skipped["third order"]
        'constants.Q is None; expected a number, which this bound needs'
    """
    rounds = np.unique(np.asarray(history.round))
    rounds = rounds[rounds > 0]
    if not len(rounds):
        raise ValueError(f"history has the rounds {history.round}; expected some above 0")
    bounds = tuple(bounds)
    names = [bound.name for bound in bounds]
    if len(set(names)) < len(names):
        raise ValueError(f"bounds has the names {names}; expected distinct ones")
    taken = set().union(*(_arguments(bound.formula) for bound in bounds))
    if unknown := sorted(set(numbers) - taken):
        raise ValueError(f"numbers is {unknown}; expected arguments of the bounds {names}")
    for name, value in numbers.items():
        if np.shape(value) not in ((), rounds.shape):
            raise ValueError(
                f"{name} has shape {np.shape(value)}; expected {rounds.shape}, one number per "
                "round of the history above 0"
            )
    run = {"lr": lr, "local_steps": local_steps, "clients": clients, **numbers}
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for bound in bounds:
        try:
            values, reason = _values(bound, constants, run, rounds)
        except ValueError as error:  # a constant is unknown, or excluded by the theorem
            skipped[bound.name] = str(error)
            continue
        rows += [
            Row(int(r), bound.name, float(v), bool(np.isfinite(v)))
            for r, v in zip(rounds, values, strict=True)
        ]
        if not np.isfinite(values).any():
            skipped[bound.name] = reason
    return Overlay(rows, skipped)


def _values(
    bound: Bound, constants: ProblemConstants, run: dict[str, Any], rounds: np.ndarray
) -> tuple[np.ndarray, str]:
    """The bound's values, and the condition that does not hold where they are NaN."""
    if bound.homogeneous and not constants.zeta == 0:
        raise ValueError(
            f"its theorem has one objective for all clients; here zeta is {_shown(constants.zeta)}"
        )
    with (
        jax.enable_x64(True),
        # NaN is what bounds return where they do not hold.
        jax.debug_nans(False),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        taken = _arguments(bound.formula)
        numbers = {name: value for name, value in run.items() if name in taken}
        values = np.asarray(bound.formula(constants, rounds=jnp.asarray(rounds, float), **numbers))
    return np.broadcast_to(values, rounds.shape), _reasons(caught)


def _arguments(formula: Callable[..., Array]) -> set[str]:
    """Names of the arguments that a caller gives: a partial's keywords define the bound."""
    return set(inspect.signature(formula).parameters) - set(getattr(formula, "keywords", ()))


def _shown(value: Any) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _reasons(caught: Sequence[warnings.WarningMessage]) -> str:
    return "; ".join(dict.fromkeys(str(warning.message) for warning in caught)) or "not finite"
