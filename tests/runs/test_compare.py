"""Comparisons: the runs of single simulations, their tables and folders, resuming."""

import concurrent.futures
import dataclasses
import signal
import threading
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from call_records import records
from sweep_problems import compilations, quadratic_trial

import fedjax_sim as fs
from fedjax_sim.runs import comparison, programs

KEYS = jax.random.split(jax.random.key(7), 2)
ALGORITHMS = {"FedAvg, lr 0.1": fs.fedavg(0.1), "scaffold": fs.scaffold(0.1)}
PROBES = fs.Probes(client={"size": lambda visit: visit.work.num_examples.astype(float)})


@pytest.fixture(scope="module")
def setup():
    return quadratic_trial(num_seeds=2, num_rounds=4, eval_every=2).setup


@pytest.fixture(scope="module")
def whole(setup):
    return fs.compare(ALGORITHMS, setup, KEYS, options=fs.Options(probes=PROBES, seeds=[5, 6]))


@pytest.mark.slow
def test_a_comparison_is_its_simulations(setup, whole):
    assert not whole.interrupted
    assert list(whole.simulations) == list(ALGORITHMS)
    for name, algorithm in ALGORITHMS.items():
        alone = fs.simulate(
            algorithm, setup, KEYS, options=fs.Options(probes=PROBES, seeds=["5", "6"])
        )
        (part,) = whole.simulations[name]
        chex.assert_trees_all_equal(part.state, alone.state)
        chex.assert_trees_all_equal(part.history, alone.history)
        chex.assert_trees_all_equal(whole.models()[name], alone.models())
        frame = whole.to_frame().query("algorithm == @name").drop(columns="algorithm")
        pd.testing.assert_frame_equal(frame.reset_index(drop=True), alone.to_frame())


@pytest.mark.slow
def test_the_tidy_frame(whole):
    frame = whole.to_frame()
    assert list(frame) == ["algorithm", "seed", "diverged_at", "round", "metric", "value"]
    assert set(frame.seed) == {5, 6}
    assert set(frame.metric) == {"time", "local_steps", "x/0", "x/1", "size"}
    assert (frame.diverged_at == 0).all()
    last = frame.query("round == 4 and seed == 6 and algorithm == 'scaffold'")
    model = last.set_index("metric").value[["x/0", "x/1"]].to_numpy(np.float32)
    np.testing.assert_array_equal(model, whole.models()["scaffold"][1])


@pytest.mark.slow
def test_a_directory_is_resumed_and_extended(setup, whole, tmp_path):
    seen = []

    def on_progress(progress):
        seen.append((progress.name, progress.round))
        if seen[-1] == ("scaffold", 2):
            signal.raise_signal(signal.SIGINT)

    def go(algorithms, **options):
        return fs.compare(
            algorithms,
            setup,
            KEYS,
            **records(folder=tmp_path, probes=PROBES, seeds=[5, 6], **options),
        )

    stopped = go(ALGORITHMS, progress=on_progress)
    assert stopped.interrupted
    assert seen[-1] == ("scaffold", 2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".lock", "FedAvg-lr-0.1", "algorithms.json", "scaffold"]
    third = {"FedAvg, lr 0.2": fs.fedavg(0.2)}
    finished = []
    follow = types.SimpleNamespace(finished=lambda name, run: finished.append(name))
    resumed = go(ALGORITHMS | third, callbacks=[follow])
    assert finished == list(ALGORITHMS | third)
    assert resumed.simulations["FedAvg, lr 0.1"][0].history is None  # not repeated
    assert resumed.simulations["scaffold"][0].history.round[0].tolist() == [4]
    # The rounds of earlier calls are part of the table and of the models.
    frame = resumed.to_frame().query("algorithm != 'FedAvg, lr 0.2'").reset_index(drop=True)
    pd.testing.assert_frame_equal(frame, whole.to_frame())
    chex.assert_trees_all_equal({k: resumed.models()[k] for k in ALGORITHMS}, whole.models())
    with pytest.raises(ValueError, match="another run: what the algorithm computes has changed"):
        go({"scaffold": fs.scaffold(0.3)})


