"""The paper's statements about sparse logistic regression (section 4.5.4)."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from experiments.fco.claims import Check, Statement, above
from experiments.fco.methods import METHODS, SUBGRADIENT
from experiments.fco.scans import ACCURACY, DENSITY, LOSS
from experiments.fco.selection import Selected

# Not the paper's:
CLOSE, TWICE = 0.05, 2.0  # in accuracy; in density
PRODUCTS = (0.003, 0.3)  # of the rates of the pairs of Figure 4.11


def statements(
    centralised: Mapping[str, float],
    local: Mapping[str, float],
    shares: pd.DataFrame,
    pairs: int,
) -> list[Statement]:
    """The statements, with the baselines that were run here."""
    dual, osp, mid, mid_osp = METHODS
    ours = f"accuracy within {CLOSE:g} of, density at most {TWICE:g} x centralised's"
    every, pair, primal = tuple(METHODS), (dual, SUBGRADIENT), (mid, mid_osp)

    def below(other: str, metric: str) -> Check:
        return above(dual, (other,), metric, sign=-1)

    def accurate(other: str) -> Check:
        return above(dual, (other,), ACCURACY)

    like, alone = _like(centralised), _above(local)
    denser, worse = above(dual, primal, DENSITY, sign=-1), above(dual, primal, ACCURACY)
    three, both = (dual, *primal), f"{mid} and {mid_osp} are"
    rows: list[tuple] = [
        ((dual,), f"{dual} is comparable to centralised", like, ours),
        ((dual,), f"{dual} is more accurate than training alone", alone),
        (three, f"{both} denser", denser),
        (three, f"{both} less accurate", worse),
        ((dual, osp), f"{osp} is less accurate", accurate(osp)),
        (pair, f"{dual} has a lower loss than {SUBGRADIENT}", below(SUBGRADIENT, LOSS)),
        (pair, f"{dual} is sparser than {SUBGRADIENT}", below(SUBGRADIENT, DENSITY)),
        (pair, f"{dual} is more accurate than {SUBGRADIENT}", accurate(SUBGRADIENT)),
        (every, f"{dual} is most robust: most good pairs", _robust(shares, pairs), ours, "", True),
    ]
    return [Statement(("fmri",), *row) for row in rows]


def _like(centralised: Mapping[str, float]) -> Check:
    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        accuracy, share = (selected.at_end("FedDualAvg", m) for m in (ACCURACY, DENSITY))
        text = f"accuracy {accuracy:.3f}, density {share:.3g}; centralised "
        text += f"{centralised[ACCURACY]:.3f}, {centralised[DENSITY]:.3g}"
        close = accuracy - (centralised[ACCURACY] - CLOSE)
        return text, [close, TWICE * centralised[DENSITY] - share]

    return check


def _above(local: Mapping[str, float]) -> Check:
    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        accuracy = selected.at_end("FedDualAvg", ACCURACY)
        return f"{accuracy:.3f} against {local[ACCURACY]:.3f}", [accuracy - local[ACCURACY]]

    return check


def _robust(shares: pd.DataFrame, pairs: int) -> Check:
    def check(selected: Selected) -> tuple[str, Sequence[float]]:
        del selected
        if not len(shares.columns):
            return "no round of the figure was run", [math.nan]
        last = dict(zip(shares.index.tolist(), shares.iloc[:, -1].tolist(), strict=True))
        text = f"of {pairs} pairs per method with products of rates in {list(PRODUCTS)}: "
        text += ", ".join(f"{m} {100 * share:.0f} %" for m, share in last.items())
        margins = [last["FedDualAvg"] - share for m, share in last.items() if m != "FedDualAvg"]
        return text, margins

    return check
