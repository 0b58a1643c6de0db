"""FedAvg, FedSGD, FedProx, their servers and their local optimizers, against NumPy."""

import derivations
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, current_timeline, model, task, trained
from derivations import flat, gradient, start, visits
from instance_q import OPTIMUM, assert_printed, models
from quadratics import CENTRES, DIM, HESSIANS, NUM_CLIENTS, START, final, optimum
from small_problems import (
    SIZES,
    assert_close,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    recorded_rounds,
    rotated,
)

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision, contractive maps


def test_fedavg():
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2)
    assert_close(flat(model("fedavg")), expected, TOLERANCE)


def test_fedsgd():
    expected = derivations.fedsgd(gradient(), visits(), start(), 0.2)
    assert_close(flat(model("fedsgd")), expected, TOLERANCE)


def test_schedule_of_rates():
    decay = ALGORITHMS["fedavg_schedule"][1]["decay"]
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2 / (1 + decay * t))
    assert_close(flat(model("fedavg_schedule")), expected, TOLERANCE)


def test_weights_by_examples():
    setup = fs.Setup(task(), current_timeline(), logistic_params(), weighting=fs.weight_by_examples)
    run = compiled(lambda setup: fs.run(fs.fedavg(0.2), setup, jax.random.key(2))[0])
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, sizes=SIZES)
    assert_close(flat(run(setup).server.params), expected, TOLERANCE)


def test_one_client_is_plain_sgd():
    """M = 1: there is no averaging, rounds only group the steps."""
    data, batches = fs.from_clients([logistic_data().client(5)]), rotated(2)
    single = fs.empirical_task(logistic_losses, data, batches)
    timeline, key = fs.timelines.full(3, 1, single.num_steps), jax.random.key(4)
    setup = fs.Setup(single, timeline, logistic_params())
    run = compiled(lambda setup: fs.run(fs.fedavg(0.2), setup, key)[0])
    x, examples = start(), data.examples
    gradient = derivations.logistic_gradient(examples["x"], examples["y"])
    for [(_, steps)] in recorded_rounds(SIZES[5:6], batches, timeline, key):
        for weights in steps:
            x = x - 0.2 * gradient(x, weights)
    assert_close(flat(run(setup).server.params), x, TOLERANCE)


def test_refuses_a_client_that_does_not_exist():
    with pytest.raises(ValueError, match=r"client is 3; expected 0 \.\. 2"):
        fs.timelines.single(1, 3, 1, client=3)


def contractions(lr, num_steps):
    """[M, d, d]: (I - lr A_i)^K."""
    return np.linalg.matrix_power(np.eye(DIM) - lr * HESSIANS, num_steps)


def fixed_point(lr, num_steps):
    """Fixed point of FedAvg with gradient steps, which differs from the minimiser."""
    left = np.eye(DIM) - contractions(lr, num_steps)
    return np.linalg.solve(left.sum(0), np.einsum("mij,mj->i", left, CENTRES))


def test_converges_to_a_point_that_is_not_the_optimum():
    lr, num_steps = 0.1, 20
    end = final(fs.fedavg(lr), 60, NUM_CLIENTS, num_steps)
    # The slowest mode shrinks at least by 0.95^20 per round: to below 1e-20 after 60.
    assert_close(end, fixed_point(lr, num_steps), TOLERANCE)
    assert np.linalg.norm(end - optimum()) > 0.01


def test_equal_hessians_have_no_drift():
    clients = np.repeat(HESSIANS[:1], NUM_CLIENTS, axis=0), CENTRES
    end = final(fs.fedavg(0.1), 60, NUM_CLIENTS, 20, clients=clients)
    assert_close(end, CENTRES.mean(0), TOLERANCE)


# ---- FedProx


def test_fedprox():
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, mu=0.4)
    assert_close(flat(model("fedprox", mu=0.4)), expected, TOLERANCE)


def test_proximal_visits_solve_the_proximal_problem():
    """Many steps: x <- mean_i (A_i + mu I)^-1 (A_i b_i + mu x)."""
    mu = 0.8
    proximal = np.linalg.inv(HESSIANS + mu * np.eye(DIM))
    x = START
    for _ in range(3):
        linear = np.einsum("mij,mj->mi", HESSIANS, CENTRES) + mu * x
        x = np.einsum("mij,mj->mi", proximal, linear).mean(0)
    # The local error shrinks by 1 - 0.4 (0.5 + 0.8) or better a step: below 1e-60 after 200.
    actual = final(fs.fedprox(0.4, mu), 3, NUM_CLIENTS, 200)
    assert_close(actual, x, TOLERANCE)


# ---- FedAvgM, FedAdagrad, FedAdam and FedYogi


SERVERS = {
    "fedavgm": derivations.momentum,
    "fedadagrad": derivations.adagrad,
    "fedadam": derivations.adam,
    "fedyogi": derivations.yogi,
}


@pytest.mark.parametrize("name", SERVERS)
def test_server(name):
    numbers = {key: value for key, value in ALGORITHMS[name][1].items() if key != "lr"}
    server = SERVERS[name](**numbers)
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, server=server)
    assert_close(flat(model(name)), expected, TOLERANCE)


