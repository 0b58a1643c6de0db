"""DiLoCo and streaming DiLoCo against NumPy, their figures, and where they are FedAvg."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, start, visits
from instance_q import FEDAVG, LR, A, B, assert_printed, models
from small_problems import assert_close, compiled

import fedjax_sim as fs
from fedjax_sim.algorithms.streaming_diloco import fragments

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision
SGD = optax.sgd(LR)


def test_diloco():
    lr, server_lr, momentum, decay, b1, b2 = ALGORITHMS["diloco"][1].values()
    x = start()
    kept, velocity = {}, np.zeros_like(x)
    for cohort in visits():
        deltas = []
        for client, batches in cohort:
            y, (m, v, k) = x, kept.get(client, (np.zeros_like(x), np.zeros_like(x), 0))
            for weights in batches:
                g = gradient()(y, weights)
                m, v, k = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2, k + 1
                adam = m / (1 - b1**k) / (np.sqrt(v / (1 - b2**k)) + 1e-8)
                y = y - lr * (adam + decay * y)
            kept[client] = m, v, k
            deltas.append(x - y)
        delta = np.mean(deltas, axis=0)
        velocity = momentum * velocity + delta
        x = x - server_lr * (delta + momentum * velocity)
    assert_close(flat(trained("diloco").server.params), x, TOLERANCE)


def test_sgd_inside_on_instance_q():
    path = models(fs.diloco(local_optimizer=SGD), 200)
    assert_printed(path[:4], "0.55323345", "0.8855929758", "0.9611279696", "0.8731327855")
    assert_printed(path[-1], f"{FEDAVG}")
    rho = 0.62072  # contraction of one round
    matrix = np.array([[1 - 1.33 * rho, -0.567], [rho, 0.9]])
    radius = np.abs(np.linalg.eigvals(matrix)).max()
    assert_printed(radius, "0.7134047939")
    # Outer momentum pays for small rho only: here FedAvg contracts by 1 - rho.
    assert radius > 1 - rho
    errors = np.abs(path[20:60] - FEDAVG)
    # Complex eigenvalues: the errors rotate, so their size is compared over many rounds.
    assert abs(np.polyfit(np.arange(40), np.log(errors), 1)[0] - np.log(radius)) < 0.02


def test_without_outer_momentum_it_is_fedavg():
    path = models(fs.diloco(server_lr=1.0, momentum=0.0, local_optimizer=SGD))
    assert_close(path, models(fs.fedavg(LR)), TOLERANCE)


@pytest.mark.slow
def test_adamw_is_that_of_optax():
    """The rate times the directions of AdamW, whose state each worker keeps."""
    built_in = models(fs.diloco(lr=0.05, b2=0.99), 4, start=0.5)
    given = optax.adamw(0.05, b2=0.99, weight_decay=0.1)
    expected = models(fs.diloco(local_optimizer=given), 4, start=0.5)
    assert_close(built_in, expected, TOLERANCE)
    halving = fs.local.exponential_decay(0.05, 0.5)  # a schedule over rounds
    assert np.abs(models(fs.diloco(lr=halving, b2=0.99), 4, start=0.5)[1] - expected[1]) > 1e-3


def test_muon_inside_does_not_depend_on_the_scale_of_gradients():
    algorithm = fs.diloco(lr=0.1, inner="muon", weight_decay=0.0)
    params = {"w": jnp.ones((2, 3))}
    work = fs.Work(*(jnp.array(0),) * 2, jnp.array(2), *(jnp.array(1),) * 3, max_steps=2)
    deltas = []
    for scale in (1.0, 1e4):
        oracle = fs.Oracle(
            lambda x, k, scale=scale: {"w": scale * (x["w"] - jnp.arange(6.0).reshape(2, 3))},
            lambda x, k: jnp.zeros(()),
            lambda x: x,
        )
        state = algorithm.init_client(params)
        deltas.append(algorithm.local(params, state, oracle, work)[0]["w"])
    np.testing.assert_allclose(*deltas, rtol=1e-5)
    assert np.abs(deltas[0]).max() > 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "lr is None; expected a learning rate, or local_optimizer"),
        ({"lr": 0.1, "local_optimizer": SGD}, "lr is 0.1 beside local_optimizer"),
        ({"lr": 0.1, "inner": "sgd"}, "inner is 'sgd'; expected 'adamw' or 'muon'"),
        ({"local_optimizer": 1}, "local_optimizer is 1; expected an optax"),
    ],
)
@pytest.mark.parametrize("factory", [fs.diloco, fs.streaming_diloco])
def test_refuses_contradictions(factory, arguments, message):
    with pytest.raises(ValueError, match=message):
        factory(**arguments)


# ---- streaming


def two_leaves(num_steps) -> fs.Task:
    """Both leaves are instance Q."""

    def oracle(client, key, max_steps):
        a, b = jnp.asarray(A)[client], jnp.asarray(B)[client]

        def grad(x, step=0):
            return {name: a * (value - b) for name, value in x.items()}

        return fs.Oracle(grad, lambda x, k: jnp.zeros(()), grad)

    return fs.Task(oracle, np.ones(2, np.int32), np.full(2, num_steps))


def streamed(algorithm, steps_per_round):
    """The final state for the given numbers of steps, and the largest of uploads and messages."""
    timeline = fs.timelines.full(len(steps_per_round), 2, max(steps_per_round))
    steps = jnp.broadcast_to(
        jnp.array(steps_per_round, jnp.int32)[:, None], (len(steps_per_round), 2)
    )
    timeline = dataclasses.replace(timeline, num_steps=steps)
    params = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    setup = fs.Setup(two_leaves(max(steps_per_round)), timeline, params)
    return compiled(lambda setup: fs.run(algorithm, setup, jax.random.key(0))[0])(setup)


def followed(num_steps, period, delay, mix, lr, outer, beta):
    """Streaming DiLoCo step by step with two fragments: global and local models."""
    offsets = [0, period // 2]
    glob, velocity, y = np.zeros(2), np.zeros(2), np.zeros((2, 2))
    waiting = {}
    for t in range(1, num_steps + 1):
        y = y - lr * A[:, None] * (y - B[:, None])
        for p, arrival in list(waiting.items()):
            if t == arrival:
                y[:, p] = mix * y[:, p] + (1 - mix) * glob[p]
                del waiting[p]
        for p, offset in enumerate(offsets):
            if t > offset and (t - offset) % period == 0:
                delta = np.mean(glob[p] - y[:, p])
                velocity[p] = beta * velocity[p] + delta
                glob[p] -= outer * (delta + beta * velocity[p])
                waiting[p] = t + delay
    return glob, y


@pytest.mark.slow
def test_streaming_figure():
    """P = 2, H = 4, tau = 1, a = 0.5, the server's rate of DiLoCo, nine steps."""
    glob, y = followed(9, 4, 1, 0.5, LR, 0.7, 0.9)
    assert_printed(glob, "0.7605772", "0.5867634")
    assert_printed(y, "0.4631759", "0.2376392", "0.8405078", "0.8785802")
    algorithm = fs.streaming_diloco(server_lr=0.7, local_optimizer=SGD)
    before = streamed(algorithm, [2] * 4).server.params
    after = streamed(algorithm, [2] * 5)
    assert_close(np.array([before["a"], before["b"]]), glob, TOLERANCE)
    glob, y = followed(10, 4, 1, 0.5, LR, 0.7, 0.9)
    assert_close(np.stack([after.clients.model[name] for name in "ab"], 1), y, TOLERANCE)
    assert_close(np.array([after.server.params[name] for name in "ab"]), glob, TOLERANCE)


