"""Segments, history on disk, checkpoints: resumed equals uninterrupted, bit for bit."""

import dataclasses
import pathlib
import signal
import subprocess
import sys
import time

import chex
import jax
import jax.numpy as jnp
import killed_run
import numpy as np
import pandas as pd
import processes
import pytest
from call_records import records

import fedjax_sim as fs
from fedjax_sim.engine.execution.strategies import is_ragged
from fedjax_sim.runs import history
from fedjax_sim.runs.simulation import DivergenceError, simulate

SCRIPT = pathlib.Path(killed_run.__file__)


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.array([0, 4, 5, 17, 30], np.int32))

    def objective(w, batch, key):
        del key
        return (batch["x"] @ w - batch["y"]) ** 2

    # Compiles faster than permutations; the timelines make the visits ragged.
    return fs.empirical_task(objective, data, fs.with_replacement(4, num_steps=4))


STEPS = np.array([1, 1, 3, 4])


@pytest.fixture(scope="module")
def timeline(task):
    return fs.timelines.uniform(jax.random.key(0), 11, 4, 2, STEPS)


def norm(w):
    return {"norm": jnp.sum(w**2)}


def read(directory) -> pd.DataFrame:
    return pd.read_csv(pathlib.Path(directory) / "history.csv", dtype={"value": str})


@pytest.mark.slow
def test_segments_equal_run(task, timeline):
    setup = fs.Setup(task, timeline, jnp.zeros(3), eval_fn=norm, eval_every=2)
    algorithm, key = fs.fedavg(0.05), jax.random.key(1)
    whole_state, whole = jax.jit(lambda setup: fs.run(algorithm, setup, key))(setup)
    parts = simulate(algorithm, setup, key, options=fs.Options(segment_seconds=1e-9))
    assert parts.rounds_done == 11
    assert not parts.interrupted
    np.testing.assert_array_equal(parts.history.round, [2, 4, 6, 8, 10, 11])
    # The same operations, but compiled as other programs: equal to float32 rounding.
    np.testing.assert_allclose(parts.history.metrics["norm"], whole.metrics["norm"], rtol=1e-6)
    np.testing.assert_allclose(
        parts.state.server.params, whole_state.server.params, rtol=1e-6, atol=1e-7
    )


@pytest.mark.slow
def test_replicas_equal_single_runs(task):
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    timelines = jax.vmap(lambda k: fs.timelines.uniform(k, 6, 4, 2, STEPS))(keys)
    params = jnp.arange(9.0).reshape(3, 3)
    together = simulate(fs.fedavg(0.05), fs.Setup(task, timelines, params, eval_fn=norm), keys)
    for r in range(3):
        alone = simulate(
            fs.fedavg(0.05),
            fs.Setup(task, jax.tree.map(lambda x, r=r: x[r], timelines), params[r], eval_fn=norm),
            keys[r],
        )
        np.testing.assert_allclose(  # batched matrix products round differently
            together.history.metrics["norm"][r], alone.history.metrics["norm"], rtol=1e-5
        )
        assert together.local_steps > alone.local_steps > 0


@pytest.mark.slow
def test_history_on_disk(task, timeline, tmp_path):
    result = simulate(
        fs.fedavg(0.05),
        fs.Setup(task, timeline, jnp.zeros(3), eval_fn=norm, eval_every=3),
        jax.random.key(1),
        storage=tmp_path,
        options=fs.Options(
            seeds=["seed7"],
            probes=fs.Probes(
                client={"steps": lambda visit: visit.work.num_steps},
                server={"moved": lambda update: jnp.sum(jnp.abs(update.mean))},
            ),
        ),
    )
    frame = pd.read_csv(tmp_path / "history.csv")
    assert list(frame.columns) == list(history.COLUMNS)
    assert set(frame.replica) == {"seed7"}
    wide = frame.pivot(index="round", columns="metric", values="value")
    evaluated = wide["norm"].dropna()
    assert evaluated.index.tolist() == [3, 6, 9, 11]
    # str() of a float32 is its shortest decimal form that reads back equal.
    np.testing.assert_array_equal(
        evaluated.to_numpy().astype(np.float32), result.history.metrics["norm"]
    )
    np.testing.assert_array_equal(wide["time"].dropna(), [3, 6, 9, 11])
    steps = np.asarray(timeline.num_steps)
    np.testing.assert_array_equal(
        wide["local_steps"].dropna(), steps.sum(1).cumsum()[[2, 5, 8, 10]]
    )
    np.testing.assert_allclose(wide["steps"], steps.mean(1))
    np.testing.assert_array_equal(
        wide["moved"].to_numpy().astype(np.float32), result.history.probes["moved"]
    )


