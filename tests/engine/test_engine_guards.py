"""Guards of the engine: empty slots that are not finite, timelines that contradict themselves,
uploads that cannot be averaged, schedules and keys of stale or equal visits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import KEY, NUM_CLIENTS, execute, no_data, upload_algorithm

import fedjax_sim as fs
from fedjax_sim.engine.execution import strategies
from fedjax_sim.local import rate

STRATEGIES = [strategies.vmapped(), strategies.sequential(), strategies.chunked(2)]


def timeline(num_rounds=3):
    return fs.timelines.cyclic(num_rounds, NUM_CLIENTS, 4, num_steps=2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_upload_of_an_empty_slot_need_not_be_finite(allow_nans, strategy):
    """0 / 0 in a slot without steps must not reach the mean by way of 0 * NaN."""
    mask = jnp.array([[True, False, True, True]])
    one = dataclasses.replace(timeline(1), mask=mask)
    ratio = upload_algorithm(lambda message, work: work.num_steps / work.num_steps)
    state, _ = execute(ratio, one, execution=strategy)
    np.testing.assert_array_equal(state.server.params, 1.0)


@pytest.mark.parametrize(
    "weights",
    # The sum of the last ones is infinite, by which the mean would be 0.
    [lambda work: jnp.nan, lambda work: work.client - 2, lambda work: jnp.float32(1e38)],
    ids=["nan", "negative", "overflow"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_of_no_mean_are_a_divergence(allow_nans, strategy, weights):
    """A run with weights such as 0 / 0 or -1 must not end as one whose model is right."""
    setup = fs.Setup(no_data(), timeline(3), jnp.zeros(()), weighting=weights)
    one = upload_algorithm(lambda message, work: jnp.ones(()))
    state, _ = fs.run(one, setup, KEY, execution=strategy)
    assert int(state.diverged_at) == 1


def test_advance_refuses_a_timeline_without_rounds():
    setup = fs.Setup(no_data(), timeline(3), jnp.zeros(()))
    algorithm = upload_algorithm(lambda message, work: jnp.ones(()))
    state, _ = fs.run(algorithm, setup, KEY)
    rest = dataclasses.replace(setup, timeline=setup.timeline[3:])
    with pytest.raises(ValueError, match=r"setup\.timeline has 0 rounds; expected at least 1"):
        fs.advance(algorithm, rest, state, KEY)


def test_sharded_fills_up_a_cohort_that_the_devices_do_not_divide():
    mesh = jax.make_mesh((4,), ("clients",), devices=jax.devices()[:4])
    slots, weights = jnp.arange(1.0, 7.0), jnp.array([1.0, 1, 0, 2, 1, 1])

    def local(shared, slot):
        return slot * shared, slot + 1

    program = jax.jit(lambda *args: strategies.sharded(mesh)(local, *args))
    mean, outputs = program(jnp.array(2.0), slots, weights)
    np.testing.assert_allclose(mean, 2 * (1 + 2 + 8 + 5 + 6) / 6, rtol=1e-6)
    np.testing.assert_array_equal(outputs, slots + 1)


def test_integer_uploads_are_refused():
    counts = upload_algorithm(lambda message, work: work.num_steps)
    with pytest.raises(
        ValueError, match=r"algorithm\.local returns an upload with int32\[\]; expected real float"
    ):
        execute(counts, timeline())


def test_run_probes_see_all_clients_after_the_round():
    seen = upload_algorithm(lambda message, work: jnp.ones(()))._replace(
        init_client=lambda params: jnp.zeros(()),
        local=lambda message, state, oracle, work: (jnp.ones(()), state + 1),
    )
    probes = fs.Probes(run={"visits": lambda state: state.clients})
    _, history = execute(seen, timeline(3), probes=probes)
    assert NUM_CLIENTS == 8
    expected = [[1, 1, 1, 1, 0, 0, 0, 0], [1] * 8, [2, 2, 2, 2, 1, 1, 1, 1]]
    np.testing.assert_array_equal(history.probes["visits"], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"clients": t.clients.at[1, 0].set(t.clients[1, 1])}, "a client twice"),
        (lambda t: {"clients": t.clients + 5}, "has clients 5 .. 12"),
        (lambda t: {"version": t.version + 1}, r"staleness -1 \.\. -1; expected 0 \.\. 0"),
        (
            lambda t: {"version": jnp.zeros_like(t.version)},
            r"staleness 0 \.\. 2; expected 0 \.\. 0",
        ),
        (lambda t: {"num_steps": t.num_steps + 1}, r"is in 3 \.\. 3; expected 0 \.\. 2"),
        (lambda t: {"mask": t.mask[:, :2]}, "fields of shapes"),
        (lambda t: {"time": t.time[:2]}, "fields of shapes"),
    ],
)
def test_contradictory_timelines_are_refused(change, message):
    good = timeline()
    bad = dataclasses.replace(good, **change(good))
    with pytest.raises(ValueError, match=message):
        fs.run(fs.fedavg(0.1), fs.Setup(no_data(), bad, jnp.zeros(())), KEY)


def test_lists_as_timeline_fields_are_arrays():
    good = timeline(2)
    fields = ("clients", "version", "num_steps", "mask", "time")
    lists = dataclasses.replace(good, **{name: getattr(good, name).tolist() for name in fields})
    assert (lists.num_rounds, lists.cohort_size) == (2, 4)
    states = [
        fs.run(fs.fedavg(0.1), fs.Setup(no_data(), t, jnp.zeros(1)), KEY)[0] for t in (good, lists)
    ]
    np.testing.assert_array_equal(states[0].server.params, states[1].server.params)
    with pytest.raises(ValueError, match=r"timeline\.clients is \[\[0, 1\], \[2\]\]; expected an"):
        dataclasses.replace(good, clients=[[0, 1], [2]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": [[0.0, 1.0, 2.0, 3.0]]}, r"timeline\.clients has dtype float64; expected int"),
        ({"mask": [[1, 1, 1, 1]]}, r"timeline\.mask has dtype int64; expected booleans"),
    ],
)
def test_timeline_fields_of_other_types_are_refused(change, message):
    bad = dataclasses.replace(timeline(1), **change)
    with pytest.raises(ValueError, match=message):
        fs.run(fs.fedavg(0.1), fs.Setup(no_data(), bad, jnp.zeros(())), KEY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": [no_data(), no_data()]}, r"setup\.task is a list; expected a fedjax_sim\.Task"),
        ({"timeline": [timeline()]}, r"setup\.timeline is a list; expected a fedjax_sim\.Timeline"),
    ],
)
def test_lists_of_tasks_or_timelines_are_refused(change, message):
    good = fs.Setup(no_data(), timeline(), jnp.zeros(()))
    with pytest.raises(ValueError, match=message):
        fs.run(fs.fedavg(0.1), dataclasses.replace(good, **change), KEY)
    with pytest.raises(ValueError, match=message):
        fs.simulate(fs.fedavg(0.1), dataclasses.replace(good, **change), KEY)


def test_a_client_may_fill_an_empty_slot_beside_its_own():
    """Padding repeats clients; only those that report have to be distinct."""
    good = timeline(1)
    padded = dataclasses.replace(
        good,
        clients=good.clients.at[0, 1].set(good.clients[0, 0]),
        mask=good.mask.at[0, 1].set(False),
    )
    count = upload_algorithm(lambda message, work: jnp.ones(()))
    state, _ = execute(count, padded)
    np.testing.assert_array_equal(state.server.params, 1.0)


def test_the_algorithms_draws_are_not_the_minibatches():
    """`work.key` and the oracle's key are separate branches of the visit's key."""

    def oracle(client, key, max_steps):
        del client, max_steps
        return fs.Oracle(
            grad=lambda params, step: params,
            loss=lambda params, step: jax.random.uniform(key),
            full_grad=lambda params: params,
        )

    probes = fs.Probes(
        client={
            "oracle": lambda visit: visit.oracle.loss(visit.message, 0),
            "work": lambda visit: jax.random.uniform(visit.work.key),
        }
    )
    task = dataclasses.replace(no_data(), oracle=jax.tree_util.Partial(oracle))
    run = jax.jit(
        lambda task: fs.run(
            fs.fedavg(0.1), fs.Setup(task, timeline(), jnp.zeros(())), KEY, probes=probes
        )
    )
    draws = run(task)[1].probes
    both = np.concatenate([np.ravel(draws["oracle"]), np.ravel(draws["work"])])
    assert len(np.unique(both)) == 2 * 3 * 4


def test_rates_of_stale_visits_are_those_of_their_start():
    work = fs.Work(
        round=jnp.array(5), client=0, num_steps=1, num_examples=1, staleness=jnp.array(3),
        key=None, max_steps=1,
    )  # fmt: skip
    assert float(rate(lambda round: 10.0 * round, work)) == 20.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [fs.fedadam, fs.fedadagrad, fs.fedyogi], ids=["adam", "adagrad", "yogi"]
)
def test_derivatives_exist_where_a_gradient_is_always_zero(build):
    """A feature that is 0 in every example, like a border pixel, has no gradient, ever."""
    x = np.array([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], np.float32)
    data = fs.FederatedData({"x": x, "y": x[:, 0]}, np.array([0, 2, 3]))

    def objective(w, batch, key):
        del key
        return (batch["x"] @ w - batch["y"]) ** 2

    task = fs.empirical_task(objective, data, fs.full_batch(2))
    schedule = fs.timelines.full(3, 2, 2)

    def final(lr):
        # optax's decay**count needs standard promotion when differentiated.
        state, _ = fs.run(build(lr, server_lr=0.1), fs.Setup(task, schedule, jnp.zeros(2)), KEY)
        return jnp.sum((state.server.params - 1) ** 2)

    slope = jax.jit(jax.grad(final))(0.1)
    assert np.isfinite(slope)
    assert slope != 0
