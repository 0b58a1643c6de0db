"""FedAC, minibatch SGD and its accelerated form against NumPy, and Nesterov's method."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import task
from network import final, flat, gradient, rounds, start
from quadratics import CENTRES, HESSIANS, START, state_after
from small_problems import (
    assert_close,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
)

import fedjax_sim as fs
from fedjax_sim import tree
from fedjax_sim.algorithms.fedac import coupling
from fedjax_sim.local import exponential_decay

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-11  # double precision, three rounds of at most ten steps: digits below

# ---- FedAC


LR, MU, K = 0.05, 0.3, 4
VARIANTS = ["I", "II", "vanilla"]
ONE = (HESSIANS[:1], CENTRES[:1])


def derived_coupling(variant):
    gamma = np.sqrt(LR / MU) if variant == "vanilla" else max(np.sqrt(LR / (MU * K)), LR)
    if variant in ("I", "vanilla"):
        return gamma, 1 / (gamma * MU), 1 / (gamma * MU) + 1
    alpha = 3 / (2 * gamma * MU) - 1 / 2
    return gamma, alpha, (2 * alpha**2 - 1) / (alpha - 1)


def derived_fedac(variant, augmentation=0.0):
    return derived_path(lambda r: (LR, *derived_coupling(variant)), augmentation)


def derived_path(numbers, augmentation=0.0):
    x = ag = start()
    for r, visits in enumerate(rounds()):
        eta, gamma, alpha, beta = numbers(r)
        pairs = []
        for _, batches in visits:
            y, y_ag = x, ag
            for weights in batches:
                middle = y / beta + (1 - 1 / beta) * y_ag
                g = gradient(middle, weights) + augmentation * (middle - start())
                y_ag = middle - eta * g
                y = (1 - 1 / alpha) * y + middle / alpha - gamma * g
            pairs.append((y, y_ag))
        x, ag = np.mean(pairs, axis=0)
    return ag, x


@pytest.mark.parametrize("variant", VARIANTS)
def test_fedac(variant):
    state = final(fs.fedac(LR, MU, K, variant)).server
    actual = flat(state.params), flat(state.main)
    assert_close(actual, derived_fedac(variant), TOLERANCE)


def test_fedac_of_the_augmented_objective():
    state = final(fs.fedac(LR, MU, K, augmentation=0.4)).server
    actual = flat(state.params), flat(state.main)
    assert_close(actual, derived_fedac("I", augmentation=0.4), TOLERANCE)


def test_fedac_with_schedules():
    """Given numbers of every round, and rates of every round with the coupling they imply."""

    def direct(r):
        half = (jnp.asarray(r).astype(float) + 1) / 2
        return LR * half, K * half, K * half + 1

    def falling(r):
        return LR / (jnp.asarray(r).astype(float) + 1)

    def with_steps(steps):
        def derived(r):
            gamma = max(np.sqrt(falling(r) / (MU * steps)), falling(r))
            return falling(r), gamma, 1 / (gamma * MU), 1 / (gamma * MU) + 1

        return derived

    most = max(len(batches) for visits in rounds() for _, batches in visits)
    for algorithm, derived in (
        (fs.fedac(falling, numbers=direct), lambda r: (falling(r), *direct(r))),
        (fs.fedac(falling, MU, K), with_steps(K)),
        (fs.fedac(falling, MU), with_steps(most)),  # that of the timeline
    ):
        state = final(algorithm).server
        assert_close((flat(state.params), flat(state.main)), derived_path(derived), TOLERANCE)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1, 2), r"numbers\(round\) is \(1, 2\); expected a tuple"),
        ((1, 0.5, 2), r"numbers\(round\), alpha is 0.5; expected at least 1"),
        ((jnp.ones(2), 2, 2), r"numbers\(round\), gamma has shape \(2,\); expected one"),
    ],
)
def test_schedules_that_return_something_else(numbers, message):
    with pytest.raises(ValueError, match=message):
        final(fs.fedac(LR, numbers=lambda round: numbers))


def test_schedules_that_fail():
    with pytest.raises(
        ValueError, match=r"^numbers fails for a traced round \(TypeError: .* expected"
    ):
        final(fs.fedac(LR, numbers=lambda round: round + "1"))


@pytest.mark.parametrize("gamma_mu", [1e-6, 0.01, 0.5])
def test_closed_form_of_beta(gamma_mu):
    """FedAc-II: beta = (9 - 6 g - g^2) / (3 g (1 - g)) with g = gamma mu."""
    g, mu = gamma_mu, 0.1
    numbers = coupling(mu * (g / mu) ** 2, mu, 1, "II")  # gamma = sqrt(eta / mu)
    assert_close(numbers.gamma * mu, g, 1e-12)
    assert_close(numbers.beta, (9 - 6 * g - g**2) / (3 * g * (1 - g)), 1e-11)


def test_gamma_is_at_least_the_rate():
    assert float(coupling(0.5, 1e-3, 10**9).gamma) == 0.5


@pytest.mark.parametrize(
    "build",
    [lambda lr, mu: fs.fedac(lr, mu, 1), fs.mb_ac_sgd, lambda lr, mu: fs.agd(1 / lr, mu)],
    ids=["fedac", "mb_ac_sgd", "agd"],
)
def test_exact_gradients_make_it_nesterovs_method(build):
    """eta = 1 / L: the deterministic method of the thesis' Algorithm 3."""
    smooth, mu = 2.0, 0.25
    root = np.sqrt(smooth / mu)
    w = ag = START
    for _ in range(7):
        middle = w / (root + 1) + root / (root + 1) * ag
        g = HESSIANS[0] @ (middle - CENTRES[0])
        ag = middle - g / smooth
        w = (1 - 1 / root) * w + middle / root - g / np.sqrt(smooth * mu)
    state = state_after(build(1 / smooth, mu), 7, 1, 1, clients=ONE).server
    assert_close((state.params, state.main), (ag, w), TOLERANCE)


