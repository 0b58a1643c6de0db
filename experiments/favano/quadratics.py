"""Quadratic clients whose constants are known exactly, and FAVANO's runs on them.

Client i has f_i(x) = h_i x' A x / 2 + c_i' x and noise of fixed length; clients come in pairs of
one h and opposite c, so that f = x' A x / 2, and the mean of ||grad f_i||^2 at every x is
B^2 ||grad f||^2 + G^2, with B^2 the mean of h_i^2 and G^2 that of ||c_i||^2.  The steps between two
contacts are independent draws, as in the theory: geometric; "slow" clients (1/16) do more of them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.favano.in_flight import held_models
from fedjax_sim.algorithms.staleness import expected_steps, realised_steps
from fedjax_sim.theory import Version

DIM, NUM_CLIENTS, SIGMA, G = 10, 20, 0.5, 0.5
SPREAD = (0.75, 1.25)  # h_i
FAST, SLOW = 1 / 2, 1 / 16
SLOW_FRACTIONS = (0.0, 0.5, 1.0)


class Problem(NamedTuple):
    """The clients' quadratics, and the initial model."""

    hessian: np.ndarray  # A, [d, d]
    scales: np.ndarray  # h_i, [n]
    linear: np.ndarray  # c_i, [n, d]
    start: np.ndarray  # [d]

    @property
    def constants(self) -> fs.theory.ProblemConstants:
        """The exact constants of the theorem."""
        largest = float(np.linalg.eigvalsh(self.hessian)[-1])
        return fs.theory.ProblemConstants(
            L=largest * float(self.scales.max()),
            sigma=SIGMA,
            dissimilarity=float(np.mean(np.sum(self.linear**2, axis=1)) ** 0.5),
            dissimilarity_factor=float(np.mean(self.scales**2) ** 0.5),
            Delta=float(self.start @ self.hessian @ self.start / 2),
        )


