"""Numbers that a program receives as float32 arrays keep a bfloat16 model in bfloat16."""

import functools

import jax.numpy as jnp
import numpy as np
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
