"""Execution strategies: one mean and one set of outputs, for every strategy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import sweep_on
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import (
    COUNT_STEPS,
    KEY,
    NUM_CLIENTS,
    assert_close,
    assert_identical,
    compiled,
    no_data,
)

import fedjax_sim as fs
from fedjax_sim.engine import loops
from fedjax_sim.engine.execution import strategies
from fedjax_sim.runs import programs
from fedjax_sim.runs.sweeps import blocks


def mesh(devices=4, axis="clients"):
    return jax.make_mesh((devices,), (axis,), devices=jax.devices()[:devices])


STRATEGIES = {
    "vmapped": strategies.vmapped(),
    "sequential": strategies.sequential(),
    "chunked_1": strategies.chunked(1),
    "chunked_3": strategies.chunked(3),
    "chunked_8": strategies.chunked(8),
    "chunked_100": strategies.chunked(100),
    "auto": strategies.auto(),
}


def local(shared, slot):
    """Upload: a tree of two shapes; output: who it was and what it saw."""
    upload = {"w": slot["x"] * shared, "b": slot["x"].sum()}
    return upload, {"id": slot["id"], "seen": slot["x"] + shared}


SHARED = jnp.array([1.0, -2.0, 0.5])


def problem(num_slots=8):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_slots, 3)).astype(np.float32)
    weights = rng.integers(1, 5, num_slots).astype(np.float32)
    weights[1::3] = 0  # empty slots
    return {"x": jnp.asarray(x), "id": jnp.arange(num_slots)}, jnp.asarray(weights)


def expected(slots, weights):
    x, w = np.asarray(slots["x"], np.float64), np.asarray(weights, np.float64)
    shared = np.asarray(SHARED, np.float64)
    uploads = {"w": x * shared, "b": x.sum(axis=1)}
    mean = {name: np.tensordot(w, value, 1) / w.sum() for name, value in uploads.items()}
    return mean, {"id": np.asarray(slots["id"]), "seen": np.asarray(slots["x"] + SHARED)}


def execute(strategy, slots, weights):
    return jax.jit(lambda *args: strategy(local, *args))(SHARED, slots, weights)


@pytest.mark.parametrize("name", STRATEGIES)
def test_mean_and_outputs(name):
    slots, weights = problem()
    mean, outputs = execute(STRATEGIES[name], slots, weights)
    expected_mean, expected_outputs = expected(slots, weights)
    # A sum of eight terms in single precision; weights are small integers.
    assert_close(mean, expected_mean, 1e-6)
    assert_identical(outputs, expected_outputs)


@pytest.mark.parametrize("inner", ["vmapped", "sequential", "chunked_3", "auto"])
def test_sharded_mean_and_outputs(inner):
    slots, weights = problem(12)
    mean, outputs = execute(strategies.sharded(mesh(), STRATEGIES[inner]), slots, weights)
    expected_mean, expected_outputs = expected(slots, weights)
    assert_close(mean, expected_mean, 1e-6)
    assert_identical(outputs, expected_outputs)


def test_sharded_work_is_split():
    """Every device holds its share of the outputs; the mean is everywhere."""
    slots, weights = problem()
    mean, outputs = execute(strategies.sharded(mesh()), slots, weights)
    assert {shard.data.shape for shard in outputs["seen"].addressable_shards} == {(2, 3)}
    assert len(outputs["seen"].sharding.device_set) == 4
    assert mean["w"].sharding.is_fully_replicated


def test_sharded_gradient_of_the_message_stays_with_the_client():
    """A client's gradient with respect to the replicated message is its own, not the sum."""

    def descend(shared, slot):
        return jax.grad(lambda m: jnp.sum(m * slot))(shared), ()

    slots = jnp.arange(24.0).reshape(8, 3)
    program = jax.jit(lambda *args: strategies.sharded(mesh())(descend, *args)[0])
    mean = program(SHARED, slots, jnp.ones(8))
    np.testing.assert_array_equal(mean, slots.mean(axis=0))


@pytest.mark.slow
@settings(max_examples=8)
@given(num_slots=st.integers(1, 11), size=st.integers(1, 4))
def test_last_chunk_is_filled_up_without_effect(num_slots, size):
    slots, weights = problem(num_slots)
    weights = weights.at[-1].set(3.0)  # the last client counts
    mean, outputs = strategies.chunked(size)(local, SHARED, slots, weights)
    expected_mean, expected_outputs = expected(slots, weights)
    assert_close(mean, expected_mean, 1e-6)
    assert_identical(outputs, expected_outputs)


