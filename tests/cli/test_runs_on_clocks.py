"""Simulated time on the command line: laws, timelines per algorithm, runs of all of them."""

import dataclasses
import json

import jax
import numpy as np
import pandas as pd
import pytest

from fedjax_sim import datasets
from fedjax_sim.cli.main import main
from fedjax_sim.cli.run import compare
from fedjax_sim.studies.setups import clocks, names
from fedjax_sim.studies.setups.clocks import Clock, step_law
from fedjax_sim.studies.setups.problem import prepare

PRESET = names.PRESETS["asynchronous"]
TINY = dataclasses.replace(
    PRESET,
    model="softmax_regression",
    num_clients=12,
    cohort_size=3,
    local_steps=3,
    buffer_size=2,
    clock="deterministic",
    horizon=70.0,  # the second seed has time for two rounds of FedAvg, the first for three
    updates=3,
    seeds=2,
    eval_time=7.0,
)
OPTIONS = {
    "step_time": 2.0, "slow_fraction": 0.25, "slow_factor": 4.0, "log_sigma": 0.5, "trace": None,
    "seed": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["geometric", "exponential", "deterministic", "log-normal"])
def test_laws_have_two_speeds(kind):
    law = step_law(kind, 8, **OPTIONS)
    assert sorted(law.speeds.tolist()) == [0] * 6 + [1] * 2
    drawn = law.durations(np.random.default_rng(0), np.arange(8), 20_000)
    expected = np.where(law.speeds == 1, 8.0, 2.0)
    # Standard deviations are at most 1.1 times the mean: a standard error of 0.8 %.
    np.testing.assert_allclose(drawn.mean(axis=1), expected, rtol=0.04)


def test_a_trace_gives_every_client_its_own_durations(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,duration\n0,1.5\n1,4\n0,1.5\n")
    law = step_law("trace", 2, **(OPTIONS | {"trace": str(path)}))
    assert law.durations(np.random.default_rng(0), np.array([0, 1]), 2).tolist() == [
        [1.5, 1.5],
        [4.0, 4.0],
    ]
    assert law.speeds.tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["geometric", "exponential", "log-normal", "deterministic"])
def test_steps_per_visit_are_those_of_the_timelines(kind):
    """FAVANO's law against the visits of a long timeline, without each client's first."""
    clock = Clock(step_law(kind, 8, **OPTIONS), 8, 2, 4, 5.0, 3.0, 2, None, 20_000.0, None)
    law = clock.steps_per_visit()
    timeline = clock.timelines("favano", jax.random.split(jax.random.key(1), 1))
    version, steps, who = (
        np.asarray(x)[0] for x in (timeline.version, timeline.num_steps, timeline.clients)
    )
    for client in range(8):
        visits = steps[(who == client) & (version > 0)]
        # 1,000 visits each: standard errors of at most 1.6 % and 0.05 steps, four of them.
        assert abs((visits > 0).mean() - law.p_active[client]) < 0.065
        assert abs(visits.mean() - law.mean[client]) < 0.2


