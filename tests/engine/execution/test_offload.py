"""Examples and states on the host: the bits of a resident run, and no more memory than allowed."""

import dataclasses
import functools
import itertools
import threading
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import records
from hypothesis import given
from hypothesis import strategies as st
from optimised import run_optimised
from small_problems import (
    KEY,
    NUM_CLIENTS,
    SIZES,
    assert_identical,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
)

import fedjax_sim as fs
from fedjax_sim.data import source
from fedjax_sim.engine.execution import offload
from fedjax_sim.runs.storage.identity import source_digest
from fedjax_sim.runs.storage.run_functions import trace_run
from fedjax_sim.runs.storage.run_identity import identify
from fedjax_sim.timelines import sampling

BATCHES = fs.with_replacement(2, num_steps=3)  # compiles faster than permutations
ROUNDS = 13
ROW = 4 * (3 + 1)  # three features and a label, single precision
ENOUGH = 2 * ROW * int(SIZES.sum())
LARGEST = 17  # examples of the clients per round, at most
MEMORIES = [ENOUGH, 2 * ROW * 25, 2 * ROW * LARGEST]


def host_task(memory=ENOUGH, data=None, batches=BATCHES, **options):
    data = logistic_data() if data is None else data
    where = offload.on_host(memory, **options)
    return fs.empirical_task(logistic_losses, data, batches, placement=where)


@functools.cache
def timeline():
    drawn = sampling.uniform(
        jax.random.key(3), ROUNDS, NUM_CLIENTS, 3, logistic_task(BATCHES).num_steps
    )
    return sampling.dropout(jax.random.key(4), drawn, 0.2)


def norm(params):
    return {"norm": jnp.linalg.norm(params["w"])}


def train(task, algorithm=None, key=KEY, schedule=None, params=None, **options):
    settings = {
        "segment_seconds": 1e-9,
        "probes": fs.Probes(client={"steps": lambda visit: visit.work.num_steps}),
    }
    algorithm = fs.scaffold(0.1) if algorithm is None else algorithm
    params = logistic_params() if params is None else params
    schedule = timeline() if schedule is None else schedule
    setup = fs.Setup(task, schedule, params, eval_fn=norm, eval_every=4)
    return fs.simulate(algorithm, setup, key, **records(**settings | options))


@functools.cache
def resident():
    return train(logistic_task(BATCHES))


def assert_same_run(found, expected):
    assert_identical(found.state, expected.state)
    assert_identical(found.history, expected.history)
    assert found.rounds_done == expected.rounds_done


@pytest.mark.slow
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("memory", MEMORIES[:2])
def test_the_bits_of_a_resident_run(memory, states):
    """With as many rounds per load as a segment has, and with a few."""
    assert_same_run(train(host_task(memory, states=states)), resident())


@pytest.mark.slow
def test_the_bits_of_a_resident_run_with_one_round_per_load():
    """With optimisation, as users have it: without it, last bits of such programs differ."""
    script = """
import test_offload as here
for states in (False, True):
    task = here.host_task(here.MEMORIES[2], states=states)
    here.assert_same_run(here.train(task), here.resident())
"""
    run_optimised(__file__, script)


def test_memory_decides_the_rounds_of_a_load():
    lengths = {}
    for memory in MEMORIES:
        made = offload.plan(host_task(memory), timeline(), 0, 4, 8)
        assert made.rows * ROW * 2 <= memory
        lengths[memory] = max(load.last - load.first for load in made.loads)
    assert list(lengths.values()) == [8, 4, 1]


@given(
    done=st.integers(0, ROUNDS),
    eval_every=st.integers(1, 5),
    evaluations=st.integers(1, 3),
    rows=st.integers(LARGEST, 40),
)
def test_loads_cover_what_is_left_and_end_where_it_is_evaluated(
    done, eval_every, evaluations, rows
):
    """From any round on, since a run may have been interrupted between two evaluations."""
    stride = eval_every * evaluations
    made = offload.plan(host_task(2 * ROW * rows), timeline(), done, eval_every, stride)
    covered = list(itertools.chain(*(range(load.first, load.last) for load in made.loads)))
    assert covered == list(range(done, ROUNDS))
    for load in made.loads:
        # A segment ends with a load, so one with an evaluation ends there.
        assert 0 < load.last - load.first <= made.length <= stride
        inside = [t for t in range(load.first + 1, load.last + 1) if t % eval_every == 0]
        assert not inside or load.last in (inside[-1], ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("states", [False, True])
def test_several_seeds(states):
    """Each with its own cohorts: a load holds the clients of all."""
    keys = jax.random.split(KEY, 2)
    params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), logistic_params())
    steps = logistic_task(BATCHES).num_steps
    schedules = [sampling.uniform(k, ROUNDS, NUM_CLIENTS, 2, steps) for k in keys]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *schedules)
    options = {"key": keys, "schedule": batch, "params": params}
    found = train(host_task(2 * ROW * 35, states=states), **options)
    assert_same_run(found, train(logistic_task(BATCHES), **options))