def paper(name, server_lr, eps, b1=0.0, b2=0.0):
    """Reddi et al., 2021, Algorithm 2: v starts at tau^2, no correction, tau outside the root."""
    m, v = 0.0, eps**2

    def server(x, delta):
        nonlocal m, v
        m = b1 * m + (1 - b1) * delta
        square = delta**2
        v = {
            "fedadagrad": v + square,
            "fedyogi": v - (1 - b2) * square * np.sign(v - square),
            "fedadam": b2 * v + (1 - b2) * square,
        }[name]
        return x - server_lr * m / (np.sqrt(v) + eps)

    return server


PAPER = {
    "fedadagrad": {"server_lr": 0.1, "eps": 1e-2},
    "fedadam": {"server_lr": 0.1, "eps": 1e-2, "b1": 0.8, "b2": 0.9},
    "fedyogi": {"server_lr": 0.1, "eps": 1e-2, "b1": 0.8, "b2": 0.9},
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_rule(name):
    server = paper(name, **PAPER[name])
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, server=server)
    algorithm = getattr(fs, name)(0.2, rule="paper", **PAPER[name])
    setup = fs.Setup(task(), current_timeline(), logistic_params())
    state, _ = jax.jit(lambda setup, key: fs.run(algorithm, setup, key))(setup, jax.random.key(2))
    assert_close(flat(state.server.params), expected, TOLERANCE)


def constant(client, key, max_steps):
    """The gradient is -1 everywhere, so the pseudo-gradient of one step of rate 1 is -1."""
    del client, key, max_steps
    return fs.Oracle(lambda w, k: 0 * w - 1, lambda w, k: -w, lambda w: 0 * w - 1)


# After 60 rounds: "paper" by the loop of `paper` above in double precision, "optax" by those of
# `derivations.adam` and `derivations.yogi`.
MOVED = {
    ("fedadam", "optax"): 5.9940,
    ("fedadam", "paper"): 10.7564,
    ("fedyogi", "optax"): 5.5853,
    ("fedyogi", "paper"): 10.0523,
}


@pytest.mark.parametrize(("name", "rule"), MOVED)
def test_rules_differ_by_the_correction_of_the_bias(name, rule):
    problem = fs.Task(constant, num_examples=np.ones(2, int), num_steps=np.ones(2, int))
    timeline = fs.timelines.full(60, 2, problem.num_steps)
    algorithm = getattr(fs, name)(1.0, 0.1, b1=0.9, b2=0.99, eps=1e-3, rule=rule)
    state, _ = fs.run(algorithm, fs.Setup(problem, timeline, jnp.array(0.0)), jax.random.key(0))
    assert abs(float(state.server.params) - MOVED[name, rule]) < 6e-5  # half a printed digit


@pytest.mark.parametrize("factory", [fs.fedadagrad, fs.fedadam, fs.fedyogi])
def test_rules_are_checked(factory):
    with pytest.raises(ValueError, match="rule is 'reddi'; expected 'optax' or 'paper'"):
        factory(0.1, 0.1, rule="reddi")
    with pytest.raises(ValueError, match="eps is 0; expected a positive number"):
        factory(0.1, 0.1, eps=0, rule="paper")


@pytest.mark.parametrize("factory", [fs.fedavgm, fs.diloco])
def test_schedules_of_the_server_count_its_updates(factory):
    """A rate that becomes 0 after two updates: the model stays from then on."""
    schedule = optax.piecewise_constant_schedule(0.5, {2: 0.0})
    path = models(factory(0.1, server_lr=schedule), 4)
    constant = models(factory(0.1, server_lr=0.5), 4)
    assert_close(path[:2], constant[:2], 1e-6)  # optax's schedules are in float32
    assert (path[2:] == path[1]).all()
    assert abs(constant[3] - constant[1]) > 1e-3


# ---- local optimizers


HEAVY_BALL = {
    "reset": ("0.3412281408", "0.5232495040", "0.7313548193"),
    "keep": ("0.3412281408", "0.7879631480", "0.6526823934"),
    "mean": ("0.3412281408", "0.8145064795", "0.7216997539"),
}
ADAM = {"reset": "0.1543383493", "keep": "0.1646354215", "mean": "0.2849401246"}


@pytest.mark.parametrize("origin", HEAVY_BALL)
def test_heavy_ball_on_instance_q(origin):
    """x^1, x^2 and the limit, of which the kept state's is furthest from the optimum."""
    optimizer = optax.sgd(0.02, momentum=0.9)
    path = models(fs.fedavg(local_optimizer=optimizer, local_state=origin), 400)
    assert_printed(path[[0, 1, -1]], *HEAVY_BALL[origin])


def test_kept_states_bias_the_limit_most():
    bias = {origin: abs(float(row[2]) - OPTIMUM) for origin, row in HEAVY_BALL.items()}
    assert bias["reset"] < bias["mean"] < bias["keep"]