@pytest.mark.parametrize("name", ["vmapped", "sequential", "chunked_3"])
def test_empty_leaves_of_slots_and_outputs(name):
    mean, output = STRATEGIES[name](lambda _, x: (x, x), (), jnp.ones((8, 0)), jnp.ones(8))
    assert (mean.shape, output.shape) == ((0,), (8, 0))


@pytest.mark.parametrize("name", [*STRATEGIES, "sharded"])
def test_round_of_weight_zero_has_mean_zero(name):
    strategy = strategies.sharded(mesh()) if name == "sharded" else STRATEGIES[name]
    slots, weights = problem()
    mean, _ = execute(strategy, slots, jnp.zeros_like(weights))
    assert_identical(mean, jax.tree.map(jnp.zeros_like, mean))


@pytest.mark.parametrize("name", [*STRATEGIES, "sharded"])
def test_mean_keeps_the_precision_of_each_leaf(name):
    """A bfloat16 leaf beside a float32 one; weights are float32."""
    strategy = strategies.sharded(mesh()) if name == "sharded" else STRATEGIES[name]

    def mixed(shared, slot):
        return {"half": slot.astype(jnp.bfloat16), "single": slot}, ()

    mean, _ = jax.eval_shape(
        lambda *args: strategy(mixed, *args), SHARED, jnp.ones((8, 3)), jnp.ones(8)
    )
    assert (mean["half"].dtype, mean["single"].dtype) == (jnp.bfloat16, jnp.float32)


def median(uploads, weights):
    del weights
    return jax.tree.map(lambda x: jnp.median(x, axis=0), uploads)


@pytest.mark.parametrize("inner", ["vmapped", "sequential", "chunked_3", "auto", "sharded"])
def test_gathered_median(inner):
    strategy = strategies.sharded(mesh()) if inner == "sharded" else STRATEGIES[inner]
    slots, weights = problem()
    aggregate, outputs = execute(strategies.gathered(median, strategy), slots, weights)
    x = np.asarray(slots["x"])
    np.testing.assert_array_equal(aggregate["w"], np.median(x * np.asarray(SHARED), axis=0))
    assert_identical(outputs, expected(slots, weights)[1])


def test_gathered_gets_all_uploads_and_weights():
    slots, weights = problem()
    uploads, given_weights = strategies.gathered(lambda *args: args)(local, SHARED, slots, weights)[
        0
    ]
    assert uploads["w"].shape == (8, 3)
    np.testing.assert_array_equal(given_weights, weights)


@pytest.mark.parametrize(
    ("platform", "shape", "slots", "replicas", "size"),
    [
        ("cpu", (100,), 1000, 1, 128),  # no more clients than that
        ("cpu", (100,), 128, 1, 128),  # all of them
        ("cpu", (100,), 129, 1, 8),  # 17 chunks that cost 9 each; 9 of 16 would cost 17 each
        ("cpu", (100,), 90, 1, 90),
        ("cpu", (100,), 1000, 50, 16),  # 26 would fit: a power of two
        ("cpu", (4096,), 1000, 1, 32),
        ("cpu", (16384,), 10, 1, 2),  # chunks of 8 or 4 would be filled up by 6 or 2
        ("cpu", (1_000_000,), 8, 1, 1),
        ("cpu", (2, 2, 1, 1), 8, 1, 1),  # a convolution kernel
        ("gpu", (2, 2, 1, 1), 8, 1, 8),
        ("tpu", (10_000_000,), 10, 2, 10),  # 80 MB per client
        ("tpu", (100_000_000,), 10, 2, 2),  # 800 MB: a pair
        ("tpu", (100_000_000,), 1, 2, 1),
        ("tpu", (100_000_000,), 5, 2, 1),  # a pair would be filled up
        ("tpu", (100_000_000,), 9, 2, 2),  # in a larger cohort that costs less than pairs gain
        ("gpu", (100_000_000,), 12, 2, 6),  # equal chunks
        ("gpu", (1_000_000_000,), 8, 1, 2),
        ("tpu", (1_000_000_000,), 8, 10, 1),
    ],
)
def test_auto_chooses_a_chunk_by_platform_and_model(
    monkeypatch, platform, shape, slots, replicas, size
):
    chosen = []

    def spy(size):
        chosen.append(size)
        return strategies.vmapped()

    monkeypatch.setattr(strategies, "chunked", spy)
    auto = strategies.auto(replicas, devices=(), platform=platform)
    jax.eval_shape(
        lambda slots: auto(lambda _, x: (jnp.full(shape, x), ()), (), slots, slots), jnp.ones(slots)
    )
    assert chosen == [size]


