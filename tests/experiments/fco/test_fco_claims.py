"""The paper's statements against made-up curves, and their checks."""

import math

import numpy as np
import pandas as pd
import pytest

from experiments.fco.claims import (
    Statement,
    above,
    above_at_equal_rates,
    at_end,
    coincide,
    fastest,
    first_round,
    judged,
    largest_rate,
    reached,
)
from experiments.fco.lasso import LASSO
from experiments.fco.lowrank import LOW_RANK
from experiments.fco.methods import METHODS
from experiments.fco.recovery_report import at_thesis
from experiments.fco.selection import RUN, Selected, select


def picked(curves, rates=None, score=None, ends=None):
    """A selection with these curves."""
    rates = dict.fromkeys(curves, (0.1, 1.0)) if rates is None else rates
    empty = pd.DataFrame(columns=pd.Index(RUN))
    score = empty if score is None else score
    ends = empty if ends is None else ends
    return Selected("loss", "min", 1, score, ends, empty, empty, curves, rates)


def curve(rounds, **metrics):
    return {"round": np.array(rounds)} | {name: np.array(v) for name, v in metrics.items()}


def test_first_rounds_and_their_checks():
    curves = {
        "FedDualAvg": curve([10, 20, 30], f1=[0.5, 1.0, 0.9]),
        "FedMiD": curve([10, 20, 30], f1=[0.1, 0.2, 0.3]),
    }

    found = picked(curves)

    def perfect(c):
        return c["f1"] >= 1

    assert first_round(curves["FedDualAvg"], perfect) == 20
    assert first_round(curves["FedMiD"], perfect) == math.inf
    # In rounds; between two evaluations are ten, so by round 20 has a margin of ten.
    assert reached("FedDualAvg", perfect, by=20)(found) == ("FedDualAvg round 20", [10])
    assert reached("FedDualAvg", perfect, by=10)(found)[1] == [0]
    assert reached("FedMiD", perfect, after=20)(found) == ("FedMiD never", [20])
    assert reached("FedDualAvg", perfect, after=20)(found)[1] == [0]
    assert fastest("FedDualAvg", perfect)(found)[1] == [20]
    assert fastest("FedMiD", perfect)(found)[1] == [-20]
    rates = {"FedDualAvg": (0.1, 1.0), "FedMiD": (0.1, 0.3)}
    assert largest_rate(picked(curves, rates))[1] == [0]
    assert largest_rate(picked(curves, rates | {"FedMiD": (0.01, 1.0)}))[1] == [0.1 - 0.01]


def perfect_curves(**changes):
    """All methods as the paper's claims want them, on set I and the others."""
    shape = {"FedDualAvg": (0.96, 1.0), "FedDualAvg-OSP": (0.9, 0.97)}
    shape |= {"FedMiD": (0.5, 0.7), "FedMiD-OSP": (0.5, 0.75)} | changes
    density = {"FedMiD": 0.9}
    return {
        m: curve(
            [50, 300], f1=values, density=[1.0, density.get(m, 0.6)], **{"train/loss": [2.0, 1.0]}
        )
        for m, values in shape.items()
    }


RATES = dict.fromkeys(METHODS, (0.001, 0.3)) | {"FedDualAvg": (0.01, 1.0)}


def holding(name, curves, rates=RATES):
    rows = [(method, *rates[method], 0, 0.5) for method in curves]
    score = pd.DataFrame(rows, columns=["method", "lr", "server_lr", "seed", "score"])
    ends = score.drop(columns="score").assign(density=0.6, **{LASSO.event: 50.0})
    claims = judged(name, LASSO.statements, picked(curves, rates, score, ends))
    return {claim.text: claim.holds for claim in claims}