@pytest.mark.slow
def test_client_probes_are_averaged_over_those_that_reported(task, tmp_path):
    full = fs.timelines.full(8, 4, STEPS)
    timeline = fs.timelines.dropout(jax.random.key(3), full, 0.5)
    simulate(
        fs.fedavg(0.05),
        fs.Setup(task, timeline, jnp.zeros(3)),
        jax.random.key(1),
        storage=tmp_path,
        options=fs.Options(
            probes=fs.Probes(client={"client": lambda visit: visit.work.client.astype(float)})
        ),
    )
    frame = pd.read_csv(tmp_path / "history.csv").query("metric == 'client'")
    mask = np.asarray(timeline.mask)
    expected = [np.arange(4)[m].mean() if m.any() else np.nan for m in mask]
    np.testing.assert_allclose(frame.value, expected, rtol=1e-6)


@pytest.mark.slow
def test_finished_run_is_not_redone(task, timeline, tmp_path):
    setup = fs.Setup(task, timeline, jnp.zeros(3), eval_fn=norm)
    arguments = fs.fedavg(0.05), setup, jax.random.key(1)
    first = simulate(*arguments, storage=tmp_path)
    before = read(tmp_path)
    again = simulate(*arguments, storage=tmp_path)
    assert again.history is None
    assert again.local_steps == 0
    assert again.compile_seconds == 0
    np.testing.assert_array_equal(again.state.server.params, first.state.server.params)
    pd.testing.assert_frame_equal(read(tmp_path), before)


def own_method(lr):
    """FedAvg under a user's name, with a number that it closes over."""
    base = fs.fedavg(lr)

    def update(state, mean, round):
        return base.update(state, jax.tree.map(lambda x: 2 * lr * x, mean), round)

    return base._replace(update=update)


CHANGES = {  # what run.json names -> arguments that are not those of the first run
    "config": {"config": {"lr": 0.06}},
    "key": {"keys": jax.random.key(2)},
    "timeline": {"timeline": lambda timeline: timeline[:10]},
    "eval_every": {"eval_every": 2},
    "params": {"params": jnp.ones(3)},
    "data": {"task": lambda task: jax.tree.map(lambda x: 2 * x, task)},
    "weighting": {"weighting": fs.weight_by_examples},
    "replicas": {"seeds": ["a"]},
    "eval_initial": {"eval_initial": True},
    "algorithm": {"algorithm": fs.fedavg(0.06)},
    "algorithm with other functions": {"algorithm": fs.fedprox(0.05, mu=0.1)},
    "algorithm of a user": {"algorithm": own_method(0.05)},
}


