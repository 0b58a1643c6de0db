"""Simulated time on the command line: runs and sweeps of all algorithms."""

import json

import numpy as np
import pandas as pd
import pytest

from fedjax_sim.cli.main import main
from fedjax_sim.cli.run import compare, plotting
from fedjax_sim.studies.setups import PRESETS, Study, options, resolve

pytestmark = pytest.mark.slow
ALGORITHMS = PRESETS["asynchronous"].algorithms.algorithms


def test_a_horizon_before_the_first_update_is_a_bad_option(tmp_path, capsys):
    """Slow clients need 16 units per step: no round of FedAvg ends by then."""
    typed = "law:deterministic --local-steps 20 --horizon 20 --num-clients 12 --cohort-size 12"
    command = ["run", "asynchronous", *typed.split(), "--output", str(tmp_path / "x")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedjax-sim: error: --horizon is 20.0; expected at least the time of")
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The preset's six algorithms for three updates each."""
    run = options(
        "asynchronous", model="softmax_regression", num_clients=12, cohort_size=3, local_steps=3,
        buffer_size=2, law="deterministic", updates=3, seeds=2, eval_time=7.0,
        horizon=70.0,  # the second seed has time for two rounds of FedAvg, the first for three
        output=tmp_path_factory.mktemp("asynchronous"),
    )  # fmt: skip
    return compare(resolve(Study(run)))


def test_updates_at_one_time_are_drawn_with_the_last_model(tmp_path, monkeypatch):
    """Clients of one speed arrive together, and every arrival is an update."""
    drawn, curves = [], plotting.curves

    def recorded(history, *arguments, **settings):
        drawn.append(history)
        return curves(history, *arguments, **settings)

    monkeypatch.setattr(plotting, "curves", recorded)
    run = options(
        "asynchronous", algorithms=("fedasync",), model="softmax_regression", num_clients=12,
        cohort_size=3, local_steps=3, law="deterministic", updates=9, seeds=1, eval_time=1.0,
        horizon=70.0, output=tmp_path,
    )  # fmt: skip
    history = compare(resolve(Study(run))).history.query("metric == 'test/loss'")
    last = history.groupby("time")["value"].last()
    assert (history.groupby("time")["value"].first() != last).any()
    (points,) = drawn
    shown = points.query("metric == 'test/loss'").set_index("time")["value"]
    pd.testing.assert_series_equal(shown, last)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_asynchronous_algorithms_run(result, name):
    own = result.history.loc[result.history["algorithm"] == name]
    assert own["round"].max() == 3
    losses = own.loc[own["metric"] == "train/loss"]
    assert np.isfinite(losses["value"]).all()
    times = own.loc[own["metric"] == "time"]
    assert (times["time"] == times["value"]).all()
    assert set(losses["seed"]) == {0, 1}


def test_curves_are_drawn_against_simulated_time(result):
    """Also of a seed with fewer updates: the file repeats its last time, the figure does not."""
    last = result.history.query("algorithm == 'fedavg' and seed == 1 and metric == 'test/accuracy'")
    assert last["time"].tolist() == [0.0, 51.0, 60.0, 60.0]
    frame = pd.read_csv(result.output / "history.csv")
    columns = ["algorithm", "seed", "diverged_at", "round", "time", "metric", "value"]
    assert frame.columns.tolist() == result.history.columns.tolist() == columns
    assert (result.output / "curves.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((result.output / "summary.json").read_text())["algorithms"]
    assert set(summary) == set(ALGORITHMS)
    assert all("time_to_target" in row and row["finished"] for row in summary.values())


def test_a_finished_comparison_on_a_clock_is_found_again(result, capsys):
    before = (result.output / "history.csv").read_bytes()
    assert main(["run", str(result.output / "config.json")]) == 0
    assert "finished before" in capsys.readouterr().out
    assert (result.output / "history.csv").read_bytes() == before


def test_sweeps_run_on_a_clock(tmp_path):
    """FAVANO's law of steps follows a swept setting."""
    typed = "--model softmax_regression --num-clients 6 --local-steps 2 --horizon 14 --seeds 1"
    grid = "--algorithms favano --grid.lr.values 0.5 1 --grid.cohort-size.values 2 3"
    command = ["sweep", "asynchronous", *typed.split(), *grid.split(), "--output", str(tmp_path)]
    assert main(command) == 0
    history = pd.read_csv(tmp_path / "history.csv")
    assert sorted(history["cohort_size"].unique()) == [2, 3]
    assert history.groupby(["lr", "cohort_size"]).ngroups == 4


def test_agd_runs_on_the_command_line(tmp_path):
    """Full gradients of all clients, one step per round: the loss falls."""
    command = "run quickstart --model softmax_regression --num-clients 6 sampling:full --rounds 4"
    typed = ["--algorithms", "agd", "--seeds", "1", "--local-steps", "1", "--eval-every", "1"]
    assert main([*command.split(), *typed, "--output", str(tmp_path)]) == 0
    history = pd.read_csv(tmp_path / "history.csv")
    losses = history.loc[history["metric"] == "train/loss", "value"].to_numpy()
    assert (np.diff(losses) < 0).all()
