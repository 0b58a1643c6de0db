"""The provided models: sizes by hand, forward passes against plain jax.numpy and lax."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small_problems import compiled

from fedjax_sim import models


def conv_size(kernel, fan_in, fan_out):
    return kernel**2 * fan_in * fan_out + fan_out


def dense_size(*widths):
    return sum(i * o + o for i, o in itertools.pairwise(widths))


NO_ACTIVATION = models.cnn(
    (28, 28, 1), 62, channels=(32, 64), kernel_size=5, hidden=(512,), conv_activation=lambda x: x,
    kernel_init=jax.nn.initializers.glorot_uniform(),
)  # fmt: skip
MODELS = {
    "softmax": (models.softmax_regression(784, 10), (28, 28, 1), 10, dense_size(784, 10)),
    "mlp": (models.mlp((4, 5), (7, 6), 3), (4, 5), 3, dense_size(20, 7, 6, 3)),
    "lenet5": (models.lenet5(), (32, 32, 3), 10, 62006),
    "lenet5_wide": (
        models.lenet5(100, channels=(64, 64), widths=(384, 192)),
        (32, 32, 3),
        100,
        conv_size(5, 3, 64) + conv_size(5, 64, 64) + dense_size(1600, 384, 192, 100),
    ),
    "femnist": (
        models.femnist_cnn(),
        (28, 28, 1),
        62,
        conv_size(3, 1, 32) + conv_size(3, 32, 64) + dense_size(9216, 128, 62),
    ),
    "no_activation": (NO_ACTIVATION, (28, 28, 1), 62, 832 + 51264 + 524800 + 31806),
    "digits": (
        models.digits_cnn(),
        (8, 8, 1),
        10,
        conv_size(3, 1, 16) + conv_size(3, 16, 32) + dense_size(128, 64, 10),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_sizes(name):
    model, shape, num_classes, size = MODELS[name]
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size
    x = jax.ShapeDtypeStruct((3, *shape), jnp.float32)
    outputs = jax.eval_shape(model.apply, params, x)
    assert outputs.shape == (3, num_classes)
    assert outputs.dtype == jnp.float32


def convolve(x, layer):
    out = lax.conv_general_dilated(
        x, layer["kernel"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return out + layer["bias"]


def pool(x):
    return jnp.max(jnp.stack([x[:, i::2, j::2] for i in range(2) for j in range(2)]), axis=0)


def affine(x, layer):
    return x @ layer["kernel"].T + layer["bias"]


def perturbed(params):
    # Biases start at zero; elsewhere they must matter.
    return jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), params)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet5", "femnist", "no_activation", "digits"])
def test_layers_in_order(name):
    model, shape, _, _ = MODELS[name]
    params = compiled(lambda key: perturbed(model.init(key)))(jax.random.key(0))
    x = np.random.default_rng(1).random((2, *shape), np.float32)
    expected = compiled(functools.partial(reference, name))(params, x)
    # Sums of up to 9216 float32 products in another order.
    np.testing.assert_allclose(compiled(model.apply)(params, x), expected, rtol=1e-4, atol=1e-3)


def reference(name, params, h):
    """The layers of a convolutional network in plain jax.numpy and lax."""
    relu = (lambda x: x) if name == "no_activation" else jax.nn.relu
    h = relu(convolve(h, params["conv1"]))
    h = pool(h) if name in ("lenet5", "no_activation") else h
    h = pool(relu(convolve(h, params["conv2"]))).reshape(2, -1)
    *hidden, last = sorted(params["head"])
    for layer in hidden:
        h = jax.nn.relu(affine(h, params["head"][layer]))
    return affine(h, params["head"][last])


@pytest.mark.slow
def test_mlp_layers_in_order():
    model = models.mlp(4, (3,), 2, activation=jnp.tanh)
    params = perturbed(model.init(jax.random.key(0)))
    x = jnp.arange(8.0).reshape(2, 4)
    expected = affine(jnp.tanh(affine(x, params["dense1"])), params["dense2"])
    np.testing.assert_allclose(model.apply(params, x), expected, rtol=1e-6)


def test_linear_models_start_at_zero():
    x = jnp.ones((5, 2, 3))
    softmax = models.softmax_regression((2, 3), 4)
    np.testing.assert_array_equal(softmax.apply(softmax.init(jax.random.key(0)), x), 0)
    logistic = models.logistic_regression((2, 3))
    params = logistic.init(jax.random.key(0))
    assert logistic.apply(params, x).shape == (5,)
    np.testing.assert_array_equal(logistic.apply(params, x), 0)
    params = {"linear": {"kernel": jnp.ones((1, 6)), "bias": jnp.ones(1)}}
    np.testing.assert_array_equal(logistic.apply(params, x), 7)


def test_given_kernels_are_glorot_uniform():
    params = compiled(NO_ACTIVATION.init)(jax.random.key(0))
    kernel = params["head"]["dense1"]["kernel"]
    bound = np.sqrt(6 / (1024 + 512))
    # Of 524,288 uniform draws the largest misses the bound by more than 1e-3 of it with
    # probability (1 - 1e-3) ** 524288 < 1e-200.
    assert 0.999 * bound < jnp.abs(kernel).max() <= bound * (1 + 1e-6)
    assert not any(jnp.any(params[name]["bias"]) for name in ("conv1", "conv2"))


def test_lowering_is_an_argument():
    convolutions = (lax.conv_general_dilated, models.im2col, models.canonical)

    @compiled
    def outputs(key, x):
        params = models.digits_cnn().init(key)
        return [models.digits_cnn(conv=conv).apply(params, x) for conv in convolutions]

    x = np.random.default_rng(1).random((2, 8, 8, 1), np.float32)
    expected, *actual = outputs(jax.random.key(0), x)
    for output in actual:
        # Sums of up to 144 products near 0.1.
        np.testing.assert_allclose(output, expected, atol=1e-5)


def test_double_precision_params(x64):
    model = models.digits_cnn()
    params = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float64), params)
    x = jax.ShapeDtypeStruct((1, 8, 8, 1), jnp.float64)
    assert jax.eval_shape(model.apply, params, x).dtype == jnp.float64


def test_errors():
    with pytest.raises(ValueError, match="pool_after has 1 entries; expected 2"):
        models.cnn((9, 9, 1), 2, channels=(1, 1), kernel_size=3, hidden=(), pool_after=(True,))
    with pytest.raises(ValueError, match=r"image_shape is \(8, 8, 1\); expected an image large"):
        models.cnn((8, 8, 1), 2, channels=(1, 1), kernel_size=5, hidden=())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.cnn((8, 8, 1), 3, channels=(), kernel_size=3, hidden=()), "channels is"),
        (
            lambda: models.cnn((8, 8, 1), 3, channels=(4,), kernel_size=0, hidden=()),
            "kernel_size is 0",
        ),
        (lambda: models.mlp(4, (0,), 3), "hidden is 0"),
        (lambda: models.mlp((4, 2.5), (3,), 3), "features is 2.5"),
        (lambda: models.softmax_regression(4, 0), "num_classes is 0"),
        (lambda: models.logistic_regression(0), "features is 0"),
        (lambda: models.mlp(4, 5, 3), "hidden is 5; expected a sequence of integers"),
        (
            lambda: models.cnn((8, 8, 1), 3, channels=4, kernel_size=3, hidden=()),
            "channels is 4; expected a sequence of integers",
        ),
        (
            lambda: models.cnn((8, 8), 3, channels=(4,), kernel_size=3, hidden=()),
            r"image_shape is \(8, 8\); expected height, width, channels",
        ),
        (lambda: models.resnet(10, channels=8, blocks=(1,)), "channels is 8; expected a seq"),
        (lambda: models.resnet(2.5, channels=(8,), blocks=(1,)), "num_classes is 2.5"),
        (lambda: models.vgg11(10, 2.5), "hidden is 2.5"),
        (
            lambda: models.vit((4, 4, 1), 2.5, patch_size=2, width=2, depth=1, heads=1),
            "num_classes is 2.5",
        ),
        (lambda: models.transformer(65.0), "vocab_size is 65.0"),
        (lambda: models.lstm(depth=1.5), "depth is 1.5"),
    ],
)
def test_sizes_that_are_no_positive_integers_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_sizes_may_be_integers_of_numpy():
    model = models.mlp(np.int64(4), (np.int64(3),), np.int64(2))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert shapes["dense1"]["kernel"].shape == (3, 4)