@pytest.mark.parametrize("origin", ADAM)
def test_adam_on_instance_q(origin):
    path = models(fs.fedavg(local_optimizer=optax.adam(0.05), local_state=origin), 2)
    assert_printed(path, "0.1242610546", ADAM[origin])


@pytest.mark.parametrize(
    "origin", ["mean", *(pytest.param(name, marks=pytest.mark.slow) for name in ("reset", "keep"))]
)
def test_adam_against_numpy(origin):
    """Partial participation, unequal steps: Adam with bias correction by its own count."""
    values = ALGORITHMS[f"fedavg_adam_{origin}"][1]
    lr, b1 = values["lr"], values["b1"]
    b2, eps = 0.9, 1e-2
    x = start()
    zero = (np.zeros_like(x), np.zeros_like(x), 0)
    server, kept = zero, {}
    for cohort in visits():
        deltas, ends = [], []
        for client, batches in cohort:
            origins = {"reset": zero, "keep": kept.get(client, zero), "mean": server}
            (m, v, count), y = origins[origin], x
            for weights in batches:
                g = gradient()(y, weights)
                m, v, count = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2, count + 1
                y = y - lr * m / (1 - b1**count) / (np.sqrt(v / (1 - b2**count)) + eps)
            deltas.append(x - y)
            ends.append((m, v, count))
            kept[client] = (m, v, count)
        x = x - np.mean(deltas, axis=0)
        means = [np.mean([end[part] for end in ends], axis=0) for part in range(3)]
        server = (means[0], means[1], round(means[2] - server[2]) + server[2])
    state = trained(f"fedavg_adam_{origin}", current_timeline())
    assert_close(flat(state.server.params), x, TOLERANCE)
    if origin == "keep":
        moments = state.clients[0]
        for client, (m, v, count) in kept.items():
            assert_close(flat(moments.mu)[client], m, TOLERANCE)
            assert_close(flat(moments.nu)[client], v, TOLERANCE)
            assert moments.count[client] == count
    if origin == "mean":
        assert_close(flat(state.server.local[0].nu), server[1], TOLERANCE)
        assert state.server.local[0].count == server[2]


@pytest.mark.slow
def test_schedules_count_steps_since_the_state_began():
    """lr_k = 0.2 * 0.5^k: reset starts again at every visit, keep continues."""
    optimizer = optax.sgd(optax.exponential_decay(0.2, 1, 0.5))
    x, y = 0.0, 0.0
    for count in range(4):
        x = x - 0.2 * 0.5 ** (count % 2) * (x - 1)
        y = y - 0.2 * 0.5**count * (y - 1)
    for origin, expected in [("reset", x), ("keep", y)]:
        algorithm = fs.fedavg(local_optimizer=optimizer, local_state=origin)
        path = models(algorithm, 2, clients=([1.0], [1.0]), num_steps=2)
        np.testing.assert_allclose(path[-1], expected, rtol=1e-6)  # optax's schedules: float32


def test_low_precision_models_keep_their_types():
    """Rates of float32 on a bfloat16 model change neither the model nor the state of float32."""
    algorithm = fs.fedavg(
        local_optimizer=optax.adam(jnp.float32(0.1), b1=jnp.float32(0.9)), local_state="keep"
    )
    params = jnp.zeros(2, jnp.bfloat16)
    opt_state = algorithm.init_client(params)
    oracle = fs.Oracle(lambda x, k: x - 1, lambda x, k: x.sum(), lambda x: x - 1)
    one = jnp.array(1)
    work = fs.Work(one, one, one, one, one, jnp.array(0), max_steps=2)
    delta, after = algorithm.local(params, opt_state, oracle, work)
    assert delta.dtype == jnp.bfloat16
    assert after[0].mu.dtype == opt_state[0].mu.dtype == jnp.float32


@pytest.mark.slow
def test_mean_refuses_states_without_a_mean():
    """optax's apply_if_finite keeps a flag."""
    optimizer = optax.apply_if_finite(optax.sgd(0.1), 3)
    algorithm = fs.fedavg(local_optimizer=optimizer, local_state="mean")
    with pytest.raises(ValueError, match=r"a state of type bool at .*; expected numbers"):
        algorithm.init(jnp.zeros(2))


def test_messages_with_mean_states_contain_the_model():
    """Private leaves and fine-tuning read it from there."""
    algorithm = fs.fedavg(local_optimizer=optax.adam(0.1), local_state="mean")
    state = algorithm.init(jnp.array(2.0))
    message = algorithm.broadcast(state, None)  # pyright: ignore[reportArgumentType]
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: x**2 / 2, lambda x: x)
    work = fs.Work(*5 * [jnp.array(1)], None, max_steps=1)  # pyright: ignore[reportArgumentType]
    tuned = fs.fine_tuned(algorithm, 0.5, steps=1)
    assert tuned.personal is not None
    assert float(tuned.personal(message, (), oracle, work)) == 1.0
    heads = fs.private(algorithm, lambda path, leaf: path == ("head",), lr=0.1)
    assert heads.init({"head": jnp.zeros(2), "body": jnp.ones(3)}).rest["head"].shape == (2,)
