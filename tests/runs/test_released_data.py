"""Data of finished runs: nothing keeps them once their setup is gone."""

import gc
import weakref
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs

KEYS = jax.random.split(jax.random.key(0), 2)


def setup() -> fs.Setup:
    """Setup whose data, test data and model no other object holds."""
    points = jnp.asarray(np.arange(12.0, dtype=np.float32)) + 1
    data = fs.FederatedData({"x": points}, np.arange(0, 13, 3))
    task = fs.empirical_task(loss, data, fs.with_replacement(1, 2))
    timeline = fs.timelines.full(2, 4, task.num_steps)
    return fs.Setup(task, timeline, jnp.zeros(2), eval_fn=fs.evaluation.evaluator(metrics, points))


def loss(w, batch, key):
    del key
    return (w - batch["x"]) ** 2 / 2


def metrics(w, examples):
    return {"error": jnp.abs(examples - w)}


def simulate(problem: fs.Setup) -> None:
    fs.simulate(fs.fedavg(0.1), problem, KEYS)


def compare(problem: fs.Setup) -> None:
    fs.compare({"one": fs.fedavg(0.1), "other": fs.fedprox(0.1, mu=0.5)}, problem, KEYS)


def sweep(problem: fs.Setup) -> None:
    fs.sweep(fs.fedavg, problem, {"lr": [0.1, 0.2]}, KEYS)


def forecast(problem: fs.Setup) -> None:
    fs.forecast(fs.fedavg(0.1), problem, KEYS)


@pytest.mark.parametrize(
    "call", [simulate, pytest.param(compare, marks=pytest.mark.slow), sweep, forecast]
)
def test_no_call_keeps_its_data(call: Callable[[fs.Setup], None]):
    problem = setup()
    data = [
        weakref.ref(x)
        for x in jax.tree.leaves((problem.task, problem.eval_fn))
        if isinstance(x, jax.Array)
    ]
    assert data
    call(problem)
    del problem
    gc.collect()
    assert [x for x in data if x() is not None] == []
