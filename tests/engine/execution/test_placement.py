"""Clients' data and states by client on a mesh: the same runs, one all-reduce a round."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import sweep_on
from small_problems import (
    KEY,
    NUM_CLIENTS,
    assert_close,
    assert_identical,
    compiled,
    execute,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
    no_data,
    partial_timeline,
)

import fedjax_sim as fs
from fedjax_sim.data import source
from fedjax_sim.engine.execution import placement, strategies
from fedjax_sim.timelines import sampling

STRATA = 4
BATCHES = fs.with_replacement(2, num_steps=3)  # compiles faster than permutations


def here(devices=4, **options):
    mesh = placement.make_mesh(jax.devices()[:devices])
    return placement.by_client(NUM_CLIENTS, mesh, num_strata=STRATA, **options)


def placed_task(devices=4, data=None, batches=BATCHES):
    data = logistic_data() if data is None else data
    return fs.empirical_task(logistic_losses, data, batches, placement=here(devices))


def timeline():
    """Four slots, one for each stratum of two; some drop out."""
    drawn = sampling.stratified(
        jax.random.key(3), 5, NUM_CLIENTS, 4, logistic_task(BATCHES).num_steps, num_strata=STRATA
    )
    return sampling.dropout(jax.random.key(4), drawn, 0.3)


def train(algorithm, task, schedule=None, **options):
    schedule = timeline() if schedule is None else schedule
    return execute(algorithm, schedule, logistic_params(), task, **options)


def client_rows(state):
    """The states of clients, in order, without rows that belong to none."""
    rows = here().strata.row(np.arange(NUM_CLIENTS))
    return jax.tree.map(lambda x: np.asarray(x)[rows], state.clients)


@functools.cache
def whole_run(weighting):
    return train(fs.scaffold(0.1), logistic_task(BATCHES), weighting=weighting)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "weighting"),
    [
        (1, fs.uniform_weights),
        (2, fs.weight_by_examples),
        (4, fs.uniform_weights),
        (4, fs.weight_by_examples),
    ],
)
def test_any_number_of_devices_trains_the_same_model(devices, weighting):
    whole, _ = whole_run(weighting)
    state, _ = train(fs.scaffold(0.1), placed_task(devices), weighting=weighting)
    # Summed in another order; control variates are differences, whose round-off is the terms'.
    assert_close(state.server, whole.server, 2e-6)
    assert_close(client_rows(state), whole.clients, 2e-6)


@pytest.mark.slow
def test_equal_in_double_precision(x64):
    """Nothing larger than round-off hides behind the tolerance of single precision."""
    batches = fs.epochs(2, 2)
    steps = logistic_task(batches).num_steps
    schedule = sampling.stratified(KEY, 3, NUM_CLIENTS, 4, steps, num_strata=STRATA)
    params = jax.tree.map(lambda x: x.astype(float), logistic_params())
    whole, _ = execute(fs.scaffold(0.1), schedule, params, logistic_task(batches))
    state, _ = execute(fs.scaffold(0.1), schedule, params, placed_task(batches=batches))
    assert_close(state.server, whole.server, 1e-13)
    assert_close(client_rows(state), whole.clients, 1e-13)


@pytest.mark.slow
def test_each_device_holds_its_own_clients():
    task = placed_task()
    state, _ = train(fs.scaffold(0.1), task)
    blocks = task.oracle.args[0]
    for leaf in [
        *jax.tree.leaves(state.clients),
        blocks.offsets,
        *jax.tree.leaves(blocks.examples),
    ]:
        shapes = {shard.data.shape[0] for shard in leaf.addressable_shards}
        assert shapes == {leaf.shape[0] // 4}
    assert state.server.params["w"].sharding.is_fully_replicated


def test_the_largest_stratum_decides_the_rows():
    """Not the population: devices have about equally many examples."""
    sizes = np.asarray(logistic_data().sizes).reshape(STRATA, -1).sum(axis=1)
    assert placed_task().oracle.args[0].examples["y"].shape == (STRATA * sizes.max(),)


@pytest.mark.slow
def test_probes_of_clients_and_server_are_those_of_the_whole():
    probes = fs.Probes(
        client={"size": lambda visit: visit.work.num_examples, "loss": lambda visit: jnp.sum(
            visit.upload["w"])},
        server={"step": lambda update: jnp.sum(update.mean["w"])},
    )  # fmt: skip
    _, whole = train(fs.fedavg(0.1), logistic_task(BATCHES), probes=probes)
    _, found = train(fs.fedavg(0.1), placed_task(), probes=probes)
    mask = np.asarray(timeline().mask)
    for name in ("size", "loss"):
        np.testing.assert_allclose(
            np.asarray(found.probes[name])[mask], np.asarray(whole.probes[name])[mask], rtol=1e-5
        )
    np.testing.assert_allclose(found.probes["step"], whole.probes["step"], rtol=1e-5)


@pytest.mark.slow
def test_evaluations_are_those_of_the_whole():
    options = {"eval_fn": lambda params: {"norm": jnp.linalg.norm(params["w"])}, "eval_every": 2}
    _, whole = train(fs.fedavg(0.1), logistic_task(BATCHES), **options)
    _, found = train(fs.fedavg(0.1), placed_task(), **options)
    assert found.round.tolist() == [2, 4, 5]
    np.testing.assert_allclose(found.metrics["norm"], whole.metrics["norm"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmapped", "sequential", "chunked", "auto"])
def test_strategies_on_each_device(strategy):
    options = {
        "vmapped": strategies.vmapped(), "sequential": strategies.sequential(),
        "chunked": strategies.chunked(2), "auto": strategies.auto(),
    }  # fmt: skip
    schedule = fs.timelines.arrange_by_stratum(partial_timeline(), NUM_CLIENTS, STRATA)
    whole, _ = train(fs.fedavg(0.1), logistic_task(BATCHES), schedule)
    state, _ = train(fs.fedavg(0.1), placed_task(2), schedule, execution=options[strategy])
    assert_close(state.server, whole.server, 1e-6)


@pytest.mark.slow
def test_other_aggregators_see_the_uploads_of_all_devices():
    def largest(uploads, weights):
        return jax.tree.map(
            lambda x: jnp.max(
                jnp.where(jnp.expand_dims(weights, range(1, x.ndim)) > 0, x, -9.0), 0
            ),
            uploads,
        )

    strategy = strategies.gathered(largest, strategies.sequential())
    whole, _ = train(fs.fedavg(0.1), logistic_task(BATCHES), execution=strategy)
    state, _ = train(fs.fedavg(0.1), placed_task(), execution=strategy)
    assert_close(state.server, whole.server, 1e-6)


@pytest.mark.slow
def test_a_batch_of_runs():
    """Vmapped over rates and keys, in one program."""
    keys = jax.random.split(KEY, 2)

    def final(lr, key, task):
        run = fs.run(fs.scaffold(lr), fs.Setup(task, timeline(), logistic_params()), key)
        return run[0].server.params

    rates = jnp.array([0.05, 0.2])
    together = compiled(jax.vmap(final, (0, 0, None)))(rates, keys, placed_task())
    for i in range(2):
        alone = compiled(final)(rates[i], keys[i], logistic_task(BATCHES))
        assert_close(jax.tree.map(lambda x, i=i: x[i], together), alone, 2e-6)


def test_a_task_without_examples_can_have_its_states_by_client():
    """Closed-form oracles are copied; they see the clients' numbers."""
    task = dataclasses.replace(no_data(), placement=here())
    schedule = sampling.full(3, NUM_CLIENTS, 3)
    counts, _ = execute(fs.scaffold(0.1), schedule, jnp.ones(1), task)
    whole, _ = execute(fs.scaffold(0.1), schedule, jnp.ones(1), no_data())
    assert_close(counts.server, whole.server, 1e-6)
    assert_close(client_rows(counts), whole.clients, 1e-6)


