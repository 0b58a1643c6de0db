"""Residual networks: sizes by hand, the forward pass against lax convolutions and NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from random_params import random_params
from small_problems import compiled

from fedjax_sim import models


def conv_size(side, fan_in, fan_out):
    return side**2 * fan_in * fan_out  # no bias


def block_size(fan_in, width):
    """Two convolutions with their norms, and the shortcut's where the width changes."""
    size = conv_size(3, fan_in, width) + conv_size(3, width, width) + 2 * 2 * width
    return size + (conv_size(1, fan_in, width) + 2 * width if fan_in != width else 0)


RESNET18 = (
    conv_size(3, 3, 64)
    + 2 * 64
    + 2 * block_size(64, 64)
    + block_size(64, 128)
    + block_size(128, 128)
    + block_size(128, 256)
    + block_size(256, 256)
    + block_size(256, 512)
    + block_size(512, 512)
)
RESNET20 = (
    conv_size(3, 3, 16)
    + 2 * 16
    + 3 * block_size(16, 16)
    + block_size(16, 32)
    + 2 * block_size(32, 32)
    + block_size(32, 64)
    + 2 * block_size(64, 64)
)


@pytest.mark.parametrize(
    ("model", "num_classes", "size"),
    [
        (models.resnet18(), 10, RESNET18 + 512 * 10 + 10),
        (models.resnet18(), 10, 11_173_962),  # as this network is usually counted
        (models.resnet18(100), 100, RESNET18 + 512 * 100 + 100),
        (models.resnet20(), 10, RESNET20 + 64 * 10 + 10),
    ],
)
def test_shapes_and_sizes(model, num_classes, size):
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size
    for side in (32, 64):
        x = jax.ShapeDtypeStruct((3, side, side, 3), jnp.float32)
        assert jax.eval_shape(model.apply, params, x).shape == (3, num_classes)


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


@pytest.mark.slow
def test_examples_are_independent(small):
    apply, params, x = small
    alone = np.concatenate([apply(params, x[i : i + 1]) for i in range(4)])
    # The same sums of at most 54 float32 numbers of order one, perhaps in another order.
    np.testing.assert_allclose(apply(params, x), alone, rtol=1e-4, atol=1e-5)


def layers(build):
    """Kernel shapes and strides of the convolutions of ``build(conv=conv)``, in order."""
    calls = []

    def conv(lhs, rhs, window_strides, *args, **kwargs):
        calls.append((*rhs.shape, *window_strides))
        return models.canonical(lhs, rhs, window_strides, *args, **kwargs)

    model = build(conv=conv)
    params = jax.eval_shape(model.init, jax.random.key(0))
    jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32))
    return calls


def test_lowering_is_an_argument():
    calls = layers(functools.partial(models.resnet, 5, channels=(4, 6), blocks=(1, 1)))
    stem, first = (3, 3, 3, 4, 1, 1), [(3, 3, 4, 4, 1, 1)] * 2
    second = [(3, 3, 4, 6, 2, 2), (3, 3, 6, 6, 1, 1), (1, 1, 4, 6, 2, 2)]
    assert calls == [stem, *first, *second]


def test_layers_and_strides_of_resnet18():
    expected = [(3, 3, 3, 64, 1, 1), *[(3, 3, 64, 64, 1, 1)] * 4]
    for fan_in, width in ((64, 128), (128, 256), (256, 512)):
        expected += [(3, 3, fan_in, width, 2, 2), (3, 3, width, width, 1, 1)]
        expected += [(1, 1, fan_in, width, 2, 2), *[(3, 3, width, width, 1, 1)] * 2]
    assert layers(models.resnet18) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": ()}, r"blocks is \(1, 1\) and channels is \(\); expected one number"),
        ({"blocks": (1,)}, r"blocks is \(1,\) and channels is \(4, 6\); expected one number"),
        ({"blocks": (1, 0)}, "blocks is 0; expected at least 1"),
        ({"groups": 3}, r"groups is 3; expected a divisor of each of \(4, 6\)"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        models.resnet(5, **({"channels": (4, 6), "blocks": (1, 1)} | change))
