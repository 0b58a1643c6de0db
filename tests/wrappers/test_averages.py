"""Means over rounds against weighted means in NumPy, alone and beside the algorithm's own model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import assert_close, assert_identical

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")
ROUNDS = 5
# One client with the loss (w - 8)^2 / 2, one step at the rate 1/2: each round halves the distance.
MODELS = 8 - 8 * 0.5 ** np.arange(1, ROUNDS + 1)
# Sums of five numbers below 8 in double precision.
TOLERANCE = 1e-13


def loss(w, batch, key):
    del key
    return (w - batch["x"]) ** 2 / 2


def model(w):
    return {"model": w}


def evaluated(algorithm, eval_fn=model):
    task = fs.empirical_task(loss, fs.from_clients([{"x": np.array([8.0])}]), fs.full_batch(1))
    timeline = fs.timelines.full(ROUNDS, 1, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.array(0.0), eval_fn=eval_fn)
    state, history = fs.run(algorithm, setup, jax.random.key(0))
    return state, {name: np.asarray(values) for name, values in history.metrics.items()}


def expected(decay, start=0):
    """The mean after each round; until it begins, the model of that round."""
    means = list(MODELS[:start])
    for done in range(start + 1, ROUNDS + 1):
        ages = np.arange(done - start)[::-1]
        means.append(np.average(MODELS[start:done], weights=np.power(float(decay), ages)))
    return means


@pytest.mark.parametrize("start", [0, 2, ROUNDS + 1])
@pytest.mark.parametrize("decay", [0.0, 0.3, 1.0])
def test_means_have_decaying_weights_and_begin_late(decay, start):
    """A decay of 0 keeps the algorithm's model; a start after the run does, too."""
    wrapped = fs.ema_rounds(fs.fedavg(0.5), decay, start)
    assert_close(evaluated(wrapped)[1]["model"], expected(decay, start), TOLERANCE)


@pytest.mark.parametrize("start", [0, 3])
def test_the_mean_of_all_rounds_alike(start):
    state, metrics = evaluated(fs.average_rounds(fs.fedavg(0.5), start))
    assert_close(metrics["model"], expected(1.0, start), TOLERANCE)
    assert float(state.server.num_averaged) == ROUNDS - start
    assert_close(state.server.inner.params, MODELS[-1], TOLERANCE)


def test_one_run_has_the_models_of_nested_means_and_of_the_algorithm():
    inner = fs.evaluation.inner
    eval_fn = fs.evaluation.merge_evaluators(ema=model, mean=inner(model), raw=inner(inner(model)))
    nested = fs.ema_rounds(fs.average_rounds(fs.fedavg(0.5), start=1), 0.3)
    _, metrics = evaluated(nested, eval_fn)
    assert_close(metrics["ema/model"], expected(0.3), TOLERANCE)
    assert_close(metrics["mean/model"], expected(1.0, 1), TOLERANCE)
    assert_close(metrics["raw/model"], MODELS, TOLERANCE)


def test_means_change_no_bit_of_the_run():
    """FedMoSWA has client states and a control at the server."""
    plain, _ = evaluated(fs.fedmoswa(0.5))
    wrapped, _ = evaluated(fs.ema_rounds(fs.average_rounds(fs.fedmoswa(0.5)), 0.9))
    assert_identical(wrapped.server.inner.inner, plain.server)
    assert_identical(wrapped.clients, plain.clients)


def test_the_mean_of_a_half_precision_model_is_in_single_precision():
    state = fs.ema_rounds(fs.fedavg(0.5)).init(jnp.ones(2, jnp.bfloat16))
    assert (state.average.dtype, state.params.dtype) == (jnp.float32, jnp.bfloat16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": -0.1}, r"decay is -0\.1; expected at least 0"),
        ({"decay": 1.1}, r"decay is 1\.1; expected at most 1"),
        ({"start": -1}, "start is -1; expected at least 0"),
        ({"start": 0.5}, r"start is 0\.5; expected an integer"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fs.ema_rounds(fs.fedavg(0.5), **arguments)


def test_a_factory_is_no_algorithm():
    with pytest.raises(ValueError, match=r"expected a FedAlgorithm: call fedavg"):
        fs.ema_rounds(fs.fedavg)  # pyright: ignore[reportArgumentType]


def test_the_inner_model_needs_a_wrapper():
    with pytest.raises(ValueError, match="FedAvgState without a field 'inner'; expected"):
        evaluated(fs.fedavg(0.5), fs.evaluation.inner(model))