@pytest.mark.slow
def test_examples_are_loaded_stratum_by_stratum():
    data, asked = logistic_data(), []

    def load(start, stop):
        asked.append((start, stop))
        return source.from_data(data).load(start, stop)

    task = placed_task(data=source.ClientSource(np.asarray(data.sizes), load))
    assert asked == [(0, 0), (0, 2), (2, 4), (4, 6), (6, 8)]
    state, _ = train(fs.fedavg(0.1), task)
    expected, _ = train(fs.fedavg(0.1), placed_task())
    assert_identical(state.server, expected.server)


@pytest.mark.slow
def test_assigned_examples():
    """By row numbers, whatever the order."""
    data = logistic_data()
    order = np.random.default_rng(0).permutation(data.num_examples)
    mixed = jax.tree.map(lambda x: x[order], data.examples)
    back = np.argsort(order)
    rows = [back[data.offsets[i] : data.offsets[i + 1]] for i in range(NUM_CLIENTS)]
    given = source.assigned(mixed, rows)
    state, _ = train(fs.fedavg(0.1), placed_task(data=given))
    whole, _ = train(fs.fedavg(0.1), fs.empirical_task(logistic_losses, given, BATCHES), timeline())
    expected, _ = train(fs.fedavg(0.1), logistic_task(BATCHES))
    assert_identical(whole.server, expected.server)
    assert_close(state.server, expected.server, 1e-6)


