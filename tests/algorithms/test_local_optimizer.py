"""Local steps by optax optimizers: instance Q, NumPy, and the three origins of their state."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, current_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import FEDAVG, LR, OPTIMUM, assert_printed, models
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision
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


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["reset", "keep", "mean"])
def test_sgd_is_fedavg(origin):
    path = models(fs.fedavg(local_optimizer=optax.sgd(LR), local_state=origin), 3)
    assert_close(path, models(fs.fedavg(LR), 3), TOLERANCE)
    assert_printed(path[:2], "0.415965", "0.5737322052")
    assert abs(path[-1] - FEDAVG) < abs(path[0] - FEDAVG)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "lr is None; expected a learning rate, or local_optimizer"),
        ({"lr": 0.1, "local_optimizer": optax.sgd(0.1)}, "lr is 0.1 beside local_optimizer"),
        ({"lr": 0.1, "local_state": "keep"}, "local_state is 'keep' without local_optimizer"),
        (
            {"local_optimizer": optax.sgd(0.1), "local_state": "kept"},
            "local_state is 'kept'; expected 'reset', 'keep' or 'mean'",
        ),
        ({"local_optimizer": 0.1}, "local_optimizer is 0.1; expected an optax"),
    ],
)
def test_refuses_contradictions(arguments, message):
    with pytest.raises(ValueError, match=message):
        fs.fedavg(**arguments)


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
