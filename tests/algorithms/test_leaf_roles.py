"""Algorithms of every structure with frozen leaves, and with running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import STRUCTURES, algorithm, for_each, hyper, timeline_of
from small_problems import (
    assert_close,
    assert_identical,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    rotated,
)

import fedjax_sim as fs
from fedjax_sim.engine.execution import strategies
from fedjax_sim.objectives import binary_cross_entropy
from fedjax_sim.types import Model

pytestmark = pytest.mark.usefixtures("x64")

QUICK = {"fedadam", "fedasync"}
# They divide the model or its leaves themselves.
WHERE = {
    "fedper", "lg_fedavg", "fedbn", "fedavg_ft", "diloco", "fedadamw", "fedasam", "fedlesam",
}  # fmt: skip


def is_bias(path, leaf):
    del leaf
    return path == ("b",)


def closed_losses(params, examples, key):
    return logistic_losses({**logistic_params(), "w": params["w"]}, examples, key)


@for_each(quick=QUICK, among=STRUCTURES | WHERE)
def test_frozen_run_is_the_run_of_a_model_that_closes_over_the_leaves(name):
    @compiled
    def go(values, timeline, key):
        plain = algorithm(name, values)
        states = []
        for method, losses, params in [
            (fs.freeze(plain, is_bias), logistic_losses, logistic_params()),
            # A part, since predicates of leaves that a whole model does not have are refused.
            (plain, closed_losses, {"b": None, "w": logistic_params()["w"]}),
        ]:
            task = fs.empirical_task(losses, logistic_data(), rotated(2))
            setup = fs.Setup(task, timeline, params)
            states.append(fs.run(method, setup, key, execution=strategies.vmapped())[0])
        return states

    frozen, closed = go(hyper(name), timeline_of(name)[:2], jax.random.key(2))
    assert_identical(frozen.server.params["w"], closed.server.params["w"])
    assert_identical(frozen.server.params["b"], logistic_params()["b"])
    assert_identical(jax.tree.leaves(frozen.clients), jax.tree.leaves(closed.clients))
    # Neither the state of the algorithm nor that of a client has an entry for the frozen leaf.
    assert_identical(jax.tree.leaves(frozen.server.inner), jax.tree.leaves(closed.server))
    assert np.abs(frozen.server.params["w"] - logistic_params()["w"]).max() > 1e-5


def is_statistic(path, leaf):
    del leaf
    return path[0] in ("mean", "var")


def train(params, x, key, weights):
    """Logistic regression on features that are standardised by the batch."""
    del key
    weights = weights.astype(x.dtype)
    share = weights / weights.sum()
    mean = share @ x
    var = share @ (x - mean) ** 2
    outputs = (x - mean) / jnp.sqrt(var + 1e-2) @ params["w"] + params["b"]
    if "mean" not in params:
        return outputs, None
    batch = {"mean": mean, "var": var}
    statistics = {name: 0.5 * params[name] + 0.5 * value for name, value in batch.items()}
    return outputs, {"w": None, "b": None, **statistics}


def apply(params, x):
    x = (x - params["mean"]) / jnp.sqrt(params["var"] + 1e-2)
    return x @ params["w"] + params["b"]


@pytest.mark.slow
@for_each(quick={"scaffold_II"}, among=STRUCTURES | WHERE)
def test_running_statistics_do_not_change_the_run(name):
    """The other leaves are those of a model without statistics; variances stay variances."""
    start = logistic_params()
    with_statistics = {**start, "mean": jnp.zeros(3), "var": jnp.ones(3)}

    @compiled
    def go(values, timeline, key):
        plain = algorithm(name, values)
        states = []
        for method, statistics, params in [
            (fs.running_statistics(plain, is_statistic), is_statistic, with_statistics),
            (plain, None, start),
        ]:
            model = Model(lambda key: None, apply, train, statistics)
            task = fs.empirical_task(binary_cross_entropy(model), logistic_data(), rotated(2))
            setup = fs.Setup(task, timeline, params)
            states.append(fs.run(method, setup, key, execution=strategies.vmapped())[0])
        return states

    averaged, plain = go(hyper(name), timeline_of(name), jax.random.key(2))
    # XLA orders some sums otherwise.
    states = [(averaged.server.inner, averaged.clients), (plain.server, plain.clients)]
    assert_close(*map(jax.tree.leaves, states), 1e-12)
    mean, var = (averaged.server.params[key] for key in ("mean", "var"))
    assert np.isfinite(mean).all()
    assert (np.abs(mean) > 1e-3).all()
    assert (var > 0).all()
    assert (var < 3).all()
