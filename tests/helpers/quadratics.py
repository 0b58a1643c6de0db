"""Runs on quadratics without noise, on which algorithms are compared with closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
from small_problems import quadratic_task, random_quadratics, run

import fedjax_sim as fs

NUM_CLIENTS, DIM = 6, 3
HESSIANS, CENTRES = random_quadratics(NUM_CLIENTS, DIM)
START = np.array([1.0, -2.0, 0.5])


def state_after(
    algorithm,
    num_rounds=4,
    cohort_size=4,
    num_steps=5,
    *,
    clients=(HESSIANS, CENTRES),
    start=START,
    probes=None,
):
    """The final state, cohorts in cyclic order; with probes the probed values, too."""
    task = quadratic_task(*clients, num_steps) if isinstance(clients, tuple) else clients
    size = min(cohort_size, task.num_clients)
    timeline = fs.timelines.cyclic(num_rounds, task.num_clients, size, num_steps)
    setup = fs.Setup(task, timeline, jnp.asarray(start))
    options = {} if probes is None else {"probes": probes}
    state, history = run(algorithm, setup, jax.random.key(0), **options)
    return state if probes is None else (state, history.probes)


def final(algorithm, *args, **kwargs):
    """The final model."""
    return np.asarray(state_after(algorithm, *args, **kwargs).server.params)


def optimum():
    """The minimiser of the clients' mean."""
    return np.linalg.solve(HESSIANS.sum(0), np.einsum("mij,mj->i", HESSIANS, CENTRES))


def same_clients(count, clients=(HESSIANS, CENTRES)):
    """``count`` clients that are all equal to the first one."""
    return tuple(np.repeat(x[:1], count, axis=0) for x in clients)
