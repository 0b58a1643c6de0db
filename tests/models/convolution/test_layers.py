"""Layers in blocks of pixels, against layers of pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from small_problems import compiled

from fedjax_sim.models import lenet5
from fedjax_sim.models.convolution.layers import Layer, layers_in_blocks, max_pool_blocks
from fedjax_sim.models.convolution.lowering import auto, im2col
from fedjax_sim.models.convolution.pooling import max_pool

LAYOUT = ("NHWC", "HWIO", "NHWC")


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("conv", [im2col, None])
@pytest.mark.parametrize("activation", [jax.nn.relu, jnp.tanh])
@pytest.mark.parametrize(
    ("height", "width", "side", "pools"),
    [(10, 11, 3, (False, True)), (12, 9, 2, (True, False)), (9, 12, 4, (False, False))],
)
def test_layers_in_blocks(conv, activation, height, width, side, pools):
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
        return layers_in_blocks(x, layers, activation, conv)

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
@pytest.mark.parametrize(("axis", "shape"), [(3, (1, 2, 2, 12)), (0, (12, 2, 2, 1))])
def test_pooling_of_blocks_in_all_modes(axis, shape):
    x = jnp.asarray(np.random.default_rng(0).permutation(2 * 2 * 12).reshape(shape), float)
    check_grads(lambda x: jnp.sin(max_pool_blocks(x, axis)), (x / 8,), order=2, rtol=1e-5)
    # The first of equal numbers receives the gradient, and NaN is the maximum.
    ones = [4 if i == axis else 1 for i in range(4)]
    gradient = jax.grad(lambda x: max_pool_blocks(x, axis).sum())(jnp.zeros(ones))
    assert gradient.ravel().tolist() == [1, 0, 0, 0]
    with jax.debug_nans(False):
        x = jnp.array([1.0, jnp.nan, 2.0, 3.0]).reshape(ones)
        assert jnp.isnan(max_pool_blocks(x, axis)).all()


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_models_in_columns_are_those_of_patches():
    """Values, gradients and Hessian products for clients with kernels of their own."""
    models = [lenet5(channels=(6, 8), widths=(5, 4), conv=conv) for conv in (auto, im2col)]
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0), 2)
    params = jax.tree.map(lambda x: x.astype(float), jax.vmap(models[0].init)(keys))
    direction = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape)), params)
    x = jnp.asarray(rng.standard_normal((2, 3, 32, 32, 3)))

    def measured(model):
        def loss(params, x):
            return jnp.sin(model.apply(params, x)).sum()

        def one(params, direction, x):
            gradient = jax.grad(loss, argnums=(0, 1))
            product = jax.jvp(lambda params: gradient(params, x)[0], (params,), (direction,))[1]
            return loss(params, x), gradient(params, x), product

        return jax.vmap(one)

    actual, expected = compiled(lambda *args: [measured(model)(*args) for model in models])(
        params, direction, x
    )
    # Sums of up to 400 products of numbers of the order of 1.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), actual, expected)


@pytest.mark.slow
def test_cpus_use_columns_where_patches_are_small_and_channels_few():
    def shape_of_patches(model, batch):
        params = jax.eval_shape(model.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((batch, 32, 32, 3), jnp.float32)
        text = jax.jit(model.apply).trace(params, x).lower(lowering_platforms=("cpu",)).as_text()
        return [size for size in (108, 216) if f"tensor<{size}x" in text]

    assert shape_of_patches(lenet5(), 5) == [108, 216]
    assert shape_of_patches(lenet5(channels=(6, 64)), 5) == [108]  # too many channels
    assert shape_of_patches(lenet5(channels=(64, 64)), 5) == []
    assert shape_of_patches(lenet5(), 2000) == []  # patches of 470 and 120 MB
    assert shape_of_patches(lenet5(conv=im2col), 5) == []
