"""Every run of a sweep equals the run alone; configurations of a seed are paired."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import sweep_on
from small_problems import (
    NUM_CLIENTS,
    SIZES,
    logistic_task,
    partial_timeline,
    recorded_batches,
    row_recorder,
)
from sweep_problems import (
    KEYS,
    ONE_DEVICE,
    PROBES,
    alone,
    assert_equals_single_runs,
    changed,
    fedavg_with_server,
    logistic_trial,
    quadratic_trial,
    schedules,
    sweep_of,
)

import fedjax_sim as fs
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.runs.sweeps.trial import Trial

# Batching changes the order of sums only: some hundred operations of 1e-16, or of 6e-8, each.
DOUBLE, SINGLE = 1e-12, 2e-5
LRS = [0.05, 0.2, 0.5]


@pytest.mark.slow
def test_evaluations_that_do_not_divide_the_rounds(x64):
    trial = logistic_trial(fedavg_with_server, partial_timeline(), eval_every=3)
    result = sweep_of(trial, {"server_lr": [0.5, 1.0], "lr": LRS}, KEYS[:2], devices=ONE_DEVICE)
    assert [run.configuration for run in result.runs[::2]] == [
        {"server_lr": s, "lr": c} for s in (0.5, 1.0) for c in LRS
    ]
    assert [run.seed for run in result.runs] == ["0", "1"] * 6
    assert_equals_single_runs(result, trial, DOUBLE)
    assert result.runs[0].history.round.tolist() == [3, 4]
    assert (result.interrupted, result.resumed, result.compilations) == (False, 0, 1)


@pytest.mark.slow
def test_client_states_on_several_devices_with_a_schedule_per_seed(x64):
    """Configurations that differ in their names, 3 devices that the 5 blocks do not fill."""
    task = logistic_task(fs.full_batch(4))
    trial = logistic_trial(fs.scaffold, schedules(task, 2), task=task, eval_every=2)
    configurations = [{"lr": 0.1}, {"lr": 0.2, "server_lr": 0.5}, {"lr": 0.3}, {"lr": 0.4}]
    result = sweep_of(trial, configurations, KEYS[:2], devices=jax.devices()[:3])
    assert [run.configuration for run in result.runs[::2]] == configurations
    assert_equals_single_runs(result, trial, DOUBLE)


@pytest.mark.slow
def test_adaptive_server_in_narrow_blocks(x64):
    """Weighted by examples; the budget is what a block of all configurations just exceeds."""
    task = logistic_task(fs.full_batch(4))
    trial = logistic_trial(
        fs.fedadam, schedules(task, 1)[:3], 1, task=task, weighting=fs.weight_by_examples
    )
    plans = []
    grid = {"lr": LRS, "server_lr": [0.01, 0.1], "eps": [1e-2]}
    for memory in (None, lambda: plans[0].bytes_per_device - 1):
        result = sweep_of(
            trial,
            grid,
            KEYS[:1],
            devices=ONE_DEVICE,
            memory=memory and memory(),
            progress=lambda news: plans.append(news) if news.round == 0 else None,
        )
    wide, narrow = plans
    assert wide.plan.width == 6
    assert narrow.plan.width < 6
    assert narrow.bytes_per_device <= narrow.budget == wide.bytes_per_device - 1
    assert_equals_single_runs(result, trial, DOUBLE)


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 4])
def test_single_precision_and_stale_versions(num_devices):
    """Some clients start from the model before the last; 27 runs in 3 blocks or more."""
    trial = quadratic_trial(num_rounds=8)
    timeline = trial.setup.timeline
    version = np.maximum(np.arange(8)[:, None] - np.arange(3) % 2, 0)
    stale = dataclasses.replace(timeline, version=version.astype(np.int32), max_staleness=1)
    trial = changed(trial, timeline=stale)
    lrs = np.geomspace(0.01, 0.5, 9).tolist()
    result = sweep_of(trial, {"lr": lrs}, KEYS, devices=jax.devices()[:num_devices])
    assert_equals_single_runs(result, trial, SINGLE)


@pytest.mark.slow
def test_static_groups(x64):
    """Batch size, cohort size, local epochs and number of rounds: groups of their own."""
    made = {}

    def make(batch_size, cohort_size, epochs=1, rounds=3):
        task = logistic_task(fs.epochs(epochs, batch_size))
        timeline = fs.timelines.uniform(
            jax.random.key(5), rounds, NUM_CLIENTS, cohort_size, task.num_steps
        )
        trial = logistic_trial(fs.fedavg, timeline, task=task, eval_every=rounds, num_seeds=1)
        return made.setdefault((batch_size, cohort_size, epochs, rounds), trial).setup

    small = {"batch_size": 4, "cohort_size": 2}
    large = {"batch_size": 9, "cohort_size": 3, "epochs": 2, "rounds": 2}
    configurations = [{**g, "lr": lr} for lr in (0.1, 0.3) for g in (small, large)]
    result = sweep_on(
        ONE_DEVICE, fs.fedavg, make, configurations, KEYS[:1], options=fs.Options(probes=PROBES)
    )
    assert [run.configuration for run in result.runs] == configurations
    assert result.compilations == 2
    for i, trial in enumerate(made.values()):
        group = result._replace(runs=result.runs[i::2])
        assert_equals_single_runs(group, trial, DOUBLE, fixed=large)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [{}, {"cohort_size": [2, 3]}])
def test_grids_without_anything_that_varies_inside_a_program(grid):
    def factory(lr=0.1):
        return fs.fedavg(lr)

    def make(cohort_size=3):
        trial = quadratic_trial(factory)
        steps = trial.setup.task.num_steps
        timeline = fs.timelines.uniform(KEYS[0], 4, NUM_CLIENTS, cohort_size, steps)
        return changed(trial, timeline=timeline)

    def make_setup(cohort_size=3):
        return make(cohort_size).setup

    result = sweep_on(jax.devices()[:2], factory, make_setup, grid, KEYS)
    assert len(result.runs) == 3 * max(len(grid.get("cohort_size", [])), 1)
    for run in result.runs:
        assert_equals_single_runs(
            result._replace(runs=[run]), make(**run.configuration), SINGLE, fixed=grid
        )


@pytest.mark.slow
def test_tidy_rows():
    trial = quadratic_trial(
        num_seeds=1, num_rounds=2, probes=fs.Probes(run={"first": lambda s: s.server.params[0]})
    )
    result = sweep_of(trial, {"lr": [0.1, 0.2]}, KEYS[:1], seeds=["a"])
    rows = list(result.rows())
    # time, local_steps, x/0 and x/1 at two evaluations, and a probe in two rounds
    assert len(rows) == 2 * (4 + 1) * 2
    assert {row[1:3] for row in rows} == {("a", 0)}
    for run in result.runs:
        for done in (1, 2):
            found = {m: v for c, _, _, t, m, v in rows if (c, t) == (run.configuration, done)}
            x = run.history.metrics["x"][done - 1]
            assert (found["x/0"], found["x/1"], found["first"]) == (x[0], x[1], x[0])
            assert found["time"] == done
            assert found["local_steps"] == done * 3 * 3  # clients x steps


@pytest.mark.slow
def test_divergence_is_recorded_and_disturbs_no_other_run(allow_nans):
    """A client step of size 50 multiplies the error by 50: float32 overflows in some rounds."""
    trial = quadratic_trial(num_rounds=12)
    ill = sweep_of(trial, {"lr": [0.1, 50.0, 0.3]}, KEYS, devices=ONE_DEVICE)
    well = sweep_of(trial, {"lr": [0.1, 0.2, 0.3]}, KEYS, devices=ONE_DEVICE)
    for run, other in zip(ill.runs, well.runs, strict=True):
        if run.configuration["lr"] != 50.0:
            assert run.diverged_at == 0
            assert run.configuration == other.configuration
            jax.tree.map(np.testing.assert_array_equal, run.history, other.history)
            continue
        _, diverged_at = alone(trial)(run.configuration, int(run.seed))
        assert run.diverged_at == int(diverged_at)
        assert 2 < run.diverged_at < 12  # in the middle, or nothing is tested
        finite = np.isfinite(run.history.metrics["x"]).all(axis=1)
        np.testing.assert_array_equal(finite, np.arange(1, 13) < run.diverged_at)


@pytest.mark.slow
def test_configurations_of_a_seed_see_the_same_minibatches():
    """The gradient of the j-th parameter says how often example j was drawn, whatever the rate."""
    batches = fs.epochs(1, 2)
    steps = batches.num_steps(SIZES)
    timeline = fs.timelines.uniform(jax.random.key(1), 3, NUM_CLIENTS, 4, steps)
    task, params, probes = row_recorder(SIZES, batches, timeline.max_steps)
    setup = fs.Setup(task, timeline, jnp.stack([params] * 2))
    trial = Trial(fs.fedavg, setup, None, probes)
    result = sweep_of(trial, {"lr": [0.0, 0.1, 3.0]}, KEYS[:2], devices=jax.devices()[:2])
    first, second = (
        recorded_batches(SIZES, batches, timeline, key).mean(axis=1) for key in KEYS[:2]
    )
    assert np.abs(first - second).max() > 0.1
    for run in result.runs:
        # Weights 1/2 and their sums over 4 clients are exact; XLA's mean may round.
        expected = (first, second)[int(run.seed)]
        np.testing.assert_allclose(run.history.probes["rows"], expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_no_more_devices_than_runs():
    """A device without a run of its own would only repeat another's."""
    news, trial = [], quadratic_trial(num_seeds=1)
    result = sweep_of(
        trial, {"lr": [0.1, 0.2]}, KEYS[:1], devices=jax.devices()[:4], progress=news.append
    )
    assert len(result.runs) == 2
    assert {len(blocks) for blocks in news[0].plan.slices} == {2}


