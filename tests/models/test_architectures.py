"""The provided models: sizes by hand, dtypes, forward passes against plain jax.numpy and lax."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from random_params import random_params
from small_problems import compiled

from fedjax_sim import models
from fedjax_sim.objectives import cross_entropy

KEY = jax.random.key(0)


def conv(side, *channels, bias=True):
    return sum(side**2 * i * o + bias * o for i, o in itertools.pairwise(channels))


def dense(*widths):
    return sum(i * o + o for i, o in itertools.pairwise(widths))


def stage(fan_in, width, count):
    """Residual blocks of two convolutions and norms, the first with a shortcut."""
    first = conv(3, fan_in, width, width, bias=False) + 2 * 2 * width
    first += (conv(1, fan_in, width, bias=False) + 2 * width) if fan_in != width else 0
    return first + (count - 1) * (conv(3, width, width, width, bias=False) + 2 * 2 * width)


def resnet(widths, count, classes):
    stages = sum(stage(*pair, count) for pair in zip((widths[0], *widths), widths, strict=False))
    return conv(3, 3, widths[0], bias=False) + 2 * widths[0] + stages + dense(widths[-1], classes)


def vit(patch, tokens, width, mlp_dim, depth, classes):
    block = 2 * 2 * width + dense(width, 3 * width) + dense(width, width)
    block += dense(width, mlp_dim, width)
    around = dense(patch, width) + (1 + tokens) * width + 2 * width + dense(width, classes)
    return around + depth * block


def transformer(vocabulary, width, depth):
    """V w + D (4 w^2 + 2 w m + 2 w) + w parameters with m = 4 w."""
    return vocabulary * width + depth * (12 * width**2 + 2 * width) + width


NO_ACTIVATION = models.cnn(
    (28, 28, 1), 62, channels=(32, 64), kernel_size=5, hidden=(512,), conv_activation=lambda x: x,
    kernel_init=jax.nn.initializers.glorot_uniform(),
)  # fmt: skip
VGG = conv(3, 3, 64, 128, 256, 256, 512, 512, 512, 512)
# Model, shape of an example, shape of an output, parameters.
MODELS = {
    "softmax": (models.softmax_regression(784, 10), (28, 28, 1), (10,), dense(784, 10)),
    "mlp": (models.mlp((4, 5), (7, 6), 3), (4, 5), (3,), dense(20, 7, 6, 3)),
    "lenet5": (models.lenet5(), (32, 32, 3), (10,), 62006),
    "lenet5_wide": (
        models.lenet5(100, channels=(64, 64), widths=(384, 192)), (32, 32, 3), (100,),
        conv(5, 3, 64, 64) + dense(1600, 384, 192, 100),
    ),
    "femnist": (
        models.femnist_cnn(), (28, 28, 1), (62,), conv(3, 1, 32, 64) + dense(9216, 128, 62)
    ),
    "no_activation": (NO_ACTIVATION, (28, 28, 1), (62,), 832 + 51264 + 524800 + 31806),
    "digits": (models.digits_cnn(), (8, 8, 1), (10,), conv(3, 1, 16, 32) + dense(128, 64, 10)),
    "vgg11": (models.vgg11(), (32, 32, 3), (10,), VGG + dense(512, 100, 10)),
    "vgg11_100": (models.vgg11(100), (32, 32, 3), (100,), VGG + dense(512, 256, 100)),
    "vgg11_64": (models.vgg11(10, 64), (32, 32, 3), (10,), VGG + dense(512, 64, 10)),
    "resnet18": (models.resnet18(), (64, 64, 3), (10,), resnet((64, 128, 256, 512), 2, 10)),
    "resnet18_usual": (models.resnet18(), (32, 32, 3), (10,), 11_173_962),  # as it is counted
    "resnet18_100": (
        models.resnet18(100), (32, 32, 3), (100,), resnet((64, 128, 256, 512), 2, 100)
    ),
    "resnet20": (models.resnet20(), (32, 32, 3), (10,), resnet((16, 32, 64), 3, 10)),
    "vit_tiny": (models.vit_tiny(), (32, 32, 3), (10,), vit(48, 65, 192, 768, 12, 10)),
    "vit_tiny_64": (
        models.vit_tiny((64, 64, 3), 200), (64, 64, 3), (200,), vit(48, 257, 192, 768, 12, 200)
    ),
    "vit_tiny_224": (  # as published
        models.vit_tiny((224, 224, 3), 1000, patch_size=16), (224, 224, 3), (1000,), 5_717_416
    ),
    # The published number without a head, and 200 classes.
    "vit_base16": (models.vit_base16(), (224, 224, 3), (200,), 85_798_656 + 769 * 200),
    "transformer": (models.transformer(65), (80,), (80, 65), transformer(65, 64, 4)),
    # Four blocks of width 128: "0.8 M".
    "transformer_128": (
        models.transformer(65, width=128), (80,), (80, 65), transformer(65, 128, 4)
    ),
    # Published with two biases per layer, of which 2 x 1,024 are in their sum here; LEAF's network
    # has 80 characters and the last position only.
    "lstm": (models.lstm(), (80,), (80, 90), 822_570 - 2 * 1024),
    "lstm_leaf": (models.lstm(80, every_position=False), (80,), (80,), 817_872),
}  # fmt: skip


def inputs(shape, dtype=jnp.float32):
    """A batch of three examples; those of one axis are tokens."""
    return jax.ShapeDtypeStruct((3, *shape), jnp.int32 if len(shape) == 1 else dtype)


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_sizes(name):
    model, shape, output, size = MODELS[name]
    params = jax.eval_shape(model.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size
    outputs = jax.eval_shape(model.apply, params, inputs(shape))
    assert (outputs.shape, outputs.dtype) == ((3, *output), jnp.float32)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_single_also_where_double_is_enabled(name, x64):
    """One dtype: biases in double beside kernels in single would count as 64 bits each."""
    params = jax.eval_shape(MODELS[name][0].init, KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
@pytest.mark.parametrize("name", ["digits", "vgg11", "resnet20", "vit_tiny", "transformer", "lstm"])
def test_outputs_have_the_dtype_of_the_parameters(name, dtype, x64):
    model, shape, _, _ = MODELS[name]
    params = jax.eval_shape(model.init, KEY)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), params)
    adopted = jnp.float32 if name != "digits" else dtype  # that of images, if not the model's own
    assert jax.eval_shape(model.apply, params, inputs(shape, adopted)).dtype == dtype


@pytest.mark.parametrize("name", ["softmax", "mlp", "digits", "resnet20", "vit_tiny", "lstm"])
def test_a_batch_without_examples(name):
    """Shapes with a size that follows from the others divided by 0."""
    model, shape, output, _ = MODELS[name]
    x = jax.ShapeDtypeStruct((0, *shape), inputs(shape).dtype)
    y = jax.ShapeDtypeStruct((0, *output[:-1]), jnp.int32)
    params = jax.eval_shape(model.init, KEY)
    loss = cross_entropy(model)
    gradient = jax.grad(lambda params, x, y: loss(params, {"x": x, "y": y}, None).sum())
    assert jax.eval_shape(model.apply, params, x).shape == (0, *output)
    assert jax.eval_shape(gradient, params, x, y) == params


def reference(params, h, pools, pad=0, activation=jax.nn.relu):
    """A convolutional network in plain jax.numpy and lax."""
    for i, pooled in enumerate(pools, 1):
        layer = params[f"conv{i}"]
        h = lax.conv_general_dilated(
            h, layer["kernel"], (1, 1), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        h = activation(h + layer["bias"])
        if pooled:
            h = jnp.max(jnp.stack([h[:, i::2, j::2] for i in range(2) for j in range(2)]), axis=0)
    h, (*hidden, last) = h.reshape(len(h), -1), params["head"].values()
    for layer in hidden:
        h = jax.nn.relu(h @ layer["kernel"].T + layer["bias"])
    return h @ last["kernel"].T + last["bias"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet5", {"pools": (True, True)}),
        ("femnist", {"pools": (False, True)}),
        ("no_activation", {"pools": (True, True), "activation": lambda x: x}),
        ("digits", {"pools": (False, True)}),
        ("vgg11", {"pools": (1, 1, 0, 1, 0, 1, 0, 1), "pad": 1}),
    ],
)
def test_layers_in_order(name, options):
    model, shape, _, _ = MODELS[name]
    params = random_params(model)
    x = np.random.default_rng(1).random((2, *shape), np.float32)
    expected = compiled(functools.partial(reference, **options))(params, x)
    # Logits of order one; sums of up to 9216 float32 products in another order.
    np.testing.assert_allclose(compiled(model.apply)(params, x), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_mlp_layers_in_order():
    model = models.mlp(4, (3,), 2, activation=jnp.tanh)
    params, x = random_params(model), np.arange(8.0, dtype=np.float32).reshape(2, 4)
    first, last = params["dense1"], params["dense2"]
    expected = np.tanh(x @ first["kernel"].T + first["bias"]) @ last["kernel"].T + last["bias"]
    np.testing.assert_allclose(model.apply(params, x), expected, rtol=1e-6)


def test_linear_models_start_at_zero():
    x = jnp.ones((5, 2, 3))
    softmax = models.softmax_regression((2, 3), 4)
    np.testing.assert_array_equal(softmax.apply(softmax.init(KEY), x), 0)
    logistic = models.logistic_regression((2, 3))
    params = logistic.init(KEY)
    assert logistic.apply(params, x).shape == (5,)
    np.testing.assert_array_equal(logistic.apply(params, x), 0)
    params = {"linear": {"kernel": jnp.ones((1, 6)), "bias": jnp.ones(1)}}
    np.testing.assert_array_equal(logistic.apply(params, x), 7)


def test_given_kernels_are_glorot_uniform():
    params = compiled(NO_ACTIVATION.init)(KEY)
    kernel = params["head"]["dense1"]["kernel"]
    bound = np.sqrt(6 / (1024 + 512))
    # Of 524,288 uniform draws the largest misses the bound by more than 1e-3 of it with
    # probability (1 - 1e-3) ** 524288 < 1e-200.
    assert 0.999 * bound < jnp.abs(kernel).max() <= bound * (1 + 1e-6)
    assert not any(jnp.any(params[name]["bias"]) for name in ("conv1", "conv2"))


@pytest.mark.slow
def test_default_and_given_initializers_draw_the_kernels_in_order():
    """Biases start at zero and draw nothing."""
    for given in ({}, {"initializer": jax.nn.initializers.he_uniform()}):
        draw = given.get("initializer", jax.nn.initializers.lecun_normal())
        params, rngs = models.mlp(6, (5,), 3, **given).init(KEY), nnx.Rngs(KEY)
        for name, shape in [("dense1", (6, 5)), ("dense2", (5, 3))]:
            expected = draw(rngs.params(), shape, jnp.float32).T
            np.testing.assert_array_equal(params[name]["kernel"], expected)
            np.testing.assert_array_equal(params[name]["bias"], np.zeros(shape[1]))


@pytest.mark.slow
def test_initial_signal_of_vgg11_keeps_its_size():
    model = models.vgg11()
    params = compiled(model.init)(KEY)
    x = np.random.default_rng(1).standard_normal((4, 32, 32, 3)).astype(np.float32)
    # He-normal kernels keep the mean square; with variance 1 / fan-in ten layers would divide the
    # deviation by 32. A factor 4 allows for the random draw and for pooling, which raises it.
    assert 0.25 < jnp.std(compiled(model.apply)(params, x)) < 16
    assert all(not params[f"conv{i}"]["bias"].any() for i in range(1, 9))


def test_lowering_is_an_argument():
    convolutions = (lax.conv_general_dilated, models.im2col, models.canonical)

    @compiled
    def outputs(key, x):
        params = models.digits_cnn().init(key)
        return [models.digits_cnn(conv=conv).apply(params, x) for conv in convolutions]

    x = np.random.default_rng(1).random((2, 8, 8, 1), np.float32)
    expected, *actual = outputs(KEY, x)
    for output in actual:
        # Sums of up to 144 products near 0.1.
        np.testing.assert_allclose(output, expected, atol=1e-5)


def later(fan_in, width):
    """Kernels and strides of a stage of ResNet-18 after the first."""
    first = [(3, 3, fan_in, width, 2, 2), (3, 3, width, width, 1, 1), (1, 1, fan_in, width, 2, 2)]
    return [*first, *[(3, 3, width, width, 1, 1)] * 2]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            functools.partial(models.resnet, 5, channels=(4, 6), blocks=(1, 1)),
            [(3, 3, 3, 4, 1, 1), *[(3, 3, 4, 4, 1, 1)] * 2, *later(4, 6)[:3]],
        ),
        (
            models.resnet18,
            [(3, 3, 3, 64, 1, 1), *[(3, 3, 64, 64, 1, 1)] * 4, *later(64, 128), *later(128, 256),
             *later(256, 512)],
        ),
        (
            models.vgg11,
            [(3, 3, i, o, 1, 1) for i, o in itertools.pairwise(
                (3, 64, 128, 256, 256, 512, 512, 512, 512))],
        ),
    ],
    ids=["resnet", "resnet18", "vgg11"],
)  # fmt: skip
def test_kernels_and_strides(build, expected):
    calls = []

    def noted(lhs, rhs, window_strides, *args, **kwargs):
        calls.append((*rhs.shape, *window_strides))
        return models.canonical(lhs, rhs, window_strides, *args, **kwargs)

    model = build(conv=noted)
    jax.eval_shape(model.apply, jax.eval_shape(model.init, KEY), inputs((32, 32, 3)))
    assert calls == expected


def small_cnn(**change):
    return models.cnn(
        **{"image_shape": (8, 8, 1), "num_classes": 3, "channels": (4,), "kernel_size": 3,
           "hidden": ()} | change
    )  # fmt: skip


def small_resnet(**change):
    return models.resnet(**{"num_classes": 5, "channels": (4, 6), "blocks": (1, 1)} | change)


def small_vit(**change):
    return models.vit(
        **{"image_shape": (6, 4, 2), "num_classes": 3, "patch_size": 2, "width": 6, "depth": 2,
           "heads": 3} | change
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (small_cnn, {"channels": (1, 1), "pool_after": (True,)}, "pool_after has 1 entries; expec"),
        (small_cnn, {"channels": (1, 1), "kernel_size": 5}, r"\(8, 8, 1\); expected an image larg"),
        (small_cnn, {"channels": ()}, "channels is"),
        (small_cnn, {"kernel_size": 0}, "kernel_size is 0"),
        (small_cnn, {"channels": 4}, "channels is 4; expected a sequence of integers"),
        (small_cnn, {"image_shape": (8, 8)}, r"image_shape is \(8, 8\); expected height, width, c"),
        (models.mlp, {"features": 4, "hidden": (0,), "num_classes": 3}, "hidden is 0"),
        (models.mlp, {"features": (4, 2.5), "hidden": (3,), "num_classes": 3}, "features is 2.5"),
        (models.mlp, {"features": 4, "hidden": 5, "num_classes": 3}, "hidden is 5; expected a seq"),
        (models.softmax_regression, {"features": 4, "num_classes": 0}, "num_classes is 0"),
        (models.logistic_regression, {"features": 0}, "features is 0"),
        (small_resnet, {"channels": 8}, "channels is 8; expected a seq"),
        (small_resnet, {"num_classes": 2.5}, "num_classes is 2.5"),
        (small_resnet, {"channels": ()}, r"blocks is \(1, 1\) and channels is \(\); expected one "),
        (small_resnet, {"blocks": (1,)}, r"blocks is \(1,\) and channels is \(4, 6\); expected on"),
        (small_resnet, {"blocks": (1, 0)}, "blocks is 0; expected at least 1"),
        (small_resnet, {"groups": 3}, r"groups is 3; expected a divisor of each of \(4, 6\)"),
        (models.vgg11, {"hidden": 2.5}, "hidden is 2.5"),
        (models.vgg11, {"hidden": 0}, "hidden is 0; expected at least"),
        (models.vgg11, {"num_classes": 0}, "num_classes is 0; expected at least 1"),
        (small_vit, {"num_classes": 2.5}, "num_classes is 2.5"),
        (small_vit, {"patch_size": 4}, r"4; expected a divisor of height and width .*\(6, 4, 2\)"),
        (small_vit, {"heads": 4}, "heads is 4; expected a divisor of width 6"),
        (small_vit, {"depth": 0}, "depth is 0; expected at least 1"),
        (small_vit, {"mlp_dim": 0}, "mlp_dim is 0; expected at least 1"),
        (small_vit, {"image_shape": (8, 8)}, r"image_shape is \(8, 8\); expected height, width, c"),
        (models.transformer, {"vocab_size": 65.0}, "vocab_size is 65.0"),
        (models.transformer, {"vocab_size": 7, "depth": 0}, "depth is 0; expected at least 1"),
        (models.transformer, {"vocab_size": 7, "width": 12}, "width is 12; expected a multiple of"),
        (models.lstm, {"depth": 1.5}, "depth is 1.5"),
        (models.lstm, {"width": 0}, "width is 0; expected at least 1"),
    ],
)
def test_bad_sizes_are_refused(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (models.lstm(7, width=4), jnp.ones((2, 3)), r"x has shape \(2, 3\) and dtype float32; exp"),
        (models.transformer(7), jnp.ones((2, 3)), r"x has shape \(2, 3\) and dtype float32; expec"),
        (small_vit(), jnp.ones((5, 4, 6, 2)), r"\(5, 4, 6, 2\); expected \[B, \*\(6, 4, 2\)"),
        (
            models.digits_cnn(),
            jnp.ones((2, 9, 9, 1)),
            r"\(2, 9, 9, 1\); expected \[B, \*\(8, 8, 1\)",
        ),
        (models.vgg11(), jnp.ones((2, 40, 40, 3)), r"expected \[B, \*\(32, 32, 3\)"),
    ],
    ids=["lstm", "transformer", "vit", "cnn", "vgg"],
)
def test_other_inputs_are_refused(model, x, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(model.apply, jax.eval_shape(model.init, KEY), x)


def test_sizes_may_be_integers_of_numpy():
    model = models.mlp(np.int64(4), (np.int64(3),), np.int64(2))
    assert jax.eval_shape(model.init, KEY)["dense1"]["kernel"].shape == (3, 4)
