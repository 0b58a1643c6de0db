"""Models in half precision: their dtype under float32 numbers, and the moments of optimizers."""

import functools

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_problems import KEY, compiled

import fedjax_sim as fs

LR = 0.125


def quadratic(client, key, max_steps):
    """(x - client)^2 / 2."""
    del key, max_steps
    target = client.astype(jnp.bfloat16)

    def grad(x, step):
        del step
        return x - target

    return fs.Oracle(grad, lambda x, step: 0, lambda x: x - target)


TASK = fs.Task(quadratic, np.ones(2, np.int32), np.full(2, 2, np.int32))
SETUP = fs.Setup(TASK, fs.timelines.full(4, 2, 2), jnp.full((2, 2), 3, jnp.bfloat16))


@pytest.mark.parametrize(
    ("factory", "numbers"),
    [
        (fs.fedavgm, {"momentum": 0.5}),
        (functools.partial(fs.fedadam, server_lr=0.25), {"b1": 0.5, "b2": 0.75}),
        (functools.partial(fs.fedyogi, server_lr=0.25), {"b1": 0.5, "b2": 0.75}),
        (fs.mime, {"momentum": 0.5}),
        (fs.mimelite, {"momentum": 0.5}),
        (fs.fedmuon, {"momentum": 0.5}),
        (fs.fedadamw, {"b1": 0.5}),
        (fs.diloco, {"momentum": 0.5}),
    ],
    ids=lambda value: getattr(getattr(value, "func", value), "__name__", "numbers"),
)
def test_traced_numbers_keep_the_model_in_bfloat16(factory, numbers):
    def final(traced):
        return fs.run(factory(LR, **(numbers | traced)), SETUP, KEY)[0].server.params

    fixed = compiled(lambda: final({}))()
    traced = compiled(final)({name: jnp.float32(value) for name, value in numbers.items()})
    assert traced.dtype == jnp.bfloat16
    assert (np.asarray(traced) != 3).all()
    # Some products are rounded once more: 16 of them with errors of 2^-9, on models of size 2.
    np.testing.assert_allclose(traced.astype(float), fixed.astype(float), atol=16 * 2 * 2**-9)


def final(algorithm, gradient, dtype, rounds):
    """Server after rounds of one client with four steps, whose gradients are constant."""

    def oracle(client, key, max_steps):
        def grad(x, step=0):
            return jnp.full_like(x, gradient)

        return fs.Oracle(grad, lambda x, step: 0, grad)

    task = fs.Task(oracle, np.ones(1, np.int32), np.full(1, 4, np.int32))
    setup = fs.Setup(task, fs.timelines.full(rounds, 1, 4), jnp.zeros(2, dtype))
    return compiled(lambda: fs.run(algorithm, setup, KEY)[0].server)()


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.fedsgd(1.0, server=optax.adam(2.0**-7)),
        fs.fedadamw(2.0**-9, correction=0.0, weight_decay=0.0),
        fs.diloco(2.0**-9, 1.0, 0.0, 0.0),
        fs.fedmuon(2.0**-9, mix=1.0, weight_decay=0.0, matrices=lambda path, leaf: False),
        fs.fedavg(local_optimizer=optax.adam(2.0**-9), local_state="mean"),
    ],
    ids=["adam", "fedadamw", "diloco", "fedmuon", "local_optimizer"],
)
def test_squares_of_small_gradients_in_float16(algorithm):
    """The square 2^-28 is 0 in float16. Steps on constant gradients are as long as the rate."""
    params = final(algorithm, 2.0**-14, jnp.float16, rounds=3).params
    assert params.dtype == jnp.float16
    np.testing.assert_allclose(params.astype(float), -3 * 2.0**-7, rtol=2e-3)


@pytest.mark.parametrize(
    ("algorithm", "moment", "rounds"),
    [
        (fs.fedsgd(1.0, server=optax.adam(0.1)), lambda server: server.opt_state[0].nu, 1000),
        (fs.fedadamw(0.1), lambda server: server.second_moment, 250),
    ],
    ids=["optimizer", "fedadamw"],
)
def test_second_moments_in_bfloat16(algorithm, moment, rounds):
    """The decay 0.999 is 1 in bfloat16, and a sum of equal numbers stops at 256 of them."""
    server = final(algorithm, 1.0, jnp.bfloat16, rounds)
    np.testing.assert_allclose(moment(server), 1 - 0.999**1000, rtol=1e-3)