# ---- minibatch SGD


def mean_gradient(x, visits):
    """Over all (client, step) pairs of the round."""
    return np.mean([gradient(x, w) for _, batches in visits for w in batches], axis=0)


@pytest.mark.parametrize(
    "factory", [fs.mb_sgd, fs.async_sgd, lambda lr: fs.afl(lr, 1, average=False)],
    ids=["mb_sgd", "async_sgd", "afl"],
)  # fmt: skip
def test_schedules_give_the_rate_of_each_round(factory):
    """One client with one step per round: gradient descent, whose rate halves in every round."""

    def after(lr, rounds):
        return state_after(factory(lr), rounds, 1, 1, clients=ONE).server.params

    x = after(exponential_decay(0.2, 0.5), 2)
    first = after(0.2, 1)
    assert_close(x, first - 0.1 * HESSIANS[0] @ (first - CENTRES[0]), TOLERANCE)


def test_mb_sgd():
    x = start()
    for visits in rounds():
        x = x - LR * mean_gradient(x, visits)
    assert_close(flat(final(fs.mb_sgd(LR)).server.params), x, TOLERANCE)


def test_mb_ac_sgd():
    gamma = np.sqrt(LR / MU)
    alpha = 1 / (gamma * MU)
    beta = alpha + 1
    x = ag = start()
    for visits in rounds():
        middle = x / beta + (1 - 1 / beta) * ag
        g = mean_gradient(middle, visits)
        ag, x = middle - LR * g, (1 - 1 / alpha) * x + middle / alpha - gamma * g
    state = final(fs.mb_ac_sgd(LR, MU)).server
    assert_close((flat(state.params), flat(state.main)), (ag, x), TOLERANCE)


def test_accelerates():
    """Condition number 400: far closer than gradient descent after 100 rounds at its rate."""
    hessian = np.diag([1.0, 0.1, 1 / 400])[None]
    clients = hessian, np.zeros((1, 3))
    fast = state_after(
        fs.mb_ac_sgd(1.0, 1 / 400), 100, 1, 1, clients=clients, start=np.ones(3)
    ).server.params
    slow = state_after(
        fs.fedavg(1.0, optax.sgd(1.0)), 100, 1, 1, clients=clients, start=np.ones(3)
    ).server.params
    # (1 - 1 / 20)^100 = 0.006 against (1 - 1 / 400)^100 = 0.78 of the last coordinate.
    assert np.abs(fast).max() < 0.05 * np.abs(slow).max()


def test_agd_takes_full_gradients_of_the_pooled_objective():
    """Ragged clients and weights by examples."""
    timeline, start = fs.timelines.full(1, 8, 1), logistic_params()
    setup = fs.Setup(task(), timeline, start, weighting=fs.weight_by_examples)
    state, _ = compiled(lambda setup: fs.run(fs.agd(2.0, 0.5), setup, jax.random.key(0)))(setup)
    data = logistic_data()
    pooled = jax.grad(lambda w: jnp.mean(logistic_losses(w, data.examples, None)))(start)
    assert_close(state.server.params, tree.add_scale(start, -1 / 2.0, pooled), TOLERANCE)
