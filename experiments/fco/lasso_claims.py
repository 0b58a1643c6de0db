"""The paper's statements about the federated LASSO (section 4.5.2)."""

from collections.abc import Sequence

import numpy as np

from experiments.fco import claims
from experiments.fco.claims import Statement
from experiments.fco.methods import BEST, BEST_OF_OTHERS, METHODS
from experiments.fco.selection import Curve, Selected

# Not the paper's: F1 scores of "most", "almost perfect" and "little progress".
ALMOST, LITTLE = 0.95, 0.8  # a model of all ones has 0.667
DENSER = 1.05  # factor of "densest"
EVENT = f"round of F1 {ALMOST}"


def almost(curve: Curve) -> np.ndarray:
    """Returns, per evaluation, whether the support is recovered but for a few entries."""
    return curve["f1"] >= ALMOST


def _perfect(curve: Curve) -> np.ndarray:
    return curve["f1"] >= 1


def _best_rates(selected: Selected) -> tuple[str, Sequence[float]]:
    rates = selected.rates
    text = ", ".join(f"{m} ({a:g}, {b:g})" for m, (a, b) in rates.items())
    expected = {m: BEST if m == "FedDualAvg" else BEST_OF_OTHERS for m in rates}
    return text, [1.0 if rates == expected else -1.0]


def _densest(selected: Selected) -> tuple[str, Sequence[float]]:
    last = {m: selected.at_end(m, "density") for m in selected.curves}
    margins = [last["FedMiD"] - DENSER * value for m, value in last.items() if m != "FedMiD"]
    return claims.values_text(last), margins


def statements(every: tuple[str, ...]) -> tuple[Statement, ...]:
    """The paper's statements about its data sets."""
    methods = tuple(METHODS)
    dual, osp, mid, mid_osp = methods
    most, little = f"F1 {ALMOST}", f"F1 {LITTLE}"
    thick = f"density > {DENSER} x the others'"
    pairs = f"the best rates are {BEST} for {dual}, {BEST_OF_OTHERS} for the others"
    largest = f"{dual}'s client rate is the largest"
    found = [
        Statement(("I",), methods, pairs, _best_rates, of_selection=True),
        Statement(("I",), methods, largest, claims.largest_rate, of_selection=True),
        Statement(every, methods, f"{dual} is fastest", claims.fastest(dual, almost), most),
        Statement(("I",), methods, f"{mid} is the densest in the end", _densest, thick),
    ]
    for method, sets in ((dual, ("I",)), (osp, ("I", "IV"))):
        check = claims.at_end(method, "f1", least=ALMOST)
        found.append(Statement(sets, (method,), f"{method} ends almost perfect", check, most))
    for sets, bound in ((("II", "III"), 100), (("IV",), 200)):
        check = claims.reached(dual, _perfect, by=bound)
        found.append(Statement(sets, (dual,), f"{dual} is at 1 by round {bound}", check))
    for method in (mid, mid_osp):
        check = claims.reached(method, _perfect, after=100)
        text = f"{method} is not at 1 by round 100"
        found.append(Statement(("II", "III"), (method,), text, check))
        check = claims.at_end(method, "f1", below=LITTLE)
        text = f"{method} makes little progress"
        found.append(Statement(("IV",), (method,), text, check, little))
    return tuple(found)
