"""Bounds over a run: their values at its rounds, and why some of them say nothing about it."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.diagnostics.constants import Constants
from fedjax_sim.engine import History
from fedjax_sim.theory import fedac, fedac_ii, fedavg, fedavg_strongly_convex, fedavg_third_order
from fedjax_sim.theory.prescribed import Formula, arguments


class Bound(NamedTuple):
    """A bound that holds for any rate."""

    name: str
    formula: Formula  # of lr, M, K, R and constants
    of: str  # what it bounds
    homogeneous: bool  # its theorem has one objective for all clients


FEDAVG = (
    Bound("convex", fedavg.convex_bound, "mean of F - F* over all shadow iterates", False),
    Bound(
        "third order",
        fedavg_third_order.third_order_bound,
        "F - F* at the weighted mean of all shadow iterates",
        True,
    ),
    Bound(
        "strongly convex",
        fedavg_strongly_convex.strongly_convex_bound,
        "F - F* at the weighted mean of all shadow iterates",
        True,
    ),
)
"""Equation 2.1 and Theorems 2.19 and B.18 of Yuan (2023)."""

SHADOW = Bound(
    "convex, measured drift", fedavg.shadow_bound, "mean of F - F* over all shadow iterates", False
)
"""Lemma 2.3; its argument ``drift`` is the mean of the rounds so far, at the history's rounds."""

FEDAC_I = (Bound("FedAc-I", fedac.fedac_i_bound, "F - F* at the model, mean over clients", True),)
FEDAC_II = (Bound("FedAc-II", fedac_ii.fedac_ii_bound, "F - F* at the model", True),)


class Row(NamedTuple):
    """A bound after so many rounds."""

    round: int
    bound: str
    value: float  # NaN where invalid
    valid: bool


class Overlay(NamedTuple):
    """Bounds at a run's rounds."""

    rows: list[Row]  # bounds in the order given, rounds ascending; pandas.DataFrame(rows) is tidy
    skipped: dict[str, str]  # bound -> why it has no valid row


def overlay(
    history: History,
    constants: Constants,
    *,
    lr: float,
    M: int,
    K: int,
    bounds: Iterable[Bound] = FEDAVG,
    **given: Any,
) -> Overlay:
    """The bounds as functions of R, at the rounds of a history's evaluations.

    Evaluated in double precision.  A bound is skipped if it needs a constant that is unknown, if
    its theorem has one objective for all clients and zeta is not 0, or if the rate is one that
    its theorem does not allow; :attr:`Overlay.skipped` says which.  Whether the run itself meets
    the theorems' assumptions (all clients in every round, K steps each, independent minibatches) is
    not looked at.

    Args:
        history: of one run, ``history.round`` ``[E]``; round 0 is left out.
        constants: as measured.
        lr: client rate of the run, the same in every round.
        M: clients.
        K: local steps.
        bounds: e.g. :data:`FEDAVG`, :data:`FEDAC_I`.
        given: further arguments of the bounds (``gamma``, ``potential``), as
            :func:`fedjax_sim.theory.prescribed.arguments` takes them.

    Raises:
        ValueError: no round above 0, two bounds of one name.

    Example:
        >>> constants = Constants(L=1.0, sigma=0.0, zeta=0.0, B=2.0)
        >>> found = overlay(History(np.array([0, 1, 10]), {}, {}), constants, lr=0.1, M=4, K=5)
        >>> [(row.round, row.bound, round(row.value, 2)) for row in found.rows]
        [(1, 'convex', 4.0), (10, 'convex', 0.4)]
        >>> found.skipped["third order"]
        'third_order_bound needs Q; expected it among the constants or the arguments'
    """
    rounds = np.unique(np.asarray(history.round))
    rounds = rounds[rounds > 0]
    if not len(rounds):
        raise ValueError(f"history has the rounds {history.round}; expected some above 0")
    bounds = tuple(bounds)
    names = [bound.name for bound in bounds]
    if len(set(names)) < len(names):
        raise ValueError(f"bounds has the names {names}; expected distinct ones")
    run = {"lr": lr, "M": M, "K": K, **given}
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for bound in bounds:
        try:
            values, reason = _values(bound, constants, run, rounds)
        except ValueError as error:  # a constant is unknown, or one that the theorem excludes
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
    bound: Bound, constants: Constants, run: dict[str, Any], rounds: np.ndarray
) -> tuple[np.ndarray, str]:
    """Its values, and the condition that does not hold where they are NaN."""
    if bound.homogeneous and not constants.zeta == 0:
        raise ValueError(
            f"its theorem has one objective for all clients; here zeta is {constants.zeta:.3g}"
        )
    with (
        jax.enable_x64(True),
        # NaN is what bounds return where they do not hold.
        jax.debug_nans(False),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        fixed = arguments(bound.formula, constants, {**run, "R": jnp.asarray(rounds, float)})
        values = np.asarray(bound.formula(**fixed))
    return np.broadcast_to(values, rounds.shape), _reasons(caught)


def _reasons(caught: Sequence[warnings.WarningMessage]) -> str:
    return "; ".join(dict.fromkeys(str(warning.message) for warning in caught)) or "not finite"
