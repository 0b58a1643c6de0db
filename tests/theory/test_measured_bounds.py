"""Runs on quadratics whose constants are known, against the bounds of FedAvg and FedAc.

Noise of fixed norm ``sigma`` has variance ``sigma^2`` and fourth moment ``sigma^4`` exactly.  The
clients share their Hessian, so gradients differ by a constant: zeta is exact, too.  A mean over
runs may exceed a bound by 4 standard errors, which chance does once in 30000 checks at most.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.algorithms.fedac import Coupling, accelerated
from fedjax_sim.theory import ProblemConstants, fedac, fedavg

L, MU = 1.0, 0.05
HESSIAN = np.linspace(MU, L, 5)  # diagonal
START = np.full(5, 2 / np.sqrt(5))
B = 2.0
NUM_RUNS = 200
# M, K, R, sigma, lr
SETTINGS = [(4, 8, 20, 1.0, 0.1), (8, 32, 10, 2.0, 0.02), (2, 4, 50, 0.5, 0.25)]


def noisy_task(centres, sigma, num_steps):
    """F_m = (x - b_m)' A (x - b_m) / 2; the optimum of F is 0 if the centres' mean is."""
    count = len(centres)
    oracle = Partial(_oracle, jnp.asarray(HESSIAN, jnp.float32), jnp.float32(centres), sigma)
    return fs.Task(oracle, np.ones(count, np.int32), np.full(count, num_steps, np.int32))


def _oracle(hessian, centres, sigma, client, key, max_steps):
    del max_steps

    def loss(x, step):
        direction = jax.random.normal(jax.random.fold_in(key, step), x.shape)
        noise = sigma * direction / jnp.linalg.norm(direction)
        return 0.5 * jnp.sum(hessian * (x - centres[client]) ** 2) + noise @ x

    return fs.Oracle(jax.grad(loss), loss, lambda x: hessian * (x - centres[client]))


def error(x):
    """F(x) - F*, of models on the last axis."""
    return 0.5 * (np.asarray(x, np.float64) ** 2 * HESSIAN).sum(axis=-1)


def squared(x):
    return (np.asarray(x, np.float64) ** 2).sum(axis=-1)


def final_states(algorithm, setting, probes=fs.engine.NO_PROBES, centres=None):
    """The server states of NUM_RUNS runs, and their probes."""
    M, K, R, sigma, _ = setting
    task = noisy_task(np.zeros((M, 5)) if centres is None else centres, sigma, K)
    timeline = fs.timelines.full(R, M, K)
    start = jnp.asarray(START, jnp.float32)

    @compiled
    def runs(task, keys):
        def one(key):
            state, history = fs.run(
                algorithm,
                fs.Setup(task, timeline, start),
                key,
                execution=fs.execution.vmapped(),
                probes=probes,
            )
            return state.server, history.probes

        return jax.vmap(one)(keys)

    return runs(task, jax.random.split(jax.random.key(0), NUM_RUNS))


@functools.cache
def fedavg_paths(setting, heterogeneous=False):
    """Every client's iterates [runs, R, M, K + 1, 5] and the final model [runs, 5]."""
    M, K, _, _, lr = setting

    def path(visit):
        def step(x, k):
            x = x - lr * visit.oracle.grad(x, k)
            return x, x

        return jax.lax.scan(step, visit.message, jnp.arange(K, dtype=jnp.int32))[1]

    start = {"path": path, "start": lambda visit: visit.message}
    found = final_states(fs.fedavg(lr), setting, fs.Probes(client=start), centres(M, heterogeneous))
    server, probed = found
    paths = np.concatenate([probed["start"][..., None, :], probed["path"]], axis=-2)
    # The same noise again: the paths end at the model. float32, K steps.
    last = paths[:, -1, :, -1].mean(axis=1)
    np.testing.assert_allclose(last, server.params, rtol=0, atol=1e-5)
    return paths.astype(np.float64), np.asarray(server.params, np.float64)


def centres(M, heterogeneous):
    found = np.random.default_rng(0).normal(size=(M, 5))
    return (found - found.mean(axis=0)) * (1.0 if heterogeneous else 0.0)


