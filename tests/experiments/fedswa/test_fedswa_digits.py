"""Grids on digits: problem, configurations, tables from made-up runs, and files of a tiny run."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from experiments.fedswa import digits, digits_runs, digits_tables
from experiments.fedswa.digits_runs import Options, grid, make_setup

pytestmark = pytest.mark.usefixtures("compiled_without_optimizations")

TINY = Options(
    rounds=4, full_rounds=2, seeds=2, lrs=(0.1,), skews=(0.6,), rhos=(0.1, 1.0), alphas=(1.0, 1.5),
    gammas=(0.05, 0.2), clients=4, cohort=2, examples=6, hidden=4, eval_every=2,
)  # fmt: skip


def made_up(score, lrs=(0.1,), seeds=(0, 1, 2), skew=0.6, participation="partial"):
    """A table of the CSV file's form: ``score(configuration, seed)`` is the accuracy."""
    points = [
        {"method": method, "rho": rho, "alpha": alpha, "gamma": gamma}
        for method, gammas in (("FedSWA", (np.nan,)), ("FedMoSWA", (0.05, 0.2)))
        for rho, alpha, gamma in itertools.product((0.1, 1.0), (1.0, 1.5), gammas)
    ]
    points += [{"method": method} for method in ("SCAFFOLD", "FedSAM")]
    rows = [
        {"participation": participation, "skew": skew, "lr": lr, "seed": seed, **point}
        | {"test/accuracy": score(point | {"lr": lr}, seed)}
        | {"test/loss": 0.5, "train/loss": 0.25}
        for point, lr, seed in itertools.product(points, lrs, seeds)
    ]
    return pd.DataFrame(rows)


@pytest.mark.slow
def test_every_seed_has_digits_of_its_own_and_tests_on_the_rest():
    first, again, other = (make_setup(0.6, "partial", seed, TINY) for seed in (0, 0, 1))
    for name in ("x", "y"):
        ours, same = (s.task.oracle.args[0].examples[name] for s in (first, again))
        np.testing.assert_array_equal(ours, same)
    assert not np.array_equal(
        first.task.oracle.args[0].examples["x"], other.task.oracle.args[0].examples["x"]
    )
    assert (first.timeline.num_rounds, first.timeline.clients.shape) == (4, (4, 2))
    full = make_setup(0.6, "full", 0, TINY)
    assert full.timeline.clients.shape == (2, 4)
    assert np.sort(full.timeline.clients, axis=1).tolist() == [[0, 1, 2, 3]] * 2
    with pytest.raises(ValueError, match="expected fewer than 1797 digits"):
        make_setup(0.6, "partial", 0, Options(clients=60))


def test_grids_hold_the_papers_tables_once():
    options = Options()
    partial = grid("partial", options)
    assert len({tuple(sorted(point.items())) for point in partial}) == len(partial)
    per_rate = len(partial) // (len(options.lrs) * len(options.skews))
    # FedSWA: 7 rho x 2 alpha. FedMoSWA: the same, 3 more alpha, 4 more gamma. SCAFFOLD, FedSAM.
    assert per_rate == 14 + 14 + 3 + 4 + 2
    assert len(grid("full", options)) == 8 * len(options.lrs) * len(options.skews)


