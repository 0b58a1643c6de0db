"""Evaluators of users that take the run's state, alone and beside others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim.engine.evaluation import RunContext, merge_evaluators

X = np.array([1.0, -2.0, 4.0], np.float32)  # one example per client


class Controls:
    """Evaluator of a user: the clients' controls, and what it was called with."""

    takes_state = True

    def __init__(self):
        self.algorithms = []

    def __call__(self, scale, context):
        assert isinstance(context, RunContext)
        assert context.task is not None
        self.algorithms.append(context.algorithm)
        count = jnp.asarray(context.task.num_clients)
        return {"control": scale * context.state.clients, "clients": count}


def model(params):
    return {"model": params}


@pytest.mark.parametrize("merged", [False, True])
def test_the_function_of_a_partial_may_take_the_state(merged):
    """One step of SCAFFOLD from 0 on (w - x_i)^2 / 2: client i's control is its gradient -x_i."""

    def loss(w, batch, key):
        del key
        return (w - batch["x"]) ** 2 / 2

    task = fs.empirical_task(loss, fs.FederatedData({"x": X}, np.arange(4)), fs.full_batch(1))
    controls = Controls()
    own = Partial(controls, jnp.array(2.0))
    eval_fn = merge_evaluators(model, own=own) if merged else own
    timeline = fs.timelines.full(1, 3, task.num_steps)
    algorithm = fs.scaffold(0.5)
    setup = fs.Setup(task, timeline, jnp.array(0.0), eval_fn=eval_fn)
    _, history = fs.run(algorithm, setup, jax.random.key(0))
    prefix = "own/" if merged else ""
    # Exact: all numbers are small multiples of powers of 2.
    np.testing.assert_array_equal(history.metrics[f"{prefix}control"], [-2 * X])
    np.testing.assert_array_equal(history.metrics[f"{prefix}clients"], [3])
    assert controls.algorithms
    assert all(seen is algorithm for seen in controls.algorithms)
    if merged:  # the others receive the model: 0.5 mean(x)
        np.testing.assert_array_equal(history.metrics["model"], [0.5])
