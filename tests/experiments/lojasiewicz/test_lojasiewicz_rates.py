"""The experiment on Lojasiewicz families, small."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments.lojasiewicz import rates, tables
from experiments.lojasiewicz.cases import cases, exact_cases, sweep_cases
from experiments.lojasiewicz.redraw import redraw
from experiments.lojasiewicz.runs import history, measure


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "power 2",
        pytest.param("power 4", marks=pytest.mark.slow),
        pytest.param("two-armed bandit", marks=pytest.mark.slow),
    ],
)
def test_rates_have_the_expected_slopes(name):
    """1,000 rounds of exact gradients; what s_0 leaves of the limit is within 0.15."""
    (case,) = (case for case in exact_cases() if case.name == name)
    short = case._replace(rounds=min(case.rounds, 1000))
    row = tables.rates_table(tables.histories([short], 0)).iloc[0]
    if name == "power 2":  # at the rate 1 / 2: x halves per round, 1 - 2 (1/2) (1 - 1/2)
        np.testing.assert_allclose([row["gap"], row["recursion"]], [0.25, 0.5], rtol=1e-9)
        return
    for column in ("gap", "recursion", "closed"):
        np.testing.assert_allclose(row[column], row["expected"], atol=0.15)


@pytest.mark.slow
def test_sweep_over_clients_shows_the_mean_of_noise():
    """The gap's floor is proportional to 1 / M: ratio 4, but for 4 standard errors."""
    found = [case._replace(rounds=120, repetitions=100) for case in sweep_cases(100)["M"][:2]]
    table = tables.looseness(tables.histories(found, 0))
    ratio = table["gap"] / table["standard error"]
    error = np.sqrt((1 / ratio**2).sum())
    assert abs(np.log(table["gap"][0] / table["gap"][1] / 4)) < 4 * error
    assert not table["violated"].any()
    assert (table["recursion"] < table["closed"]).all()


@pytest.mark.slow
def test_looseness_notices_a_violation():
    """A violation of either bound or of Lemma F.1, in any round but the first."""
    case = next(case for case in cases(3, 10) if case.name == "tilted quadratic")
    case = case._replace(rounds=20)
    table = history(case, measure(case))
    assert not tables.looseness([table])["violated"].any()
    for name in ("recursion", "closed", "drift bound"):
        wrong = table.copy()
        wrong.loc[5, name] = 1e-6
        assert tables.looseness([wrong])["violated"].all()


@pytest.mark.slow
def test_files(tmp_path, monkeypatch):
    """The table, the text, how they were made and both figures."""
    few = {
        "cases": lambda found: found[1:2],
        "sweep_cases": lambda found: {"M": found["M"][:1]},
        "exact_cases": lambda found: found[:1],
        "reference_cases": lambda found: found[2:],
    }
    for name, choose in few.items():
        every = getattr(rates, name)
        monkeypatch.setattr(rates, name, lambda *a, c=choose, e=every: c(e(*a)))
    rates.main(rates.Options(repetitions=4, output=tmp_path))
    folder = tmp_path
    table = pd.read_csv(folder / "rates.csv")
    assert set(table["group"]) == {"families", "sweep over M", "exact"}
    assert (table["gap"] > 0).all()
    assert json.loads((folder / "rates.json").read_text())["command"]
    text = (folder / "rates.md").read_text()
    assert text.startswith("# ")
    assert "| power 4 | 1000 | 1.122e-05 | 1.122e-05 |" in text
    for name in ("rates", "sweeps"):
        assert (folder / f"{name}.png").stat().st_size > 2_000
        (folder / f"{name}.png").unlink()
    redraw(folder)
    assert (folder / "rates.md").read_text() == text
    assert (folder / "sweeps.png").exists()


def test_thinned_keeps_both_ends():
    full = pd.DataFrame(dict.fromkeys(tables.SHOWN, 0.0) | {"round": np.arange(1001), "M": 1})
    table = tables.thinned(full)
    assert table["round"].iloc[[0, -1]].tolist() == [0, 1000]
    assert 15 < len(table) <= 20
    assert "M" not in table


def test_bad_options():
    with pytest.raises(ValueError, match="repetitions is 1; expected at least 2"):
        rates.Options(repetitions=1)
