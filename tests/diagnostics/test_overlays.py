"""Bounds at a history's rounds, why some are left out, and how they are drawn."""

import numpy as np
import pandas as pd
import pytest

from fedjax_sim.diagnostics.overlays import FEDAC_I, FEDAC_II, FEDAVG, SHADOW, Overlay, Row, overlay
from fedjax_sim.engine import History
from fedjax_sim.reports.figures import bound_curves
from fedjax_sim.theory import ProblemConstants, fedac, fedavg

HETEROGENEOUS = ProblemConstants(
    L=2.0, mu=0.1, sigma=0.5, sigma4=0.6, Q=0.3, zeta=0.7, B=1.5, Delta=1.1
)
SAME = HETEROGENEOUS._replace(zeta=0.0)
RUN = {"lr": 0.05, "clients": 10, "local_steps": 8}
ROUNDS = [1, 5, 20]


def history(rounds):
    return History(np.asarray(rounds), {}, {})


def values(found: Overlay, name):
    return {row.round: row.value for row in found.rows if row.bound == name}


def test_bounds_are_functions_of_the_round(x64):
    found = overlay(history([0, *ROUNDS]), SAME, **RUN)
    assert found.skipped == {}
    assert [row.bound for row in found.rows[::3]] == [bound.name for bound in FEDAVG]
    # Theorems with Q require that one sigma bounds both moments.
    larger = SAME._replace(sigma=0.6)
    for R in ROUNDS:
        for name, expected in (
            ("convex", fedavg.bound(SAME, "convex", **RUN, rounds=R)),
            ("third order", fedavg.bound(larger, "third order", **RUN, rounds=R)),
            ("strongly convex", fedavg.bound(larger, "strongly convex", **RUN, rounds=R)),
        ):
            # Vectorised over R: the order of operations is the same.
            np.testing.assert_allclose(values(found, name)[R], float(expected), rtol=1e-14)


def test_theorems_on_one_objective_are_not_drawn_over_several():
    found = overlay(history(ROUNDS), HETEROGENEOUS, **RUN)
    assert {row.bound for row in found.rows} == {"convex"}
    assert all(row.valid for row in found.rows)
    for name in ("third order", "strongly convex"):
        assert "one objective for all clients; here zeta is 0.7" in found.skipped[name]
    # Unknown is not 0.
    found = overlay(history(ROUNDS), HETEROGENEOUS._replace(zeta=None), **RUN)
    assert found.rows == []
    assert "constants.zeta is None" in found.skipped["convex"]


def test_rates_that_a_theorem_does_not_allow(x64):
    found = overlay(history(ROUNDS), SAME, **{**RUN, "lr": 0.2})
    assert not any(row.valid for row in found.rows)
    assert all(np.isnan(row.value) for row in found.rows)
    assert "lr <= 1 / (4 L) does not hold" in found.skipped["convex"]
    assert set(found.skipped) == {bound.name for bound in FEDAVG}


def test_excluded_constants_are_a_reason():
    found = overlay(history(ROUNDS), SAME._replace(mu=0.0), **RUN)
    assert "mu is 0.0; expected a positive number" in found.skipped["strongly convex"]
    assert len(values(found, "third order")) == 3


def test_fedac_and_measured_drift(x64):
    found = overlay(history(ROUNDS), SAME, **RUN, bounds=(*FEDAC_I, *FEDAC_II))
    potential = 1.1 + 0.1 / 2 * 1.5**2
    expected = fedac.bound(
        SAME, "strongly convex", variant="I", potential=potential, rounds=5, **RUN
    )
    np.testing.assert_allclose(values(found, "FedAc-I")[5], float(expected), rtol=1e-14)
    assert set(values(found, "FedAc-II")) == set(ROUNDS)
    drift = np.array([0.1, 0.2, 0.3])
    # The drift is for the bound that takes it.
    bounds = [FEDAVG[0], SHADOW]
    found = overlay(history(ROUNDS), HETEROGENEOUS, **RUN, bounds=bounds, drift=drift)
    assert set(values(found, "convex")) == set(ROUNDS)
    for R, d in zip(ROUNDS, drift, strict=True):
        expected = fedavg.shadow_bound(HETEROGENEOUS, drift=d, **RUN, rounds=R)
        np.testing.assert_allclose(
            values(found, "convex, measured drift")[R], float(expected), rtol=1e-14
        )


