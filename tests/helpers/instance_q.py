"""Two quadratics of one variable, on which published rules are followed by hand.

Instance Q: F_i(x) = a_i / 2 (x - b_i)^2 with a = (1, 3) and b = (0, 1), equal weights, exact
gradients, all clients, x^0 = 0, rate 0.1, five local steps; the optimum is 0.75.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from small_problems import quadratic_task, run

import fedjax_sim as fs

A, B = np.array([1.0, 3.0]), np.array([0.0, 1.0])
LR = 0.1
FEDAVG = 0.6701330713  # limit of FedAvg
OPTIMUM = 0.75


def task(a=A, b=B, num_steps=5) -> fs.Task:
    """Clients with diagonal Hessians: ``a`` and ``b`` are [M] or [M, d]."""
    a, b = (np.asarray(x, float).reshape(len(x), -1) for x in (a, b))
    problem = quadratic_task(np.stack([np.diag(row) for row in a]), b, 1)
    steps = np.broadcast_to(np.asarray(num_steps, np.int32), len(a))
    return dataclasses.replace(problem, num_steps=steps)


def setup(timeline=None, rounds=3, start=0.0, clients=(A, B), num_steps=5) -> fs.Setup:
    """All clients in every round, or another timeline; evaluates the model."""
    problem = task(*clients, num_steps)
    timeline = timeline or fs.timelines.full(rounds, problem.num_clients, problem.num_steps)
    model = jnp.full(np.shape(clients[1])[1:] or 1, start)
    return fs.Setup(problem, timeline, model, eval_fn=_itself)


def _itself(params):
    return {"x": params}


def final_state(algorithm, given: fs.Setup):
    """The state after the last round, and the models after every round [T, d]."""
    state, history = run(algorithm, given, jax.random.key(0))
    return state, np.asarray(history.metrics["x"])


def models(algorithm, rounds=3, **options):
    """The models after every round, [T] with one variable."""
    path = final_state(algorithm, setup(rounds=rounds, **options))[1]
    return path[:, 0] if path.shape[1] == 1 else path


def assert_printed(actual, *expected: str):
    """Equal to all printed digits: within half a unit of the last one."""
    for value, text in zip(np.ravel(actual), expected, strict=True):
        digits = len(text.partition(".")[2])
        assert abs(value - float(text)) <= 0.501 * 10.0**-digits, (value, text)