def test_claims_hold_for_the_papers_picture_and_notice_others():
    assert all(holding("I", perfect_curves()).values())
    assert len(holding("I", perfect_curves())) == 6
    last_dense = perfect_curves()["FedDualAvg"] | curve(
        [50, 300], f1=[0.2, 0.9], density=[1.0, 0.95]
    )
    worse = perfect_curves() | {"FedDualAvg": last_dense}
    assert sum(holding("I", worse).values()) == 3  # not its speed, its end, FedMiD's density
    other_rates = dict.fromkeys(METHODS, (0.001, 1.0))
    assert sum(holding("I", perfect_curves(), other_rates).values()) == 4
    late = holding("IV", perfect_curves())
    assert not late.pop("FedDualAvg is at 1 by round 200")
    assert all(late.values())
    assert len(late) == 4
    only = {"FedDualAvg": perfect_curves()["FedDualAvg"]}
    assert holding("III", only) == {"FedDualAvg is at 1 by round 100": False}


def test_low_rank_claims():
    curves = {
        m: curve([50, 100], rank=[20.0, rank], error=[3.0, error], **{"train/loss": [9.0, loss]})
        for m, rank, error, loss in (
            ("FedDualAvg", 15.0, 1.0, 3.0), ("FedDualAvg-OSP", 12.0, 2.0, 5.0),
            ("FedMiD", 18.0, 1.2, 4.0), ("FedMiD-OSP", 18.0, 0.9, 2.0),
        )
    }  # fmt: skip
    found = judged("I", LOW_RANK.statements, picked(curves, RATES))
    assert [claim.holds for claim in found] == [False, False, True, True, False, True]
    curves["FedDualAvg"]["rank"] = np.array([16.0, 16.0])
    found = judged("I", LOW_RANK.statements, picked(curves, RATES))
    assert [claim.holds for claim in found] == [True, True, True, True, False, True]
    thresholds = {claim.text: claim.ours for claim in found if claim.ours}
    assert thresholds["FedDualAvg-OSP is far less accurate"] == "error > 1.5 x FedDualAvg's"


def test_ends_are_compared_by_a_factor():
    found = picked({"A": curve([1, 2], loss=[9.0, 3.1]), "B": curve([1, 2], loss=[9.0, 2.0])})
    assert above("A", ["B"], "loss", 1.5)(found) == ("A 3.1, B 2", [3.1 - 3.0])
    assert above("A", ["B"], "loss", 1.6)(found)[1] == [3.1 - 3.2]
    assert above("B", ["A"], "loss", sign=-1)(found)[1] == [3.1 - 2.0]
    assert above("A", ["B"], "loss", sign=-1)(found)[1] == [2.0 - 3.1]


def test_values_at_a_threshold_are_at_least_that():
    found = picked({"A": curve([1, 2], f1=[0.0, 0.95])})
    assert at_end("A", "f1", least=0.95)(found)[1][0] > 0
    assert at_end("A", "f1", below=0.95)(found)[1] == [0]
    assert at_end("A", "f1", least=0.96)(found)[1][0] < 0


def test_margins_are_those_of_each_seed():
    """By the means over two seeds A is 2 above B; in the seeds it is 5 above and 1 below."""
    values = {("A", 0): 7.0, ("B", 0): 2.0, ("A", 1): 1.0, ("B", 1): 2.0}
    rows = [
        (method, 0.1, 1.0, seed, 1, "loss", value, -1) for (method, seed), value in values.items()
    ]
    columns = pd.Index([*RUN, "round", "metric", "value", "diverged_at"])
    selected = select(pd.DataFrame(rows, columns=columns), "loss", 1)
    statement = Statement(("I",), ("A", "B"), "A is above B", above("A", ["B"], "loss"))
    (claim,) = judged("I", [statement], selected)
    assert claim.holds
    assert claim.found == "A 4, B 2"
    assert claim.margins == [(5.0, -1.0)]
    (claim,) = judged("I", [statement._replace(of_selection=True)], selected)
    assert claim.margins == []


def test_curves_coincide_in_their_second_half():
    curves = {"A": curve(range(4), loss=[9.0, 1.0, 1.0, 1.0])}
    curves |= {"B": curve(range(4), loss=[1.0, 9.0, 1.01, 1.0])}
    text, margins = coincide(["A", "B"], "loss", 0.02)(picked(curves))
    assert text == "at most 1 % apart: A (0.1, 1), B (0.1, 1)"
    assert margins == [pytest.approx(0.01)]
    assert coincide(["A", "B"], "loss", 0.005)(picked(curves))[1] == [pytest.approx(-0.005)]


