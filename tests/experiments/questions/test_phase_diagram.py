"""Which method wins where: runs beside closed forms, rates beside formulas, planted boundaries."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.harness import read_facts
from experiments.harness.redrawing import read_tables
from experiments.questions import phase_diagram as study
from experiments.questions import phase_diagram_boundaries as boundaries
from experiments.questions import phase_diagram_report as report
from experiments.questions import phase_diagram_tables as tables_of
from experiments.questions.page import text
from experiments.questions.phase_diagram_problem import (
    DIMENSION,
    Problem,
    constants,
    gaps,
    initial,
    make_task,
    minimiser,
    rows,
)
from experiments.questions.phase_diagram_runs import METHODS, Sizes, final_gaps
from fedjax_sim.theory import ProblemConstants

OPTIONS = {
    "families": ["quadratic", "logistic"],
    "scale": "planted", "rounds": 16, "gradients": 64, "centre": [4, 8, 0.5, 0.25, 64.0],
    "at_centre": [[0, 4], 4], "elsewhere": [[0, 4], 4],
}  # fmt: skip


def test_fedavg_ends_where_its_recursion_does():
    """Two types of clients whose coordinates are scalar recursions, without noise."""
    problem, sizes, lr = Problem(0.0, 0.5, 16.0, 0.5), Sizes(4, 3, 5), 0.25
    slopes = np.geomspace(1 / 16, 1 / 1.5, DIMENSION)
    shift = 0.5 * np.resize([1.0, -1.0], DIMENSION) / np.sqrt(DIMENSION)
    x = np.full(DIMENSION, DIMENSION**-0.5)
    for _ in range(5):
        ends = []
        for sign in (1, -1):
            y = x
            for _ in range(3):
                y = y - lr * (slopes * (1 + 0.5 * sign) * y + sign * shift)
            ends.append(y)
        x = sum(ends) / 2
    found = final_gaps("quadratic", "FedAvg", [problem], sizes, [lr], 1)
    # Single precision: a few units in the last place of models of size 0.3.
    np.testing.assert_allclose(found[0, 0, 0], (slopes * x**2).sum() / 2, rtol=1e-5)


def test_noise_of_the_mean_model_has_the_variance_of_theory():
    """On one quadratic the clients' mean is SGD with M gradients per step."""
    problem, sizes, lr, seeds = Problem(2.0, 0.0, 4.0, 0.0), Sizes(2, 4, 4), 0.5, 200
    slopes = np.geomspace(1 / 4, 1, DIMENSION)
    left = (1 - lr * slopes) ** 2
    steps = sizes.local_steps * sizes.rounds
    variance = lr**2 * 2.0**2 / DIMENSION / sizes.clients * (1 - left**steps) / (1 - left)
    expected = (slopes * (left**steps / DIMENSION + variance)).sum() / 2
    found = final_gaps("quadratic", "FedAvg", [problem], sizes, [lr], seeds)[0, 0]
    error = found.std(ddof=1) / np.sqrt(seeds)
    assert abs(found.mean() - expected) < 4 * error
    assert error < 0.06 * expected


def test_logistic_optimum_and_constants():
    problem = Problem(1.0, 0.5, 8.0, 0.0)
    x, y = rows()
    w = minimiser(8.0)
    gradient = (1 / (1 + np.exp(-x @ w)) - y) @ x / len(y) + w / 8
    assert np.abs(gradient).max() < 1e-10  # Newton's method in double precision
    known: Any = constants("logistic", problem)
    assert math.isclose(np.linalg.norm(x.T @ x / len(y), 2) / 4 + 1 / 8, float(known.L))
    assert math.isclose(
        float(known.sigma), float(known.L) * np.linalg.norm(w - initial("logistic"))
    )
    assert gaps("logistic", problem, w) == 0
    assert np.isinf(gaps("logistic", problem, w * np.nan))


def test_an_odd_number_of_clients_is_refused():
    with pytest.raises(ValueError, match="num_clients is 3; expected an even number, or 1"):
        make_task(None, 3, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.1, 4.0])
