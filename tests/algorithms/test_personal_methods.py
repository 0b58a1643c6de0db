"""Ditto, APFL, Per-FedAvg and pFedMe against NumPy, their figures and claims."""

import functools
import itertools

import instance_q
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import A, B, assert_printed
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, START, state_after
from small_problems import SIZES, assert_close, compiled, quadratic_task

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision, contractive maps

# ---- Ditto


def ditto_in_numpy(lr, mu, personal_lr):
    x = start()
    v = np.tile(x, (len(SIZES), 1))
    for cohort in visits():
        models = []
        for client, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * gradient()(y, weights)
                pulled = gradient()(v[client], weights) + mu * (v[client] - x)
                v[client] = v[client] - personal_lr * pulled
            models.append(y)
        x = np.mean(models, axis=0)
    return x, v


def test_ditto():
    state = trained("ditto", current_timeline())
    expected = ditto_in_numpy(**ALGORITHMS["ditto"][1])
    assert_close((flat(state.server.params), flat(state.clients)), expected, TOLERANCE)
    assert_close(state.server.params, trained("fedavg").server.params, TOLERANCE)


@pytest.mark.slow
def test_ditto_on_instance_q():
    algorithm = fs.ditto(0.1)
    state, _ = instance_q.final_state(algorithm, instance_q.setup(rounds=2))
    assert_printed(state.clients, "0.1398308", "0.8413699")
    state, x = instance_q.final_state(algorithm, instance_q.setup(rounds=100))
    assert_printed(state.clients, "0.3350665356", "0.9175332678")
    fixed = (instance_q.A * instance_q.B + instance_q.FEDAVG) / (instance_q.A + 1)
    np.testing.assert_allclose(state.clients[:, 0], fixed, rtol=0, atol=1e-10)
    assert_printed(x[-1], str(instance_q.FEDAVG))


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (fs.ditto(1.0, mu=0.0, personal_steps=7), [3, 2, 2]),
        (fs.perfedavg(1.0, adapt_steps=7), [3, 2, 2]),
    ],
    ids=["ditto", "perfedavg"],
)
def test_more_personal_steps_take_the_minibatches_again(algorithm, expected):
    """Three minibatches, of a client that could have four; gradient k is -1 in entry k."""
    loss = lambda x, *k: jnp.array(0.0)  # noqa: E731
    oracle = fs.Oracle(lambda x, k: -jax.nn.one_hot(k, 3), loss, lambda x: x)
    one = jnp.array(1)
    work = fs.Work(one, one, 3 * one, one, one, jax.random.key(0), max_steps=4)
    zero = jnp.zeros(3)
    if algorithm.personal is not None:
        found = algorithm.personal(zero, (), oracle, work)
    if jax.tree.leaves(algorithm.init_client(zero)):
        _, found = algorithm.local(zero, zero, oracle, work)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_without_its_term_a_client_trains_alone():
    """And with a huge one, solved exactly, its model is the one that it received."""
    state = state_after(fs.ditto(0.1, mu=0.0), 2, NUM_CLIENTS, 5)
    for hessian, centre, v in zip(HESSIANS, CENTRES, state.clients, strict=True):
        contraction = np.linalg.matrix_power(np.eye(len(START)) - 0.1 * hessian, 10)
        np.testing.assert_allclose(v, centre + contraction @ (START - centre), rtol=0, atol=1e-12)
    state = state_after(fs.ditto(0.1, mu=1e8, personal_lr=1e-8), 3, NUM_CLIENTS, 5)
    received = state_after(fs.fedavg(0.1), 2, NUM_CLIENTS, 5).server.params
    np.testing.assert_allclose(state.clients - received, 0, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_weights_and_steps_of_the_personal_models():
    """One weight per client; two steps v <- v - 0.1 (a (v - b) + mu v), since x = 0."""
    mu = np.array([0.5, 2.0])
    algorithm = fs.ditto(0.1, mu=jnp.asarray(mu), personal_steps=2)
    state, x = instance_q.final_state(algorithm, instance_q.setup(rounds=1))
    a, b = instance_q.A, instance_q.B
    v = np.zeros(2)
    for _ in range(2):
        v = v - 0.1 * (a * (v - b) + mu * v)
    np.testing.assert_allclose(state.clients[:, 0], v, rtol=1e-14)
    assert_printed(x, "0.415965")
    three = instance_q.setup(clients=(np.ones(3), np.zeros(3)))
    with pytest.raises(ValueError, match=r"mu has the shape \(2,\); expected \(3,\)"):
        fs.init(algorithm, three)


def test_personal_model_is_the_clients_own():
    algorithm = fs.ditto(0.1)
    state = algorithm.init_client(jnp.array(3.0))
    assert float(algorithm.personal(jnp.array(1.0), state, None, None)) == 3.0


def test_a_weight_between_local_and_global_estimates_best():
    """Estimation of clients' means: Ditto's claim is accuracy at mu = noise / heterogeneity.

    theta_i ~ N(0, I), b_i = theta_i + N(0, I): the error of alone and of common estimates is 1 per
    coordinate, that of (b_i + x) / 2 is 1/2 (up to 1 / M).  1,000 coordinates: to about 5 %.
    """
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20, 50))
    centres = truth + rng.normal(size=truth.shape)
    task = quadratic_task(np.tile(np.eye(50), (20, 1, 1)), centres, 5)
    setup = fs.Setup(task, fs.timelines.full(4, 20, 5), jnp.zeros(50))

    @compiled
    @functools.partial(jax.vmap, in_axes=(0, None))
    def errors(mu, setup):
        algorithm = fs.ditto(0.5, mu, personal_lr=1 / (1 + mu))  # steps to the minimiser
        return jnp.square(fs.run(algorithm, setup, jax.random.key(0))[0].clients - truth).mean()

    alone, between, common = errors(jnp.array([0.0, 1.0, 1e6]), setup)
    np.testing.assert_allclose([alone, common], 1, rtol=0.1)
    np.testing.assert_allclose(between, 0.5, rtol=0.1)