def test_errors():
    with pytest.raises(ValueError, match=r"history has the rounds \[0\]; expected some above 0"):
        overlay(history([0]), SAME, **RUN)
    with pytest.raises(ValueError, match=r"numbers is \['drift'\]; expected arguments of the"):
        overlay(history([1]), SAME, **RUN, drift=0.1)
    with pytest.raises(ValueError, match=r"numbers is \['variant'\]"):
        overlay(history([1]), SAME, **RUN, bounds=FEDAC_I, variant="II")
    drift = np.ones(3)
    with pytest.raises(
        ValueError, match=r"drift has shape \(3,\); expected \(2,\), one number per"
    ):
        overlay(history([0, 1, 5]), SAME, **RUN, bounds=[SHADOW], drift=drift)
    with pytest.raises(ValueError, match="expected distinct ones"):
        overlay(history([1]), SAME, **RUN, bounds=[*FEDAVG, *FEDAVG])


def test_figure_draws_valid_bounds_and_names_the_others():
    columns = ["algorithm", "seed", "round", "metric", "value"]
    rows = [
        ("fedavg", seed, r, "suboptimality", (1 + seed) / (r + 1))
        for seed in (0, 1)
        for r in (0, *ROUNDS)
    ]
    rows.append(("fedavg", 0, 50, "suboptimality", -1e-9))  # rounding at the optimum
    drawn = [Row(r, "convex", 10 / r, r > 1) for r in ROUNDS]
    found = Overlay(drawn, {"third order": "needs Q " * 40})
    figure = bound_curves(pd.DataFrame(rows, columns=columns), "suboptimality", found)
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {
        "FedAvg": [[r, 1.5 / (r + 1)] for r in ROUNDS],
        "bound: convex": [[r, 10 / r] for r in ROUNDS[1:]],
    }
    assert len(figure.legends) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)
    caption = figure.get_supxlabel()
    assert "No bound “third order”: needs Q" in caption
    assert max(map(len, caption.split("\n"))) < 100
    nothing = pd.DataFrame([("fedavg", 0, 1, "suboptimality", 0.0)], columns=columns)
    with pytest.raises(ValueError, match="no positive 'suboptimality' after round 0"):
        bound_curves(nothing, "suboptimality", found)


def drawn_lines(seeds, diverged_at=None):
    """[rounds, values] of the lines of a figure of seeds with values in the rounds 1, 2, 4, 8."""
    rows = [
        ("fedavg", seed, r, "suboptimality", value)
        for seed, values in enumerate(seeds)
        for r, value in zip((1, 2, 4, 8), values, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
    if diverged_at is not None:
        frame["diverged_at"] = np.take(diverged_at, frame["seed"])
    figure = bound_curves(frame, "suboptimality", Overlay([], {}))
    return {str(line.get_label()): line.get_xydata().T.tolist() for line in figure.axes[0].lines}


def test_rounds_are_left_out_by_their_mean_over_all_seeds():
    """A negative value of one seed counts in the mean; it is not interpolated away."""
    lines = drawn_lines([[1, 0.5, 0.25, 0.125], [1, 0.5, -0.05, 0.125]])
    np.testing.assert_allclose(lines["FedAvg"], [[1, 2, 4, 8], [1, 0.5, 0.1, 0.125]], rtol=1e-15)
    lines = drawn_lines([[1, 0.5, 0.25, 0.125], [1, 0.5, -0.5, 0.125]])
    assert lines["FedAvg"] == [[1, 2, 8], [1, 0.5, 0.125]]


@pytest.mark.parametrize(("bad", "diverged_at"), [(np.nan, None), (np.inf, None), (9.0, [0, 3])])
def test_a_diverged_seed_ends_the_line_with_a_cross(bad, diverged_at):
    lines = drawn_lines([[1, 0.5, 0.25, 0.125], [1, 5, bad, bad]], diverged_at)
    rounds, values = lines["FedAvg"]
    assert rounds[:2] == [1, 2]
    np.testing.assert_array_equal(values, [1, 2.75, np.nan, np.nan])
    assert lines["_diverged"] == [[2], [2.75]]


def test_legend_names_the_round_of_a_divergence_and_no_cross():
    rows = [
        ("fedavg", seed, r, "suboptimality", 1 / r, 4 * seed) for seed in (0, 1) for r in (1, 2, 4)
    ]
    columns = ["algorithm", "seed", "round", "metric", "value", "diverged_at"]
    bound = Overlay([Row(r, "convex", 10 / r, True) for r in (1, 2, 4)], {})
    figure = bound_curves(pd.DataFrame(rows, columns=columns), "suboptimality", bound)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "FedAvg: diverged in round 4 (1 of 2 seeds)",
        "bound: convex",
    ]
