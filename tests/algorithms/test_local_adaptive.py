"""FedAdamW, FedMuon and DiLoCo against NumPy, their figures and their fragments."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, start, visits
from instance_q import FEDAVG, LR, A, B, assert_printed, final_state, models, setup
from small_problems import assert_close, compiled, logistic_params

import fedjax_sim as fs
from fedjax_sim.algorithms._muon import muon_or_adam, orthogonalized
from fedjax_sim.algorithms.streaming_diloco import fragments

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision, contractive maps

# ---- FedAdamW


@pytest.mark.parametrize(
    "name", ["fedadamw", pytest.param("fedadamw_entry", marks=pytest.mark.slow)]
)
def test_fedadamw(name):
    lr, correction, decay, b1, b2, eps = ALGORITHMS[name][1].values()
    by_entry = name == "fedadamw_entry"
    x = start()
    direction, second, count = np.zeros_like(x), np.zeros_like(x), 0
    for cohort in visits():
        deltas, directions, seconds = [], [], []
        for _, batches in cohort:
            y, m, v = x, np.zeros_like(x), second
            for k, weights in enumerate(batches, 1):
                g = gradient()(y, weights)
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
                first = m / (1 - b1 ** (count + k if by_entry else k))
                root = np.sqrt(v / (1 - b2 ** (count + k))) + eps
                y = y - lr * (first / root + correction * direction + decay * y)
            deltas.append(x - y)
            directions.append((x - y) / (lr * len(batches)))
            # The leaves are the three weights and the bias.
            blocks = np.array([v[:3].mean()] * 3 + [v[3]])
            seconds.append(v if by_entry else blocks)
        x, direction = x - np.mean(deltas, axis=0), np.mean(directions, axis=0)
        second = np.mean(seconds, axis=0)
        count += round(np.mean([len(batches) for _, batches in cohort]))
    state = trained(name).server
    assert_close((flat(state.params), flat(state.direction)), (x, direction), TOLERANCE)
    assert state.num_steps == count
    sent = np.append(state.second_moment["w"], state.second_moment["b"])
    assert_close(sent, second if by_entry else second[2:], TOLERANCE)


@pytest.mark.slow
def test_instance_q():
    state, path = final_state(fs.fedadamw(0.01), setup(rounds=1, start=0.5))
    assert_printed(state.server.second_moment, "0.0057552868")
    path = models(fs.fedadamw(0.01), start=0.5)
    assert_printed(path, "0.4997506035", "0.5156442902", "0.5407265539")


@pytest.mark.parametrize("make", [fs.fedadamw, fs.fedmuon], ids=["fedadamw", "fedmuon"])
def test_a_round_without_steps_keeps_the_moments(make):
    """The cohort is one client without data: no upload says anything about them."""
    algorithm = make(0.1)
    state = algorithm.init({"w": jnp.ones((2, 3))})
    state = jax.tree.map(lambda x: x + jnp.ones_like(x), state)
    now = fs.Round(jnp.array(3), jnp.array(1), 1, jax.random.key(0))
    zero = jnp.array(0)
    work = fs.Work(zero, zero, zero, zero, zero, now.key, max_steps=2)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.array(0.0), lambda x: x)
    sent, _ = algorithm.local(algorithm.broadcast(state, now), (), oracle, work)
    new = algorithm.update(state, sent, now)
    kept = "second_moment" if make is fs.fedadamw else "momentum"
    chex.assert_trees_all_equal(getattr(new, kept), getattr(state, kept))


@pytest.mark.parametrize("make", [fs.fedadamw, fs.fedmuon], ids=["fedadamw", "fedmuon"])
def test_moments_are_those_of_the_visits_with_steps(make):
    """A client without data halves the mean of two models, but not that of their moments."""
    algorithm = make(0.1)
    state = algorithm.init({"w": jnp.ones((2, 3))})
    now = fs.Round(jnp.array(0), jnp.array(2), 2, jax.random.key(0))
    zero, message = jnp.array(0), algorithm.broadcast(state, now)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.array(0.0), lambda x: x)

    def updated(*numbers_of_steps):
        uploads = []
        for steps in map(jnp.array, numbers_of_steps):
            work = fs.Work(zero, zero, steps, zero, zero, now.key, max_steps=2)
            uploads.append(algorithm.local(message, (), oracle, work)[0])
        return algorithm.update(state, jax.tree.map(lambda *u: sum(u) / len(u), *uploads), now)

    alone, beside = updated(2), updated(2, 0)
    moments = {"params": None, "direction": None}
    chex.assert_trees_all_close(beside._replace(**moments), alone._replace(**moments), rtol=1e-12)
    half = (alone.params["w"] + state.params["w"]) / 2, alone.direction["w"] / 2
    chex.assert_trees_all_close((beside.params["w"], beside.direction["w"]), half, rtol=1e-12)


def test_a_leaf_without_entries_leaves_the_state_finite():
    """Its block mean would be 0 / 0, and the engine would report a diverged run."""
    algorithm = fs.fedadamw(0.1)
    state = algorithm.init({"w": jnp.ones(2), "nothing": jnp.zeros(0)})
    now = fs.Round(jnp.array(0), jnp.array(1), 1, jax.random.key(0))
    zero = jnp.array(0)
    work = fs.Work(zero, zero, jnp.array(2), zero, zero, now.key, max_steps=2)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.array(0.0), lambda x: x)
    sent, _ = algorithm.local(algorithm.broadcast(state, now), (), oracle, work)
    chex.assert_tree_all_finite((state, algorithm.update(state, sent, now)))


@pytest.mark.slow
def test_first_round_is_local_adamw():
    """From v = 0 and without a direction, as FedAvg with AdamW whose state is reset."""
    adamw = fs.fedavg(local_optimizer=optax.adamw(0.01, weight_decay=0.1))
    ours = fs.fedadamw(0.01, correction=0.0, weight_decay=0.1)
    expected = models(adamw, 2, start=0.5)
    actual = models(ours, 2, start=0.5)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)  # optax counts in float32
    assert abs(actual[1] - expected[1]) > 1e-4  # the second round starts from the mean of v


@pytest.mark.slow
def test_kept_second_moments_end_the_oscillation_of_local_adamw():
    """The claim for the mean of v: from v = 0 a visit begins with a step of the whole rate.

    With one step per visit local AdamW is sign descent, which stays half a rate from the optimum.
    """
    options = {"rounds": 200, "start": 0.525, "num_steps": 1, "clients": (A, 0 * B)}
    local = models(fs.fedavg(local_optimizer=optax.adamw(0.05, weight_decay=0.0)), **options)
    kept = models(fs.fedadamw(0.05, correction=0.0, weight_decay=0.0), **options)
    np.testing.assert_allclose(np.abs(local[50:]), 0.025, rtol=1e-4)
    assert np.abs(kept[-1]) < 1e-3


# ---- FedMuon


RANDOM = np.random.default_rng(0)
NUM_CLIENTS, STEPS = 3, 4
TARGETS = {"w": RANDOM.normal(size=(NUM_CLIENTS, 4, 2)), "b": RANDOM.normal(size=(NUM_CLIENTS, 4))}
START = {"w": RANDOM.normal(size=(4, 2)), "b": RANDOM.normal(size=4)}


def newton_schulz(matrix):
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def task(scale=1.0) -> fs.Task:
    """Squared distances to the clients' targets, times a scale."""

    def oracle(client, key, max_steps):
        def grad(x, step=0):
            return {name: scale * (x[name] - jnp.asarray(TARGETS[name])[client]) for name in x}

        return fs.Oracle(grad, lambda x, k: jnp.zeros(()), grad)

    return fs.Task(oracle, np.ones(NUM_CLIENTS, np.int32), np.full(NUM_CLIENTS, STEPS))


