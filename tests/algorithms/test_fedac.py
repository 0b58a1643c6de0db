"""FedAc and the minibatch baselines against NumPy, their identities, and exact recursions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from network import final, flat, gradient, rounds, start
from small_problems import (
    assert_close,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
    partial_timeline,
    quadratic_task,
    random_quadratics,
)

import fedjax_sim as fs
from fedjax_sim import tree
from fedjax_sim.algorithms.fedac import coupling

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over a few rounds, round-off stays digits below.
TOLERANCE = 1e-11

LR, MU, K = 0.05, 0.3, 4
VARIANTS = ["I", "II", "II_code", "vanilla"]


def derived_coupling(variant):
    gamma = np.sqrt(LR / MU) if variant == "vanilla" else max(np.sqrt(LR / (MU * K)), LR)
    if variant in ("I", "vanilla"):
        return gamma, 1 / (gamma * MU), 1 / (gamma * MU) + 1
    alpha = 3 / (2 * gamma * MU) - 1 / 2
    numerator = 2 * alpha**2 - 1 if variant == "II" else 2 * alpha**2
    return gamma, alpha, numerator / (alpha - 1)


def derived_fedac(variant, augmentation=0.0):
    gamma, alpha, beta = derived_coupling(variant)
    x = ag = start()
    for visits in rounds():
        pairs = []
        for _, batches in visits:
            y, y_ag = x, ag
            for weights in batches:
                middle = y / beta + (1 - 1 / beta) * y_ag
                g = gradient(middle, weights) + augmentation * (middle - start())
                y_ag = middle - LR * g
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


def mean_gradient(x, visits):
    """Over all (client, step) pairs of the round."""
    return np.mean([gradient(x, w) for _, batches in visits for w in batches], axis=0)


def test_mb_sgd():
    x = start()
    for visits in rounds():
        x = x - LR * mean_gradient(x, visits)
    assert_close(flat(final(fs.mb_sgd(LR)).server.params), x, TOLERANCE)


def test_mb_ac_sgd():
    gamma, alpha, beta = derived_coupling("vanilla")
    x = ag = start()
    for visits in rounds():
        middle = x / beta + (1 - 1 / beta) * ag
        g = mean_gradient(middle, visits)
        ag, x = middle - LR * g, (1 - 1 / alpha) * x + middle / alpha - gamma * g
    state = final(fs.mb_ac_sgd(LR, MU)).server
    assert_close((flat(state.params), flat(state.main)), (ag, x), TOLERANCE)


@pytest.mark.parametrize("gamma_mu", [1e-6, 0.01, 0.5])
def test_closed_form_of_beta(gamma_mu):
    """FedAc-II: beta = (9 - 6 g - g^2) / (3 g (1 - g)) with g = gamma mu."""
    g, mu = gamma_mu, 0.1
    found = coupling(mu * (g / mu) ** 2, mu, 1, "II")  # gamma = sqrt(eta / mu)
    assert_close(found.gamma * mu, g, 1e-12)
    assert_close(found.beta, (9 - 6 * g - g**2) / (3 * g * (1 - g)), 1e-11)


def test_gamma_is_at_least_the_rate():
    assert float(coupling(0.5, 1e-3, 10**9).gamma) == 0.5


def one_step(algorithm, cohort_size=4):
    """Four rounds of one local step with minibatches."""

    @compiled
    def go(task, timeline):
        key = jax.random.key(2)
        return fs.run(algorithm, fs.Setup(task, timeline, logistic_params()), key)[0].server.params

    task = logistic_task(fs.with_replacement(2, 1))
    timeline = fs.timelines.cyclic(4, task.num_clients, cohort_size, 1)
    return go(task, timeline)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fs.mb_sgd(0.2), fs.fedavg(0.2)),
        (fs.mb_sgd(0.2), fs.fedsgd(0.2)),
        (fs.fedac(0.2, 0.3, 1), fs.fedac(0.2, 0.3, 1, "vanilla")),
        (fs.mb_ac_sgd(0.2, 0.3), fs.fedac(0.2, 0.3, 1)),
    ],
    ids=["mb_sgd_fedavg", "mb_sgd_fedsgd", "vanilla", "mb_ac_sgd"],
)
def test_coincide_with_one_local_step(one, other):
    assert_close(one_step(one), one_step(other), TOLERANCE)


def test_fedac_with_equal_rates_is_sgd():
    """gamma = eta (many local steps): x_ag = x stays so, whatever alpha and beta."""

    def stochastic(algorithm):
        @compiled
        def go(task, timeline):
            key = jax.random.key(2)
            return fs.run(algorithm, fs.Setup(task, timeline, logistic_params()), key)[
                0
            ].server.params

        return go(logistic_task(), partial_timeline())

    assert_close(stochastic(fs.fedac(0.2, 0.3, 10**9)), stochastic(fs.fedavg(0.2)), TOLERANCE)
    difference = tree.sub(stochastic(fs.fedac(0.2, 0.3, 4)), stochastic(fs.fedavg(0.2)))
    assert float(tree.norm(difference)) > 1e-2


HESSIANS, CENTRES = random_quadratics(1, 3)
START = np.array([1.0, -2.0, 0.5])


def quadratic_states(algorithm, num_rounds, num_steps=1, clients=(HESSIANS, CENTRES)):
    task = quadratic_task(*clients, num_steps)
    timeline = fs.timelines.full(num_rounds, task.num_clients, num_steps)

    @compiled
    def solve(task):
        return fs.run(algorithm, fs.Setup(task, timeline, jnp.asarray(START)), jax.random.key(0))[0]

    return solve(task).server


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
    state = quadratic_states(build(1 / smooth, mu), 7)
    assert_close((state.params, state.main), (ag, w), TOLERANCE)


@pytest.mark.parametrize("variant", ["I", "II"])
def test_difference_of_two_clients_obeys_its_recursion(variant):
    """Quadratics of one Hessian: a fixed matrix, and noise that enters linearly."""
    num_steps, shift = 6, np.array([0.3, -0.1, 0.2])
    hessian = HESSIANS[0]
    gamma, alpha, beta = coupling(LR, MU, K, variant)
    eye = np.eye(3)
    top = eye - LR * hessian
    bottom = eye / alpha - gamma * hessian
    matrix = np.block(
        [
            [(1 - 1 / beta) * top, top / beta],
            [(1 - 1 / beta) * bottom, bottom / beta + (1 - 1 / alpha) * eye],
        ]
    )
    # Client 1's gradients are those of client 0 plus `shift`.
    push = np.concatenate([LR * shift, gamma * shift])
    difference = np.zeros(6)
    for _ in range(num_steps):
        difference = matrix @ difference - push
    clients = (
        np.stack([hessian] * 2),
        np.stack([CENTRES[0], CENTRES[0] - np.linalg.solve(hessian, shift)]),
    )
    task = quadratic_task(*clients, num_steps)
    timeline = fs.timelines.full(1, 2, num_steps)
    probes = fs.Probes(client={"moved": lambda visit: jnp.concatenate(visit.upload)})

    @compiled
    def solve(task):
        algorithm = fs.fedac(LR, MU, K, variant)
        key = jax.random.key(0)
        return fs.run(algorithm, fs.Setup(task, timeline, jnp.asarray(START)), key, probes=probes)[
            1
        ].probes

    moved = -solve(task)["moved"][0]  # uploads are start minus end
    assert_close(moved[1] - moved[0], difference, TOLERANCE)


@pytest.mark.parametrize(
    "algorithm", [fs.fedac(0.1, 0.3, 5), fs.mb_sgd(0.1), fs.mb_ac_sgd(0.1, 0.3)]
)
def test_identical_clients_act_as_one(algorithm):
    many = tuple(np.repeat(x, 4, axis=0) for x in (HESSIANS, CENTRES))
    expected = quadratic_states(algorithm, 3, 5).params
    assert_close(quadratic_states(algorithm, 3, 5, many).params, expected, TOLERANCE)


@pytest.mark.parametrize("scale", [3.0])
def test_scaled_objective_with_scaled_rates(scale):
    """F -> c F, eta -> eta / c, mu -> c mu: gamma falls by c, alpha and beta stay."""
    scaled = quadratic_states(
        fs.fedac(0.1 / scale, 0.3 * scale, 5), 3, 5, (scale * HESSIANS, CENTRES)
    )
    assert_close(scaled.params, quadratic_states(fs.fedac(0.1, 0.3, 5), 3, 5).params, TOLERANCE)


def test_accelerates():
    """Condition number 400: far closer than gradient descent after 100 rounds at its rate."""
    hessian = np.diag([1.0, 0.1, 1 / 400])[None]
    clients = hessian, np.zeros((1, 3))
    fast = quadratic_states(fs.mb_ac_sgd(1.0, 1 / 400), 100, 1, clients).params
    slow = quadratic_states(fs.fedavg(1.0, optax.sgd(1.0)), 100, 1, clients).params
    # (1 - 1 / 20)^100 = 0.006 against (1 - 1 / 400)^100 = 0.78 of the last coordinate.
    assert np.abs(fast).max() < 0.05 * np.abs(slow).max()


def test_agd_takes_full_gradients_of_the_pooled_objective():
    """Ragged clients, one local step allowed; by examples weighted."""
    task, timeline = logistic_task(), fs.timelines.full(1, 8, 1)
    start, key = logistic_params(), jax.random.key(0)
    state, _ = fs.run(
        fs.agd(2.0, 0.5), fs.Setup(task, timeline, start, weighting=fs.weight_by_examples), key
    )
    data = logistic_data()
    pooled = jax.grad(lambda w: jnp.mean(logistic_losses(w, data.examples, None)))(start)
    assert_close(state.server.params, tree.add_scale(start, -1 / 2.0, pooled), TOLERANCE)


def test_refuses_other_variants():
    with pytest.raises(ValueError, match="variant is 'III'; expected 'I', 'II', 'II_code'"):
        fs.fedac(0.1, 0.1, 4, variant="III")
