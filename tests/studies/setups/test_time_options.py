"""Simulated time as options: laws of durations, timelines per algorithm."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.studies.setups import time
from fedjax_sim.studies.setups.presets import PRESETS, options
from fedjax_sim.studies.setups.problem import prepare
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.studies.setups.time import Clock, ClockOptions, Trace, step_law

ALGORITHMS = PRESETS["asynchronous"].algorithms.algorithms
LAWS = {
    "geometric": time.Geometric, "exponential": time.Exponential,
    "deterministic": time.Deterministic, "log-normal": time.LogNormal,
}  # fmt: skip


def law(kind, clients=8, **values):
    return step_law(LAWS[kind](2.0, 0.25, 4.0, **values), clients, seed=0)


@pytest.mark.parametrize("kind", LAWS)
def test_laws_have_two_speeds(kind):
    found = law(kind, **{"log_sigma": 0.5} if kind == "log-normal" else {})
    assert sorted(found.speeds.tolist()) == [0] * 6 + [1] * 2
    drawn = found.durations(np.random.default_rng(0), np.arange(8), 20_000)
    expected = np.where(found.speeds == 1, 8.0, 2.0)
    # Standard deviations are at most 1.1 times the mean: a standard error of 0.8 %.
    np.testing.assert_allclose(drawn.mean(axis=1), expected, rtol=0.04)


def test_a_trace_gives_every_client_its_own_durations(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,duration\n0,1.5\n1,4\n0,1.5\n")
    found = step_law(Trace(path), 2, seed=0)
    assert found.durations(np.random.default_rng(0), np.array([0, 1]), 2).tolist() == [
        [1.5, 1.5],
        [4.0, 4.0],
    ]
    assert found.speeds.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"law.file is '.*none.csv', which cannot be read"):
        step_law(Trace(tmp_path / "none.csv"), 2, seed=0)


@pytest.mark.parametrize(
    "values", [{"step_time": 0.5}, {"step_time": 2.0, "slow_factor": 0.25}], ids=str
)
def test_geometric_durations_are_whole_numbers(values):
    with pytest.raises(ValueError, match=r"law.step_time is .*; expected a mean of at least 1"):
        step_law(time.Geometric(**values), 8, seed=0)


def clock(kind, horizon, **values):
    chosen = ClockOptions(interval=5.0, horizon=horizon)
    return Clock(chosen, law(kind, **values), num_clients=8, cohort_size=2, num_steps=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAWS)
def test_steps_per_visit_are_those_of_the_timelines(kind):
    """FAVANO's law against the visits of a long timeline, without each client's first."""
    of = clock(kind, 20_000.0, **{"log_sigma": 0.5} if kind == "log-normal" else {})
    steps_of = of.steps_per_visit()
    timeline = of.timelines("favano", jax.random.split(jax.random.key(1), 1))
    version, steps, who = (
        np.asarray(x)[0] for x in (timeline.version, timeline.num_steps, timeline.clients)
    )
    for client in range(8):
        visits = steps[(who == client) & (version > 0)]
        # 1,000 visits each: standard errors of at most 1.6 % and 0.05 steps, four of them.
        assert abs((visits > 0).mean() - steps_of.p_active[client]) < 0.065
        assert abs(visits.mean() - steps_of.mean[client]) < 0.2


def test_exact_and_drawn_laws_agree():
    """Whole intervals have a closed form; 20,000 draws per speed have errors below 1 %."""
    exact = clock("geometric", 50.0)
    drawn = exact._replace(law=exact.law._replace(success=None))
    for one, other in zip(exact.steps_per_visit(), drawn.steps_per_visit(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.03)


@pytest.mark.slow
def test_each_algorithm_has_its_own_timeline_on_one_clock():
    run = options(
        "asynchronous", model="softmax_regression", num_clients=12, cohort_size=3, local_steps=3,
        buffer_size=2, law="deterministic", horizon=70.0, seeds=2, eval_time=7.0,
    )  # fmt: skip
    problem = prepare(Study(run), datasets.load("digits"))
    setups = {name: problem.setup_of(name) for name in ALGORITHMS}
    lines = {name: setup.timeline for name, setup in setups.items()}
    for line in lines.values():
        assert float(line.time.max()) <= 70.0
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
    longer = dataclasses.replace(problem.clock.options, horizon=301.0, eval_time=14.0)
    setup = problem._replace(clock=problem.clock._replace(options=longer)).setup_of("favano")
    assert (setup.timeline.num_rounds, setup.eval_every) == (42, 2)


def test_evaluations_on_a_clock_meet_those_of_every_client():
    run = options(
        "asynchronous", model="softmax_regression", num_clients=12, cohort_size=3, local_steps=3,
        law="deterministic", horizon=301.0, eval_time=28.0, seeds=1, per_client=10,
    )  # fmt: skip
    problem = prepare(Study(run), datasets.load("digits"))
    # Every 28 units would be every fourth contact, and every 20th one of all clients.
    assert problem.setup_of("favano").eval_every == 2
    # The clients would be evaluated with the initial model only.
    message = r"^per_client is 10; expected at most \d, the server updates of fedavg on the clock$"
    with pytest.raises(ValueError, match=message):
        problem.setup_of("fedavg")


def test_algorithms_that_are_not_synchronous_exist():
    assert set(time.SCHEDULES) <= set(ALGORITHMS)
