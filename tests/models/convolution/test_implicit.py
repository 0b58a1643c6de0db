"""Products of patches that are not in memory, by the interpreter of their kernels, against lax."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from small_problems import compiled

from fedjax_sim.models.convolution import implicit
from fedjax_sim.models.convolution.geometry import Geometry, has_kernel
from fedjax_sim.models.convolution.implicit import Tiles
from fedjax_sim.models.convolution.lowering import auto, lowered
from fedjax_sim.models.convolution.lowering import implicit as implicit_or_auto

LAYOUT = ("NHWC", "HWIO", "NHWC")
CLIENTS, BATCH = 2, 3
# Sums of at most 3 * 8 * 8 or 20 * 16 products are added in float32, in another order. The results
# in bfloat16 are rounded once, by at most 2^-9.
RELATIVE = {"float32": 1e-6, "bfloat16": 2**-9}
GEOMETRIES = [  # input size, kernel size, strides, padding
    ((8, 8), (3, 3), (1, 1), ((1, 1), (1, 1))),
    ((8, 8), (3, 3), (2, 2), ((0, 1), (0, 1))),  # "SAME"
    ((7, 6), (3, 3), (2, 2), ((1, 1), (1, 1))),
    ((5, 6), (1, 1), (2, 2), ((0, 0), (0, 0))),  # phases without taps
    ((9, 8), (5, 4), (1, 1), ((0, 0), (0, 0))),
    ((8, 7), (3, 2), (2, 3), ((3, 2), (0, 1))),
    ((6, 6), (3, 3), (1, 1), ((-1, 0), (0, -2))),  # negative padding crops
    ((7, 8), (3, 3), (2, 2), ((-1, 2), (-3, 0))),
    ((4, 4), (3, 3), (1, 1), ((4, 3), (0, 5))),  # more padding than kernel
]


def geometry(input_size, kernel_size, strides, padding, dilation=(1, 1), precision=None):
    return Geometry(
        input_size, kernel_size, strides, padding, dilation, precision, lambda setting: "gemm"
    )


def normal(dtype, *shape):
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return jnp.asarray(values, dtype)


def operands(g, dtype, channels=16, outputs=32):
    x = normal(dtype, CLIENTS, BATCH, *g.input_size, channels)
    w = normal(dtype, CLIENTS, *g.kernel_size, channels, outputs)
    return x, w, normal(dtype, CLIENTS, BATCH, *g.output_size, outputs)


def in_double(x, w, z, g):
    """The convolution and its gradients, of the same numbers in float64."""
    with jax.enable_x64(True):
        x, w, z = (a.astype("float64") for a in (x, w, z))

        @compiled
        def program(x, w, z):
            def convolution(x, w):
                return lax.conv_general_dilated(
                    x, w, g.strides, g.padding, dimension_numbers=LAYOUT
                )

            out, transposed = jax.vjp(jax.vmap(convolution), x, w)
            return out, *transposed(z)

        return [np.asarray(a) for a in program(x, w, z)]


def by_kernels(x, w, z, g, tiles=None):
    options = {"tiles": tiles, "interpret": True}

    @compiled
    def program(x, w, z):
        return (
            implicit.conv_clients(x, w, g, **options),
            implicit.input_grad_clients(z, w, g, **options),
            implicit.kernel_grad_clients(x, z, g, **options),
        )

    return program(x, w, z)


def assert_close(actual, expected, dtype):
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        assert a.shape == b.shape
        error = np.linalg.norm(np.asarray(a, float) - b) / np.linalg.norm(b)
        assert error < RELATIVE[dtype]


@pytest.mark.parametrize("shapes", GEOMETRIES)
def test_value_and_gradients(shapes):
    g = geometry(*shapes)
    arrays = operands(g, "float32")
    assert_close(by_kernels(*arrays, g), in_double(*arrays, g), "float32")


@pytest.mark.parametrize("shapes", GEOMETRIES[:3])
def test_half_precision(shapes):
    g = geometry(*shapes)
    arrays = operands(g, "bfloat16")
    assert_close(by_kernels(*arrays, g), in_double(*arrays, g), "bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tiles", [Tiles(16, 16, 16), Tiles(32, 16, 16, parts=3, taps=3)])
def test_many_tiles_along_each_axis(tiles, dtype):
    """75 pixels are 5 or 3 tiles, the last of which is not full; a part may have none."""
    g = geometry((5, 5), (3, 3), (1, 1), ((1, 1), (1, 1)))
    arrays = operands(g, dtype, 32, 48)
    assert_close(by_kernels(*arrays, g, tiles), in_double(*arrays, g), dtype)


@pytest.mark.usefixtures("x64")
def test_places_have_32_bits():
    g = geometry((5, 5), (3, 3), (2, 2), ((1, 1), (1, 1)))
    x, w, z = operands(g, "float32")
    assert_close(by_kernels(x, w, z, g), in_double(x, w, z, g), "float32")
    program = functools.partial(implicit.conv_clients, g=g, interpret=True)
    assert "i64[16" not in str(jax.make_jaxpr(program)(x, w))


def test_one_array_for_all_clients():
    g = geometry((5, 5), (3, 3), (1, 1), ((1, 1), (1, 1)))
    x, w, z = operands(g, "float32")
    run = {"g": g, "interpret": True}

    def repeated(a):
        return jnp.repeat(a[:1], CLIENTS, 0)

    actual = implicit.conv_clients(x[:1], w, **run), implicit.kernel_grad_clients(x[:1], z, **run)
    out, _, gradient = in_double(repeated(x), w, z, g)
    assert_close(actual, (out, gradient), "float32")
    actual = implicit.conv_clients(x, w[:1], **run), implicit.input_grad_clients(z, w[:1], **run)
    out, gradient, _ = in_double(x, repeated(w), z, g)
    assert_close(actual, (out, gradient), "float32")


# The kernels on CPUs, too: always by their interpreter.
by_interpreter = lowered(lambda setting: "implicit")


def bind(conv, strides=(1, 1), padding="SAME", precision=None):
    return lambda x, w: conv(x, w, strides, padding, dimension_numbers=LAYOUT, precision=precision)


def arrays(*lead, channels=16, size=5):
    x = normal("float32", *lead, 2, size, size, channels)
    return x, normal("float32", *lead, 3, 3, channels, 16) / 12


def loss(conv):
    return lambda x, w: jnp.sum(jnp.sin(conv(x, w)))


def assert_equals_lax(compute, *arguments):
    """``compute`` with the kernels and with lax's convolution."""

    @compiled
    def program(*arguments):
        convolutions = lax.conv_general_dilated, by_interpreter
        return [compute(conv, *arguments) for conv in convolutions]

    for expected, actual in zip(*map(jax.tree.leaves, program(*arguments)), strict=True):
        # Some hundred products in another order, and sines and cosines of their sums.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_training_of_clients_in_a_scan():
    x, w = arrays(CLIENTS)

    def train(conv, x, w):
        def step(w, _):
            return w - 0.01 * jax.vmap(jax.grad(loss(bind(conv)), argnums=1))(x, w), None

        w, _ = lax.scan(step, w, length=2)
        return w, jax.vmap(jax.grad(loss(bind(conv, (2, 2)))))(x, w)

    assert_equals_lax(train, x, w)


