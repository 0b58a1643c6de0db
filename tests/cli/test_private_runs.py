"""Differential privacy on the command line: options, files, and refusals before compilation."""

import json
import pathlib

import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim.cli import private_runs
from fedjax_sim.cli.build import resolve
from fedjax_sim.cli.config import RunConfig, SweepConfig
from fedjax_sim.cli.config_checks import check as check_values
from fedjax_sim.cli.grid import configurations
from fedjax_sim.cli.run import compare
from fedjax_sim.cli.settings import resolve_hyper
from fedjax_sim.cli.sweep import run_sweep

PRIVATE = {
    "num_clients": 20, "sampling": "bernoulli", "cohort_size": 10, "rounds": 4, "seeds": 1,
    "local_epochs": 1, "model": "softmax_regression", "algorithms": ("fedavg",),
    "privacy_clip": 0.5, "privacy_delta": 0.01,
}  # fmt: skip


def test_options_that_contradict_each_other_are_refused():
    for options, message in [
        (
            {"privacy_noise": 1.0},
            "privacy_clip is None; expected a positive number with privacy_noise",
        ),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_epsilon": 2.0}, "expected none with"),
        (
            {"privacy_clip": 1.0, "privacy_noise": 1.0, "weighting": "examples"},
            "expected 'uniform'",
        ),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "clock": "geometric"}, "expected 'none' with"),
    ]:
        with pytest.raises(ValueError, match=message):
            private_runs.check(RunConfig(**options))
    for options, message in [
        ({"privacy_clip": 0.0}, "privacy_clip is 0.0; expected a positive number"),
        ({"privacy_epsilon": -1.0}, r"privacy_epsilon is -1.0; expected a positive number"),
        ({"privacy_noise": -1.0}, r"privacy_noise is -1.0; expected a number of at least 0"),
        ({"privacy_delta": 1.0}, r"privacy_delta is 1.0; expected a number in \(0, 1\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_values(RunConfig(**options))
    entries = configurations(SweepConfig(grid=("privacy_noise=0,1",), privacy_clip=1.0))
    assert [entry["privacy_noise"] for entry in entries] == [0, 1]
    with pytest.raises(ValueError, match=r"privacy_clip=0.0'; expected a positive number"):
        configurations(SweepConfig(grid=("privacy_clip=0,1",), privacy_noise=1.0))
    with pytest.raises(ValueError, match="expected privacy_noise in a sweep"):
        configurations(SweepConfig(privacy_clip=1.0, privacy_epsilon=1.0))


def test_an_algorithm_is_private_only_with_clip_and_noise():
    plain = fs.fedavg(0.1)
    assert private_runs.privatized(plain, {"lr": 0.1}, None) is plain
    for hyper, uploads, message in [
        ({"privacy_noise": 1.0}, 9.0, "privacy_noise is 1.0; expected privacy_clip with it"),
        ({"privacy_clip": 1.0}, 9.0, "privacy_clip is 1.0; expected privacy_noise or"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0}, None, "timeline has no sampling rule"),
    ]:
        with pytest.raises(ValueError, match=message):
            private_runs.privatized(plain, hyper, uploads)
    hyper = resolve_hyper(
        private_runs_entries(), ["fedavg.privacy_noise=2"], {"privacy_clip": 0.5, "lr": 0.1}
    )
    assert hyper == {"fedavg": {"lr": 0.1, "privacy_clip": 0.5, "privacy_noise": 2.0}}


def private_runs_entries():
    from fedjax_sim.cli.registry import algorithms_of

    return algorithms_of(["fedavg"])


@pytest.mark.slow
def test_a_target_epsilon_sets_the_noise_before_anything_runs():
    resolved = resolve(RunConfig(**PRIVATE, privacy_epsilon=3.0))
    (guarantee,) = resolved.guarantees.values()
    assert 2.9 < guarantee.epsilon <= 3.0
    assert guarantee.adjacency == "add_or_remove_one"
    noise = resolved.hyper["fedavg"]["privacy_noise"]
    assert noise > 0
    # 10 of 20 clients on average: a round is empty, up to one client, with probability 2^-19.
    with pytest.raises(ValueError, match=r"delta is 1e-05; expected at least 0.000763"):
        resolve(RunConfig(**PRIVATE | {"privacy_delta": 1e-5}, privacy_noise=1.0))
    with pytest.raises(ValueError, match="algorithm needs the exact mean"):
        resolve(RunConfig(**PRIVATE | {"algorithms": ("mb_sgd",)}, privacy_noise=1.0))


@pytest.mark.slow
def test_runs_and_sweeps_write_epsilon(tmp_path: pathlib.Path):
    config = RunConfig(**PRIVATE, privacy_noise=1.0, output=tmp_path / "run")
    result = compare(config)
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    spent = history[(history["metric"] == "privacy/epsilon") & (history["seed"] == 0)]
    assert spent["round"].tolist() == [0, 2, 4]
    assert spent["value"].iloc[0] == 0
    assert (np.diff(spent["value"]) > 0).all()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["algorithms"]["fedavg"]
    assert summary["privacy"]["epsilon"] == pytest.approx(spent["value"].iloc[-1], rel=1e-9)
    assert summary["privacy"]["adjacency"] == "add_or_remove_one"
    grid = ("privacy_noise=1,4", "privacy_clip=0.5")
    swept = run_sweep(
        SweepConfig(**PRIVATE | {"privacy_clip": None}, grid=grid, output=tmp_path / "sweep")
    )
    # One program for both configurations; one of them is the run above.
    assert swept.sweep.compilations <= 2
    costs = pd.read_csv(tmp_path / "sweep" / "privacy.csv")
    assert costs["privacy_noise"].tolist() == [1, 4]
    assert costs["epsilon"].iloc[0] == pytest.approx(spent["value"].iloc[-1], rel=1e-9)
    assert costs["epsilon"].iloc[1] < costs["epsilon"].iloc[0]
    scores = pd.read_csv(tmp_path / "sweep" / "history.csv")
    same = scores.query("privacy_noise == 1 and privacy_clip == 0.5 and metric == 'test/accuracy'")
    accuracy = result.history.query("metric == 'test/accuracy' and round == 4")["value"]
    last = same[same["round"] == 4]["value"]
    np.testing.assert_allclose(sorted(last), sorted(accuracy), atol=1e-3)
