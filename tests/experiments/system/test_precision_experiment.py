"""The experiment on precision: its table against curves written by hand, and a short run."""

import json

import numpy as np
import pandas as pd

from experiments.system import precision


def test_effect_is_paired_with_the_exact_run_of_the_same_seed():
    exact = np.array([[1.0, 0.5], [2.0, 0.8]])  # [seed, evaluation]
    half = exact + np.array([[0.3, 0.01], [-0.4, 0.03]])
    rows = [
        ("fedavg", seed, t, metric, values[seed, t], name)
        for metric in ("train/loss", "test/accuracy", "test/loss")
        for name, values in ((precision.EXACT, exact), ("bfloat16", half))
        for seed in (0, 1)
        for t in (0, 1)
    ]
    columns = ["algorithm", "seed", "round", "metric", "value", "precision"]
    table = precision.effect(pd.DataFrame(rows, columns=columns))
    assert table["metric"].unique().tolist() == list(precision.METRICS)
    row = table.query("precision == 'bfloat16' and metric == 'train/loss'").iloc[0]
    np.testing.assert_allclose(
        row[["mean", "difference", "largest"]].astype(float), [0.67, 0.02, 0.4], rtol=1e-12
    )
    assert row["from"] < 0 < 0.02 < row["to"]  # two seeds: a wide interval


def test_precisions_of_a_cpu():
    assert precision.available() == ["float32", "bfloat16"]


def test_run_writes_the_table_and_keeps_finished_runs(tmp_path, monkeypatch, allow_nans):
    monkeypatch.setattr(precision, "PRECISIONS", ("bfloat16",))
    options = precision.Options(
        algorithms=("fedavg",), rounds=2, seeds=2, work=tmp_path / "work", output=tmp_path / "out"
    )
    precision.main(options)
    folder = tmp_path / "out" / "system" / "precision"
    history = pd.read_csv(folder / "digits.csv")
    assert sorted(history["precision"].unique()) == ["bfloat16", "float64"]
    assert "bfloat16" in (folder / "digits.md").read_text()
    facts = json.loads((folder / "digits.json").read_text())
    assert facts["command"].startswith("python -m ")
    # Nothing is run again.
    monkeypatch.setattr("fedjax_sim.simulation.programs.Programs.compiled", None)
    precision.main(options)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "digits.csv"), history)