@functools.cache
def collectives() -> dict[str, list[str]]:
    script = pathlib.Path(__file__).parents[2] / "helpers" / "collectives.py"
    flags = "--xla_force_host_platform_device_count=8"
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
    done = subprocess.run(
        [sys.executable, str(script)], env=env, check=True, timeout=300, capture_output=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("fedavg", 0),
        ("fedavg, late", 0),
        ("fedadam", 0),
        ("scaffold", 2),
        ("feddyn", 2),
        ("fedmoswa", 2),
        ("mofedsam", 0),
    ],
)
def test_one_all_reduce_a_round_and_nothing_else(name, states):
    """In the compiled program for eight devices; two leaves of the model have a client state."""
    assert collectives()[name] == ["all-reduce", f"{states} states"]


@pytest.mark.slow
def test_sweep_over_a_second_axis():
    """Blocks of runs over one axis, clients over the other."""
    mesh = jax.make_mesh((2, 2), ("runs", "clients"), devices=jax.devices()[:4])
    where = placement.by_client(NUM_CLIENTS, mesh, num_strata=STRATA)
    params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), logistic_params())
    found = []
    for task in (logistic_task(BATCHES), fs.empirical_task(
        logistic_losses, logistic_data(), BATCHES, placement=where)):  # fmt: skip
        setup = fs.Setup(
            task, timeline(), params, eval_every=5,
            eval_fn=lambda params: {"norm": jnp.linalg.norm(params["w"])},
        )  # fmt: skip
        grid = {"lr": [0.02, 0.1, 0.5]}
        keys = jax.random.split(KEY, 2)
        done = sweep_on(jax.devices()[:4], fs.scaffold, setup, grid, keys)
        found.append(list(done.rows()))
    for placed, whole in zip(found[1], found[0], strict=True):
        assert placed[:-1] == whole[:-1]
        assert placed[-1] == pytest.approx(whole[-1], rel=2e-6)
    assert len({row[-1] for row in found[0]}) >= 6


def test_sweep_refuses_a_mesh_with_more_axes():
    mesh = jax.make_mesh((2, 1, 2), ("a", "b", "clients"), devices=jax.devices()[:4])
    task = dataclasses.replace(no_data(), placement=placement.by_client(NUM_CLIENTS, mesh))
    schedule = sampling.full(1, NUM_CLIENTS, 3)
    setup = fs.Setup(task, schedule, jnp.ones((1, 1)))
    with pytest.raises(ValueError, match="expected at most one besides 'clients'"):
        fs.sweep(fs.fedavg, setup, {"lr": [0.1]}, jax.random.split(KEY, 1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: here(axis="rows"), r"axis is 'rows'; expected one of the mesh's \('clients',\)"),
        (
            lambda: placement.by_client(8, placement.make_mesh(jax.devices()[:4]), num_strata=6),
            "num_strata is 6; expected a multiple of the 4 devices of the mesh's axis 'clients'",
        ),
        (
            lambda: placement.by_client(3, placement.make_mesh(jax.devices()[:4])),
            "num_strata is 4; expected 1 .. num_clients = 3",
        ),
        (
            lambda: fs.empirical_task(
                logistic_losses,
                logistic_data(),
                BATCHES,
                placement=placement.by_client(9, placement.make_mesh(jax.devices()[:1])),
            ),
            "placement is for 9 clients; expected 8, the data's",
        ),
        (
            lambda: fs.run(
                fs.fedavg(0.1), fs.Setup(placed_task(), partial_timeline(), logistic_params()), KEY
            ),
            r"timeline.clients\[\d, \d\] is \d, which is not in stratum \d; expected a timeline",
        ),
        (
            lambda: fs.run(
                fs.fedavg(0.1),
                fs.Setup(placed_task(), sampling.full(1, 7, 1), logistic_params()),
                KEY,
            ),
            "timeline has 7 slots; expected a multiple of the 4 strata",
        ),
        (
            lambda: train(
                fs.fedavg(0.1), placed_task(), probes=fs.Probes(run={"n": lambda s: s.round})
            ),
            r"probes.run is \['n'\]; expected none, since the clients' states are",
        ),
        (
            lambda: placed_task().oracle(0, KEY, 1),
            "task has its data by client on a mesh; expected a call within a run",
        ),
    ],
)
def test_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()