def assert_at_most(samples, bound):
    """The mean of independent samples is not above the bound, but for chance."""
    slack = 4 * np.std(samples) / np.sqrt(len(samples))
    assert np.mean(samples) <= float(bound) + slack
    return np.mean(samples) / float(bound)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("heterogeneous", [False, True])
def test_fedavg_and_its_drift(setting, heterogeneous):
    M, K, R, sigma, lr = setting
    zeta = np.linalg.norm(HESSIAN * centres(M, heterogeneous), axis=1).max()
    paths, final = fedavg_paths(setting, heterogeneous)
    shadow = paths.mean(axis=2)  # [runs, R, K + 1, 5]
    means = error(shadow[:, :, 1:]).mean(axis=(1, 2)) + squared(final) / (2 * lr * K * R)
    constants = ProblemConstants(L=L, sigma=sigma, zeta=zeta, B=B)
    visit = {"lr": lr, "local_steps": K}
    sizes = {**visit, "rounds": R, "clients": M}
    assert_at_most(means, fedavg.bound(constants, "convex", **sizes))
    drift = squared(paths - shadow[:, :, None])[..., :-1]
    # With the drift that was measured, the lemma is near: within a factor of 10.
    lemma = fedavg.shadow_bound(constants, drift=drift.mean(), **sizes)
    assert assert_at_most(means, lemma) > 0.1
    bound = fedavg.drift_bound(constants, **visit)
    # The largest of R M K means of 200 runs: chance adds up to 4 errors of the one with most.
    errors = drift.std(axis=0) / np.sqrt(NUM_RUNS)
    assert (drift.mean(axis=0) <= float(bound) + 4 * errors).all()
    assert drift[..., 1:].mean() > 0


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_fedavg_with_a_constant_hessian(setting):
    """Q = 0: Theorems 2.19 and B.18 without their last terms, and the fourth moment."""
    M, K, R, sigma, lr = setting
    paths, final = fedavg_paths(setting)
    shadow = paths.mean(axis=2)
    fourth = (squared(paths - shadow[:, :, None]) ** 2).mean(axis=2)[..., :-1]
    constants = ProblemConstants(L=L, mu=MU, Q=0.0, sigma=sigma, sigma4=sigma, B=B)
    bound = fedavg.fourth_moment_bound(constants, lr=lr, local_steps=K)
    errors = fourth.std(axis=0) / np.sqrt(NUM_RUNS)
    assert (fourth.mean(axis=0) <= float(bound) + 4 * errors).all()

    steps = shadow[:, :, :-1].reshape(NUM_RUNS, K * R, 5)
    t = np.arange(K * R)
    sizes = {"lr": lr, "local_steps": K, "rounds": R, "clients": M}
    found = error(np.average(steps, axis=1, weights=(1 + 1 / (K * R)) ** -(t + 1.0)))
    assert_at_most(found, fedavg.bound(constants, "third order", **sizes))
    weights = (1 - lr * MU / 2) ** (K * R - t - 1.0)
    found = error(np.average(steps, axis=1, weights=weights)) + MU / 2 * squared(final)
    assert_at_most(found, fedavg.bound(constants, "strongly convex", **sizes))