@pytest.mark.parametrize("mu", [1 / 4, 1 / 4096])
def test_rates_are_those_of_the_theorems(noise, mu):
    """Written out from Table 3.1, Section 2.3 and Proposition 2.1."""
    L, B, zeta, Q = 1.5, 2.0, 0.3, 0.7
    M, K, R = 8, 4, 32
    known = ProblemConstants(L=L, mu=mu, sigma=noise, sigma4=noise, Q=Q, B=B, zeta_star=zeta)
    statistical, slow = noise**2 / (mu * M * K * R), noise * B / math.sqrt(M * K * R)
    drift = (L * zeta**2 * B**4 / R**2) ** (1 / 3)
    expected: dict[Any, float] = {
        ("MB-SGD", "smooth"): min(
            math.exp(-mu * R / L) * L * B**2 + statistical, L * B**2 / R + slow
        ),
        ("single client", "smooth"): min(
            math.exp(-mu * K * R / L) * L * B**2 + noise**2 / (mu * K * R),
            L * B**2 / (K * R) + noise * B / math.sqrt(K * R),
        ),
        ("FedAvg", "smooth"): drift + min(
            math.exp(-mu * K * R / L) * L * B**2
            + statistical
            + L * noise**2 / (mu**2 * K * R**2),
            L * B**2 / (K * R) + slow + (L * noise**2 * B**4 / (K * R**2)) ** (1 / 3),
        ),
        ("FedAvg", "third order"): drift + min(
            math.exp(-mu * K * R / L) * L * B**2
            + statistical
            + Q**2 * noise**4 / (mu**5 * K**2 * R**4),
            L * B**2 / (K * R) + slow + (Q * noise**2 * B**5 / (K * R**2)) ** (1 / 3),
        ),
    }  # fmt: skip
    for (method, assumption), value in expected.items():
        found = boundaries.rate(method, known, Sizes(M, K, R), assumption)
        # Single precision, through exponentials of logarithms of up to 40.
        np.testing.assert_allclose(found, value, rtol=1e-4, err_msg=f"{method}, {assumption}")


def test_theorems_of_equal_clients_predict_nothing_for_different_ones():
    problem = Problem(0.5, np.array([0.0, 0.5]), 64.0, 0.0)
    found = boundaries.predicted(
        ("FedAc", "FedAvg"), "quadratic", problem, Sizes(4, 8, 16), "third order"
    )
    assert np.isfinite(found).tolist() == [True, False]


def planted() -> pd.DataFrame:
    """Scores of four methods; FedAvg falls behind MB-SGD at a heterogeneity of 1/4."""
    rng, table = np.random.default_rng(0), []

    def add(family, plane, clients, steps, problem, scores):
        worst = dict.fromkeys(("FedAc", "single client", "SCAFFOLD"), 0.95)
        for method, score in (worst | scores).items():
            noise = {f"seed {i}": score * np.exp(0.01 * rng.normal()) for i in range(4)}
            row = {"family": family, "plane": plane, "M": clients, "K": steps}
            row |= problem._asdict() | {"method": method, "lr": 0.1, "second": 0.0}
            table.append(row | {"at edge": False} | noise)

    for family, tau in (("quadratic", 0.5), ("logistic", 0.0)):
        for noise in (0.25, 0.5):
            for z in (0.0, 1 / 16, 1 / 8, 1 / 2, 1.0):
                worse = 4 * z if family == "quadratic" else 0.5
                scores = {"FedAvg": 0.1 * max(worse, 0.1), "MB-SGD": 0.1}
                scores |= {"FedAc": 0.2, "single client": 0.9, "SCAFFOLD": 0.05}
                problem = Problem(noise, z, 64.0, tau if z else 0.0)
                add(family, "heterogeneity", 4, 8, problem, scores)
            for condition in (4.0, 64.0, 1024.0):
                scores = {"FedAvg": 0.1, "FedAc": 1.6 / condition, "MB-SGD": 0.5}
                add(family, "condition", 4, 8, Problem(noise, 0.0, condition, 0.0), scores)
        for clients in (2, 4):
            for steps in (4, 8):
                scores = {"FedAvg": 0.1, "MB-SGD": 0.1, "FedAc": 0.2}
                problem = Problem(0.5, 0.0, 64.0, 0.0)
                add(family, "equal clients", clients, steps, problem, scores)
                problem = Problem(0.5, 0.25, 64.0, tau)
                add(family, "different clients", clients, steps, problem, scores)
    for z in (1 / 16, 1 / 8, 1 / 2, 1.0):
        scores = {"FedAvg": 0.01, "MB-SGD": 0.1, "FedAc": 0.02}
        add("quadratic", "equal curvature", 4, 8, Problem(0.5, z, 64.0, 0.0), scores)
    return pd.DataFrame(table)


def test_planted_boundary_is_found():
    found = report.boundary(tables_of.crossings(planted()), OPTIONS).query("noise == 0.5")
    line = found.query("family == 'quadratic' and plane == 'heterogeneity'").iloc[0]
    # The planted ratio is 4 zeta, exact between the cells in logarithms; seeds differ by 1 %.
    assert line["measured"] == pytest.approx(0.25, rel=0.02)
    assert line["low"] < line["measured"] < line["high"] < 0.26
    for other in ("family == 'logistic'", "plane == 'equal curvature'"):
        assert np.isnan(found.query(other).iloc[0]["measured"])