# ---- FedALA


def fedala_in_numpy(lr, weight_lr):
    """Weights of the bias alone; the minibatches of a short visit are taken again."""
    x = start()
    last, share = np.tile(x, (len(SIZES), 1)), np.ones(len(SIZES))
    started = np.zeros(len(SIZES), bool)
    for cohort in visits():
        models = []
        for i, batches in cohort:
            gap = x - last[i]
            mixed = np.append(x[:-1], last[i, -1] + gap[-1] * share[i])
            for k in range(2 if started[i] else 3):
                slope = gradient()(mixed, batches[k % len(batches)])[-1]
                share[i] = np.clip(share[i] - weight_lr * slope * gap[-1], 0, 1)
                mixed[-1] = last[i, -1] + gap[-1] * share[i]
            started[i] |= gap.any()
            y = mixed
            for weights in batches:
                y = y - lr * gradient()(y, weights)
            last[i] = y
            models.append(y)
        x = np.mean(models, axis=0)
    return x, last, share, started


def test_fedala():
    state = trained("fedala", current_timeline())
    x, last, share, started = fedala_in_numpy(**ALGORITHMS["fedala"][1])
    clients = state.clients
    actual = flat(state.server.params), flat(clients.params), clients.weights["b"]
    assert_close(actual, (x, last, share), TOLERANCE)
    np.testing.assert_array_equal(clients.started, started)
    assert (share < 1).any()


def test_personal_model_of_fedala_learns_weights_for_the_current_model():
    """v = 0, x = 2 and the gradient 0.5: w = 1 - 0.3 * 2 * 0.5, and the model 2 w."""
    algorithm = fs.fedala(
        1.0, weight_lr=0.3, start_steps=1, where=lambda path, leaf: path == ("b",)
    )
    state = algorithm.init_client({"a": jnp.array(0.0), "b": jnp.array(0.0)})
    half = lambda y, k: jax.tree.map(lambda leaf: 0.5 * jnp.ones_like(leaf), y)  # noqa: E731
    oracle = fs.Oracle(half, lambda y, k: jnp.array(0.0), lambda y: y)
    one = jnp.array(1)
    work = fs.Work(one, one, one, one, one, jax.random.key(0), max_steps=4)
    model = algorithm.personal({"a": jnp.array(5.0), "b": jnp.array(2.0)}, state, oracle, work)
    assert {key: round(float(x), 12) for key, x in model.items()} == {"a": 5.0, "b": 1.4}


# ---- APFL


def apfl_in_numpy(lr, alpha, adaptive, after):
    x = start()
    v, a = np.tile(x, (len(SIZES), 1)), np.full(len(SIZES), alpha)
    for cohort in visits():
        models = []
        for i, batches in cohort:
            y = x
            for weights in batches:
                new = y - lr * gradient()(y, weights)
                other = new if after else y
                g = gradient()(a[i] * v[i] + (1 - a[i]) * other, weights)
                slope = (v[i] - other) @ g
                v[i] = v[i] - lr * a[i] * g
                if adaptive:
                    a[i] = min(max(a[i] - lr * slope, 0), 1)
                y = new
            models.append(y)
        x = np.mean(models, axis=0)
    return x, v, a


