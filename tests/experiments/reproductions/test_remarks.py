"""Numbers in the remarks of the pages of reproductions are those of the results."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.fedswa.comparison import LAST_ROUNDS
from experiments.fedswa.histories import tall
from experiments.fedswa.settings import ACCURACY
from experiments.harness import Estimate, late_scores
from experiments.reproductions import __main__ as script
from experiments.reproductions import fedswa, page, thesis
from experiments.reproductions.reading import Result

CIFAR10 = f"fedswa/{fedswa.LONG}/{fedswa.CIFAR10}-lr0.1"
CIFAR100 = f"fedswa/{fedswa.LONG}/{fedswa.CIFAR100}"
MEANS = f"fedswa/averages-cpu-300/{fedswa.CIFAR100}-lr0.1"
TEXTS = "\n".join(
    [row.remark for paper in (*script.PAPERS, *script.OTHERS) for row in paper.rows]
    + [text for paper in script.PAPERS for text in (*paper.notes.values(), *paper.remarks.values())]
)
NUMBER = r"\d+\.\d+"


def points(report: str, first: str, second: str) -> Any:
    """Points of late accuracy by which a method is ahead of another, by seed."""
    history = tall(pd.read_csv(Result(report).file(".csv")))
    late = late_scores(history, ACCURACY, LAST_ROUNDS, "max")
    by = late.pivot(index="seed", columns="method", values="score")
    return 100 * (by[first] - by[second])


@pytest.mark.parametrize(
    ("report", "first", "second", "text"),
    [
        (CIFAR10, "FedSWA-program", "FedSWA", "adds 2.2 points"),
        (CIFAR100, "FedMoSWA", "FedMo", "above FedMo by 1.02 points (0.45 to 1.58)"),
        (CIFAR100, "MoFedSAM-program", "FedAvg", "4.27 points above FedAvg (3.98 to 4.55)"),
        (CIFAR100, "MoFedSAM-program", "FedSWA", "3.05 above FedSWA (1.02 to 5.07)"),
        (CIFAR100, "FedMoSWA", "MoFedSAM-program", "2.23 below FedMoSWA (0.11 to 4.36)"),
        (CIFAR100, "FedSAM-program", "FedAvg", "2.73 points above FedAvg (2.19 to 3.27;"),
        (CIFAR100, "MoFedSAM-program", "FedSAM-program", "1.53 below MoFedSAM (0.82 to 2.25)"),
        (MEANS, "FedAvg + SWA", "FedAvg", "adds 1.81 points (1.30 to 2.32) to FedAvg"),
        (MEANS, "FedSWA + SWA", "FedSWA", "3.51 points (2.72 to 4.30) to FedSWA"),
        (MEANS, "FedAvg + SWA", "FedSWA", "1.42 points (0.05 to 2.79) below FedAvg with SWA"),
        (MEANS, "FedSWA + SWA", "FedAvg + SWA", "2.09 points (0.08 to 4.09) above FedAvg with SWA"),
    ],
)
def test_differences_of_methods(report, first, second, text):
    assert text in TEXTS
    estimate = Estimate.of(points(report, first, second).to_numpy())
    found = re.findall(NUMBER, text)
    for number, value in zip(found, estimate, strict=False):
        assert number == f"{value:.{len(number.partition('.')[2])}f}", (number, value)


@pytest.mark.parametrize(
    ("report", "first", "second", "text"),
    [
        (CIFAR10, "FedSWA-program", "FedSWA", "of three seeds (by 3.1, 1.3 and 2.0 points)"),
        (CIFAR10, "FedSWA-program", "FedAvg", "above FedAvg in each (by 0.5, 0.2 and 1.6)"),
        (CIFAR10, "FedAvg", "FedSWA", "below FedAvg in each (by 2.6, 1.1 and 0.5)"),
    ],
)
def test_differences_of_seeds(report, first, second, text):
    assert text in TEXTS
    assert re.findall(NUMBER, text) == [f"{x:.1f}" for x in points(report, first, second)]


def test_differences_whose_interval_contains_0():
    """FedSWA above FedAvg without a mean over rounds; FedSAM as released above FedSWA."""
    for report, first in ((MEANS, "FedAvg"), (CIFAR100, "FedSAM-program")):
        estimate = Estimate.of(points(report, "FedSWA", first).to_numpy())
        assert estimate.low < 0 < estimate.high
    assert "its difference from FedAvg has an interval that contains 0" in TEXTS
    assert "interval of its difference from FedSWA contains 0" in TEXTS


def test_methods_above_fedavg_in_every_seed():
    assert "FedSAM and FedSWA gain 1.9 and 1.2 points, and both are above FedAvg in every" in TEXTS
    for method, gain in (("FedSAM", "1.9"), ("FedSWA", "1.2")):
        ahead = points(CIFAR100, method, "FedAvg")
        assert f"{ahead.mean():.1f}" == gain
        assert (ahead > 0).all()
    for other in ("SCAFFOLD", "FedMo"):
        share = points(CIFAR100, other, "FedAvg").mean()
        assert share >= 0.8 * points(CIFAR100, "FedMoSWA", "FedAvg").mean()


def test_gaps_on_cifar100():
    table = Result(CIFAR100).table("", "method", "test - train loss").set_index("method")
    gaps: Any = table["test - train loss"].astype(float)
    assert "all methods have smaller gaps" in TEXTS
    assert gaps.idxmax() == "FedAvg"
    assert "These two have the smallest gaps" in TEXTS
    assert set(gaps.nsmallest(2).index) == {"MoFedSAM-program", "FedSAM-program"}


@pytest.mark.parametrize("remark", [fedswa.SMALL_DIFFERENCES, fedswa.FULL_PARTICIPATION])
def test_differences_on_digits(remark):
    """Those of the claims with this remark, up to the rate 0.3."""
    found = []
    for claim in page.judged(fedswa.PAPER):
        if claim.remark == remark and "±" in claim.found:
            parts = dict(part.split(": ") for part in claim.found.split("; "))
            found += [float(parts[f"lr {lr}"].split()[0]) for lr in ("0.03", "0.1", "0.3")]
    most = float(re.findall(r"at most (\d\.\d) points", remark)[0])
    assert most - 0.1 < max(map(abs, found)) <= most


def test_best_product_of_alpha_and_rate_on_digits():
    assert "products of 0.2 to 0.6 are best" in fedswa.PRODUCT
    table = Result("fedswa/digits/digits").table("Figure 5a", "lr", "best")
    table = table[["lr", "best"]].astype(float)
    inside = table[(table["best"] > 0.5) & (table["best"] < 2.5)]
    products: Any = inside["best"] * inside["lr"]
    assert products.min() == pytest.approx(0.2)
    assert products.max() == pytest.approx(0.6)


def test_drift_within_a_visit():
    table: Any = pd.read_csv(Result("fedswa/drift/drift").file(".csv"))
    small = table[table["case"] == "quadratics, theorem's rate"]
    first = small[small["round"] == 1].set_index("schedule")["drift"]
    ratio = first["Equation 3, rho 0.1"] / first["constant, sum of Equation 3"]
    assert f"{ratio:.2f} times" in fedswa.LARGE_STEPS_FIRST
    constant = small[small["schedule"] == "constant"]
    share = 100 * constant["recursion"] / constant["a third of Lemma G.12"]
    assert f"gives {share.min():.0f} to {share.max():.0f} % of" in fedswa.LOOSE_LEMMA


def test_exponent_of_the_last_rounds():
    """Theorem 2.8: the slope in R between the two largest numbers of rounds is the steepest."""
    table: Any = pd.read_csv(Result("local_methods/exponents/exponents").file(".csv"))
    cells = table[table["theorem"] == "T2.8"]
    gaps: Any = cells.pivot(index="local_steps", columns="rounds", values="E F")
    slopes = gaps.map(np.log2).diff(axis=1).mean()
    (remark,) = (text for text in thesis.PAPER.remarks.values() if "falls as R^" in text)
    assert f"falls as R^({slopes[256]:.2f}) from R = 128 to 256" in remark
    assert slopes.idxmin() == 256
