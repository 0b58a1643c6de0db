"""Two clients with F_i(u, v) = (u v - c_i)^2 / 2: a shared body u and heads v on which they differ.

Exact gradients, c = (1, -2), u = 1 and v = 0.5 at the start, rate 0.1.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.engine.evaluation import personal_evaluator
from fedjax_sim.tree import leaves

C, LR = np.array([1.0, -2.0]), 0.1
U, V = 1.0, 0.5
# Who reports in each of three rounds.
COHORTS = np.array([[True, True], [True, False], [False, True]])


def head(path, leaf):
    del leaf
    return path[0] == "v"


def everything(path, leaf):
    del path, leaf
    return True


nothing = leaves.OfModel(lambda params: lambda path, leaf: False)


def _oracle(c, client, key, max_steps):
    del key, max_steps

    def loss(params, step=0):
        del step
        return (params["u"] * params["v"] - c[client]) ** 2 / 2

    return fs.Oracle(jax.grad(loss), loss, jax.grad(loss), loss)


def setup(num_steps, reports=((True, True),), eval_fn=None):
    task = fs.Task(
        Partial(_oracle, jnp.asarray(C)), np.ones(2, np.int32), np.full(2, num_steps, np.int32)
    )
    reports = np.asarray(reports)
    timeline = fs.timelines.full(len(reports), 2, task.num_steps)
    timeline = dataclasses.replace(timeline, mask=jnp.asarray(reports))
    return fs.Setup(task, timeline, {"u": jnp.array(U), "v": jnp.array(V)}, eval_fn)


def run(algorithm, num_steps, reports=((True, True),), eval_fn=None):
    """The final state, and the metrics of the evaluator if there is one."""
    go = compiled(lambda setup: fs.run(algorithm, setup, jax.random.key(0)))
    state, history = go(setup(num_steps, reports, eval_fn))
    return (state, history.metrics) if eval_fn is not None else state


def personal_models():
    """Evaluates the personal models: ``per_client/u`` and ``per_client/v``."""
    data = fs.FederatedData({"one": np.ones(2)}, np.arange(3))
    return personal_evaluator(
        lambda params, examples: {name: x * examples["one"] for name, x in params.items()},
        data,
        per_client=True,
    )


def by_hand(visit, reports):
    """The body and both heads after the rounds, in NumPy.

    ``visit(c, u, v) -> u, v`` is one client's visit.
    """
    u, heads = U, [V, V]
    for row in reports:
        bodies = []
        for i in np.flatnonzero(row):
            body, heads[i] = visit(C[i], u, heads[i])
            bodies.append(body)
        u = np.mean(bodies)
    return u, np.array(heads)


def gradient(c, u, v):
    """The derivatives of (u v - c)^2 / 2 in u and v."""
    return (u * v - c) * v, (u * v - c) * u


def joint(num_steps, lr_u=LR, lr_v=LR):
    """A visit of joint SGD steps."""

    def visit(c, u, v):
        for _ in range(num_steps):
            gu, gv = gradient(c, u, v)
            u, v = u - lr_u * gu, v - lr_v * gv
        return u, v

    return visit