@pytest.mark.parametrize(("name", "adaptive"), [("apfl", False), ("apfl_adaptive", True)])
def test_apfl(name, adaptive):
    state = trained(name, current_timeline())
    x, v, a = apfl_in_numpy(**ALGORITHMS[name][1], adaptive=adaptive, after=adaptive)
    actual = flat(state.server.params), flat(state.clients.params), state.clients.alpha
    assert_close(actual, (x, v, a), TOLERANCE)
    assert (np.ptp(a) > 0.01) == adaptive
    assert_close(state.server.params, trained("fedavg").server.params, TOLERANCE)


@pytest.mark.parametrize(("order", "v"), [("before", "0.49251861"), ("after", "0.44160691")])
def test_apfl_on_instance_q(order, v):
    state, x = instance_q.final_state(fs.apfl(0.1, 0.5, order=order), instance_q.setup(rounds=1))
    assert_printed(state.clients.params, "0", v)
    assert_printed(x, "0.415965")


def test_the_ends_are_fedavg_and_local_training():
    state, x = instance_q.final_state(fs.apfl(0.1, 0.0), instance_q.setup(rounds=2))
    assert_printed(x, "0.415965", "0.5737322052")
    np.testing.assert_array_equal(state.clients.params, 0)
    state, x = instance_q.final_state(fs.apfl(0.1, 1.0), instance_q.setup(rounds=2))
    assert_printed(x, "0.415965", "0.5737322052")
    alone = instance_q.B * (1 - (1 - 0.1 * instance_q.A) ** 10)
    np.testing.assert_allclose(state.clients.params[:, 0], alone, rtol=1e-14)


def test_personal_model_is_the_mixture_with_the_current_model():
    algorithm = fs.apfl(0.1, alpha=0.25)
    state = algorithm.init_client({"w": jnp.array([8.0])})
    mixed = algorithm.personal({"w": jnp.array([4.0])}, state, None, None)
    assert mixed["w"].tolist() == [5.0]


def test_weights_adapt_to_how_different_a_client_is():
    """The claim: the further a client's optimum from the others', the more personal its model.

    Clients whose optima are 0, 0, 0, 1, 4, whose mean the server's model finds, one step per visit:
    the fourth client needs no model of its own, the last one takes nothing else.
    """
    b = np.array([0.0, 0.0, 0.0, 1.0, 4.0])
    setup = instance_q.setup(rounds=40, clients=(np.ones(5), b), num_steps=1)
    state, x = instance_q.final_state(fs.apfl(0.1, alpha=0.3, adaptive=True), setup)
    v, alpha = state.clients.params[:, 0], np.asarray(state.clients.alpha)
    distance = np.abs(b - x[-1])
    assert alpha[3] == 0
    assert (alpha[:3] > 0.7).all()
    assert (alpha[:3] < 0.8).all()
    assert alpha[4] == 1
    mixed = alpha * v + (1 - alpha) * x[-1]
    assert (np.abs(mixed - b)[[0, 4]] < 0.1 * distance[[0, 4]]).all()


# ---- Per-FedAvg