def test_planted_methods_are_in_front():
    front = report.complete(tables_of.summary(planted()))
    cell = front.query("plane == 'heterogeneity' and family == 'quadratic'")
    assert set(cell.query("heterogeneity > 0.2")["best"]) == {"SCAFFOLD"}
    assert set(cell.query("heterogeneity == 0")["best"]) == {"FedAvg"}
    equal = front.query("plane == 'equal clients'")
    assert set(equal["in front"]) == {"FedAvg, MB-SGD"}  # differences of 1 % are no lead
    assert set(equal["count"]) == {2}
    assert set(front.query("condition == 1024.0")["best"]) == {"FedAc"}


def test_planted_page_and_figure():
    tables, facts = tables_of.summaries(planted()), {"options": OPTIONS}
    _, figures = report.build(tables, facts)
    panels = figures["phase_diagram"].axes
    assert len(panels) == 2 * len(report.PLANES)
    lines = [
        np.asarray(path.vertices)
        for drawn in panels[2].collections  # quadratics over heterogeneity
        for path in drawn.get_paths()
        if np.size(path.vertices)
    ]
    # 1/4 lies halfway between the cells 1/8 and 1/2, of indices 2 and 3.
    assert any(np.allclose(path[:, 0], 2.5, atol=0.02) for path in lines)
    page = report.page(tables, facts)
    assert "zeta = 0.25 L B" in page.found
    assert "behind in 0 of" in page.answers[3].found
    assert page.answers[3].right
    assert page.answers[2].right  # 0.25 is within a factor of 4 of 1 / sqrt(16)
    assert len(page.answers) == 6


def test_a_summary_has_the_ratios_of_paired_seeds():
    """Two seeds, and methods of which one has not run in the second cell."""
    problem = Problem(0.5, 0.0, 4.0, 0.0)
    same = {"family": "quadratic", "plane": "condition", "M": 4, "K": 2} | problem._asdict()
    scores = [
        same | {"method": "FedAvg", "at edge": True, "seed 0": 0.1, "seed 1": 0.01},
        same | {"method": "MB-SGD", "at edge": False, "seed 0": 0.01, "seed 1": 1e-4},
        same | {"method": "MB-SGD", "at edge": True, "seed 0": 1.0, "seed 1": 1.0, "K": 8},
    ]
    whole, part = tables_of.summary(pd.DataFrame(scores)).to_dict("records")
    mean, low, high = tables_of.ratio_columns(tables_of.PAIRS[0])
    # log10 ratios of 1 and 2: mean 1.5, and 12.706 (t, one degree of freedom) times 0.5 beside it.
    assert whole[mean] == 1.5
    assert [whole[low], whole[high]] == pytest.approx([1.5 - 6.353, 1.5 + 6.353], abs=1e-3)
    assert (whole["FedAvg"], whole["MB-SGD"]) == (-1.5, -3.0)
    assert (whole["best"], whole["in front"]) == ("MB-SGD", "FedAvg, MB-SGD")
    assert (whole["at edge"], part["at edge"]) == ("FedAvg", "MB-SGD")
    assert all(pd.isna(part[name]) for name in ("best", mean, "FedAvg"))


def test_scores_without_the_pair_of_the_boundary_have_a_report():
    """FedAc and FedAvg alone; the second also with cells in which it has not run."""
    scores = planted()
    kept = scores[scores["method"].isin(["FedAc", "FedAvg"])]
    for part in (kept, kept[(kept["method"] == "FedAc") | (kept["plane"] == "condition")]):
        tables = tables_of.summaries(part)
        assert list(tables["crossings"]) == tables_of.CROSSINGS
        assert not len(tables["crossings"])
        built, figures = report.build(tables, {"options": OPTIONS})
        assert "phase_diagram" in figures
        assert "FedAc / FedAvg" in built.text


def test_a_kept_program_is_not_run_again(tmp_path, monkeypatch):
    options = study.Options(
        scale="tiny", families=("quadratic",), methods=("FedAvg", "MB-SGD"), work=tmp_path / "work",
        output=tmp_path / "out",
    )  # fmt: skip
    study.main(options)
    folder = tmp_path / "out" / "phase_diagram"
    tables = read_tables(folder, "phase_diagram")
    scores = tables[""][["FedAvg", "MB-SGD"]].to_numpy()
    assert np.isfinite(scores).all()
    assert scores.max() <= 0  # log10 of the loss over that of the start
    # The centre's programs have four seeds, so paired intervals differ from those of two.
    assert list(tables["crossings"]["seeds"].unique()) == [4]
    assert (folder / "phase_diagram.png").stat().st_size > 5_000

    def fail(*_):
        raise AssertionError("a kept program ran")

    monkeypatch.setattr(study, "final_gaps", fail)
    study.main(options)
    again = read_tables(folder, "phase_diagram")
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name])
    page = report.page(tables, read_facts(folder, "phase_diagram"))
    assert "FedAvg falls behind" in text(report.STUDY, page, tmp_path / "out")


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="expected some of FedAvg"):
        study.Options(methods=("FedSGD",))
    assert len(METHODS) == 9
