"""Drift of the clients within visits of FedMoSWA, measured from one state at different rates.

The drift E is the mean over clients and steps k = 1 .. K of ``E||y_ik - x||^2``, as in Theorem H.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from experiments.fedswa import digits_runs
from experiments.fedswa.lemmas import convex_round, local_decay
from experiments.fedswa.methods import ALPHA, GAMMA, RHO

SMOOTHNESS, CONVEXITY, NOISE, HETEROGENEITY = 1.0, 0.1, 1.0, 1.0
NUM_CLIENTS, DIM, NUM_EXAMPLES = 20, 10, 64
COHORT_SIZE = 2
EQUATION_3, SAME_SUM = f"Equation 3, rho {RHO:g}", "constant, sum of Equation 3"


class Problem(NamedTuple):
    """A task whose visits have K steps, with its constants if they are known."""

    setup: fs.Setup
    steps: int
    exact: fs.problems.quadratics.Quadratics | None = None


def schedules(lr: float, steps: int) -> dict[str, Array]:
    """Rates [K] of a visit: constant, the paper's two decays, constant with the sum of Eq. 3."""
    linear = local_decay.linear_rates(lr, steps, RHO)
    return {
        "constant": local_decay.linear_rates(lr, steps),
        "Theorem H.1": local_decay.geometric_rates(lr, steps),
        EQUATION_3: linear,
        SAME_SUM: jnp.full(steps, linear.mean()),
    }


def quadratic_problem(rounds: int, steps: int, seed: int = 0) -> Problem:
    """Quadratics with known constants; the noise of a gradient has variance ``NOISE^2``."""
    rng = np.random.default_rng(seed)
    exact = fs.problems.quadratics.quadratics(
        NUM_CLIENTS, DIM, rng, mu=CONVEXITY, smoothness=SMOOTHNESS, heterogeneity=HETEROGENEITY
    )
    noise = rng.standard_normal((NUM_CLIENTS, NUM_EXAMPLES, DIM))
    noise -= noise.mean(1, keepdims=True)  # the client's gradient is exact
    noise *= NOISE / np.sqrt((noise**2).sum(-1).mean(1))[:, None, None]
    data = fs.from_clients(
        [
            {
                "A": np.broadcast_to(A, (NUM_EXAMPLES, DIM, DIM)).astype(np.float32),
                "b": np.broadcast_to(b, (NUM_EXAMPLES, DIM)).astype(np.float32),
                "xi": xi.astype(np.float32),
            }
            for A, b, xi in zip(*exact, noise, strict=True)
        ]
    )

    def loss(x: Array, batch: Any, key: Array) -> Array:
        away = x - batch["b"]
        return jnp.einsum("ni,nij,nj->n", away, batch["A"], away) / 2 + batch["xi"] @ x

    task = fs.empirical_task(loss, data, fs.with_replacement(1, steps))
    timeline = fs.timelines.uniform(
        jax.random.key(seed), rounds, NUM_CLIENTS, COHORT_SIZE, task.num_steps
    )
    return Problem(fs.Setup(task, timeline, jnp.zeros(DIM)), steps, exact)


def network_problem(rounds: int, skew: float = 0.1, seed: int = 0) -> Problem:
    """The perceptron on digits of :mod:`experiments.fedswa.digits_runs`."""
    setup = digits_runs.make_setup(
        skew, "partial", seed, digits_runs.Options(rounds=rounds, eval_every=rounds)
    )
    return Problem(setup, int(setup.task.num_steps.max()))


def state_after(problem: Problem, lr: float, rounds: int) -> fs.RunState:
    """FedMoSWA's state before round ``rounds`` of a run at a constant rate within visits."""
    setup = problem.setup
    if not rounds:
        return fs.init(algorithm(lr), setup)
    part = fs.Setup(setup.task, setup.timeline[:rounds], setup.params, eval_every=rounds)
    return jax.jit(lambda part, key: fs.run(algorithm(lr), part, key)[0])(part, jax.random.key(0))


def algorithm(lr: float) -> fs.FedAlgorithm:
    return fs.fedmoswa(lr, rho=1.0, alpha=ALPHA, gamma=GAMMA)


def squared_distances(problem: Problem, state: fs.RunState, rates: Array, keys: Array) -> Array:
    """``[M, keys, K]``: ``||y_ik - x||^2`` after k = 1 .. K steps of all clients' next visits."""
    steps, task = problem.steps, problem.setup.task

    def one(client: Array, key: Array, state: fs.RunState, task: fs.Task) -> Array:
        x, control = state.server.params, jax.tree.map(lambda c: c[client], state.clients)
        correction = fs.tree.sub(state.server.control, control)
        oracle = task.oracle(client, key, steps)
        work = fs.Work(
            state.round, client, jnp.int32(steps), jnp.int32(1), jnp.int32(0), key, steps
        )

        def step(y: Any, k: Array) -> Any:  # Eq. (5)
            direction = fs.tree.add(oracle.grad(y, k), correction)
            return fs.tree.add_scale(y, -rates[k], direction)

        path = fs.local.local_path(step, x, work)
        away = jax.tree.map(lambda y, x: (y[1:] - x).reshape(steps, -1), path, x)
        return jnp.stack([(part**2).sum(-1) for part in jax.tree.leaves(away)]).sum(0)

    over_keys = jax.vmap(one, (None, 0, None, None))
    over_both = jax.vmap(over_keys, (0, None, None, None))
    return jax.jit(over_both)(jnp.arange(task.num_clients), keys, state, task)


def bounds(problem: Problem, state: fs.RunState, lr: float, rates: Array) -> dict[str, float]:
    """The recursion's bound of E and a third of Lemma G.12's; NaN where they are not known."""
    if problem.exact is None:
        return {"recursion": np.nan, "a third of Lemma G.12": np.nan}
    A, b = (np.asarray(part, np.float64) for part in problem.exact)
    best, x = (
        fs.problems.quadratics.quadratic_optimum(problem.exact),
        np.asarray(state.server.params, np.float64),
    )
    lags = np.asarray(state.clients) - np.einsum("mij,mj->mi", A, best - b)
    constants = fs.theory.ProblemConstants(L=SMOOTHNESS, sigma=NOISE)
    values = {
        "gap": np.einsum("i,ij,j->", x - best, A.mean(0), x - best) / 2,
        "client_lag": (lags**2).sum(1).mean(),
        "server_lag": (np.asarray(state.server.control) ** 2).sum(),
    }
    recursion = local_decay.visit_drift_bound(constants, rates, **values)[1:].mean()
    limit = 1 / (81 * SMOOTHNESS * problem.steps * ALPHA)
    printed = np.nan
    if lr <= limit * (1 + 1e-6):
        sizes = {"lr": min(lr, limit), "local_steps": problem.steps, "alpha": ALPHA}
        printed = float(convex_round.drift_bound(constants, **values, **sizes)) / 3
    return {"recursion": float(recursion), "a third of Lemma G.12": printed}
