"""Runs inside of clients: the same numbers, in arrays whose outer axis is that of clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from fedjax_sim.engine.execution.replicas import clients_outside
from fedjax_sim.engine.execution.strategies import chunked, sequential, vmapped

CLIENTS, RUNS, FEATURES = 4, 3, 5


def round_of(execution, x, rate, model):
    """Mean model and losses after three steps; the rate is a value that the visit closes over."""

    def visit(model, client):
        def step(w, row):
            loss, slope = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(row @ w)))(w)
            return w - rate * slope, loss

        return jax.lax.scan(step, model, x[client])

    return execution(visit, model, jnp.arange(CLIENTS), jnp.arange(1.0, CLIENTS + 1))


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.normal(size=(CLIENTS, 3, 2, FEATURES))),
        jnp.asarray(rng.uniform(0.1, 1.0, RUNS)),
        jnp.asarray(rng.normal(size=(RUNS, FEATURES))),
    )


@pytest.mark.parametrize("inner", [vmapped, lambda: chunked(2), lambda: chunked(3), sequential])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_results_are_those_of_the_runs_one_by_one(inner, axes, values):
    x, rates, models = values
    arguments = [v if axis == 0 else v[0] for v, axis in zip((rates, models), axes, strict=True)]
    together = jax.vmap(lambda *a: round_of(clients_outside(inner()), x, *a), axes)(*arguments)
    for run in range(RUNS):
        own = [a[run] if axis == 0 else a for a, axis in zip(arguments, axes, strict=True)]
        alone = round_of(inner(), x, *own)
        for one, several in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            # The same sums, whose products may be in another order.
            np.testing.assert_allclose(several[run], one, rtol=1e-5, atol=1e-6)


def test_a_second_axis_of_runs(values):
    x, rates, models = values

    def grid(execution):
        over_models = jax.vmap(lambda r, m: round_of(execution, x, r, m), (None, 0))
        return jax.vmap(over_models, (0, None))(rates, models)

    for plain, exchanged in zip(
        jax.tree.leaves(grid(vmapped())), jax.tree.leaves(grid(clients_outside(vmapped()))),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(exchanged, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "expected"),
    [(lambda e: e, (RUNS, CLIENTS, FEATURES)), (clients_outside, (CLIENTS, RUNS, FEATURES))],
)
def test_models_in_the_local_loop_have_the_order_of_the_products(change, expected, values):
    x, *arguments = values

    def one(rate, model):
        return round_of(change(vmapped()), x, rate, model)

    program = jax.make_jaxpr(jax.vmap(one))(*arguments)
    loops = [eqn for eqn in _equations(program.jaxpr) if eqn.primitive.name == "scan"]
    assert [eqn.outvars[0].aval.shape for eqn in loops] == [expected]


def test_minibatches_that_runs_share_stay_one_array(values):
    x, *arguments = values

    def one(rate, model):
        return round_of(clients_outside(vmapped()), x, rate, model)

    program = jax.make_jaxpr(jax.vmap(one))(*arguments)
    gathered = [eqn for eqn in _equations(program.jaxpr) if eqn.primitive.name == "gather"]
    assert [eqn.outvars[0].aval.size for eqn in gathered] == [x.size]  # not RUNS times as many


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from _equations(inner)
