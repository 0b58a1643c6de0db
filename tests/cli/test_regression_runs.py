"""Regression on the command line: the loss by name, RMSE and R^2 in place of an accuracy."""

import json

import numpy as np
import pandas as pd
import pytest

from fedjax_sim.cli.main import main
from fedjax_sim.cli.report import HISTORY_COLUMNS, summarize
from fedjax_sim.reports.folders import default_metrics


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Targets are a linear function of the features and noise of standard deviation 0.1."""
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 3))
    y = x @ [1.0, 2.0, 3.0] + 1 + 0.1 * random.normal(size=120)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    path = tmp_path_factory.mktemp("table") / "houses.csv"
    frame.assign(town=np.arange(120) % 6, price=y).to_csv(path, index=False)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("loss", [(), ("--loss", "huber")])
def test_a_table_with_a_number_to_predict(table, tmp_path, capsys, monkeypatch, loss):
    monkeypatch.setenv("COLUMNS", "200")  # headings are not broken over lines
    options = (
        f"run data:table --table {table} --label-column price --client-column town "
        f"partition:natural --algorithms fedavg --cohort-size 6 --rounds 20 --seeds 1 "
        f"--per-client 20 --output {tmp_path}"
    )
    assert main([*options.split(), *loss]) == 0
    assert "test r2" in capsys.readouterr().out
    history = pd.read_csv(tmp_path / "history.csv").pivot_table("value", "round", "metric")
    last = history.iloc[-1]
    assert not [name for name in history if "accuracy" in name]
    # The noise of the targets: its variance is 0.01, theirs is 14.
    assert 0.05 < last["test/rmse"] < 0.2
    assert last["test/r2"] > 0.99
    squared = last["test/rmse"] ** 2  # errors are within 1, where Huber's loss is half of theirs
    np.testing.assert_allclose(last["test/loss"], squared / 2 if loss else squared, rtol=1e-4)
    summary = json.loads((tmp_path / "summary.json").read_text())
    np.testing.assert_allclose(summary["algorithms"]["fedavg"]["r2_mean"], last["test/r2"])
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["partition"]["classes"] is None
    assert not (tmp_path / "clients.png").exists()


def test_personal_models_of_a_regression_are_compared_by_their_r2():
    """R^2 has no lower bound, so its interval is not cut at 0."""
    values = {"test/r2": (-0.5, -0.7, -0.6), "personal/test/r2/weighted_mean": (-0.1, 0.9, 0.4)}
    rows = [("fedper", s, 0, 1, name, v[s]) for name, v in values.items() for s in range(3)]
    history = pd.DataFrame(rows, columns=list(HISTORY_COLUMNS))
    timing = {"compile_seconds": 0, "run_seconds": 1, "local_steps": 1, "num_rounds": 1}
    row = summarize(history, 0.8, {"fedper": timing}, 3).loc["fedper"]
    np.testing.assert_allclose([row["r2_mean"], row["personal_mean"]], [-0.6, 0.4])
    assert row["reached"] == 1
    assert row["personal_low"] < -0.1
    assert default_metrics(history) == ["personal/test/r2/weighted_mean", "test/r2"]


@pytest.mark.slow
def test_whole_numbers_are_a_regression_if_the_loss_says_it(table, tmp_path, capsys):
    frame = pd.read_csv(table)
    path = tmp_path / "whole.csv"
    frame.assign(price=frame["price"].round()).to_csv(path, index=False)
    options = (
        f"run data:table --table {path} --label-column price --client-column town "
        f"partition:natural --algorithms fedavg --cohort-size 6 --dry-run --output {tmp_path}"
    ).split()
    assert main(options) != 0
    assert "whole floats" in capsys.readouterr().err
    assert main([*options, "--loss", "squared"]) == 0