def test_one_fragment_without_delay_is_diloco():
    algorithm = fs.streaming_diloco(
        server_lr=0.7, num_fragments=1, delay=0, mix=0.0, local_optimizer=SGD
    )
    state = streamed(algorithm, [5] * 4)
    assert_printed([state.server.params[name] for name in "ab"], *["0.8731327855"] * 2)


def test_schedule_of_the_server_counts_a_fragment_s_synchronisations():
    """A rate that becomes 0 after one: every fragment moves in its first synchronisation only."""
    schedule = optax.piecewise_constant_schedule(0.5, {1: 0.0})
    after = streamed(fs.streaming_diloco(server_lr=schedule, local_optimizer=SGD), [2] * 4)
    one_each = streamed(fs.streaming_diloco(server_lr=0.5, local_optimizer=SGD), [2] * 3)
    assert_close(after.server.params, one_each.server.params, 1e-6)  # the schedule is in float32


def test_fragments_of_a_transformer_have_similar_sizes():
    """Its layers have unequal sizes, and a block has a multiple of four of them."""
    model = fs.models.transformer(65, width=128)
    params = jax.eval_shape(model.init, jax.random.key(0))
    sizes = np.array([leaf.size for leaf in jax.tree.leaves(params)])
    for count in (4, 8):
        largest = np.bincount(fragments(params, count), sizes).max()
        assert largest < 1.1 * sizes.sum() / count