@pytest.fixture(scope="module")
def finished(task, timeline, tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")

    def start(**changes):
        values = {"task": task, "timeline": timeline, "params": jnp.zeros(3), "config": {"lr": 1}}
        values |= {"algorithm": fs.fedavg(0.05), "keys": jax.random.key(1)}
        values |= {
            k: v(values[k]) if callable(v) and k in ("task", "timeline") else v
            for k, v in changes.items()
        }
        fields = ("task", "timeline", "params", "eval_every", "weighting")
        setup = fs.Setup(**{name: values.pop(name) for name in fields if name in values})
        return simulate(values.pop("algorithm"), setup, **records(folder=directory, **values))

    start()
    return start


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_another_run_is_refused(finished, change):
    name = change.partition(" ")[0]
    differing = "computes has changed" if name in ("algorithm", "weighting") else ".*differ"
    with pytest.raises(ValueError, match=rf"another run: .*\b{name}\b.*{differing}"):
        finished(**CHANGES[change])
    assert finished().history is None  # and the directory still holds the first run


@pytest.mark.slow
def test_interrupted_run_resumes_with_the_same_bits(task, timeline, tmp_path):
    def go(directory, on_progress=None):
        return simulate(
            fs.scaffold(0.05),
            fs.Setup(task, timeline, jnp.zeros(3), eval_fn=norm),
            jax.random.key(1),
            **records(
                progress=on_progress, folder=directory, checkpoint_seconds=1e9, segment_seconds=1e-9
            ),
        )

    def interrupt(progress):
        if progress.round == 4:
            signal.raise_signal(signal.SIGINT)

    whole = go(tmp_path / "whole")
    stopped = go(tmp_path / "stopped", interrupt)
    assert stopped.interrupted
    assert stopped.rounds_done == 4  # the segment in progress was finished, no other begun
    assert read(tmp_path / "stopped")["round"].max() == 4
    resumed = go(tmp_path / "stopped")
    assert resumed.rounds_done == 11
    assert resumed.history.round[0] == 5
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
    assert (tmp_path / "stopped/history.csv").read_bytes() == (
        tmp_path / "whole/history.csv"
    ).read_bytes()


@pytest.mark.slow
def test_killed_run_resumes_with_the_same_bits(tmp_path):
    """SIGKILL at several moments, in the middle of segments and of writes."""
    env = processes.environment(tmp_path / "cache")
    killed_run.main(str(tmp_path / "whole"))
    expected = (tmp_path / "whole/history.csv").read_bytes()
    killed = tmp_path / "killed"
    for delay in (0.0, 0.031):
        process = subprocess.Popen([sys.executable, SCRIPT, killed, "0.02"], env=env)
        seen = _size(killed)
        deadline = time.monotonic() + 120
        while _size(killed) <= seen and process.poll() is None:  # until it has made progress
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
        process.wait()
    rounds = read(killed)["round"]
    assert 0 < rounds.max() < 40, "the kills came too late to test anything"
    written = (killed / "history.csv").read_bytes()
    # What a kill leaves is a beginning of the true history, but for a torn last row.
    whole_rows = written[: written.rfind(b"\n") + 1]
    assert expected.startswith(whole_rows)
    killed_run.main(str(killed))
    assert (killed / "history.csv").read_bytes() == expected


def _size(directory) -> int:
    path = directory / "history.csv"
    return path.stat().st_size if path.exists() else 0


@pytest.fixture
def diverging(task):
    """Two replicas of which the second starts so far out that it overflows in a few rounds."""
    timeline = fs.timelines.full(12, 4, STEPS)
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    params = jnp.array([[0.0, 0.0, 0.0], [3e38, 3e38, 3e38]])

    def go(**options):
        return simulate(
            fs.fedavg(lambda round: 0.05),
            fs.Setup(task, timeline, params, eval_fn=norm),
            keys,
            **records(checkpoint_seconds=0, segment_seconds=1e-9, **options),
        )

    return go


@pytest.mark.slow
def test_divergence_raises_and_names_the_round(allow_nans, task, tmp_path):
    timeline = fs.timelines.full(12, 4, STEPS)

    def go(on_divergence, folder=None):
        return simulate(
            fs.fedavg(lambda round: jnp.where(round < 5, 0.01, 1e30)),
            fs.Setup(task, timeline, jnp.zeros(3), eval_fn=norm),
            jax.random.key(0),
            callbacks=[fs.callbacks.Divergence(on_divergence)],
            storage=fs.Storage(tmp_path / (folder or on_divergence), checkpoint_seconds=0),
            options=fs.Options(segment_seconds=1e-9),
        )

    with pytest.raises(DivergenceError, match=r"0 in round 6; the last good checkpoint is round 5"):
        go("raise")
    assert read(tmp_path / "raise")["round"].max() == 6  # nothing computed is lost
    stopped = go("stop")
    assert (stopped.rounds_done, int(stopped.state.diverged_at)) == (6, 6)
    recorded = go("record")
    assert (recorded.rounds_done, int(recorded.state.diverged_at)) == (12, 6)
    again = go("stop")  # does not continue
    assert (again.rounds_done, again.stopped, again.history) == (6, True, None)
    for folder, last in (("stop", 6), ("record", 12)):
        with pytest.raises(DivergenceError, match=f"earlier call recorded .* of round {last} in"):
            go("raise", folder)


@pytest.mark.slow
def test_one_diverging_replica_does_not_stop_the_others(allow_nans, diverging):
    result = diverging(divergence="stop")
    assert result.rounds_done == 12
    first, second = np.asarray(result.state.diverged_at)
    assert first == 0
    assert second > 0
    assert np.isfinite(result.history.metrics["norm"][0]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"divergence": "ignore"}, "action is 'ignore'"),
        ({"seeds": ["a", "b"]}, "options.seeds is"),
        ({"timeline": fs.timelines.full(2, 4, 1)[:0]}, r"clients has shape \(0, 4\); expected"),
        ({"params": {"w": "model.npz"}}, r"params\['w'\] is 'model.npz'; expected an array"),
        ({"params": jnp.zeros(4)}, r"objective fails for parameters \. float32\[4\] and a batch"),
        ({"keys": jax.vmap(jax.random.key)(jnp.arange(2))}, "params has leaves of shapes"),
    ],
)
def test_bad_arguments_are_refused(task, timeline, options, message):
    setup = fs.Setup(task, timeline, jnp.zeros(3))
    fields = {name: value for name, value in options.items() if hasattr(setup, name)}
    rest = {name: value for name, value in options.items() if name not in fields}
    setup = dataclasses.replace(setup, **fields)
    with pytest.raises(ValueError, match=message):
        simulate(fs.fedavg(0.1), setup, **records(**({"keys": jax.random.key(0)} | rest)))