def final(algorithm, rounds=3, scale=1.0):
    @compiled
    def solve(params):
        timeline = fs.timelines.full(rounds, NUM_CLIENTS, STEPS)
        return fs.run(algorithm, fs.Setup(task(scale), timeline, params), jax.random.key(0))[0]

    return solve(jax.tree.map(jnp.asarray, START)).server


def test_newton_schulz():
    matrix = np.diag([3.0, 4.0, 0.1])
    actual = orthogonalized(jnp.asarray(matrix))
    assert_printed(np.diag(actual), "0.72249", "1.11895", "0.68183")
    assert_close(np.asarray(actual), newton_schulz(matrix), TOLERANCE)
    tall = RANDOM.normal(size=(5, 2))
    assert_close(np.asarray(orthogonalized(jnp.asarray(tall))), newton_schulz(tall), TOLERANCE)


def test_fedmuon():
    lr, mix, beta, decay, b1, b2 = 0.05, 0.6, 0.7, 0.1, 0.8, 0.9
    x = {name: value.copy() for name, value in START.items()}
    direction = {name: np.zeros_like(value) for name, value in x.items()}
    momentum = np.zeros((4, 2))
    for _ in range(3):
        ends, momenta = [], []
        for client in range(NUM_CLIENTS):
            y, big = dict(x), momentum
            m, v = np.zeros(4), np.zeros(4)
            for k in range(1, STEPS + 1):
                g = {name: y[name] - TARGETS[name][client] for name in y}
                big = beta * big + (1 - beta) * g["w"]
                # The kernel is tall, 4 x 2.
                u = {"w": np.sqrt(2) * newton_schulz(beta * big + (1 - beta) * g["w"])}
                m, v = b1 * m + (1 - b1) * g["b"], b2 * v + (1 - b2) * g["b"] ** 2
                u["b"] = m / (1 - b1**k) / (np.sqrt(v / (1 - b2**k)) + 1e-8)
                y = {
                    name: y[name]
                    - lr * (mix * u[name] + (1 - mix) * direction[name] + decay * y[name])
                    for name in y
                }
            ends.append(y)
            momenta.append(big)
        new = {name: np.mean([end[name] for end in ends], axis=0) for name in x}
        direction = {name: (x[name] - new[name]) / (STEPS * lr) for name in x}
        x, momentum = new, np.mean(momenta, axis=0)
    state = final(fs.fedmuon(lr, mix, beta, decay, b1, b2))
    assert_close(state.params, x, 1e-6)  # optax corrects Adam's bias in float32
    assert_close(state.params["w"], x["w"], TOLERANCE)
    assert_close(state.direction["w"], direction["w"], TOLERANCE)
    assert_close(state.momentum["w"], momentum, TOLERANCE)
    assert state.momentum["b"] is None