@pytest.mark.slow
def test_a_setup_for_every_seed(x64):
    """Each with data of its own; seeds of equal shapes share a program."""
    base = quadratic_trial(num_seeds=2)

    def make_setup(seed, scale=1.0):
        task = jax.tree.map(
            lambda x: x * (1 + seed / 10) * scale if jnp.issubdtype(x.dtype, jnp.floating) else x,
            base.setup.task,
        )
        params = base.setup.params[seed - 4]
        return dataclasses.replace(base.setup, task=task, params=params)

    grid = {"scale": [1.0], "lr": [0.1, 0.2]}
    result = sweep_on(
        ONE_DEVICE, fs.fedavg, make_setup, grid, KEYS[:2], options=fs.Options(seeds=[4, 5])
    )
    assert result.compilations == 1
    assert [(run.configuration["lr"], run.seed) for run in result.runs] == [
        (0.1, "4"), (0.1, "5"), (0.2, "4"), (0.2, "5"),
    ]  # fmt: skip
    for run in result.runs:
        seed = int(run.seed)
        alone = fs.simulate(fs.fedavg(run.configuration["lr"]), make_setup(seed), KEYS[seed - 4])
        history = alone.history
        np.testing.assert_allclose(run.history.metrics["x"], history.metrics["x"], rtol=1e-5)
    frame = result.to_frame()
    assert list(frame) == ["scale", "lr", "seed", "diverged_at", "round", "metric", "value"]
    assert len(frame) == len(list(result.rows()))
    assert set(frame.seed) == {4, 5}