@pytest.mark.parametrize(
    ("lowered_for", "choice", "while_loops"),
    # On a CPU: two clients of a convolution, one after the other.
    [("cpu", {}, 1), ("tpu", {}, 0), ("cuda", {}, 0), ("cuda", {"platform": "cpu"}, 1)],
)
def test_auto_without_a_platform_is_decided_when_the_program_is_lowered(
    lowered_for, choice, while_loops
):
    def program(slots):
        auto = strategies.auto(devices=(), **choice)
        return auto(lambda _, x: (jnp.full((2, 2, 1, 1), x), ()), (), slots, slots)

    lowered = jax.jit(program).trace(jnp.ones(2)).lower(lowering_platforms=(lowered_for,))
    assert lowered.as_text().count("stablehlo.while") == while_loops


def test_auto_refuses_an_unknown_platform():
    with pytest.raises(ValueError, match="platform is 'cuda'; expected one of cpu, tpu, gpu"):
        strategies.auto(platform="cuda")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("shape", "data", "state", "num_clients", "devices"),
    [
        ((250,), 10, 0, None, 2),
        ((249,), 10, 0, None, 1),  # the exchange would take longer than the round
        ((250,), 10, 100, 1000, 2),
        ((250,), 10, 100, 3_000_000, 1),  # all clients' states would be copied: 1.2 GB
        ((250,), 10, 400, None, 1),  # and of an unknown number of clients
        ((250,), 300_000_000, 0, 8, 1),  # so would the data
        ((250,), 150_000_000, 0, 8, 2),  # CIFAR in float32
        ((5, 5, 8, 8), 10, 0, None, 2),  # a convolution
    ],
)
@pytest.mark.parametrize("replicas", [1, 5])
def test_auto_divides_clients_among_host_devices(
    monkeypatch, shape, data, state, num_clients, devices, replicas
):
    """Runs that are vmapped divide the least size of a model, and what their states may have."""
    meshes = []

    def spy(mesh, inner):
        meshes.append(mesh)
        return inner

    def local(shared, slot):
        number, state = slot
        return jnp.full(shape, number), state

    monkeypatch.setattr(strategies, "sharded", spy)
    auto = strategies.auto(replicas, jax.devices()[:2], num_clients=num_clients)
    shared = jax.ShapeDtypeStruct((data,), jnp.float32)
    shape, state = (shape[0] // replicas, *shape[1:]), state // replicas
    slots = jnp.ones(8), jnp.ones((8, state))
    jax.eval_shape(lambda shared: auto(local, shared, slots, slots[0]), shared)
    assert [mesh.size for mesh in meshes] == ([devices] if devices > 1 else [])


def temporary_bytes(program, *args):
    analysis = compiled(program).lower(*args).compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def test_chunks_bound_the_memory():
    """All uploads at once are 64 models; one by one, a few; by sixteen, about sixteen."""
    num_params = 10_000
    model = 4 * num_params

    def needed(strategy):
        def upload(shared, slot):
            return jnp.sin(shared * slot), ()

        slots = jnp.arange(64.0)
        return temporary_bytes(
            lambda *args: strategy(upload, *args)[0], jnp.ones(num_params), slots, slots
        )

    assert needed(strategies.vmapped()) >= 64 * model
    assert needed(strategies.sequential()) <= 4 * model
    assert needed(strategies.chunked(16)) <= 20 * model


def test_run_holds_one_upload_at_a_time():
    """A whole run with local steps stores no second upload either."""
    num_params, num_slots = 10_000, 32
    data = fs.FederatedData({"x": np.zeros(2 * num_slots)}, np.arange(0, 2 * num_slots + 1, 2))

    def losses(params, examples, key):
        return jnp.sum(jnp.cos(params)) * jnp.ones_like(examples["x"])

    task = fs.empirical_task(losses, data, fs.full_batch(2))
    timeline = fs.timelines.full(2, num_slots, 2)

    def needed(strategy):
        def final(params, task):
            key = jax.random.key(0)
            return fs.run(
                fs.fedavg(0.1), fs.Setup(task, timeline, params), key, execution=strategy
            )[0]

        return temporary_bytes(final, jnp.ones(num_params), task)

    assert needed(strategies.vmapped()) >= num_slots * 4 * num_params
    assert needed(strategies.sequential()) <= 12 * 4 * num_params


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: strategies.chunked(0), "size is 0; expected at least one client per chunk"),
        (lambda: strategies.chunked(1.5), "size is 1.5; expected an integer"),
        (
            lambda: strategies.sharded(
                mesh(2), strategies.gathered(lambda uploads, weights: uploads)
            ),
            r"inner is gathered\(...\); expected .*: write gathered\(aggregate, sharded",
        ),
        (
            lambda: strategies.sharded(mesh(2, "data")),
            r"axis is 'clients'; expected one of the mesh's \('data',\)",
        ),
    ],
)
def test_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def ragged_timeline(max_steps, steps) -> fs.Timeline:
    timeline = fs.timelines.full(3, NUM_CLIENTS, [max_steps] * NUM_CLIENTS)
    steps = jnp.broadcast_to(jnp.asarray(steps, jnp.int32), timeline.num_steps.shape)
    return dataclasses.replace(timeline, num_steps=steps)