def test_a_setup_for_every_seed(setup):
    """Seeds whose setups have equal shapes share one program, and each setup is made once."""
    made = []

    def of_seed(seed):
        made.append(seed)
        task = jax.tree.map(
            lambda x: x * (1 + 0.1 * seed) if jnp.issubdtype(x.dtype, jnp.floating) else x,
            setup.task,
        )
        return fs.Setup(task, setup.timeline, setup.params[0], setup.eval_fn, eval_every=2)

    with compilations() as names:
        result = fs.compare({"a": fs.fedavg(0.17)}, of_seed, KEYS)
    assert len([name for name in names if "segment" in name]) == 1
    assert made == [0, 1]
    for seed, part in enumerate(result.simulations["a"]):
        alone = fs.simulate(fs.fedavg(0.17), of_seed(seed), KEYS[seed])
        chex.assert_trees_all_close(part.models()[0], alone.state.server.params, rtol=1e-6)
    assert result.models()["a"].shape == (2, 2)
    assert set(result.to_frame().seed) == {0, 1}


def test_a_setup_for_every_algorithm(setup):
    made = []

    def of_algorithm(algorithm):
        made.append(algorithm)
        rounds = {"short": 2, "long": 4}[algorithm]
        return fs.Setup(setup.task, setup.timeline[:rounds], setup.params)

    result = fs.compare(dict.fromkeys(["short", "long"], fs.fedavg(0.1)), of_algorithm, KEYS)
    assert [result.simulations[name][0].rounds_done for name in ("short", "long")] == [2, 4]
    assert made == ["short", "long"]