@pytest.mark.slow
def test_bits_are_those_of_each_configuration(tmp_path):
    """MARINA sends whole uploads with a probability that is among the numbers of the grid."""
    data = fs.FederatedData({"y": np.ones((3, 8), np.float32)}, np.array([0, 1, 2, 3]))
    objective = lambda w, batch, key: ((w - batch["y"]) ** 2).sum(-1)  # noqa: E731
    task = fs.empirical_task(objective, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(2, 3, task.num_steps), np.zeros((1, 8), np.float32))
    setup = dataclasses.replace(setup, eval_fn=lambda w: {"norm": jnp.abs(w).max()}, eval_every=2)

    def factory(probability):
        codec = fs.compression.random_k(0.25)
        return fs.marina(fs.fedsgd(0.1), codec, probability)

    chances = [1.0, 0.5, 0.1]
    swept = sweep_on(ONE_DEVICE, factory, setup, {"probability": chances}, KEYS[:1])
    for run, chance in zip(swept.runs, chances, strict=True):
        folder = tmp_path / str(chance)
        fs.simulate(factory(chance), setup, KEYS[:1], storage=folder)
        assert run.bits == tuple(RunFolder(folder).outcome().bits("0", [2]))
    assert swept.runs[0].bits > swept.runs[1].bits > swept.runs[2].bits
