"""Differential privacy on the command line: runs, sweeps, and the files that they write."""

import dataclasses
import json
import pathlib

import numpy as np
import pandas as pd
import pytest
from sweep_options import sweep_options

from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse
from fedjax_sim.cli.run import compare
from fedjax_sim.cli.sweep import run_sweep
from fedjax_sim.studies.setups import (
    GaussianNoise,
    Run,
    Study,
    check_noise,
    options,
    read,
    resolve,
    to_json,
)

PRIVATE = {
    "num_clients": 20, "sampling": "bernoulli", "cohort_size": 10, "rounds": 4, "seeds": 1,
    "local_epochs": 1, "model": "softmax_regression", "algorithms": ("fedavg",),
    "privacy": "gaussian", "privacy.clip.bound": 0.5, "privacy.delta": 0.01,
}  # fmt: skip


def test_a_run_with_a_target_epsilon_is_repeated_from_its_file(tmp_path):
    """The file has the noise that was computed; another target replaces it."""
    run = options(**PRIVATE, **{"privacy.epsilon": 3.0})
    computed = dataclasses.replace(run.privacy, noise=1.25, epsilon=None)
    path = tmp_path / "config.json"
    content = {
        "config": to_json(run), "algorithms": {"fedavg": {"lr": 0.2}}, "privacy": to_json(computed)
    }  # fmt: skip
    path.write_text(json.dumps(content))
    saved = read(path)
    check_noise(saved.privacy)
    assert saved.privacy == computed

    def parsed(*typed):
        return parse(Run, "run", "", typed, saved).privacy

    assert parsed("--algorithms", "fedavg", "fedprox") == computed
    assert parsed("--privacy.noise", "2").noise == 2.0
    assert parsed("--privacy.delta", "0.001") == dataclasses.replace(computed, delta=0.001)
    # A target replaces the noise of the file; both typed together are refused.
    assert parsed("--privacy.epsilon", "2") == dataclasses.replace(
        computed, noise=None, epsilon=2.0
    )
    with pytest.raises(ValueError, match=r"privacy.epsilon is 2.0; expected none with --privacy.n"):
        check_noise(parsed("--privacy.epsilon", "2", "--privacy.noise", "1"))


@pytest.mark.slow
def test_runs_and_sweeps_write_epsilon(tmp_path: pathlib.Path):
    study = Study(options(**PRIVATE, **{"privacy.noise": 1.0}, output=tmp_path / "run"))
    result = compare(resolve(study))
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    spent = history[(history["metric"] == "privacy/epsilon") & (history["seed"] == 0)]
    assert spent["round"].tolist() == [0, 2, 4]
    assert spent["value"].iloc[0] == 0
    assert (np.diff(spent["value"]) > 0).all()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["algorithms"]["fedavg"]
    assert summary["privacy"]["epsilon"] == pytest.approx(spent["value"].iloc[-1], rel=1e-9)
    assert summary["privacy"]["adjacency"] == "add_or_remove_one"
    grid = {"privacy.noise": (1.0, 4.0), "privacy.clip.bound": (0.5,)}
    sweep = sweep_options(grid, **PRIVATE, output=tmp_path / "sweep")
    swept = run_sweep(Study(sweep.run), sweep)
    # One program for both configurations; one of them is the run above.
    assert swept.sweep.compilations <= 2
    costs = pd.read_csv(tmp_path / "sweep" / "privacy.csv")
    assert costs["privacy.noise"].tolist() == [1, 4]
    assert costs["epsilon"].iloc[0] == pytest.approx(spent["value"].iloc[-1], rel=1e-9)
    assert costs["epsilon"].iloc[1] < costs["epsilon"].iloc[0]
    scores = pd.read_csv(tmp_path / "sweep" / "history.csv")
    same = scores[(scores["privacy.noise"] == 1) & (scores["metric"] == "test/accuracy")]
    accuracy = result.history.query("metric == 'test/accuracy' and round == 4")["value"]
    last = same[same["round"] == 4]["value"]
    np.testing.assert_allclose(sorted(last), sorted(accuracy), atol=1e-3)


@pytest.mark.slow
def test_correlated_noise_and_adaptive_clips_on_the_command_line(tmp_path: pathlib.Path):
    """A run that repeats itself from its config.json; a sweep over laws."""
    changed = {"sampling": "cyclic", "cohort_size": 5, "rounds": 8}
    banded = {"privacy.law": "banded", "privacy.law.bands": 2, "privacy.epsilon": 3.0}
    run = options(**PRIVATE | changed | banded, output=tmp_path / "run")
    accuracy = compare(resolve(Study(run))).history.query("metric == 'test/accuracy'")["value"]
    again = ["run", str(tmp_path / "run" / "config.json"), "--output", str(tmp_path / "b")]
    assert main(again) == 0
    history = pd.read_csv(tmp_path / "b" / "history.csv").query("metric == 'test/accuracy'")
    np.testing.assert_array_equal(history["value"], accuracy)
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())["algorithms"]["fedavg"]
    assert 2.9 < summary["privacy"]["epsilon"] <= 3.0
    saved = read(tmp_path / "b" / "config.json").privacy
    assert isinstance(saved, GaussianNoise)
    assert saved.law == run.privacy.law
    # A client returns after 4 rounds and visits twice: trees of 4 rounds, two of them.
    own = PRIVATE | changed | {"privacy.noise": 0.3, "output": tmp_path / "sweep"}
    del own["privacy.clip.bound"]
    grid = {"privacy.law": ("independent", "tree"), "privacy.clip": ("norm", "adaptive")}
    sweep = sweep_options(grid, **own)
    with pytest.raises(ValueError, match=r"privacy.clip is adaptive; expected a fixed one"):
        run_sweep(Study(sweep.run), sweep)
    sweep = sweep_options(grid | {"privacy.clip": ("norm",)}, **own)
    run_sweep(Study(sweep.run), sweep)
    costs = pd.read_csv(tmp_path / "sweep" / "privacy.csv").groupby("privacy.law")["epsilon"]
    assert (costs.max()["independent"] < costs.min()["tree"]).all()
