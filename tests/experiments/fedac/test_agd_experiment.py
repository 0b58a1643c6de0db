"""The experiment on the instability of Nesterov's method."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments.fedac import agd_instability


def test_instability_table():
    """The deviations from the formula are rounding, up to 0.3 % at distance 1e-13."""
    case = agd_instability.CASES[1]
    table = agd_instability.measured(case, agd_instability.Options())
    formula = table.dropna()
    assert len(formula) == case.num_bumps
    for name in ("main", "aggregate"):
        np.testing.assert_allclose(formula[name], formula[f"{name}, formula"], rtol=5e-3)
    assert (table.loc[table["method"] == "gradient descent", "main"] < 1.01).all()


@pytest.mark.slow
def test_instability_files(tmp_path, monkeypatch):
    monkeypatch.setattr(agd_instability, "CASES", agd_instability.CASES[1:2])
    agd_instability.main(agd_instability.Options(output=tmp_path))
    folder, name = tmp_path / "agd_instability", "agd_instability"
    assert len(pd.read_csv(folder / f"{name}.csv")) >= 2
    assert json.loads((folder / f"{name}.json").read_text())["command"]
    assert (folder / f"{name}.png").stat().st_size > 2_000
    assert (folder / f"{name}.md").read_text().startswith("# ")
