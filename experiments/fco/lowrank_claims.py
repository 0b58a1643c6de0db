"""The paper's statements about low-rank estimation (section 4.5.3); why some do not hold here."""

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np

from experiments.fco import claims
from experiments.fco.claims import Check, Statement
from experiments.fco.methods import METHODS
from experiments.fco.selection import Curve, Selected

# Not the paper's:
EVENT = "round of the exact rank"
SLOW_ROUND, SLOWER, INACCURATE = 100, 1.005, 1.5  # round, factor of "slower"; of "inaccurate"


def exact(rank: int, curve: Curve) -> np.ndarray:
    """Returns, per evaluation, whether the model has the true rank."""
    return curve["rank"] == rank


def _above_dual(method: str, metric: str, factor: float, round: float = math.inf) -> Check:
    """Checks whether a method's last value up to a round is above a multiple of FedDualAvg's."""

    def check(selected: Selected) -> tuple[str, bool]:
        first, other = (
            float(curve[metric][curve["round"] <= round][-1])
            for curve in (selected.curves["FedDualAvg"], selected.curves[method])
        )
        return f"{other:.5g} against {first:.5g}", other > factor * first

    return check


def _by_error(selected: Selected) -> str:
    """The earliest exact rank over all pairs of rates."""
    rates = ", ".join(f"{m} ({a:g}, {b:g})" for m, (a, b) in selected.rates.items())
    return f"rates are selected by the error, not by the rank: {rates}; " + claims.fastest_text(
        selected, EVENT
    )


def _errors(method: str) -> Callable[[Selected], str]:
    """The errors at the end, and where they come from."""

    def why(selected: Selected) -> str:
        ends = {m: selected.at_end(m, "error") for m in selected.rates}
        pair = selected.rates[method]
        return f"late errors: {claims.values_text(ends)}; {method}'s best rates are {pair}"

    return why


def statements(ranks: Mapping[str, int]) -> tuple[Statement, ...]:
    """The paper's statements about data sets, whose true ranks are given."""
    dual, osp, mid, mid_osp = METHODS
    every = tuple(METHODS)
    found = []
    for name, rank in ranks.items():
        bound = 200 if name == "IV" else 100
        at_rank = functools.partial(exact, rank)

        def low(value: float, rank: int = rank) -> bool:
            return value <= rank

        early = claims.reached(dual, at_rank, by=lambda at, bound=bound: at < bound)
        of_dual = f"{dual} finds the exact rank before round {bound}"
        of_osp = f"{osp} ends at a rank of at most {rank}"
        first = f"{dual} is the first at the exact rank"
        found += [
            Statement((name,), (dual,), of_dual, early, why=_by_error),
            Statement((name,), every, first, claims.fastest(dual, at_rank), why=_by_error),
            Statement((name,), (osp,), of_osp, claims.at_end(osp, "rank", low), why=_by_error),
        ]
    for method in (mid, mid_osp):
        text, ours = f"{method} converges slower", f"training loss > {SLOWER} x {dual}'s"
        ours += f" in round {SLOW_ROUND}"
        slower = _above_dual(method, "train/loss", SLOWER, SLOW_ROUND)
        found.append(Statement(tuple(ranks), (dual, method), text, slower, ours, _errors(method)))
    text, ours = f"{osp} is far less accurate", f"error > {INACCURATE} x {dual}'s"
    check = _above_dual(osp, "error", INACCURATE)
    found.append(Statement(tuple(ranks), (dual, osp), text, check, ours, _errors(osp)))
    return tuple(found)
