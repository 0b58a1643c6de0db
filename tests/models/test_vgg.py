"""VGG-11: its size by hand, its forward pass against lax convolutions and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from random_params import random_params
from small_problems import compiled

from fedjax_sim import models

CHANNELS = (64, 128, 256, 256, 512, 512, 512, 512)
POOL_AFTER = (1, 2, 4, 6, 8)


def conv_size(fan_in, fan_out):
    return 9 * fan_in * fan_out + fan_out


BODY = (
    conv_size(3, 64)
    + conv_size(64, 128)
    + conv_size(128, 256)
    + conv_size(256, 256)
    + conv_size(256, 512)
    + 3 * conv_size(512, 512)
)


@pytest.mark.parametrize(
    ("num_classes", "hidden", "width"), [(10, None, 100), (100, None, 256), (10, 64, 64)]
)
def test_shapes_and_sizes(num_classes, hidden, width):
    model = models.vgg11(num_classes, hidden)
    params = jax.eval_shape(model.init, jax.random.key(0))
    head = 512 * width + width + width * num_classes + num_classes
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == BODY + head
    x = jax.ShapeDtypeStruct((3, 32, 32, 3), jnp.float32)
    assert jax.eval_shape(model.apply, params, x).shape == (3, num_classes)


def convolve(x, layer):
    out = lax.conv_general_dilated(
        x, layer["kernel"], (1, 1), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return np.asarray(out) + np.asarray(layer["bias"])


@pytest.mark.slow
def test_layers_in_order():
    model = models.vgg11()
    params = random_params(model)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 32, 32, 3)), jnp.float32)
    h = x
    for i in range(1, 9):
        h = np.maximum(convolve(h, params[f"conv{i}"]), 0)
        if i in POOL_AFTER:
            h = np.max([h[:, j::2, k::2] for j in range(2) for k in range(2)], axis=0)
    assert h.shape == (2, 1, 1, 512)
    first, last = params["head"]["dense1"], params["head"]["dense2"]
    h = np.maximum(h.reshape(2, 512) @ first["kernel"].T + first["bias"], 0)
    expected = h @ last["kernel"].T + last["bias"]
    # Logits of order one; ten layers of sums of up to 4608 float32 products in another order.
    np.testing.assert_allclose(compiled(model.apply)(params, x), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_initial_signal_keeps_its_size():
    model = models.vgg11()
    params = compiled(model.init)(jax.random.key(0))
    x = np.random.default_rng(1).standard_normal((4, 32, 32, 3)).astype(np.float32)
    logits = compiled(model.apply)(params, x)
    # He-normal kernels keep the mean square; with variance 1 / fan-in ten layers would divide the
    # deviation by 32. A factor 4 allows for the random draw and for pooling, which raises it.
    assert 0.25 < jnp.std(logits) < 16
    assert all(not params[f"conv{i}"]["bias"].any() for i in range(1, 9))


def test_lowering_is_an_argument():
    asked = []

    def conv(lhs, rhs, *args, **kwargs):
        asked.append(rhs.shape)
        return models.canonical(lhs, rhs, *args, **kwargs)

    model = models.vgg11(conv=conv)
    params = jax.eval_shape(model.init, jax.random.key(0))
    jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32))
    assert asked == [(3, 3, i, o) for i, o in zip((3, *CHANNELS), CHANNELS, strict=False)]


@pytest.mark.usefixtures("x64")
def test_double_precision_params():
    model = models.vgg11()
    params = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float64), params)
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    assert jax.eval_shape(model.apply, params, x).dtype == jnp.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "num_classes is 0; expected at least 1"), ((10, 0), "hidden is 0; expected at least")],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.vgg11(*arguments)