@pytest.mark.slow
def test_steps_do_not_depend_on_the_scale_of_the_gradients():
    """The claim for Muon; its only scale is the 1e-7 beside the norm."""
    large, larger = (final(fs.fedmuon(0.05), scale=scale).params["w"] for scale in (1, 1e3))
    np.testing.assert_allclose(larger, large, rtol=1e-5)
    assert np.abs(large - START["w"]).max() > 0.1


def test_diloco_with_muon():
    """The worker keeps the states: Muon with momentum b1, and AdamW with the decays 0.9 and b2."""
    lr, b1, b2, decay = 0.05, 0.7, 0.9, 0.1
    x = START
    states = [(np.zeros((4, 2)), np.zeros(4), np.zeros(4)) for _ in range(NUM_CLIENTS)]
    for round in range(2):
        ends = []
        for client, (big, m, v) in enumerate(states):
            y = x
            for k in range(STEPS * round + 1, STEPS * (round + 1) + 1):
                g = {name: y[name] - TARGETS[name][client] for name in y}
                big = b1 * big + (1 - b1) * g["w"]
                u = {"w": np.sqrt(2) * newton_schulz(b1 * big + (1 - b1) * g["w"])}
                m, v = 0.9 * m + 0.1 * g["b"], b2 * v + (1 - b2) * g["b"] ** 2
                u["b"] = m / (1 - 0.9**k) / (np.sqrt(v / (1 - b2**k)) + 1e-8)
                y = {name: y[name] - lr * (u[name] + decay * y[name]) for name in y}
            states[client] = big, m, v
            ends.append(y)
        x = {name: np.mean([end[name] for end in ends], axis=0) for name in x}
    algorithm = fs.diloco(lr, 1.0, 0.0, decay, b1, b2, inner="muon")
    assert_close(final(algorithm, rounds=2).params, x, TOLERANCE)


def test_models_without_matrices_have_no_momentum():
    assert jax.tree.leaves(fs.fedmuon(0.1).init(logistic_params()).momentum) == []


@pytest.mark.slow
def test_selected_leaves_of_several_kernels():
    """Kernels [blocks, outputs, inputs] take one Muon step each; stacked biases take Adam's."""
    blocks = {"kernel": RANDOM.normal(size=(2, 4, 3)), "bias": RANDOM.normal(size=(2, 4))}
    gradient = jax.tree.map(jnp.asarray, blocks)
    both = muon_or_adam(0.9, 0.9, 0.95, lambda path, leaf: path[-1] == "kernel")
    with jax.numpy_dtype_promotion("standard"):  # optax mixes counts and decays
        update, _ = both.update(gradient, both.init(gradient), gradient)
    expected = [np.sqrt(4 / 3) * newton_schulz(0.19 * kernel) for kernel in blocks["kernel"]]
    assert_close(np.asarray(update["kernel"]), np.stack(expected), TOLERANCE)
    assert_close(np.asarray(update["bias"]), np.sign(blocks["bias"]), 1e-6)  # Adam's first step


def test_biases_are_no_matrices():
    """At the start of the run, and in both algorithms."""
    start = jax.tree.map(jnp.asarray, START)
    setup = fs.Setup(task(), fs.timelines.full(1, NUM_CLIENTS, STEPS), start)
    everything = {"matrices": lambda path, leaf: True}
    for algorithm in (fs.fedmuon(0.1, **everything), fs.diloco(0.1, inner="muon", **everything)):
        with pytest.raises(ValueError, match=r"matrices selects b of shape \(4,\); expected"):
            fs.init(algorithm, setup)


# ---- DiLoCo


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