def test_seeds_apart_are_refused_in_a_folder_of_seeds_together(setup, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/run.json").write_text('{"replicas": ["0", "1"]}')
    with pytest.raises(ValueError, match="a', which holds a run; expected another folder for a"):
        fs.compare({"a": fs.fedavg(0.1)}, lambda seed: setup, KEYS, storage=tmp_path)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["run.json"]


def _with(setup, **changes):
    return dataclasses.replace(setup, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_algorithms_are_added_on_the_same_setup_and_keys_only(setup, apart, tmp_path):
    """Tables and paired tests of the folder would compare runs on other clients or models."""

    def of(setup):
        one = _with(setup, params=setup.params[0])
        return (lambda seed: one) if apart else setup

    fs.compare({"a": fs.fedavg(0.1)}, of(setup), KEYS, storage=tmp_path)
    before = sorted(tmp_path.rglob("*"))
    other = fs.timelines.full(4, setup.task.num_clients, setup.task.num_steps)
    doubled = jax.tree.map(
        lambda x: 2 * x if jnp.issubdtype(x.dtype, jnp.floating) else x, setup.task
    )

    def tripled(real, *visit):
        oracle = real(*visit)
        return oracle._replace(grad=lambda *x: jax.tree.map(lambda g: 3 * g, oracle.grad(*x)))

    steeper = _with(setup.task, oracle=jax.tree_util.Partial(tripled, setup.task.oracle))
    for changed, keys, seeds, difference in (
        (_with(setup, params=setup.params + 1), KEYS, None, "params"),
        (_with(setup, timeline=other), KEYS, None, "timeline"),
        (_with(setup, task=doubled), KEYS, None, "data"),
        (_with(setup, task=steeper), KEYS, None, "objective"),
        (_with(setup, weighting=lambda work: 2 * setup.weighting(work)), KEYS, None, "weighting"),
        (_with(setup, eval_fn=lambda w: {"norm": 2 * jnp.sum(w)}), KEYS, None, "evaluation"),
        (setup, jax.random.split(jax.random.key(8), 2), None, "key"),
        *([] if apart else [(setup, KEYS, [4, 5], "replicas")]),
    ):
        with pytest.raises(ValueError, match=f"another comparison: {difference} differ from .*a"):
            fs.compare(
                {"b": fs.fedavg(0.2)}, of(changed), keys,
                storage=tmp_path, options=fs.Options(seeds=seeds),
            )  # fmt: skip
        assert sorted(tmp_path.rglob("*")) == before
    shorter = _with(setup, timeline=setup.timeline[:2])
    fs.compare({"b": fs.fedavg(0.2)}, of(shorter), KEYS, storage=tmp_path)
    fs.compare({"c": fs.fedavg(0.3)}, of(setup), KEYS, storage=tmp_path)
    assert set(fs.analysis.read_folder(tmp_path).history.algorithm) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithms": {}}, "algorithms is empty"),
        ({"algorithms": {"a b": fs.fedavg(1.0), "a-b": fs.fedavg(1.0)}}, "'a-b', as of 'a b'"),
        ({"algorithms": {"..": fs.fedavg(1.0)}}, "expected names that differ"),
        (
            {"algorithms": {"mean": fs.fedavg(1.0), "pairs": fs.mime(1.0)}},
            "algorithms has 'pairs': ",
        ),
        ({"keys": KEYS[0]}, r"keys has shape \(\); expected \[n\], .*random.split"),
        (
            {"options": fs.Options(seeds=[1])},
            r"options.seeds is \['1'\]; expected 2 distinct names",
        ),
        ({"setup": lambda sed: None}, "expected parameters among 'seed' and 'algorithm'"),
        (
            {"options": fs.Options(execution={"scafold": None})},
            "has 'scafold'; expected names .*mean scaffold",
        ),
    ],
)
def test_refusals(setup, change, message, tmp_path):
    arguments = {"algorithms": ALGORITHMS, "setup": setup, "keys": KEYS} | change
    with compilations() as names, pytest.raises(ValueError, match=message):
        fs.compare(**records(folder=tmp_path / "results", **arguments))
    assert names == []
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_programs_of_all_algorithms_compile_ahead_in_other_threads():
    compiled = []

    def listen(event, seconds, fun_name="", **details):
        if event.endswith("backend_compile_duration") and "segment" in fun_name:
            compiled.append(threading.current_thread() is threading.main_thread())

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        # Rounds of no other test, whose programs would be known.
        fs.compare(ALGORITHMS, quadratic_trial(num_seeds=2, num_rounds=3, eval_every=3).setup, KEYS)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["cancelled", "failed"])
def test_a_program_that_was_not_compiled_ahead_is_compiled_again(setup, failure, monkeypatch):
    """An earlier comparison in this process was interrupted, or had no memory left."""
    monkeypatch.setattr(programs, "_functions", type(programs._functions)())  # so that it compiles
    compiling = concurrent.futures.Future()
    if failure == "cancelled":
        compiling.cancel()
    else:
        compiling.set_exception(MemoryError())
    first = comparison.trace(comparison.check(ALGORITHMS, setup, KEYS, (), None, fs.Options()))
    first["scaffold"].ahead(types.SimpleNamespace(submit=lambda *_: compiling))
    result = fs.compare(ALGORITHMS, setup, KEYS)
    assert [part.rounds_done for (part,) in result.simulations.values()] == [4, 4]


def test_seconds_of_programs_that_compile_ahead_are_reported(setup, monkeypatch):
    """They compile while the first evaluation does, so a run may wait for none of them."""
    monkeypatch.setattr(programs, "_functions", type(programs._functions)())  # so that it compiles
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = comparison.trace(comparison.check(ALGORITHMS, setup, KEYS, (), None, fs.Options()))
        first["scaffold"].ahead(pool)
    functions = first["scaffold"].compiled.functions  # compiled before anything waits for it
    assert functions.waited == 0
    assert functions.take_seconds() > 0
    assert functions.take_seconds() == 0  # once