@pytest.mark.slow
@pytest.mark.parametrize("states", [False, True])
def test_resumed_equals_uninterrupted(tmp_path, states):
    """Stopped after a segment; the checkpoint holds the states of all clients."""
    task = host_task(MEMORIES[1], states=states)

    def stop(progress):
        if progress.round == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(task, folder=tmp_path, checkpoint_seconds=0, progress=stop)
    found = train(task, folder=tmp_path)
    assert found.rounds_done == ROUNDS
    assert_identical(found.state, resident().state)
    assert threading.active_count() < 20  # loading threads have ended


class Kept(NamedTuple):
    """A client's state with the kinds of leaves that a pytree may have."""

    key: jax.Array
    visits: jax.Array
    upload: dict
    nothing: tuple | None


def keeping():
    """FedAvg whose clients add noise by a key of their own, which follows from visit to visit."""
    inside = fs.fedavg(0.1)

    def first(params):
        half = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.bfloat16), params)
        return Kept(jax.random.key(5), jnp.zeros((), jnp.int32), half, None)

    def local(message, state, oracle, work):
        upload, _ = inside.local(message, (), oracle, work)
        key, drawn = jax.random.split(jax.random.fold_in(state.key, work.client))
        upload = fs.tree.add(upload, fs.tree.normal(drawn, 0.1, upload))
        half = fs.tree.cast_like(upload, state.upload)
        return upload, Kept(key, state.visits + 1, half, None)

    return inside._replace(local=local, init_client=first)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, 2])
def test_states_with_keys(tmp_path, seeds):
    """NumPy has no keys; several seeds, each with clients of its own, and a resumed run."""
    key, params = KEY, logistic_params()
    if seeds:
        key = jax.random.split(KEY, seeds)
        params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
    task, options = host_task(states=True), {"key": key, "params": params}

    def stop(progress):
        if progress.round == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(task, keeping(), folder=tmp_path, checkpoint_seconds=0, progress=stop, **options)
    found = train(task, keeping(), folder=tmp_path, **options)
    expected = train(logistic_task(BATCHES), keeping(), **options)
    words = jax.random.key_data(found.state.clients.key)
    np.testing.assert_array_equal(words, jax.random.key_data(expected.state.clients.key))
    assert len(np.unique(words.reshape(-1, 2), axis=0)) > 2 * NUM_CLIENTS // 3
    without = [run.state.clients._replace(key=None) for run in (found, expected)]
    assert_identical(*without)
    assert_identical(found.state.server, expected.state.server)


def test_the_identity_of_a_run_has_examples_objective_and_minibatches():
    def identity(data=None, batches=BATCHES, objective=logistic_losses, memory=ENOUGH):
        data = logistic_data() if data is None else data
        where = offload.on_host(memory)
        task = fs.empirical_task(objective, data, batches, placement=where)
        setup = fs.Setup(task, timeline(), logistic_params())
        traces = trace_run(fs.fedavg(0.1), setup, batched=False)
        return identify(traces, None, None, setup, KEY, ["0"]).values

    def differing(**changes):
        first, other = identity(), identity(**changes)
        return {name for name in first if first[name] != other[name]}

    def doubled(params, batch, key):
        return 2 * logistic_losses(params, batch, key)

    changed = logistic_data()
    examples = {k: np.array(v) for k, v in changed.examples.items()}
    next(iter(examples.values()))[-1] += 1
    changed = fs.FederatedData(examples, changed.offsets)
    assert differing(memory=2 * ENOUGH) == set()  # other loads, the same run
    assert differing(data=changed) == {"source"}
    assert differing(objective=doubled) == {"objective"}
    assert differing(batches=fs.with_replacement(1, num_steps=3)) == {"objective"}


def test_a_large_source_is_identified_by_some_clients():
    loaded = []

    def load(start, stop):
        loaded.append(start)
        return np.zeros((stop - start, 1), np.float32)

    source_digest(source.ClientSource(np.ones(100, int), load), most_bytes=40)
    assert loaded == [0, *range(0, 100, 10)]  # 400 bytes; the first load is of no client


@pytest.mark.slow
def test_another_objective_or_other_examples_are_refused(tmp_path):
    """The command of a run with examples on the host, again with other data."""
    train(host_task(), folder=tmp_path)
    data = logistic_data()
    negated = fs.FederatedData({k: -v for k, v in data.examples.items()}, data.offsets)
    with pytest.raises(ValueError, match="another run: source differ"):
        train(host_task(data=negated), folder=tmp_path)
    with pytest.raises(ValueError, match="another run: what the objective computes"):
        train(host_task(batches=fs.with_replacement(1, num_steps=3)), folder=tmp_path)


