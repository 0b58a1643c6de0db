"""DIANA: a NumPy derivation, identities, and exact second moments with random k.

With F_i = |x - b_i|^2 / 2 and random k (variance omega) the second moments of all states satisfy
linear recursions.  Figures: computed with NumPy in float64 from these recursions.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compressed_quadratics import as_unbiased, instance, setup, top
from small_problems import assert_close, compiled

import fedjax_sim as fs
from fedjax_sim.compression import compressed, identity, random_k, top_k

pytestmark = pytest.mark.usefixtures("x64")
A, B, BEST = instance()
RATE, ALPHA = 0.05, 0.3

# The instance of the second moments: M = 4, d = 8, k = 2.
CENTRES = instance(4, 8)[1]
MEAN = CENTRES.mean(0)
CLIENTS, OMEGA, STEP = 4, 3.0, 0.2
X0 = (MEAN**2).sum()
SPREAD = ((CENTRES - MEAN) ** 2).sum(1).mean()


def plain_moments(rounds):
    x, moments = X0, []
    for _ in range(rounds):
        x = (1 - STEP) ** 2 * x + STEP**2 * OMEGA / CLIENTS * (x + SPREAD)
        moments.append(x)
    return np.array(moments)


def diana_moments(rounds, a=1 / (1 + OMEGA), g=STEP):
    """x: E|x - x*|^2, y: E<x - x*, mean H>, z: mean E|H_i|^2 with H_i = h_i - h_i*."""
    x, y, z, moments = X0, 0.0, SPREAD, []
    for _ in range(rounds):
        e = x - 2 * y + z
        x, y, z = (
            (1 - g) ** 2 * x + g**2 * OMEGA / CLIENTS * e,
            (1 - g) * ((1 - a) * y + a * x) - g * a * OMEGA / CLIENTS * e,
            (1 - a) ** 2 * z + 2 * a * (1 - a) * y + a**2 * x + a**2 * OMEGA * e,
        )
        moments.append(x)
    return np.array(moments)


def test_recursions_have_the_printed_figures():
    np.testing.assert_allclose([X0, SPREAD], [0.9345010, 3.0303057], rtol=0, atol=5e-8)
    np.testing.assert_allclose(plain_moments(10)[-1], 0.2874952, rtol=0, atol=5e-8)
    np.testing.assert_allclose(diana_moments(10)[-1], 0.0843948, rtol=0, atol=5e-8)
    np.testing.assert_allclose(diana_moments(50)[-1], 1.51804e-5, rtol=0, atol=5e-11)
    shrinks = 1 - (1 - STEP) ** 2 - STEP**2 * OMEGA / CLIENTS
    limit = STEP**2 * OMEGA / CLIENTS * SPREAD / shrinks
    np.testing.assert_allclose(limit, 0.2754823, rtol=0, atol=5e-8)
    np.testing.assert_allclose(plain_moments(500)[-1], limit, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "moments", "rounds"),
    [
        (compressed(fs.fedsgd(STEP), random_k(2)), plain_moments(50), (0, 9, 49)),
        (fs.diana(fs.fedsgd(STEP), random_k(2), 0.25), diana_moments(50), (0, 1, 9, 49)),
    ],
    ids=["plain", "diana"],
)
def test_second_moments(algorithm, moments, rounds):
    """The mean over 2,000 runs within five standard errors, at every printed number of rounds."""
    problem = setup(np.ones((4, 8)), CENTRES, MEAN, fs.timelines.full(50, 4, 1))

    @compiled
    def go(problem, keys):
        return jax.vmap(lambda key: fs.run(algorithm, problem, key)[1].metrics["error"])(keys)

    errors = np.asarray(go(problem, jax.random.split(jax.random.key(1), 2000)))
    for t in rounds:
        standard_error = errors[:, t].std() / np.sqrt(len(errors))
        assert abs(errors[:, t].mean() - moments[t]) < 5 * standard_error, t
        assert standard_error < 0.2 * moments[t]


def run(algorithm, timeline, num_steps=1):
    problem = setup(A, B, BEST, timeline, num_steps)
    return compiled(functools.partial(fs.run, algorithm))(problem, jax.random.key(0))


def test_diana_follows_its_derivation():
    """With a deterministic codec, absent clients and three local steps."""
    mask = np.random.default_rng(3).random((6, 4)) < 0.6
    assert mask.any(1).all()
    timeline = dataclasses.replace(fs.timelines.full(6, 4, 3), mask=jnp.asarray(mask))
    algorithm = fs.diana(fs.fedavg(0.03), as_unbiased(top_k(4)), ALPHA)
    state, _ = run(algorithm, timeline, num_steps=3)
    x, shifts = np.zeros(10), np.zeros((4, 10))
    for present in mask:
        mean, sent = shifts.mean(0), []  # the server's h is the mean of all h_i
        for i in np.nonzero(present)[0]:
            y = x.copy()
            for _ in range(3):
                y = y - 0.03 * A[i] * (y - B[i])
            sent.append(top(4)(x - y - shifts[i]))
            shifts[i] += ALPHA * sent[-1]
        x = x - (mean + np.mean(sent, axis=0))
    assert_close(state.server.params, x, 1e-12)
    assert_close(state.server.estimate, shifts.mean(0), 1e-12)
    assert_close(state.clients.memory, shifts, 1e-12)


@pytest.mark.slow
def test_identities():
    """Exact codec: gradient descent for every alpha; alpha 0: the codec alone, the same draws."""
    timeline = fs.timelines.full(10, 4, 1)
    plain, codec = fs.fedsgd(RATE), random_k(3)
    gd = run(plain, timeline)[1].metrics["error"]
    exact = run(fs.diana(plain, identity(), ALPHA), timeline)[1].metrics["error"]
    np.testing.assert_allclose(exact, gd, rtol=1e-12)
    alone = run(compressed(plain, codec), timeline)[1].metrics["error"]
    without = run(fs.diana(plain, codec, 0.0), timeline)[1].metrics["error"]
    np.testing.assert_allclose(without, alone, rtol=1e-12)
    assert abs(alone[-1] - gd[-1]) > 1e-3


@pytest.mark.slow
def test_the_variance_vanishes_with_shifts_only():
    """The central claim: linear convergence with a constant rate, at the rate of the theorem."""
    codec, alpha = random_k(5), 0.5
    lr = float(fs.theory.compression.diana_lr(L_max=5.0, omega=1.0, clients=4))
    assert lr == 0.1
    timeline = fs.timelines.full(600, 4, 1)
    shifted = run(fs.diana(fs.fedsgd(lr), codec, alpha), timeline)[1].metrics["error"]
    alone = run(compressed(fs.fedsgd(lr), codec), timeline)[1].metrics["error"]
    assert shifted[-1] < 1e-18
    assert alone[-1] > 1e-3
