"""Quadratics whose clients are contacted or report asynchronously, without noise."""

import jax
import jax.numpy as jnp
import numpy as np
from small_problems import compiled, quadratic_task, random_quadratics

import fedjax_sim as fs
from fedjax_sim import timelines

N, DIM, S, K = 6, 3, 2, 4
HESSIANS, CENTRES = random_quadratics(N, DIM)
START = np.array([1.0, -2.0, 0.5])
KEY = jax.random.key(0)
SUCCESS = np.where(np.arange(N) < 2, 1 / 16, 1 / 2)
ALPHA = np.linspace(0.8, 3.0, N)
NO_ROUND = fs.Round(jnp.array(0), jnp.array(1), N, KEY)


def task():
    return quadratic_task(HESSIANS, CENTRES, K)


def contacts(receives="new", cohort=S, rounds=12, steps=None) -> fs.Timeline:
    steps = timelines.renewal_counts(timelines.geometric(SUCCESS)) if steps is None else steps
    return timelines.contacts(
        jax.random.key(1), steps, horizon=7.0 * rounds, num_clients=N, cohort_size=cohort,
        max_steps=K, receives=receives,
    )  # fmt: skip


def everyone_done(cohort=N):
    """Everybody has done K steps at every contact."""
    return contacts(
        cohort=cohort, rounds=4, steps=timelines.renewal_counts(timelines.deterministic(1.0))
    )


def history(algorithm, timeline, problem=None, **probes):
    """The final state, the models after each round, and the probes' values."""

    @compiled
    def solve(task, timeline):
        setup = fs.Setup(
            task, timeline, jnp.asarray(START), eval_fn=lambda params: {"model": params}
        )
        return fs.run(algorithm, setup, KEY, probes=fs.Probes(**probes))

    state, history = solve(task() if problem is None else problem, timeline)
    return state, np.asarray(history.metrics["model"]), history.probes


def path(algorithm, timeline, problem=None):
    return history(algorithm, timeline, problem)[1]


def visit(algorithm, model, state, steps, client=1, oracle=None, max_steps=K):
    """One visit of a client, alone."""

    @compiled
    def go(model, state, steps, task):
        work = fs.Work(
            jnp.array(0), jnp.array(client), steps, jnp.array(1), jnp.array(0), KEY, max_steps
        )
        return algorithm.local(model, state, oracle or task.oracle(client, KEY, max_steps), work)

    return go(model, state, jnp.array(steps), task())
