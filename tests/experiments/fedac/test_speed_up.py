"""Slopes of FedAc's experiment against the number of clients."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.fedac.a9a_report import SPEED_UP, slopes, speed_up_claims

# Planted slopes by K, in the order of FedAc-I, FedAvg, MB-AC-SGD, MB-SGD.
PLANTED = {1: (-1.0, -1.0, -0.95, -0.8), 8: (-1.0, -0.2, -1.0, -0.3), 64: (-0.5, -0.1, -0.2, -0.1)}


def cells(planted):
    rows = [
        (name, clients, steps, 3.0 * clients**slope, 2.0 * clients ** (slope / 2))
        for steps, of_methods in planted.items()
        for (name, slope), clients in itertools.product(
            zip(SPEED_UP, of_methods, strict=True), (4, 16, 64, 256)
        )
    ]
    columns = pd.Index(["algorithm", "M", "K", "score", "authors"])
    return pd.DataFrame(rows, columns=columns)


def test_slopes_are_the_planted_ones():
    """Exact powers, so the interval of the fit is rounding."""
    table: Any = slopes(cells(PLANTED)).set_index(["K", "algorithm"])
    for steps, of_methods in PLANTED.items():
        for name, slope in zip(SPEED_UP, of_methods, strict=True):
            assert table["slope"][steps, name] == pytest.approx(slope, abs=1e-9)
            assert table["slope (authors)"][steps, name] == pytest.approx(slope / 2, abs=1e-9)
            assert table["+-"][steps, name] < 1e-6


def test_interval_is_that_of_least_squares():
    """Four points, t(0.975, 2) = 4.303: slope and standard error by the textbook's formulas."""
    noisy = cells(PLANTED)
    noisy["score"] *= np.exp(np.tile([0.1, -0.1, 0.0, 0.2], len(noisy) // 4))
    part = noisy.loc[(noisy["algorithm"] == "fedavg") & (noisy["K"] == 8), :]
    x, y = np.log(part["M"].to_numpy()), np.log(part["score"].to_numpy())
    x = x - x.mean()
    slope = (x @ y) / (x @ x)
    residuals = y - y.mean() - slope * x
    error = np.sqrt((residuals @ residuals) / 2 / (x @ x))
    row: Any = slopes(noisy).set_index(["K", "algorithm"]).loc[(8, "fedavg")]
    assert row["slope"] == pytest.approx(slope, rel=1e-9)
    assert row["+-"] == pytest.approx(4.303 * error, rel=1e-3)


def test_claims_are_decided_by_our_slopes():
    found = speed_up_claims("a9a-1e-3", slopes(cells(PLANTED)))
    assert [claim.holds for claim in found] == [False, True, True, True]  # MB-SGD at K = 1
    assert "MB-SGD -0.80" in str(found[0].found)
    assert "authors: FedAc-I -0.50" in str(found[0].found)
    linear = PLANTED | {1: (-1.0,) * 4, 8: (-1.0, -0.95, -1.0, -0.3), 64: (-0.1, -0.5, -1, -0.1)}
    found = speed_up_claims("a9a-1e-3", slopes(cells(linear)))
    assert [claim.holds for claim in found] == [True, False, False, False]
    assert not speed_up_claims("a9a-1e-2", slopes(cells(PLANTED)))