def test_visits_are_ragged_if_most_are_far_shorter_than_the_longest():
    long = [8] * NUM_CLIENTS
    for short, ragged in ((0, False), (NUM_CLIENTS // 2, False), (NUM_CLIENTS - 1, True)):
        timeline = ragged_timeline(8, [1] * short + long[short:])
        assert strategies.is_ragged(timeline) == ragged
    # Empty slots do no steps.
    timeline = ragged_timeline(8, long)
    mask = np.zeros(timeline.mask.shape, bool)
    mask[:, 0] = True
    assert strategies.is_ragged(dataclasses.replace(timeline, mask=mask))
    assert not jax.jit(lambda t: jnp.array(strategies.is_ragged(t)))(ragged_timeline(8, [1] * 8))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["advance", "simulate", "forecast", "sweep"])
def test_ragged_visits_run_one_after_the_other(monkeypatch, way):
    """So that masked steps of short visits cost nothing; the caller passes ``ragged``."""
    asked = []
    original = strategies.auto

    def auto(*arguments, **options):
        asked.append(options.get("ragged", False))
        return original(*arguments, **options)

    for module in (loops, programs, blocks):
        monkeypatch.setattr(module, "auto", auto)
    setup = fs.Setup(no_data(), ragged_timeline(8, [1] * 7 + [8]), jnp.zeros(1))
    if way == "advance":
        jax.eval_shape(lambda key: fs.run(COUNT_STEPS, setup, key), KEY)
    elif way == "simulate":
        fs.simulate(fs.fedavg(0.31), setup, KEY)
    elif way == "forecast":
        fs.forecast(fs.fedavg(0.32), setup, KEY, measure=False)
    else:
        setup = dataclasses.replace(setup, params=jnp.zeros((1, 1)))
        sweep_on(jax.devices()[:1], fs.fedavg, setup, {"lr": [0.1]}, KEY[None])
    assert asked[0] is True


@pytest.mark.parametrize("ragged", [False, True])
def test_auto_runs_ragged_visits_in_sequence(ragged):
    """A loop over clients, not a chunk of them."""
    run = strategies.auto(devices=(), ragged=ragged)

    def mean(x):
        return run(lambda shared, slot: (slot, ()), (), x, jnp.ones(4))[0]

    assert ("scan" in str(jax.make_jaxpr(mean)(jnp.ones((4, 2))))) == ragged


@pytest.mark.parametrize("name", ["vmapped", "sequential", "chunked_3"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_means_in_half_precision(name, dtype):
    """Weights of 3,001 examples would overflow in float16; in bfloat16 a sum of ones stops at 256.

    Weights are rounded to 8 bits there, too.
    """
    values, weights = jnp.full(600, 30.0, dtype), jnp.full(600, 3001.0)
    values = values.at[300:].set(10.0)
    mean, _ = STRATEGIES[name](lambda shared, x: (x, ()), (), values, weights)
    assert mean.dtype == dtype
    assert float(mean) == 20.0
