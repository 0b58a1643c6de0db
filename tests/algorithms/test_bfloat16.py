"""Parameters in half precision: as constants, and refused where an algorithm would move them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import REPRESENTATIVES, algorithm, declared, for_each, hyper, timeline_of
from small_problems import KEY, compiled, logistic_data, logistic_losses, logistic_params, rotated

import fedjax_sim as fs
from fedjax_sim import models, tree
from fedjax_sim.wrappers.private import private

NUM_STEPS, LR, START = 50, 1e-3, 2.0


def half(params, dtype=jnp.bfloat16):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


@for_each(quick=REPRESENTATIVES)
def test_no_algorithm_moves_parameters_in_half_precision(name):
    task = fs.empirical_task(
        lambda params, examples, key: logistic_losses(tree.wide(params), examples, key),
        logistic_data(),
        rotated(2),
    )
    setup = fs.Setup(task, declared(name, timeline_of(name)), half(logistic_params()))
    with pytest.raises(ValueError, match=r"changes .* bfloat16\[.*\]; expected float32, since"):
        jax.eval_shape(lambda: fs.run(algorithm(name, hyper(name)), setup, KEY))


def shrinking(model, params):
    """One client that minimises (w x - y)^2 with x = 1, y = 0: the gradient is 2 w."""
    data = fs.from_clients([{"x": np.ones((1, 1), np.float32), "y": np.zeros(1, np.float32)}])
    task = fs.empirical_task(fs.objectives.squared_error(model), data, fs.full_batch(NUM_STEPS))
    return fs.Setup(task, fs.timelines.full(20, 1, NUM_STEPS), params)


MODEL = models.Model(lambda key: jnp.array([START]), lambda w, x: x @ w)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "dtype"),
    [(lambda: fs.fedavg(LR), jnp.bfloat16), (lambda: fs.fedadam(LR, 0.02), jnp.float16)],
    ids=["fedavg", "fedadam"],
)
def test_computing_in_half_precision_reaches_the_models_of_float32(make, dtype):
    """50 local steps at the rate 1e-3: every step is less than half a unit of bfloat16 at 2.

    A gradient in bfloat16 errs by at most 2 roundings of 2^-9, so changes differ by less than 1 %.
    """
    setups = {
        "half parameters": shrinking(MODEL, half(MODEL.init(KEY), dtype)),
        "half products": shrinking(models.in_precision(MODEL, dtype), MODEL.init(KEY)),
        "float32": shrinking(MODEL, MODEL.init(KEY)),
    }
    with pytest.raises(ValueError, match=r"changes .*params .*float16\[1\].*models\.in_precision"):
        fs.simulate(make(), setups.pop("half parameters"), KEY)
    change = {
        name: np.asarray(fs.simulate(make(), setup, KEY).state.server.params - START)
        for name, setup in setups.items()
    }
    assert np.abs(change["float32"]) > 0.3
    np.testing.assert_allclose(change["half products"], change["float32"], rtol=0.01)


def per_key(setup):
    return dataclasses.replace(setup, params=setup.params[None])


@pytest.mark.parametrize(
    "start",
    [
        lambda setup: fs.run(fs.fedavg(LR), setup, KEY),
        lambda setup: fs.simulate(fs.fedavg(LR), setup, KEY),
        lambda setup: fs.forecast(fs.fedavg(LR), setup, KEY),
        lambda setup: fs.compare({"FedAvg": fs.fedavg(LR)}, per_key(setup), KEY[None]),
        lambda setup: fs.sweep(fs.fedavg, per_key(setup), {"lr": [LR]}, KEY[None]),
    ],
    ids=["run", "simulate", "forecast", "compare", "sweep"],
)
def test_all_ways_to_start_a_run_refuse(start):
    setup = shrinking(MODEL, half(MODEL.init(KEY)))
    with pytest.raises(ValueError, match=r"algorithm\.update changes \.params bfloat16\[1\]"):
        start(setup)


def test_private_leaves_in_half_precision_are_refused():
    """The server's copy stays as it is; the clients' leaves move."""
    algorithm = private(fs.fedavg(LR), lambda path, leaf: path == ("b",), LR)
    params = logistic_params()
    params["b"] = params["b"].astype(jnp.bfloat16)
    task = fs.empirical_task(
        lambda params, examples, key: logistic_losses(tree.wide(params), examples, key),
        logistic_data(),
        rotated(2),
    )
    setup = fs.Setup(task, declared("fedavg", timeline_of("fedavg")), params)
    with pytest.raises(ValueError, match=r"algorithm\.local changes .*personal\['b'\] bfloat16"):
        jax.eval_shape(lambda: fs.run(algorithm, setup, KEY))


def test_one_visit_in_float32():
    """The gradient is 2 w, so 50 steps upload 2 (1 - (1 - 0.002)^50) = 0.1905."""
    setup = shrinking(models.in_precision(MODEL, jnp.bfloat16), MODEL.init(KEY))
    probes = fs.Probes(client={"upload": lambda visit: visit.upload})
    history = fs.run(fs.fedavg(LR), setup, KEY, probes=probes)[1]
    upload = abs(np.asarray(history.probes["upload"])[0])
    np.testing.assert_allclose(upload, 2 * (1 - 0.998**50), rtol=0.01)


@pytest.mark.parametrize(
    "wrap", [lambda algorithm: algorithm, fs.average_rounds, fs.skip_nonfinite]
)
def test_frozen_leaves_may_be_in_half_precision(wrap):
    """A base of integers, which bfloat16 represents exactly, beside a trained bias in float32."""
    base = jnp.arange(1.0, 5.0)

    def losses(params, examples, key):
        del key
        return (examples["x"] @ tree.wide(params["base"]) + params["bias"] - examples["y"]) ** 2

    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4)).astype(np.float32)
    data = fs.from_clients([{"x": x, "y": x.sum(1)}, {"x": -x, "y": x[:, 0]}])
    task = fs.empirical_task(losses, data, fs.full_batch(2))
    algorithm = fs.freeze(fs.scaffold(0.1), lambda path, leaf: path[0] == "base")

    @compiled
    def final(params):
        setup = fs.Setup(task, fs.timelines.full(3, 2, 2), params)
        return fs.run(wrap(algorithm), setup, KEY)[0].server.params

    single = final({"base": base, "bias": jnp.zeros(())})
    mixed = final({"base": base.astype(jnp.bfloat16), "bias": jnp.zeros(())})
    assert mixed["base"].dtype == jnp.bfloat16
    assert mixed["base"].tolist() == base.tolist()
    assert mixed["bias"] != 0
    np.testing.assert_array_equal(mixed["bias"], single["bias"])
