"""FedAc against NumPy, its coincidences, exact recursions and checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import current_timeline, moved, task
from network import final, flat, gradient, rounds, start
from quadratics import CENTRES, HESSIANS, START, same_clients, state_after
from small_problems import assert_close, logistic_params, logistic_task

import fedjax_sim as fs
from fedjax_sim.algorithms.fedac import Coupling, coupling

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


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


@pytest.mark.parametrize("gamma_mu", [1e-6, 0.01, 0.5])
def test_closed_form_of_beta(gamma_mu):
    """FedAc-II: beta = (9 - 6 g - g^2) / (3 g (1 - g)) with g = gamma mu."""
    g, mu = gamma_mu, 0.1
    numbers = coupling(mu * (g / mu) ** 2, mu, 1, "II")  # gamma = sqrt(eta / mu)
    assert_close(numbers.gamma * mu, g, 1e-12)
    assert_close(numbers.beta, (9 - 6 * g - g**2) / (3 * g * (1 - g)), 1e-11)


def test_gamma_is_at_least_the_rate():
    assert float(coupling(0.5, 1e-3, 10**9).gamma) == 0.5


def test_equal_rates_are_sgd():
    """gamma = eta: x_ag = x stays so, for all alpha and beta."""
    sgd = fs.fedac(0.1, 0.3, numbers=Coupling(0.1, 3.0, 4.0))
    expected = state_after(fs.fedavg(0.1)).server.params
    assert_close(state_after(sgd).server.params, expected, TOLERANCE)
    assert moved(state_after(fs.fedac(0.1, 0.3, 5)).server.params, expected) > 1e-2


def test_one_step_is_vanilla():
    for variant in ("I", "vanilla"):
        state = state_after(fs.fedac(0.2, 0.3, 1, variant), num_steps=1)
        expected = state_after(fs.mb_ac_sgd(0.2, 0.3), num_steps=1)
        assert_close(state.server.params, expected.server.params, TOLERANCE)


def test_number_of_steps_defaults_to_the_timelines():
    expected = state_after(fs.fedac(0.1, 0.3, 5)).server
    assert_close(state_after(fs.fedac(0.1, 0.3)).server, expected, TOLERANCE)


@pytest.mark.slow
def test_identical_clients_act_as_one():
    algorithm = fs.fedac(0.1, 0.3, 5)
    several = state_after(algorithm, 3, 4, clients=same_clients(4)).server
    assert_close(several, state_after(algorithm, 3, 1, clients=same_clients(1)).server, TOLERANCE)


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
    probes = fs.Probes(client={"upload": lambda visit: jnp.concatenate(visit.upload)})
    algorithm = fs.fedac(LR, MU, num_steps, variant, numbers=Coupling(gamma, alpha, beta))
    _, probed = state_after(algorithm, 1, 2, num_steps, clients=clients, probes=probes)
    ends = -probed["upload"][0]  # uploads are start minus end
    assert_close(ends[1] - ends[0], difference, TOLERANCE)


def test_scaled_objective_with_scaled_rates():
    """F -> c F, eta -> eta / c, mu -> c mu: gamma falls by c, alpha and beta stay."""
    scaled = state_after(fs.fedac(0.1 / 3, 0.9, 5), clients=(3 * HESSIANS, CENTRES)).server
    assert_close(scaled.params, state_after(fs.fedac(0.1, 0.3, 5)).server.params, TOLERANCE)


def test_refuses_other_variants():
    with pytest.raises(ValueError, match="variant is 'III'; expected 'I', 'II' or 'vanilla'"):
        fs.fedac(0.1, 0.1, 4, variant="III")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0; expected a positive number"),
        ({"mu": 20.0}, "lr .* mu is 2, with lr 0.1 and mu 20.0; expected at most 1"),
        ({"mu": 10.0, "variant": "II"}, "lr .* mu is 1, .* expected below 1"),
        ({"numbers": (0.1, 2.0, 3.0)}, r"numbers is \(0.1, .*; expected a Coupling"),
        ({"numbers": Coupling(-0.1, 2.0, 3.0)}, "numbers.gamma is -0.1; expected at least 0"),
        ({"numbers": Coupling(0.1, 0.5, 3.0)}, "numbers.alpha is 0.5; expected at least 1"),
    ],
)
def test_refuses_numbers_without_a_coupling(arguments, message):
    with pytest.raises(ValueError, match=message):
        fs.fedac(**({"lr": 0.1, "mu": 0.1, "num_steps": 4} | arguments))


@pytest.mark.parametrize(("num_steps", "steps"), [(32, "5 .. 5"), (4, "5 .. 5"), (0.5, "5 .. 5")])
def test_refuses_numbers_of_steps_that_the_timeline_does_not_have(num_steps, steps):
    setup = fs.Setup(logistic_task(), fs.timelines.full(2, 8, 5), logistic_params())
    with pytest.raises(ValueError, match=rf"num_steps is {num_steps}; expected {steps}, the local"):
        fs.init(fs.fedac(0.1, 0.1, num_steps), setup)


def test_refuses_too_many_steps_of_a_traced_timeline():
    setup = fs.Setup(logistic_task(), fs.timelines.full(2, 8, 5), logistic_params())
    with pytest.raises(ValueError, match=r"num_steps is 32; expected 0 \.\. 5, the local"):
        jax.eval_shape(lambda setup: fs.init(fs.fedac(0.1, 0.1, 32), setup), setup)


def test_ragged_visits_accept_every_number_between_theirs():
    for num_steps in (2, 4, 10):
        fs.init(
            fs.fedac(0.1, 0.1, num_steps), fs.Setup(task(), current_timeline(), logistic_params())
        )
