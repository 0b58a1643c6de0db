"""The paper's statements about low-rank estimation (section 4.5.3)."""

import functools
import math
from collections.abc import Mapping, Sequence

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

    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        first, other = (
            float(curve[metric][curve["round"] <= round][-1])
            for curve in (selected.curves["FedDualAvg"], selected.curves[method])
        )
        return f"{other:.5g} against {first:.5g}", [other - factor * first]

    return check


def statements(ranks: Mapping[str, int]) -> tuple[Statement, ...]:
    """The paper's statements about data sets, whose true ranks are given."""
    dual, osp, mid, mid_osp = METHODS
    every = tuple(METHODS)
    found = []
    for name, rank in ranks.items():
        bound = 200 if name == "IV" else 100
        at_rank = functools.partial(exact, rank)
        above = float(np.nextafter(rank, math.inf))
        early = claims.reached(dual, at_rank, by=bound)
        of_dual = f"{dual} finds the exact rank by round {bound}"
        of_osp = f"{osp} ends at a rank of at most {rank}"
        first = f"{dual} is the first at the exact rank"
        found += [
            Statement((name,), (dual,), of_dual, early),
            Statement((name,), every, first, claims.fastest(dual, at_rank)),
            Statement(
                (name,),
                (osp,),
                of_osp,
                claims.at_end(osp, "rank", below=above),
            ),
        ]
    for method in (mid, mid_osp):
        text, ours = f"{method} converges slower", f"error > {SLOWER} x {dual}'s"
        ours += f" in round {SLOW_ROUND}"
        slower = _above_dual(method, "error", SLOWER, SLOW_ROUND)
        found.append(Statement(tuple(ranks), (dual, method), text, slower, ours))
    text, ours = f"{osp} is far less accurate", f"error > {INACCURATE} x {dual}'s"
    check = _above_dual(osp, "error", INACCURATE)
    found.append(Statement(tuple(ranks), (dual, osp), text, check, ours))
    return tuple(found)
