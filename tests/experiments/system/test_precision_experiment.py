"""The experiment on precision: its table against curves written by hand, and a short run."""

import functools
import json
import types

import numpy as np
import pandas as pd
import pytest

from experiments.system import precision, precision_report
from experiments.system.redraw import redraw
from fedjax_sim.studies.setups import options as run_options


def test_effect_is_paired_with_the_exact_run_of_the_same_seed():
    exact = np.array([[1.0, 0.5], [2.0, 0.8]])  # [seed, evaluation]
    half = exact + np.array([[0.3, 0.01], [-0.4, 0.03]])
    rows = [
        ("fedavg", seed, t, metric, values[seed, t], name)
        for metric in ("train/loss", "test/accuracy", "test/loss")
        for name, values in ((precision_report.EXACT, exact), ("bfloat16", half))
        for seed in (0, 1)
        for t in (0, 1)
    ]
    columns = ["algorithm", "seed", "round", "metric", "value", "precision"]
    table = precision.effect(pd.DataFrame(rows, columns=columns))
    assert table["metric"].unique().tolist() == list(precision_report.METRICS)
    row = table.query("precision == 'bfloat16' and metric == 'train/loss'").iloc[0]
    np.testing.assert_allclose(
        row[["mean", "difference", "largest"]].astype(float), [0.67, 0.02, 0.4], rtol=1e-12
    )
    assert row["from"] < 0 < 0.02 < row["to"]  # two seeds: a wide interval


def test_precisions_of_a_cpu():
    assert precision.available() == ["float32", "bfloat16"]


def test_every_precision_has_its_folder_and_its_rows(tmp_path, monkeypatch):
    """The comparison is replaced by made-up histories."""
    runs = []

    def compare(comparison):
        runs.append(comparison)
        half = comparison.computed.precision == "bfloat16"
        rows = [
            ("fedavg", seed, done, metric, seed + done + half)
            for seed in (0, 1)
            for done in (0, 2)
            for metric in ("train/loss", "test/accuracy", "test/loss")
        ]
        history = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
        return types.SimpleNamespace(interrupted=False, history=history)

    monkeypatch.setattr(precision, "compare", compare)
    options = precision.Options(rounds=2, seeds=2, work=tmp_path / "work", output=tmp_path)
    precision.main(options)
    precisions = [run.computed.precision for run in runs]
    assert precisions == ["float32", "bfloat16", "float64"]
    # The folders of kept runs; all other options are equal.
    assert [run.output for run in runs] == [tmp_path / "work" / "digits" / p for p in precisions]
    first, *others = (run.record.settings | {"precision": None, "output": None} for run in runs)
    assert others == [first] * 2
    folder = tmp_path / "system" / "precision"
    table = pd.read_csv(folder / "digits.csv")
    assert sorted(table["precision"].unique()) == ["bfloat16", "float32", "float64"]
    assert set(table["metric"]) == set(precision_report.METRICS)
    text = (folder / "digits.md").read_text()
    assert text.startswith("# Precision: digits, 2 rounds, 2 seeds")
    assert "| fedavg | train/loss | bfloat16 |" in text
    assert json.loads((folder / "digits.json").read_text())["command"].startswith("python -m ")
    (folder / "digits.md").unlink()
    redraw(tmp_path / "system")
    assert (folder / "digits.md").read_text() == text


@pytest.mark.slow
def test_a_real_run_is_kept(tmp_path, monkeypatch, allow_nans):
    small = {"num_clients": 4, "cohort_size": 2, "local_steps": 1, "model": "softmax_regression"}
    monkeypatch.setattr(precision, "run_options", functools.partial(run_options, **small))
    options = precision.Options(
        algorithms=("fedavg",), rounds=2, seeds=2, work=tmp_path / "work", output=tmp_path / "out"
    )
    precision.main(options)
    folder = tmp_path / "out" / "system" / "precision"
    table = pd.read_csv(folder / "digits.csv")
    assert sorted(table["precision"].unique()) == ["bfloat16", "float32", "float64"]
    # Nothing is run again.
    monkeypatch.setattr("fedjax_sim.runs.programs.Programs.compiled", None)
    precision.main(options)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "digits.csv"), table)
