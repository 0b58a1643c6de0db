"""Differential privacy on the command line: options, files, and refusals before compilation."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pandas as pd
import pytest
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig
from fedjax_sim.studies.setups.config_checks import check as check_values

import fedjax_sim as fs
from fedjax_sim.cli.grid import configurations
from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse
from fedjax_sim.cli.run import compare
from fedjax_sim.cli.sweep import run_sweep
from fedjax_sim.studies.setups import private_options, private_runs
from fedjax_sim.studies.setups.build import hyper_parameters, resolve
from fedjax_sim.studies.setups.config_file import read, to_json
from fedjax_sim.studies.setups.settings import resolve_hyper

PRIVATE = {
    "num_clients": 20, "sampling": "bernoulli", "cohort_size": 10, "rounds": 4, "seeds": 1,
    "local_epochs": 1, "model": "softmax_regression", "algorithms": ("fedavg",),
    "privacy_clip": 0.5, "privacy_delta": 0.01,
}  # fmt: skip
CYCLIC = fs.timelines.cyclic(8, 8, 2, num_steps=1)


def test_options_that_contradict_each_other_are_refused():
    for options, message in [
        (
            {"privacy_noise": 1.0},
            "privacy_clip is None; expected a positive number with --privacy-noise",
        ),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_epsilon": 2.0}, "expected none with"),
        (
            {"privacy_clip": 1.0, "privacy_noise": 1.0, "weighting": "examples"},
            "expected 'uniform'",
        ),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "clock": "geometric"}, "expected 'none' with"),
        ({"privacy_noise_law": "tree"}, "expected a positive number with --privacy-noise-law"),
        ({"privacy_clip": "adaptiv:0.5", "privacy_noise": 1.0}, "privacy_clip is 'adaptiv:0.5'"),
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
    grid = ("privacy_clip=0.5,adaptive:0.5", "privacy_noise_law=independent,tree")
    entries = configurations(SweepConfig(grid=grid, privacy_noise=1.0))
    assert [entry["privacy_clip"] for entry in entries] == [0.5, 0.5, *["adaptive:0.5"] * 2]
    with pytest.raises(ValueError, match=r"privacy_clip is 'adaptive:3'; expected a positive"):
        configurations(SweepConfig(grid=("privacy_clip=adaptive:3",), privacy_noise=1.0))
    with pytest.raises(ValueError, match="expected privacy_noise in a sweep"):
        configurations(SweepConfig(privacy_clip=1.0, privacy_epsilon=1.0))


def test_an_algorithm_is_private_only_with_clip_and_noise():
    plain = fs.fedavg(0.1)
    assert private_runs.privatized(plain, {"lr": 0.1}, None) is plain
    known, own = CYCLIC, dataclasses.replace(CYCLIC, sampling=None)
    both = {"privacy_clip": 1.0, "privacy_noise": 1.0}
    adaptive = {"privacy_clip": "adaptive:0.5", "privacy_noise_law": "tree"}
    for hyper, timeline, message in [
        ({"privacy_noise": 1.0}, known, "privacy_noise is 1.0; expected --privacy-clip with it"),
        ({"privacy_noise_law": "tree"}, known, "privacy_noise_law is tree; expected --privacy-cl"),
        ({"privacy_clip": 1.0}, known, "privacy_clip is 1.0; expected --privacy-noise or"),
        (both, own, "timeline has no sampling rule"),
        (both | adaptive, known, "privacy_clip is adaptive; expected a fixed one"),
        (both | {"privacy_clip": "adaptive:0.5"}, known, "privacy_noise is 1.0; expected less"),
    ]:
        with pytest.raises(ValueError, match=message):
            private_runs.privatized(plain, hyper, timeline)
    hyper = resolve_hyper(
        private_runs_entries(), ["fedavg.privacy_noise=2"], {"privacy_clip": 0.5, "lr": 0.1}
    )
    assert hyper == {"fedavg": {"lr": 0.1, "privacy_clip": 0.5, "privacy_noise": 2.0}}


def test_texts_of_clips():
    assert private_options.clip_of(0.5) == private_options.clip_of("0.5") == 0.5
    assert private_options.clip_of("delta=1:control=0.5") == {"delta": 1.0, "control": 0.5}
    assert private_options.clip_of("adaptive:0.7:2") == fs.privacy.adaptive_clip(0.7, initial=2.0)
    for text in (
        "0", "nan", "inf", "adaptive", "adaptive:2", "adaptive:0.5:0", "adaptive:0.5:1:2", "best",
        "a=1:a=2", "a=0", "a=1:2",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^privacy_clip is '{text}'; expected a positive"):
            private_options.clip_of(text)
    scaffold = fs.privacy.privatize(fs.scaffold(0.1), {"0": 1.0, "1": 1.0}, 1.0, expected_uploads=2)
    setup = fs.Setup(None, CYCLIC, jax.numpy.zeros(3))
    private_runs.check_parts(scaffold, {"privacy_clip": "0=1:1=1"}, setup)
    wrong = fs.privacy.privatize(fs.fedavg(0.1), {"0": 1.0}, 1.0, expected_uploads=2)
    with pytest.raises(ValueError, match=r"^privacy_clip has the parts 0; expected those of the"):
        private_runs.check_parts(wrong, {"privacy_clip": "0=1"}, setup)


def test_laws_of_noise_follow_the_timeline():
    """Eight rounds in which every client takes part in each fourth one."""
    assert private_options.law_of(None, CYCLIC) is None
    tree = private_options.law_of("efficient_tree", CYCLIC).mechanism(2.0, CYCLIC, 8)
    assert (tree.event.count, tree.event.event.step_counts) == (2, 4)
    banded = private_options.law_of("banded:2", CYCLIC).mechanism(2.0, CYCLIC, 8)
    assert banded.rule.startswith("at least 4 rounds between visits, at most 2 per client")
    full = fs.timelines.full(4, 8, 1)
    for law, timeline, message in [
        ("trees", CYCLIC, "privacy_noise_law is 'trees'; expected one of independent, tree, "),
        ("independent:2", CYCLIC, "expected independent without a number"),
        ("banded", CYCLIC, "expected banded:NUMBER, the bands"),
        ("tree:0", CYCLIC, "expected tree:NUMBER, the rounds per tree"),
        ("banded:9", CYCLIC, "expected at most 8 bands, the rounds"),
        ("tree", full, "no client takes part in two rounds in a row"),
    ]:
        with pytest.raises(ValueError, match=message):
            private_options.law_of(law, timeline)


def test_a_run_with_a_target_epsilon_is_repeated_from_its_file(tmp_path):
    """The file has the noise that was computed, for other algorithms too; another target may be
    given.
    """
    config = RunConfig(**PRIVATE, privacy_epsilon=3.0)
    hyper = {"fedavg": {"lr": 0.2, "privacy_clip": 0.5, "privacy_noise": 1.25}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": to_json(config), "algorithms": hyper}))
    saved = read(path)
    private_runs.check(saved)
    assert hyper_parameters(saved) == hyper

    def parsed(*typed):
        return parse(RunConfig, "run", str(path), "", typed, saved)

    both = hyper_parameters(parsed("--algorithms", "fedavg", "fedprox"))
    private = {"privacy_clip": 0.5, "privacy_noise": 1.25}
    assert both == hyper | {"fedprox": {"lr": 0.2, "mu": 0.1} | private}
    another = parsed("--privacy-epsilon", "2")
    private_runs.check(another)
    assert (another.privacy_epsilon, another.privacy_noise) == (2.0, None)


def private_runs_entries():
    from fedjax_sim.studies.setups.registry import algorithms_of

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


@pytest.mark.slow
def test_correlated_noise_and_adaptive_clips_on_the_command_line(tmp_path: pathlib.Path):
    """A dry run and a run that repeats itself from its config.json; a sweep over laws."""
    options = PRIVATE | {"sampling": "cyclic", "cohort_size": 5, "rounds": 8}
    banded = RunConfig(
        **options, privacy_noise_law="banded:2", privacy_epsilon=3.0, output=tmp_path / "run"
    )
    accuracy = compare(banded).history.query("metric == 'test/accuracy'")["value"]
    assert (
        main(["run", str(tmp_path / "run" / "config.json"), "--output", str(tmp_path / "b")]) == 0
    )
    again = pd.read_csv(tmp_path / "b" / "history.csv").query("metric == 'test/accuracy'")
    np.testing.assert_array_equal(again["value"], accuracy)
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())["algorithms"]["fedavg"]
    assert 2.9 < summary["privacy"]["epsilon"] <= 3.0
    assert summary["hyper_parameters"]["privacy_noise_law"] == "banded:2"
    # A client returns after 4 rounds and visits twice: trees of 4 rounds, two of them.
    grid = ("privacy_noise_law=independent,tree", "privacy_clip=0.5,adaptive:0.5:0.2")
    sweep = SweepConfig(
        **options | {"privacy_clip": None}, privacy_noise=0.3, grid=grid, output=tmp_path / "sweep"
    )
    with pytest.raises(ValueError, match="privacy_clip is adaptive; expected a fixed one"):
        run_sweep(sweep)
    grid = ("privacy_noise_law=independent,tree", "privacy_clip=0.5,1")
    run_sweep(dataclasses.replace(sweep, grid=grid))
    costs = pd.read_csv(tmp_path / "sweep" / "privacy.csv").groupby("privacy_noise_law")["epsilon"]
    assert (costs.max()["independent"] < costs.min()["tree"]).all()
