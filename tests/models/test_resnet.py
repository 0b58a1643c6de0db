"""Residual networks: the forward pass against lax convolutions and NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from random_params import random_params
from small_problems import compiled

from fedjax_sim import models


def convolve(x, layer, stride=1):
    kernel = np.asarray(layer["kernel"])
    pad = len(kernel) // 2
    return np.asarray(_convolve(jnp.asarray(x, kernel.dtype), kernel, stride, pad))


@functools.partial(jax.jit, static_argnames=("stride", "pad"))
def _convolve(x, kernel, stride, pad):
    padding, layout = [(pad, pad)] * 2, ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layout)


def group_norm(x, layer, groups):
    out = np.empty_like(x)
    size = x.shape[3] // groups
    for example, group in np.ndindex(len(x), groups):
        own = x[example, :, :, group * size : (group + 1) * size]
        normal = (own - own.mean()) / np.sqrt(own.var() + 1e-5)
        out[example, :, :, group * size : (group + 1) * size] = normal
    return out * np.asarray(layer["scale"]) + np.asarray(layer["bias"])


def pool(x):
    """Maxima of 3 x 3 pixels around every second one, by rows and columns of a padded image."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    for axis in (1, 2):
        windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=axis).max(-1)
        padded = np.take(windows, np.arange(0, windows.shape[axis], 2), axis)
    return padded


def reference(params, x, strides, groups, large_stem=False):
    """The network from its parameters, with one stride per block."""
    x = convolve(x, params["conv"], 2 if large_stem else 1)
    x = np.maximum(group_norm(x, params["norm"], groups), 0)
    x = pool(x) if large_stem else x
    for i, stride in enumerate(strides):
        block = params["blocks"][str(i)]
        h = group_norm(convolve(x, block["conv1"], stride), block["norm1"], groups)
        h = group_norm(convolve(np.maximum(h, 0), block["conv2"]), block["norm2"], groups)
        if "shortcut" in block:
            shortcut = block["shortcut"]
            x = group_norm(convolve(x, shortcut["conv"], stride), shortcut["norm"], groups)
        x = np.maximum(h + x, 0)
    last = params["head"]["dense1"]
    return x.mean((1, 2)) @ np.asarray(last["kernel"]).T + np.asarray(last["bias"])


# Stages of unequal depth, a width that falls, groups of one to three channels, an odd image.
CASES = [
    ({"channels": (4, 6, 2), "blocks": (2, 1, 1), "groups": 2}, (1, 1, 2, 2), (7, 10, 3)),
    (
        {"channels": (4, 4), "blocks": (1, 2), "groups": 4, "image_channels": 1},
        (1, 2, 1),
        (6, 6, 1),
    ),
    ({"channels": (4, 4), "blocks": (1, 1), "large_stem": True}, (1, 2), (17, 14, 3)),
]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("setting", "strides", "shape"), CASES)
def test_layers_in_order(setting, strides, shape):
    model = models.resnet(5, **setting)
    params = random_params(model, np.float64)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((3, *shape)), jnp.float32)
    outputs = compiled(model.apply)(params, x)  # the images adopt the parameters' dtype
    assert outputs.dtype == jnp.float64
    large_stem = setting.get("large_stem", False)
    expected = reference(params, x, strides, setting.get("groups", 2), large_stem)
    assert np.ptp(expected, axis=0).min() > 0.01  # the images matter
    # Outputs of order one in double precision.
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def small():
    """A network with a shortcut, its parameters, and four images."""
    model = models.resnet(5, channels=(4, 6), blocks=(1, 1))
    params = random_params(model)
    x = np.random.default_rng(1).standard_normal((4, 8, 8, 3)).astype(np.float32)
    return compiled(model.apply), params, x


@pytest.mark.slow
def test_bfloat16(small):
    apply, params, x = small
    outputs = apply(jax.tree.map(lambda p: np.asarray(p).astype(jnp.bfloat16), params), x)
    assert outputs.dtype == jnp.bfloat16
    # 8 bits of significand, some twenty roundings of numbers of order one.
    np.testing.assert_allclose(np.asarray(outputs, np.float32), apply(params, x), atol=0.3)


@pytest.mark.slow
def test_forward_pass_of_resnet18():
    model = models.resnet18()
    params = random_params(model)
    x = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))
    expected = reference(params, x, (1, 1, 2, 1, 2, 1, 2, 1), groups=2)
    # Activations of order one, some twenty layers of up to 4608 float32 products in another order.
    np.testing.assert_allclose(compiled(model.apply)(params, x), expected, rtol=1e-3, atol=1e-3)