def test_derivatives_of_all_modes():
    x, w = arrays(CLIENTS)

    def products(conv, x, w, direction):
        gradient = jax.grad(loss(bind(conv, (2, 2))), argnums=1)

        def both(x, w, v):
            forward_over_reverse = jax.jvp(lambda w: gradient(x, w), (w,), (v,))[1]
            reverse_over_reverse = jax.grad(lambda w: jnp.vdot(gradient(x, w), v))(w)
            return forward_over_reverse, reverse_over_reverse

        return jax.vmap(both)(x, w, direction)

    assert_equals_lax(products, x, w, jnp.cos(w) / 12)


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0)])
def test_vmap_over_one_argument(in_axes):
    x, w = arrays(CLIENTS)
    x, w = (a if axis == 0 else a[0] for a, axis in zip((x, w), in_axes, strict=True))

    def compute(conv, x, w):
        return jax.vmap(jax.grad(loss(bind(conv)), argnums=(0, 1)), in_axes)(x, w)

    assert_equals_lax(compute, x, w)


def test_vmap_twice():
    x, w = arrays(2, 3, size=3)

    def compute(conv, x, w):
        return jax.vmap(jax.vmap(jax.grad(loss(bind(conv)), argnums=(0, 1))))(x, w)

    assert_equals_lax(compute, x, w)


