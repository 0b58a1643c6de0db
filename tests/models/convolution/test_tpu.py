"""Forms for accelerators, run on the CPU against the ordinary ones."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from small_problems import compiled

from fedjax_sim.models import digits_cnn
from fedjax_sim.models.convolution.geometry import Geometry
from fedjax_sim.models.convolution.lowering import im2col
from fedjax_sim.models.convolution.patches import conv_gpu, input_grad_gpu, kernel_grad_gpu
from fedjax_sim.models.convolution.pooling import max_pool
from fedjax_sim.models.convolution.tpu import (
    Layer,
    conv_clients,
    input_grad_clients,
    kernel_grad_clients,
    layers_in_blocks,
    max_pool_blocks,
)
from fedjax_sim.models.convolution.trilinear import convolve

LAYOUT = ("NHWC", "HWIO", "NHWC")


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize(
    ("strides", "padding", "dilation"),
    [((1, 1), ((0, 0), (0, 0)), (1, 1)), ((2, 1), ((1, 0), (2, 1)), (1, 2))],
)
def test_convolutions_of_clients(num_clients, strides, padding, dilation):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_clients, 2, 8, 7, 3))
    w = rng.standard_normal((num_clients, 3, 2, 3, 4))
    g = Geometry((8, 7), (3, 2), strides, padding, dilation, None, lambda setting: "gemm")

    @compiled
    def both(x, w):
        out, transpose = jax.vjp(jax.vmap(lambda x, w: convolve(x, w, g)), x, w)
        z = jnp.cos(out)
        tpu = conv_clients(x, w, g), input_grad_clients(z, w, g), kernel_grad_clients(x, z, g)
        gpu = (
            jax.vmap(lambda a, b, compute=compute: compute(a, b, g))(a, b)
            for compute, a, b in (
                (conv_gpu, x, w),
                (input_grad_gpu, z, w),
                (kernel_grad_gpu, x, z),
            )
        )
        return tpu, tuple(gpu), (out, *transpose(z))

    *forms, expected = both(x, w)
    for form in forms:
        for actual, reference in zip(form, expected, strict=True):
            np.testing.assert_allclose(actual, reference, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", [jax.nn.relu, jnp.tanh])
@pytest.mark.parametrize(
    ("height", "width", "side", "pools"),
    [(10, 11, 3, (False, True)), (12, 9, 2, (True, False)), (9, 12, 4, (False, False))],
)
def test_layers_in_blocks(activation, height, width, side, pools):
    rng = np.random.default_rng(0)
    channels = (2, 3, 4)
    weights = [
        (
            rng.standard_normal((side, side, *channels[i : i + 2])),
            rng.standard_normal(channels[i + 1]),
        )
        for i in range(2)
    ]
    x = rng.standard_normal((2, height, width, 2))

    def in_blocks(x, weights):
        layers = [Layer(*each, pool) for each, pool in zip(weights, pools, strict=True)]
        return layers_in_blocks(x, layers, activation, im2col)

    def in_pixels(x, weights):
        for (kernel, bias), pool in zip(weights, pools, strict=True):
            x = im2col(x, kernel, (1, 1), "VALID", dimension_numbers=LAYOUT) + bias
            x = max_pool(activation(x)) if pool else activation(x)
        return x

    @compiled
    def both(x, weights):
        def loss(forward):
            return lambda x, weights: jnp.sin(forward(x, weights)).sum()

        return [
            jax.value_and_grad(loss(f), argnums=(0, 1))(x, weights) for f in (in_blocks, in_pixels)
        ]

    actual, expected = both(x, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), actual, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_pooling_of_blocks_in_all_modes():
    x = jnp.asarray(np.random.default_rng(0).permutation(2 * 2 * 12).reshape(1, 2, 2, 12), float)
    check_grads(lambda x: jnp.sin(max_pool_blocks(x)), (x / 8,), order=2, rtol=1e-5)
    # The first of equal numbers receives the gradient, and NaN is the maximum.
    gradient = jax.grad(lambda x: max_pool_blocks(x).sum())(jnp.zeros((1, 1, 1, 4)))
    assert gradient.ravel().tolist() == [1, 0, 0, 0]
    with jax.debug_nans(False):
        x = jnp.array([1.0, jnp.nan, 2.0, 3.0]).reshape(1, 1, 1, 4)
        assert jnp.isnan(max_pool_blocks(x)).all()


def test_models_use_blocks_on_tpus_only():
    model = digits_cnn()
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((5, 8, 8, 1), jnp.float32)
    text = {
        platform: jax.jit(model.apply)
        .trace(params, x)
        .lower(lowering_platforms=(platform,))
        .as_text()
        for platform in ("cpu", "cuda", "tpu")
    }
    # Of 3 x 3 pixels, 16 to 32 channels: 2 x 2 blocks, 64 to 128 channels.
    found = {
        platform: bool(re.search(r"stablehlo.convolution.*tensor<2x2x64x128xf32>", text[platform]))
        for platform in text
    }
    assert found == {"cpu": False, "cuda": False, "tpu": True}