@pytest.mark.slow
def test_ragged_replicas_equal_single_runs(task):
    """On a CPU they run one after the other, so that short visits stay short."""
    keys = jax.random.split(jax.random.key(3), 2)
    steps = np.array([1, 1, 1, 9])
    timelines = jax.vmap(lambda k: fs.timelines.uniform(k, 3, 4, 3, steps))(keys)
    assert is_ragged(timelines)
    setup = fs.Setup(task, timelines, jnp.ones((2, 3)), eval_fn=norm)
    together = simulate(fs.scaffold(0.05), setup, keys)
    for r in range(2):
        timeline = jax.tree.map(lambda x, r=r: x[r], timelines)
        one = dataclasses.replace(setup, timeline=timeline, params=setup.params[r])
        alone = simulate(fs.scaffold(0.05), one, keys[r])
        mine = jax.tree.map(lambda x, r=r: x[r], (together.state, together.history))
        chex.assert_trees_all_close(mine, (alone.state, alone.history), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shared_timeline", [False, True])
def test_replicas_with_convolutions_run_one_after_the_other(shared_timeline):
    """Kernels have four dimensions; each seed computes the bits of a single run."""
    data = fs.FederatedData({"y": np.arange(6, dtype=np.float32)}, np.array([0, 2, 6]))
    objective = lambda w, batch, key: (batch["y"] - w.sum()) ** 2  # noqa: E731
    task = fs.empirical_task(objective, data, fs.with_replacement(2, num_steps=2))
    keys = jax.random.split(jax.random.key(3), 2)
    timelines = jax.vmap(lambda k: fs.timelines.uniform(k, 3, 2, 1, 2))(keys)
    if shared_timeline:
        timelines = jax.tree.map(lambda x: x[0], timelines)
    setup = fs.Setup(task, timelines, jnp.arange(8.0).reshape(2, 1, 1, 2, 2) / 9, eval_fn=norm)
    together = simulate(fs.scaffold(0.05), setup, keys)
    for r in range(2):
        timeline = timelines if shared_timeline else jax.tree.map(lambda x, r=r: x[r], timelines)
        one = dataclasses.replace(setup, timeline=timeline, params=setup.params[r])
        alone = simulate(fs.scaffold(0.05), one, keys[r])
        mine = jax.tree.map(lambda x, r=r: x[r], (together.state, together.history))
        chex.assert_trees_all_equal(mine[0], alone.state)
        # Of the evaluation, XLA may fuse the sum differently: one unit in the last place.
        chex.assert_trees_all_close(mine[1], alone.history, rtol=2e-7)