def test_messages_are_fragments():
    """The claim: the largest message is 1 / P of the model."""
    params = {f"layer{i}": {"w": jnp.zeros((10, 3)), "b": jnp.zeros(10)} for i in range(4)}
    sizes = {}
    for count in (1, 2, 4):
        algorithm = fs.streaming_diloco(num_fragments=count, local_optimizer=SGD)

        def visit(params, key, algorithm=algorithm):
            round = fs.Round(jnp.array(5), jnp.array(2), 2, key)
            message = algorithm.broadcast(algorithm.init(params), round)
            oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.zeros(()), lambda x: x)
            work = fs.Work(*(jnp.array(0),) * 2, jnp.array(2), *(jnp.array(1),) * 3, max_steps=2)
            upload, _ = algorithm.local(message, algorithm.init_client(params), oracle, work)
            return message.fragment, upload

        fragment, upload = jax.eval_shape(visit, params, jax.random.key(0))
        sizes[count] = (fragment.size, upload.size)
    assert sizes == {1: (160, 160), 2: (80, 80), 4: (40, 40)}


def test_streaming_refuses_other_timelines_and_fragments():
    algorithm = fs.streaming_diloco(local_optimizer=SGD, delay=3)
    with pytest.raises(ValueError, match="delay is 3; expected less than 2, the steps of a visit"):
        streamed_setup(algorithm, fs.timelines.full(3, 2, 2))
    with pytest.raises(ValueError, match="a round of the timeline has 1 of 2 clients"):
        streamed_setup(algorithm, fs.timelines.cyclic(3, 2, 1, 5))
    full = fs.timelines.full(3, 2, 5)
    empty = dataclasses.replace(full, mask=np.array([[True] * 2, [False] * 2, [True] * 2]))
    streamed_setup(fs.streaming_diloco(local_optimizer=SGD, num_fragments=1), empty)
    with pytest.raises(ValueError, match="a round of the timeline has 0 of 2 clients"):
        streamed_setup(algorithm, empty)
    with pytest.raises(ValueError, match=r"num_fragments is 2; the leaves are in fragments \[0\]"):
        algorithm.init({"w": jnp.zeros(2)})


def streamed_setup(algorithm, timeline):
    params = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    return fs.init(algorithm, fs.Setup(two_leaves(5), timeline, params))


@pytest.mark.slow
def test_streaming_takes_fragments_of_different_precision():
    """The fragment in double precision moves as it does beside another one in double precision."""

    def oracle(client, key, max_steps):
        def grad(x, k):
            return jax.tree.map(lambda leaf: leaf - 1, x)

        return fs.Oracle(grad, lambda x, k: jnp.zeros(()), lambda x: grad(x, 0))

    def final(dtype):
        task = fs.Task(oracle, np.ones(2, int), np.full(2, 3))
        params = {"a": {"w": jnp.zeros(4, dtype)}, "b": {"w": jnp.zeros(3, jnp.float64)}}
        setup = fs.Setup(task, fs.timelines.full(4, 2, 3), params)
        algorithm = fs.streaming_diloco(local_optimizer=SGD, num_fragments=2)
        return fs.run(algorithm, setup, jax.random.key(0))[0].server.params

    mixed, double = final(jnp.float32), final(jnp.float64)
    assert mixed["a"]["w"].dtype == jnp.float32
    assert_close(mixed["b"]["w"], double["b"]["w"], TOLERANCE)
    assert_close(mixed["a"]["w"].astype(jnp.float64), double["a"]["w"], 1e-5)