FEDAC_SETTINGS = [
    (4, 8, 20, 1.0, 0.02), (2, 4, 60, 0.5, 0.1), (4, 8, 20, 0.01, 0.1), (3, 2, 10, 0.0, 1.0)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("setting", FEDAC_SETTINGS)
@pytest.mark.parametrize("variant", ["I", "vanilla", "II"])
def test_fedac(setting, variant):
    """FedAc-I, with the largest gamma, too, and FedAc-II: their potentials after R rounds."""
    M, K, R, sigma, lr = setting
    server, _ = final_states(fs.fedac(lr, MU, K, variant), setting)
    share = MU / (6 if variant == "II" else 2)
    start = error(START) + share * squared(START)
    assert start <= L * B**2
    potentials = error(server.params) + share * squared(server.main)
    constants = ProblemConstants(L=L, mu=MU, sigma=sigma, sigma4=sigma)
    run = {"lr": lr, "local_steps": K, "rounds": R, "clients": M, "potential": start}
    gamma = max(np.sqrt(lr / (MU * K)), lr)
    if variant == "II":
        for Q in (None, 0.0):
            bound = functools.partial(
                fedac.bound, constants._replace(Q=Q), "strongly convex", variant="II", **run
            )
            assert_at_most(potentials, bound())
            assert_at_most(potentials, bound(gamma=gamma))
        return
    bound = functools.partial(fedac.bound, constants, "strongly convex", variant="I", **run)
    if variant == "I":
        assert_at_most(potentials, bound())
        assert_at_most(potentials, bound(gamma=gamma))
    else:
        assert_at_most(potentials, bound(gamma=np.sqrt(lr / MU)))


@pytest.mark.slow
def test_acceleration_is_not_proven_too_fast():
    """Without noise the bound is exp(-gamma mu K R) alone, and within a factor of 1e4."""
    setting = (3, 4, 5, 0.0, 1.0)
    server, _ = final_states(fs.fedac(1.0, MU, 4, "I"), setting)
    start = error(START) + MU / 2 * squared(START)
    potential = error(server.params) + MU / 2 * squared(server.main)
    constants = ProblemConstants(L=L, mu=MU, sigma=0.0)
    run = {"lr": 1.0, "potential": start, "local_steps": 4, "rounds": 5, "clients": 3}
    bound = fedac.bound(constants, "strongly convex", variant="I", **run)
    assert 1e-4 < assert_at_most(potential, bound) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["I", "II"])
def test_fedac_on_the_augmented_objective(variant):
    setting = M, K, R, sigma, lr = (4, 8, 20, 0.3, 0.05)
    augmentation = 0.1
    algorithm = fs.fedac(lr, augmentation, K, variant, augmentation=augmentation)
    server, _ = final_states(algorithm, setting)
    constants = ProblemConstants(L=L, sigma=sigma, B=B)
    run = {"lr": lr, "local_steps": K, "rounds": R, "clients": M}
    bound = fedac.bound(constants, "convex", variant=variant, augmentation=augmentation, **run)
    assert_at_most(error(server.params), bound)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["I", "II"])
def test_growth_of_differences(x64, variant):
    """The norm of a step's transformed matrix, for random Hessians and rates.

    1e-9: the bound is met with equality at gamma = lr, and float64 sums of products round.
    """
    rng = np.random.default_rng(1)
    ratios = []
    for _ in range(100):
        smooth = 10 ** rng.uniform(-1, 1)
        mu = smooth * 10 ** rng.uniform(-3, -0.1)
        lr = rng.uniform(0.01, 1) / smooth
        share = rng.choice([0.0, rng.uniform(), 1.0])
        gamma = lr ** (1 - share) * np.sqrt(lr / mu) ** share
        pair = couple(variant, gamma, mu)
        basis = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        hessian = basis * rng.uniform(mu, smooth, size=3) @ basis.T

        def step(both, hessian=hessian, lr=lr, pair=pair):
            ag, main = accelerated((both[:3], both[3:]), lambda x: hessian @ x, lr, pair)
            return jnp.concatenate([ag, main])

        matrix = np.stack([step(row) for row in np.eye(6)], axis=1)
        change = np.block([[lr / gamma * np.eye(3), np.zeros((3, 3))], [np.eye(3), np.eye(3)]])
        norm = np.linalg.norm(np.linalg.solve(change, matrix @ change), 2)
        bound = fedac.difference_growth(
            ProblemConstants(mu=mu), variant=variant, lr=lr, gamma=gamma
        )
        ratios.append(norm / float(bound))
    assert max(ratios) <= 1 + 1e-9
    assert max(ratios) > 0.9


def couple(variant, gamma, mu):
    if variant == "I":
        return Coupling(gamma, 1 / (gamma * mu), 1 / (gamma * mu) + 1)
    alpha = 3 / (2 * gamma * mu) - 0.5
    return Coupling(gamma, alpha, (2 * alpha**2 - 1) / (alpha - 1))