def by_devices(conv, check: bool = True):
    mesh = jax.make_mesh((2,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("clients")
    gradients = jax.vmap(jax.grad(loss(bind(conv)), argnums=(0, 1)))
    options = {"in_specs": (spec, spec), "out_specs": spec, "check_vma": check}
    return jax.shard_map(gradients, mesh=mesh, **options)


def test_shard_map():
    x, w = arrays(4, size=3)
    # The interpreter of Pallas cannot keep the types of arrays that vary over a mesh.
    assert_equals_lax(lambda conv, *arguments: by_devices(conv, check=False)(*arguments), x, w)


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (True, {}),
        (True, {"dtype": "bfloat16", "precision": "highest"}),
        (True, {"precision": lax.Precision.DEFAULT}),
        (True, {"precision": (lax.Precision.HIGH, lax.Precision.DEFAULT)}),
        (False, {"precision": lax.Precision.HIGHEST}),
        (False, {"precision": "float32"}),
        (False, {"dtype": "float64"}),
        (False, {"dtype": "float16"}),
        (False, {"channels": 3}),
        (False, {"outputs": 10}),
        (False, {"dilation": (2, 1)}),
    ],
)
def test_supported(expected, changes):
    options = {"channels": 64, "outputs": 64, "dtype": "float32"} | changes
    rest = {name: options.pop(name) for name in ("dilation", "precision") if name in options}
    g = geometry((8, 8), (3, 3), (1, 1), ((1, 1), (1, 1)), **rest)
    assert has_kernel(g, **options) == expected


def test_exact_products_by_configuration():
    g = geometry((8, 8), (3, 3), (1, 1), ((1, 1), (1, 1)))
    with jax.default_matmul_precision("highest"):
        assert not has_kernel(g, 64, 64, "float32")
        assert has_kernel(g, 64, 64, "bfloat16")
    with jax.default_matmul_precision("tensorfloat32"):
        assert has_kernel(g, 64, 64, "float32")


@pytest.mark.parametrize("operation", ["conv", "input_grad", "kernel_grad"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_default_tiles_divide_channels(operation, dtype):
    for channels in (16, 48, 64, 96, 512):
        tiles = implicit.default_tiles(operation, 192, channels, 320, 10, dtype)
        rows, columns, inner = 192, channels, 320
        assert columns % tiles.columns == 0
        assert operation != "kernel_grad" or rows % tiles.rows == 0
        assert operation == "kernel_grad" or inner % tiles.inner == 0
        assert all(size == 2 ** (size.bit_length() - 1) for size in tiles[:3])


def lowered_text(platform, conv, *arguments, transform=jax.vmap):
    gradient = transform(jax.grad(loss(bind(conv)), argnums=(0, 1)))
    return text_for(platform, gradient, *arguments)


def text_for(platform, function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_other_platforms_are_those_of_auto(platform):
    x, w = arrays(CLIENTS)
    texts = {lowered_text(platform, conv, x, w) for conv in (implicit_or_auto, auto)}
    assert len(texts) == 1


def test_lowering_for_gpus():
    if jax.__version_info__ >= (0, 11):
        pytest.skip("later versions lower kernels only where there is a GPU")

    def kernels(text):
        return len(re.findall(r"stablehlo.custom_call @\S*triton", text))

    x, w = arrays(CLIENTS)
    assert kernels(lowered_text("cuda", implicit_or_auto, x, w)) == 3
    assert kernels(text_for("cuda", by_devices(implicit_or_auto), *arrays(4))) == 3
    # One kernel, products in float32, three channels: the choice of `auto`.
    assert kernels(lowered_text("cuda", implicit_or_auto, x[0], w[0], transform=jax.jit)) == 0
    with jax.default_matmul_precision("highest"):
        assert kernels(lowered_text("cuda", implicit_or_auto, x, w)) == 0
    assert kernels(lowered_text("cuda", implicit_or_auto, *arrays(CLIENTS, channels=3))) == 0