@pytest.mark.slow
def test_clients_of_a_load_are_read_once_and_the_next_ones_meanwhile():
    data, asked = logistic_data(), []

    def load(start, stop):
        if stop > start:
            asked.append((start, threading.current_thread() is threading.main_thread()))
        return source.from_data(data).load(start, stop)

    given = source.ClientSource(np.asarray(data.sizes), load)
    train(host_task(MEMORIES[1], given))
    made = offload.plan(host_task(MEMORIES[1]), timeline(), 0, 4, 8)
    expected = [
        int(client)
        for load in made.loads
        for client in offload._clients(timeline(), load.first, load.last)
    ]
    assert [client for client, _ in asked] == expected
    assert not any(in_main for _, in_main in asked)


@pytest.mark.slow
def test_a_file_is_read_as_it_is_needed(tmp_path):
    data = logistic_data()
    for name, value in data.examples.items():
        np.save(tmp_path / f"{name}.npy", value)
    maps = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in data.examples}
    mapped = fs.FederatedData(maps, data.offsets)
    assert_same_run(train(host_task(data=mapped)), resident())


def test_a_failing_source_ends_the_run():
    data = logistic_data()

    def load(start, stop):
        if start == 5:
            raise OSError("disk gone")
        return source.from_data(data).load(start, stop)

    given = source.ClientSource(np.asarray(data.sizes), load)
    with pytest.raises(OSError, match="disk gone"):
        train(host_task(data=given))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [-1, 2])
def test_labels_without_an_output_are_refused_when_they_are_loaded(wrong):
    """JAX would clamp them.  The round before, without the client of the label, has run."""
    data = fs.FederatedData(
        {"x": np.ones((6, 3), np.float32), "y": np.array([0, 1] * 3)}, [0, 3, 6]
    )
    data.examples["y"][5] = wrong
    objective = fs.objectives.cross_entropy(lambda params, x: x @ params["w"])
    params = {"w": np.zeros((3, 2), np.float32)}
    drawn = fs.timelines.full(2, 2, 1)
    drawn = dataclasses.replace(drawn, mask=np.array([[True, False], [True, True]]))
    done = []

    def run():
        where = offload.on_host(2 * 6 * ROW)
        task = fs.empirical_task(objective, data, BATCHES, placement=where)
        setup = fs.Setup(task, drawn, params, eval_fn=norm)
        fs.simulate(
            fs.fedavg(0.1), setup, KEY, callbacks=[types.SimpleNamespace(progress=done.append)]
        )

    low, high = min(wrong, 0), max(wrong, 1)
    with pytest.raises(ValueError, match=rf"labels {low} .. {high}; expected 0 .. 1"):
        run()
    assert [progress.round for progress in done] == [1]
    data.examples["y"][5] = 1
    run()
    assert [progress.round for progress in done[1:]] == [1, 2]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: offload.on_host(0), r"memory is 0; expected 1 \.\. 2\^63 - 1 bytes"),
        (
            lambda: train(host_task(2 * ROW)),
            f"memory of on_host is {2 * ROW} bytes; expected at least {MEMORIES[2]}: the examples "
            "of the largest round's clients, twice",
        ),
        (
            lambda: fs.run(
                fs.fedavg(0.1), fs.Setup(host_task(), timeline(), logistic_params()), KEY
            ),
            "task has its examples on the host; expected a call of simulate",
        ),
        (
            lambda: train(
                host_task(states=True), probes=fs.Probes(run={"rows": lambda state: state.round})
            ),
            r"probes.run is \['rows'\]; expected none, since the clients' states are on the host",
        ),
        (lambda: host_task().oracle(0, KEY, 1), "task has its examples on the host"),
    ],
)
def test_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_two_loads_at_most_take_turns_in_two_buffers():
    task, done = host_task(MEMORIES[2]), []
    made = offload.plan(task, timeline(), 0, 1, 1)

    class Result:
        """Result of running rounds; records that somebody waited for it."""

        def __init__(self, number):
            self.number = number

        def block_until_ready(self):
            done.append(self.number)

    places = []
    with offload.Feed(task, timeline(), made, logistic_params()) as feed:
        for number, (_, _, loaded) in enumerate(feed.loads(0, ROUNDS)):
            # Before the next one is loaded, those before the last have ended.
            assert done == list(range(number - 1))
            places.append(loaded.oracle.args[0].examples["x"].unsafe_buffer_pointer())
            feed.started(Result(number))
    assert len(places) == ROUNDS
    assert set(places[::2]) == {places[0]}
    assert set(places[1::2]) == {places[1]}
    assert places[0] != places[1]


@pytest.mark.slow
def test_double_precision_within_its_context(x64):
    """The context is per thread, and examples are loaded by another thread."""
    batches = fs.epochs(2, 2)
    found = train(host_task(2 * ENOUGH, batches=batches))
    assert found.state.server.params["w"].dtype == jnp.float64
    assert_same_run(found, train(logistic_task(batches)))


def test_a_sweep_is_refused():
    setup = fs.Setup(host_task(), timeline(), jax.tree.map(lambda x: x[None], logistic_params()))
    with pytest.raises(ValueError, match=r"setup.task has its examples on the host .*; expected"):
        fs.sweep(fs.fedavg, setup, {"lr": [0.1]}, KEY[None])