def perfedavg_in_numpy(lr, adapt_lr, delta=None):
    x = start()
    for cohort in visits():
        models = []
        for _, batches in cohort:
            y, count = x, 2 if delta is None else 3
            for j in range(len(batches) // count):
                first, second, *third = batches[count * j : count * (j + 1)]
                g = gradient()(y - adapt_lr * gradient()(y, first), second)
                direction = g
                if third:
                    above = gradient()(y + delta * g, third[0])
                    below = gradient()(y - delta * g, third[0])
                    direction = g - adapt_lr * (above - below) / (2 * delta)
                y = y - lr * direction
            models.append(y)
        x = np.mean(models, axis=0)
    return x


@pytest.mark.parametrize("hessian", ["FO", "HF"])
def test_perfedavg(hessian):
    """Some visits are too short for a meta-step of HF; they report the model that they received."""
    name = f"perfedavg_{hessian}"
    state = trained(name, current_timeline())
    assert_close(flat(state.server.params), perfedavg_in_numpy(**ALGORITHMS[name][1]), TOLERANCE)


# Five meta-steps each.
STEPS = {"FO": 10, "HF": 15, "exact": 15}
FIGURES = {
    "FO": ("0.3461471801", "0.6480565823"),
    "HF": ("0.2742045635", "0.6141875098"),
    "exact": ("0.2742045635", "0.6141875098"),
}


@pytest.mark.parametrize("hessian", ["FO", "HF", pytest.param("exact", marks=pytest.mark.slow)])
def test_perfedavg_on_instance_q(hessian):
    x = instance_q.models(fs.perfedavg(0.1, hessian=hessian), 80, num_steps=STEPS[hessian])
    assert_printed(x[[0, -1]], *FIGURES[hessian])


def test_without_adaptation_it_is_fedavg():
    x = instance_q.models(fs.perfedavg(0.1, 0.0, "HF"), 80, num_steps=15)
    assert_printed(x[[0, 1, -1]], "0.415965", "0.5737322052", str(instance_q.FEDAVG))


@pytest.mark.parametrize("step", [0.1, 0.01])
def test_difference_of_gradients_approaches_the_hessian(step):
    """A visit on F(x) = x^4 / 4, where the difference exceeds the product by step^2 G^3 exactly."""
    oracle = fs.Oracle(lambda x, k: x**3, lambda x, k: x**4 / 4, lambda x: x**3)
    work = fs.Work(0, 0, jnp.array(3), 1, 0, None, max_steps=3)
    exact, approximate = (
        float(algorithm.local(jnp.array(1.5), (), oracle, work)[0])
        for algorithm in (fs.perfedavg(0.1, 0.2, "exact"), fs.perfedavg(0.1, 0.2, "HF", delta=step))
    )
    g = (1.5 - 0.2 * 1.5**3) ** 3
    np.testing.assert_allclose(exact, 0.1 * (g - 0.2 * 3 * 1.5**2 * g), rtol=1e-12)
    np.testing.assert_allclose(exact - approximate, 0.1 * 0.2 * g * (step * g) ** 2, rtol=1e-8)


@pytest.mark.parametrize("delta", [1e-3, 1.0, 50.0])
def test_differences_of_gradients_are_exact_on_quadratics(delta):
    """F(x) = 3 / 2 (x - 1)^2: one meta-step from 0 is one of a (1 - 0.1 a)^2 (x - 1), a = 3."""
    oracle = fs.Oracle(lambda x, k: 3 * (x - 1), lambda x, k: x, lambda x: x)
    work = fs.Work(0, 0, jnp.array(3), 1, 0, None, max_steps=3)
    upload, _ = fs.perfedavg(0.1, 0.1, "HF", delta=delta).local(jnp.array(0.0), (), oracle, work)
    np.testing.assert_allclose(upload, -0.1 * 3 * 0.7**2, rtol=1e-12)


def test_minimises_the_loss_after_one_step():
    """One meta-step per round: the claim of the paper; FO's limit and FedAvg's are worse."""
    a = 0.1

    def adapted_loss(x):
        return np.mean(A / 2 * (x - a * A * (x - B) - B) ** 2)

    curvature = A * (1 - a * A) ** 2
    best = (curvature * B).sum() / curvature.sum()
    exact = instance_q.models(fs.perfedavg(0.1, a, "HF"), 250, num_steps=3)[-1]
    np.testing.assert_allclose(exact, best, rtol=1e-9)
    first_order = instance_q.models(fs.perfedavg(0.1, a, "FO"), 250, num_steps=2)[-1]
    slopes = A * (1 - a * A)
    np.testing.assert_allclose(first_order, (slopes * B).sum() / slopes.sum(), rtol=1e-9)
    # FedAvg with one step per round finds the minimiser of the mean.
    losses = [adapted_loss(x) for x in (exact, first_order, instance_q.OPTIMUM)]
    assert losses[0] < losses[1] < losses[2]


def test_personal_model_is_adapted_on_the_clients_data():
    """Two steps x <- x - 0.1 * 3 (x - 1) from 0."""
    algorithm = fs.perfedavg(0.5, 0.1, adapt_steps=2)
    oracle = instance_q.task().oracle(1, jax.random.key(0), 2)
    work = fs.Work(0, 1, jnp.array(5), 1, 0, None, max_steps=5)
    model = algorithm.personal(jnp.zeros(1), (), oracle, work)
    np.testing.assert_allclose(model, 1 - 0.7**2, rtol=1e-14)


# ---- pFedMe


def pfedme_in_numpy(lr, mu, personal_lr, server_lr, inner_steps=3):
    x = start()
    states = np.tile(x, (len(SIZES), 1))
    for cohort in visits():
        models = []
        for client, batches in cohort:
            w = theta = x
            for weights in batches:
                for _ in range(inner_steps):
                    slope = gradient()(theta, weights) + mu * (theta - w)
                    theta = theta - personal_lr * slope
                w = w - lr * mu * (w - theta)
            models.append(w)
            states[client] = theta
        x = (1 - server_lr) * x + server_lr * np.mean(models, axis=0)
    return x, states


def test_pfedme():
    state = trained("pfedme", current_timeline())
    expected = pfedme_in_numpy(**ALGORITHMS["pfedme"][1])
    assert_close((flat(state.server.params), flat(state.clients)), expected, TOLERANCE)


# Inner steps of the rate 1/17 multiply the errors of both clients by +-1/17.
EXACT = {"mu": 15.0, "personal_lr": 1 / 17, "inner_steps": 12}


def test_pfedme_on_instance_q():
    x = instance_q.models(fs.pfedme(0.05, **EXACT), rounds=60)
    assert_printed(x[[0, -1]], "0.2435455322", "0.6953482340")


def test_one_local_step_finds_the_minimiser_of_the_moreau_envelopes():
    """F_i^mu has the curvature c_i = mu a_i / (mu + a_i); five steps per visit have another limit.

    The personal models are the proximal points of the last broadcast.
    """
    setup = instance_q.setup(rounds=120, num_steps=1)
    state, x = instance_q.final_state(fs.pfedme(0.05, server_lr=2.0, **EXACT), setup)
    assert_printed(x[-1], "0.7272727")
    np.testing.assert_allclose(x[-1], 8 / 11, rtol=1e-9)
    a, b = instance_q.A, instance_q.B
    proximal = (a * b + 15 * x[-1]) / (a + 15)
    np.testing.assert_allclose(state.clients[:, 0], proximal, rtol=1e-9)


def test_weight_decay_is_the_term_of_the_released_program():
    """theta minimises F_i(theta) + 0.5 / 2 theta^2 + 15 / 2 (theta - w)^2, once per visit."""
    decay = functools.partial(fs.transforms.add_decayed_weights, weight_decay=0.5)
    algorithm = fs.transforms.transform_oracle(fs.pfedme(0.05, **EXACT), decay)
    state, x = instance_q.final_state(algorithm, instance_q.setup(rounds=2, num_steps=1))
    theta, expected = np.zeros(2), 0.0
    for _ in range(2):
        theta = (instance_q.A * instance_q.B + 15 * expected) / (instance_q.A + 15.5)
        expected = expected - 0.05 * 15 * np.mean(expected - theta)
    np.testing.assert_allclose(x[-1], expected, rtol=1e-12)
    np.testing.assert_allclose(state.clients[:, 0], theta, rtol=1e-12)


@pytest.mark.slow
def test_all_clients_train_and_some_are_averaged():
    """The mean over exactly two of six clients, other ones in other rounds; all keep theta."""
    mu, p, lr = 2.0, 0.1, 0.3
    some = fs.pfedme(lr, mu, p, 1, num_averaged=2)

    def local_models(x):
        theta = x - p * np.einsum("mij,mj->mi", HESSIANS, x - CENTRES)
        return x - lr * mu * (x - theta), theta

    x, drawn = START, []
    for rounds in (1, 2, 3):
        state = state_after(some, rounds, NUM_CLIENTS, 1)
        models, theta = local_models(x)
        pairs = itertools.combinations(range(NUM_CLIENTS), 2)
        hits = [p for p in pairs if np.allclose(state.server.params, models[[*p]].mean(0))]
        assert len(hits) == 1
        assert_close(state.clients, theta, TOLERANCE)
        drawn, x = [*drawn, hits[0]], np.asarray(state.server.params)
    assert len(set(drawn)) > 1


@pytest.mark.slow
def test_without_a_server_step_the_model_is_constant():
    """And averaging all clients is the rule without a number."""
    fixed = state_after(fs.pfedme(0.05, server_lr=0.0), 2, NUM_CLIENTS, 2)
    np.testing.assert_array_equal(fixed.server.params, START)
    everyone = fs.pfedme(0.05, num_averaged=NUM_CLIENTS)
    states = [state_after(a, 2, NUM_CLIENTS, 2) for a in (everyone, fs.pfedme(0.05))]
    assert_close(states[0].server, states[1].server, TOLERANCE)


def test_personal_model_is_that_of_the_last_visit():
    algorithm = fs.pfedme(0.1)
    state = algorithm.init_client(jnp.array(3.0))
    assert float(algorithm.personal(None, state, None, None)) == 3.0