def problem(seed: int, n: int = NUM_CLIENTS) -> Problem:
    """Eigenvalues from 1/10 to 1; a multiple of 4 clients; pairs (h, c) and (h, -c)."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    half = rng.normal(size=(n // 2, DIM))
    linear = np.stack([half, -half], axis=1).reshape(n, DIM)
    linear *= G / np.mean(np.sum(linear**2, axis=1)) ** 0.5
    return Problem(
        hessian=basis * np.geomspace(0.1, 1, DIM) @ basis.T,
        scales=np.repeat(np.resize(SPREAD, n // 2), 2),
        linear=linear,
        start=basis @ np.ones(DIM),
    )


def oracle(problem: Problem, client: Any, key: Any, max_steps: int) -> fs.Oracle:
    """Step k has noise of length SIGMA and random sign along coordinate k."""
    del max_steps
    scale, linear = jnp.asarray(problem.scales)[client], jnp.asarray(problem.linear)[client]
    hessian = scale * jnp.asarray(problem.hessian)
    places = jnp.arange(DIM, dtype=jnp.int32)

    def grad(x: Any, k: Any) -> Any:
        sign = jax.random.rademacher(jax.random.fold_in(key, k), (), x.dtype)
        noise = jnp.where(places == jnp.asarray(k, jnp.int32) % DIM, SIGMA * sign, 0.0)
        return hessian @ x + linear + noise

    return fs.Oracle(grad, lambda x, k: x @ hessian @ x / 2 + linear @ x, lambda x: hessian @ x)


class Batch(NamedTuple):
    """Runs side by side, ``[R, ...]``."""

    timeline: fs.Timeline
    versions: Any  # [R, T, n] held by the clients after each update
    p_active: Any  # [R, n]
    mean: Any  # [R, n]
    chances: Any  # [R, n, K] of 1 .. K steps
    key: Any  # [R]


def success(fraction: float, n: int = NUM_CLIENTS) -> np.ndarray:
    """Chance per client that a step ends; both clients of a pair are equally fast."""
    return np.where(np.arange(n) < round(fraction * n / 2) * 2, SLOW, FAST)


def batch(s: int, K: int, server_steps: int, repetitions: int, seed: int = 0) -> Batch:
    """All repetitions at all fractions of slow clients, in this order."""
    timelines, laws, chances = [], [], []
    keys = jax.random.split(jax.random.key(seed), len(SLOW_FRACTIONS) * repetitions)
    for i, key in enumerate(keys):
        law = success(SLOW_FRACTIONS[i // repetitions])
        timelines.append(
            fs.timelines.contacts(
                key,
                fs.timelines.independent_counts(fs.timelines.geometric(law)),
                horizon=float(server_steps),
                interval=1.0,
                num_clients=NUM_CLIENTS,
                cohort_size=s,
                max_steps=K,
            )
        )
        laws.append(fs.theory.step_counts.geometric(law, K))
        tail = (1 - law[:, None]) ** np.arange(K + 1)
        tail[:, K] = 0  # the cap
        chances.append(tail[:, :-1] - tail[:, 1:])
    versions = np.stack(
        [fs.timelines.held_versions(timeline, NUM_CLIENTS) for timeline in timelines]
    )
    return Batch(
        fs.timelines.allocate_buffers(fs.timelines.stacked(timelines), versions),
        versions,
        np.stack([law.p_active for law in laws]),
        np.stack([law.mean for law in laws]),
        np.stack(chances),
        jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys),
    )


def trace(problem: Problem, run: Batch, lr: Any, version: Version, K: int) -> Any:
    """``[T + 1, 4]``: ||grad f(mu_t)||^2, Phi_t, all clients' expected progress, the squared step.

    The last row has no step: 0.  The progress of step t is the sum over the clients of
    E||h_i / alpha_i||^2, over the number of steps exactly, over the noise one draw.
    """
    ones = np.ones(NUM_CLIENTS, np.int32)
    task = fs.Task(Partial(oracle, problem), ones, K * ones)
    count = jnp.arange(1, K + 1, dtype=float)
    if version == "stochastic":
        alpha, divisors = realised_steps(run.p_active), run.p_active[:, None] * count
    else:
        alpha, divisors = expected_steps(run.mean), run.mean[:, None] * jnp.ones(K)
    weights = run.chances / divisors**2

    def progress(model: Any, client: Any, weights: Any, key: Any) -> Any:
        grad = oracle(problem, client, key, K).grad

        def step(carry: Any, at: Any) -> Any:
            x, total = carry
            k, weight = at
            gradient = grad(x, k)
            total = total + gradient
            return (x - lr * gradient, total), weight * jnp.sum(total**2)

        start = (model, jnp.zeros(DIM))
        return jax.lax.scan(step, start, (jnp.arange(K, dtype=jnp.int32), weights))[1].sum()

    def measured(server: Any, clients: Any, round: Any) -> Any:
        mu = fs.diagnostics.potential.mean_model(server, clients)
        gradient = jnp.asarray(problem.hessian) @ mu
        key = jax.random.fold_in(jax.random.fold_in(run.key, 2**31), round)
        keys = jax.random.split(key, NUM_CLIENTS)
        each = jax.vmap(progress)(clients, jnp.arange(NUM_CLIENTS), weights, keys)
        return jnp.stack(
            [jnp.sum(gradient**2), fs.diagnostics.potential.potential(server, clients), each.sum()]
        ), mu

    def probe(state: fs.RunState) -> Any:
        versions = jnp.asarray(run.versions)[state.round - 1]
        clients = held_models(state, run.timeline, versions)
        return measured(state.server.params, clients, state.round)

    start = jnp.asarray(problem.start)
    setup, probes = fs.Setup(task, run.timeline, start), fs.Probes(run={"trace": probe})
    _, history = fs.run(fs.favano(lr, alpha), setup, run.key, probes=probes)
    first = measured(start, jnp.broadcast_to(start, (NUM_CLIENTS, DIM)), jnp.array(0))
    values, mu = jax.tree.map(
        lambda start, later: jnp.concatenate([start[None], later]), first, history.probes["trace"]
    )
    steps = jnp.sum(jnp.diff(mu, axis=0) ** 2, axis=1)
    return jnp.concatenate([values, jnp.append(steps, 0.0)[:, None]], axis=1)


def over_all(problem: Problem, runs: Batch, lrs: np.ndarray, version: Version, K: int) -> Any:
    """The traces of all runs ``[R]`` at their rates ``[shares, R]``."""

    @jax.jit
    def program(problem: Problem, runs: Batch, lrs: Any) -> Any:
        def one(run: Batch, lr: Any) -> Any:
            return trace(problem, run, lr, version, K)

        return jax.vmap(jax.vmap(one), (None, 0))(runs, lrs)

    return np.asarray(program(problem, runs, jnp.asarray(lrs)))
