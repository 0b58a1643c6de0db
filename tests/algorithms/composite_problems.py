"""Composite problems with proximal operators in NumPy, for derivations and identities.

The regulariser of the derivations acts on the network's kernel only, a 3 x 2 matrix.  The
derivations share no code with the library and are written from the thesis' algorithms; proximal
operators by NumPy's SVD and by bisection.
"""

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from network import FEATURES, HIDDEN
from quadratics import state_after
from small_problems import SIZES, quadratic_task, random_quadratics

import fedjax_sim as fs
from fedjax_sim import prox

LR, SERVER_LR = 0.1, 0.7
KERNEL = slice(HIDDEN, -HIDDEN)
NUM_CLIENTS, DIM = 6, 4
HESSIANS, CENTRES = random_quadratics(NUM_CLIENTS, DIM, seed=3)
START = np.array([1.0, -2.0, 0.5, 0.0])
L1 = prox.composite(prox.L1(0.3))
BALL = prox.composite(prox.L1Ball(1.0))
HALF = prox.composite(prox.L1(0.5))


def nuclear(v, c):
    u, s, w = np.linalg.svd(v)
    return u[:, : len(s)] @ np.diag(np.clip(s - 0.4 * c, 0, None)) @ w


def l1(v, c):
    return np.where(np.abs(v) > 0.4 * c, v - 0.4 * c * np.sign(v), 0)


def l1_ball(v, c):
    """By bisection for the threshold."""
    if np.abs(v).sum() <= 0.8:
        return v
    low, high = 0.0, np.abs(v).max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.clip(np.abs(v) - middle, 0, None).sum() > 0.8:
            low = middle
        else:
            high = middle
    return np.sign(v) * np.clip(np.abs(v) - low, 0, None)


# Library's regulariser, its prox in NumPy.
REGULARIZERS = {
    "nuclear": (prox.Nuclear(0.4), nuclear),
    "l1": (prox.L1(0.4), l1),
    "l1_ball": (prox.L1Ball(0.8), l1_ball),
}


def on_kernel(proximal):
    def apply(model, c):
        shrunk = proximal(model[KERNEL].reshape(FEATURES, HIDDEN), c)
        return np.concatenate([model[:HIDDEN], shrunk.ravel(), model[-HIDDEN:]])

    return apply


def shares(visits, weight_by_examples):
    weights = np.array([SIZES[client] if weight_by_examples else 1.0 for client, _ in visits])
    return weights / weights.sum()


def server(algorithm, num_steps, num_rounds=4, cohort_size=4, task=None, start=START):
    """The server's state after the given rounds, cohorts in cyclic order."""
    clients = (HESSIANS, CENTRES) if task is None else task
    sizes = num_rounds, cohort_size, num_steps
    return state_after(algorithm, *sizes, clients=clients, start=start).server


def final(*args, **kwargs):
    return np.asarray(server(*args, **kwargs).params)


def gradient(x, cohort):
    return np.mean([HESSIANS[i] @ (x - CENTRES[i]) for i in cohort], axis=0)


def soft(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0)


def cohorts(num_rounds, size=4):
    return np.arange(num_rounds * size).reshape(num_rounds, size) % NUM_CLIENTS


def scalar_problem(algorithm, num_rounds):
    """The limit on f(x) = (x - 3)^2 / 2 with psi = |x| / 2, five local steps."""
    task = quadratic_task(np.ones((1, 1, 1)), np.full((1, 1), 3.0), 5)
    return final(algorithm, 5, num_rounds, task=task, start=np.zeros(1))[0]


def linear_task(slopes, num_steps):
    """f_i(x) = <g_i, x>."""

    def oracle(slopes, client, key, max_steps):
        del key, max_steps
        g = slopes[client]
        return fs.Oracle(lambda x, k: g + 0 * x, lambda x, k: g @ x, lambda x: g + 0 * x)

    count = len(slopes)
    steps = np.full(count, num_steps, np.int32)
    return fs.Task(Partial(oracle, jnp.asarray(slopes)), np.ones(count, np.int32), steps)