def test_tables_are_paired_by_seed_and_hold_the_papers_rows():
    """rho = 0.1 gains a point, alpha = 1.5 two, gamma = 0.2 three; seeds differ by ten points."""

    def score(point, seed):
        gains = (point.get("rho") == 0.1) + 2 * (point.get("alpha") == 1.5)
        return 0.6 + 0.1 * seed + 0.01 * (gains + 3 * (point.get("gamma") == 0.2))

    runs = made_up(score)
    table = digits_tables.over_rho(runs, {"FedSWA": (59.8, 54.2)}, (0.1, 1.0))
    assert table["first - last"].tolist() == ["1.00 ± 0.00", "1.00 ± 0.00", "5.6"]
    assert table["rho 0.1"].tolist()[0].startswith("71.00 ± 24.8")  # 61, 71, 81
    assert digits_tables.over_one(runs, "alpha")["best"].tolist() == [1.5]
    assert digits_tables.over_one(runs, "gamma")["gamma 0.05"].tolist()[0].startswith("73.00")
    by_method = digits_tables.by_method(runs, "partial", {"FedAvg": 54.2, "FedMoSWA": 67.9})
    assert by_method["FedAvg"].tolist() == ["70.00 ± 24.84", "54.2"]
    order = {"FedAvg": 54.2, "FedSWA": 59.8, "FedMoSWA": 67.9}
    assert "Kendall's tau 1.00" in digits_tables.orderings(runs, "partial", order)
    claims = digits_tables.claims(runs)
    # FedMo has the gain of gamma alone, 3 points; FedSWA 1 + 2.
    holds = {claim.text: claim.holds for claim in claims}
    assert not holds.pop("Table 6: FedMo is better than FedSWA")
    assert all(holds.values())
    # Neither SCAFFOLD nor FedSAM gains anything; of full rounds there are the claims of Table 5.
    assert holds["Table 6: FedMo is better than SCAFFOLD"]
    assert holds["Table 6: FedSWA is better than FedSAM"]
    full = digits_tables.claims(made_up(score, participation="full"))
    assert {claim.text.partition(":")[0] for claim in full} == {"Table 5"}
    assert [claim.holds for claim in full] == [True] * 4
    reverse = digits_tables.claims(made_up(lambda point, seed: 1 - score(point, seed)))
    assert not any(claim.holds for claim in reverse)


def test_diverged_runs_are_named():
    def score(point, seed):
        return np.nan if point.get("rho") == 1.0 and seed == 1 else 0.5

    table = digits_tables.over_rho(made_up(score), {"FedSWA": (59.8, 54.2)}, (0.1, 1.0))
    assert table["rho 1"].tolist()[:2] == ["diverged", "diverged"]
    assert table["first - last"].tolist()[0] == "diverged"


@pytest.mark.slow
def test_files(tmp_path, monkeypatch):
    """Made-up runs with two evaluations, of which both are in the last 50 rounds."""
    runs = made_up(lambda point, seed: 0.5 + 0.1 * seed, seeds=(0, 1))
    names = [name for name in runs.columns if "/" not in name]
    history = runs.assign(diverged_at=0).melt([*names, "diverged_at"], var_name="metric")
    history = pd.concat([history.assign(round=2), history.assign(round=4, value=0.25)])
    monkeypatch.setattr(digits, "histories", lambda options: history)
    options = dataclasses.replace(TINY, participations=("partial",), output=tmp_path)
    digits.main(options)
    folder = tmp_path / "fedswa" / "digits"
    table = pd.read_csv(folder / "digits.csv")
    assert len(table) == len(runs)
    np.testing.assert_allclose(sorted(set(table["test/accuracy"])), [0.375, 0.425])
    text = (folder / "digits.md").read_text()
    for heading in ("Table 4: rho", "Figure 5a", "Figure 5b", "Table 6"):
        assert f"## {heading}" in text
    assert "Table 5" not in text.split("## Table 4")[1]
    assert (folder / "digits.png").stat().st_size > 2_000


@pytest.mark.slow
def test_runs_of_one_configuration(tmp_path, monkeypatch):
    point = {"method": "FedSWA", "skew": 0.6, "participation": "full", "lr": 0.1}
    point |= {"rho": 0.1, "alpha": 1.5}
    monkeypatch.setattr(digits_runs, "grid", lambda *arguments: [point])
    options = dataclasses.replace(TINY, participations=("full",), work=tmp_path)
    history = digits_runs.histories(options)
    assert history["seed"].unique().tolist() == [0, 1]
    assert history["round"].unique().tolist() == [2]
    values = history.pivot(index="seed", columns="metric", values="value")
    assert values["test/accuracy"].between(0, 1).all()
    assert values["train/loss"].nunique() == 2  # seeds differ