def test_equal_rates_are_those_of_feddualavgs_best_pair():
    """A run that diverged is above all others; pairs that not all methods ran do not count."""
    rows = [("FedDualAvg", 0.1, 1.0, 0, 1.0), ("FedDualAvg", 0.3, 1.0, 0, 2.0)]
    rows += [("FedDualAvg-OSP", 0.1, 1.0, 0, 1.4), ("FedDualAvg-OSP", 0.3, 1.0, 0, math.nan)]
    rows += [("FedDualAvg-OSP", 1.0, 1.0, 0, 1.0)]
    score = pd.DataFrame(rows, columns=["method", "lr", "server_lr", "seed", "score"])
    rates = {"FedDualAvg": (0.1, 1.0), "FedDualAvg-OSP": (1.0, 1.0)}
    check = above_at_equal_rates("FedDualAvg-OSP", ["FedDualAvg"], 1.5)
    text = "at (0.1, 1) FedDualAvg-OSP 1.4, FedDualAvg 1; at 1 of 2 pairs"
    assert check(picked({}, rates, score)) == (text, [1.4 - 1.5])
    assert check(picked({}, rates | {"FedDualAvg": (0.3, 1.0)}, score))[1] == [math.inf]
    assert np.isnan(check(picked({}, rates | {"FedDualAvg": (1.0, 1.0)}, score))[1]).all()
    ends = score.drop(columns="score").assign(accuracy=[0.5, 0.5, 0.6, 0.4, 0.3])
    check = above_at_equal_rates("FedDualAvg-OSP", ["FedDualAvg"], metric="accuracy")
    text = "at (0.1, 1) FedDualAvg-OSP 0.6, FedDualAvg 0.5; at 1 of 2 pairs"
    assert check(picked({}, rates, score, ends)) == (text, [0.6 - 0.5])


def test_statements_of_other_data_and_of_methods_that_did_not_run_are_left_out():
    selected = picked({"A": curve([1, 2], loss=[9.0, 3.0])})
    given = Statement(("I",), ("A",), "A is low", at_end("A", "loss", below=1))
    for statement, count in (
        (given, 1), (given._replace(sets=("II",)), 0), (given._replace(methods=("B",)), 0),
        (given._replace(needs="accuracy"), 0),
    ):  # fmt: skip
        assert len(judged("I", [statement], selected)) == count


def test_runs_at_the_thesis_rates_decide():
    """The selected run is at 1 in round 50, that of the thesis's rates in no kept round."""
    rows = [("FedDualAvg", 0.01, 1.0, "f1", 0, 0.5, 0.9), ("FedMiD", 0.001, 0.3, "f1", 0, 0.1, 1.0)]
    rows += [("FedDualAvg", 0.01, 1.0, "f1", 1, 0.5, 1.0), ("FedMiD", 0.001, 0.3, "f1", 1, 0, 1)]
    columns = pd.Index(["method", "lr", "server_lr", "metric", "seed", "round 50", "round 100"])
    selected = picked(perfect_curves(FedDualAvg=(1.0, 1.0)), RATES)
    fixed = at_thesis(selected, pd.DataFrame(rows, columns=columns))
    assert fixed.rates == {"FedDualAvg": (0.01, 1.0), "FedMiD": (0.001, 0.3)}
    found = {c.text: (c.found, c.holds) for c in judged("III", LASSO.statements, selected, fixed)}
    assert found == {
        "FedDualAvg is at 1 by round 100": ("FedDualAvg never", False),
        "FedMiD is not at 1 by round 100": ("FedMiD round 100", False),
    }
    (first, _) = judged("III", LASSO.statements, selected, fixed)
    assert first.margins == [(0, 50)]  # by round 100: never, and in round 100 with the other seed
    chosen = {claim.text: claim.holds for claim in judged("III", LASSO.statements, selected)}
    assert chosen["FedDualAvg is at 1 by round 100"]
    about_rates = judged("I", LASSO.statements, selected, fixed)
    assert "the best rates are (0.01, 1.0) for FedDualAvg" in about_rates[0].text
    assert about_rates[0].holds