def test_exact_and_drawn_laws_agree():
    """Whole intervals have a closed form; 20,000 draws per speed have errors below 1 %."""
    exact = Clock(step_law("geometric", 8, **OPTIONS), 8, 2, 4, 5.0, 3.0, 2, None, 50.0, None)
    drawn = exact._replace(law=exact.law._replace(success=None))
    for one, other in zip(exact.steps_per_visit(), drawn.steps_per_visit(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.03)


@pytest.mark.slow
def test_each_algorithm_has_its_own_timeline_on_one_clock():
    problem = prepare(dataclasses.replace(TINY, updates=None), datasets.load("digits"))
    setups = {name: problem.setup_of(name) for name in PRESET.algorithms}
    lines = {name: setup.timeline for name, setup in setups.items()}
    for line in lines.values():
        assert float(line.time.max()) <= TINY.horizon
    assert lines["favano"].time[0].tolist() == [7 * (t + 1) for t in range(10)]  # contacts
    assert (lines["quafl"].version == np.arange(10)[:, None]).all()
    assert (lines["favano"].clients == lines["quafl"].clients).all()
    assert lines["fedbuff"].cohort_size == 2
    assert lines["fedasync"].cohort_size == lines["async_sgd"].cohort_size == 1
    assert lines["async_sgd"].max_steps == 1
    assert lines["async_sgd"].num_rounds > lines["fedasync"].num_rounds
    assert lines["fedavg"].max_staleness == lines["quafl"].max_staleness == 0
    # An evaluation every seven units of simulated time, whatever an update takes.
    for name, setup in setups.items():
        per_update = float(lines[name].time.max()) / lines[name].num_rounds
        assert setup.eval_every == max(1, round(7 / per_update))
    # The 43rd contact has no evaluation, and would be a segment of its own.
    longer = problem._replace(clock=problem.clock._replace(horizon=301.0), eval_time=14.0)
    setup = longer.setup_of("favano")
    assert (setup.timeline.num_rounds, setup.eval_every) == (42, 2)


@pytest.mark.slow
def test_a_horizon_before_the_first_update_is_a_bad_option(tmp_path, capsys):
    """Slow clients need 16 units per step: no round of FedAvg ends by then."""
    options = (
        "--clock deterministic --local-steps 20 --horizon 20 --num-clients 12 --cohort-size 12"
    )
    command = ["run", "asynchronous", *options.split(), "--output", str(tmp_path / "x")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedjax-sim: error: --horizon is 20.0; expected at least the time of")
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_algorithms_that_are_not_synchronous_exist():
    assert set(clocks.SCHEDULES) <= set(PRESET.algorithms)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The preset's six algorithms for three updates each."""
    return compare(dataclasses.replace(TINY, output=tmp_path_factory.mktemp("asynchronous")))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESET.algorithms)
def test_asynchronous_algorithms_run(result, name):
    own = result.history.loc[result.history["algorithm"] == name]
    assert own["round"].max() == 3
    losses = own.loc[own["metric"] == "train/loss"]
    assert np.isfinite(losses["value"]).all()
    times = own.loc[own["metric"] == "time"]
    assert (times["time"] == times["value"]).all()
    assert set(losses["seed"]) == {0, 1}


@pytest.mark.slow
def test_curves_are_drawn_against_simulated_time(result):
    """Also of a seed with fewer updates: the file repeats its last time, the figure does not."""
    last = result.history.query("algorithm == 'fedavg' and seed == 1 and metric == 'test/accuracy'")
    assert last["time"].tolist() == [0.0, 51.0, 60.0, 60.0]
    frame = pd.read_csv(result.output / "history.csv")
    columns = ["algorithm", "seed", "diverged_at", "round", "time", "metric", "value"]
    assert frame.columns.tolist() == result.history.columns.tolist() == columns
    assert (result.output / "curves.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((result.output / "summary.json").read_text())["algorithms"]
    assert set(summary) == set(PRESET.algorithms)
    assert all("time_to_target" in row and row["finished"] for row in summary.values())


@pytest.mark.slow
def test_a_finished_comparison_on_a_clock_is_found_again(result, capsys):
    before = (result.output / "history.csv").read_bytes()
    assert main(["run", str(result.output / "config.json")]) == 0
    assert "finished before" in capsys.readouterr().out
    assert (result.output / "history.csv").read_bytes() == before


@pytest.mark.slow
def test_sweeps_run_on_a_clock(tmp_path):
    """FAVANO's law of steps follows a swept setting."""
    options = "--model softmax_regression --num-clients 6 --local-steps 2 --horizon 14 --seeds 1"
    grid = "--algorithms favano --grid lr=0.5,1 cohort_size=2,3"
    command = ["sweep", "asynchronous", *options.split(), *grid.split(), "--output", str(tmp_path)]
    assert main(command) == 0
    history = pd.read_csv(tmp_path / "history.csv")
    assert sorted(history["cohort_size"].unique()) == [2, 3]
    assert history.groupby(["lr", "cohort_size"]).ngroups == 4


@pytest.mark.slow
def test_agd_runs_on_the_command_line(tmp_path):
    """Full gradients of all clients, one step per round: the loss falls."""
    command = "run quickstart --model softmax_regression --num-clients 6 --sampling full --rounds 4"
    options = ["--algorithms", "agd", "--seeds", "1", "--local-steps", "1", "--eval-every", "1"]
    assert main([*command.split(), *options, "--output", str(tmp_path)]) == 0
    history = pd.read_csv(tmp_path / "history.csv")
    losses = history.loc[history["metric"] == "train/loss", "value"].to_numpy()
    assert (np.diff(losses) < 0).all()
