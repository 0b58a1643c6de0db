"""Initial values of perceptrons."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedjax_sim.models import mlp

KEY = jax.random.key(4)


@pytest.mark.slow
def test_default_and_given_initializers_draw_the_kernels_in_order():
    """Biases start at zero and draw nothing."""
    for given in ({}, {"initializer": jax.nn.initializers.he_uniform()}):
        draw = given.get("initializer", jax.nn.initializers.lecun_normal())
        params, rngs = mlp(6, (5,), 3, **given).init(KEY), nnx.Rngs(KEY)
        for name, shape in [("dense1", (6, 5)), ("dense2", (5, 3))]:
            expected = draw(rngs.params(), shape, jnp.float32).T
            np.testing.assert_array_equal(params[name]["kernel"], expected)
            np.testing.assert_array_equal(params[name]["bias"], np.zeros(shape[1]))
