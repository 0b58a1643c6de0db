"""The lowered convolutions against ``jax.lax.conv_general_dilated`` and its derivatives."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec
from jax.test_util import check_grads
from small_problems import compiled

from fedjax_sim.models.convolution.geometry import Setting
from fedjax_sim.models.convolution.lowering import (
    auto,
    automatic,
    blocked,
    canonical,
    im2col,
    lowered,
    winograd,
)

LAYOUT = ("NHWC", "HWIO", "NHWC")
# Sums of at most 3 * 3 * 3 to 8 * 8 * 4 products of standard normals, in another order: a few ulps
# of the largest partial sum (about 30).
TOLERANCE = {"float32": 2e-4, "float64": 1e-12}
GEOMETRIES = [  # input size, kernel size, strides, padding, dilation
    ((8, 8), (3, 3), (1, 1), "VALID", (1, 1)),
    ((8, 7), (5, 4), (1, 1), "SAME", (1, 1)),
    ((8, 7), (3, 2), (2, 3), "SAME", (1, 1)),
    ((7, 7), (2, 2), (1, 1), "SAME_LOWER", (1, 1)),
    ((8, 8), (3, 3), (2, 2), "VALID", (1, 1)),  # the last row and column are never used
    ((9, 8), (3, 3), (1, 2), ((2, 0), (1, 3)), (2, 2)),
    ((6, 6), (1, 1), (2, 2), "VALID", (1, 1)),
    ((6, 6), (3, 3), (1, 1), ((-1, 0), (0, -2)), (1, 1)),  # negative padding crops
    ((4, 4), (3, 3), (1, 1), ((4, 3), (0, 5)), (1, 1)),  # more padding than kernel
    ((9, 6), (5, 3), (1, 1), ((0, 2), (-1, 1)), (1, 1)),  # tiles of 6 x 4 pixels
]
FORMS = {"im2col": im2col, "blocked": blocked, "canonical": canonical, "winograd": winograd}
VARIANTS = FORMS | {"auto": auto}


def arrays(input_size, kernel_size, dtype, lead=(), channels=(3, 4)):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*lead, 2, *input_size, channels[0]))
    w = rng.standard_normal((*lead, *kernel_size, *channels))
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype)


def bind(conv, strides=(1, 1), padding: Any = "VALID", dilation=(1, 1)):
    return lambda x, w: conv(
        x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=LAYOUT
    )


def loss(conv):
    # Nonlinear, so that second derivatives do not vanish.
    return lambda x, w: jnp.sum(jnp.sin(conv(x, w)))


def assert_close(actual, expected):
    def check(a, b):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[str(b.dtype)])

    jax.tree.map(check, actual, expected)


def value_and_gradients(conv, x, w):
    return conv(x, w), jax.grad(loss(conv), argnums=(0, 1))(x, w)


def assert_equals_lax(compute, *arguments, variants=VARIANTS):
    """``compute(conv, *arguments)`` for every variant and for lax's convolution, in one program."""

    @compiled
    def program(*arguments):
        expected = compute(lax.conv_general_dilated, *arguments)
        return expected, {name: compute(conv, *arguments) for name, conv in variants.items()}

    expected, actual = program(*arguments)
    for name in variants:
        assert_close(actual[name], expected)


@pytest.mark.slow
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_value_and_gradients_single_precision(geometry):
    input_size, kernel_size, *rest = geometry
    x, w = arrays(input_size, kernel_size, "float32")

    def compute(conv, x, w):
        return value_and_gradients(bind(conv, *rest), x, w)

    assert_equals_lax(compute, x, w, variants=FORMS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("taps", "bound"), [(3, 4), (5, 12)])
def test_rounding_of_tiles(taps, bound):
    """Root mean square of the error in units of rounding; about 3 for sums of products."""
    conv = bind(winograd)
    x, w = arrays((12, 12), (taps, taps), "float64", channels=(32, 32))
    z = jnp.asarray(np.random.default_rng(1).standard_normal(conv(x, w).shape))

    def gradients(conv, x, w, z):
        outputs, pull = jax.vjp(conv, x, w)
        return outputs, *pull(z)

    exact = compiled(functools.partial(gradients, bind(im2col)))(x, w, z)
    single = compiled(functools.partial(gradients, conv))(*(jnp.float32(a) for a in (x, w, z)))
    for a, b in zip(single, exact, strict=True):
        error = np.sqrt(np.mean((np.float64(a) - b) ** 2) / np.mean(b**2))
        assert error < bound * np.finfo(np.float32).eps


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@settings(max_examples=16)
@given(data=st.data())
def test_value_and_gradients_any_geometry(data):
    def pair(low, high):
        return data.draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    # Half of the geometries are those that blocks cover.
    plain = data.draw(st.booleans())
    strides, dilation = ((1, 1), (1, 1)) if plain else (pair(1, 3), pair(1, 2))
    kernel_size = pair(1, 4 if plain else 3)
    padding = (pair(0, 3), pair(0, 3))
    input_size = tuple(
        data.draw(st.integers(max(1, d * (k - 1) + 1 - sum(p)), 8))
        for k, d, p in zip(kernel_size, dilation, padding, strict=True)
    )
    x, w = arrays(input_size, kernel_size, "float64", channels=(2, 1))

    def compute(conv, x, w):
        return value_and_gradients(bind(conv, strides, padding, dilation), x, w)

    assert_equals_lax(compute, x, w, variants=FORMS)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("variant", FORMS)
@pytest.mark.parametrize("geometry", GEOMETRIES[4:6])
def test_derivatives_of_all_modes(variant, geometry):
    input_size, kernel_size, *rest = geometry
    x, w = arrays(input_size, kernel_size, "float64", channels=(2, 2))
    conv = bind(VARIANTS[variant], *rest)
    # Against numerical differentiation in double precision; the second order mixes the modes.
    function = jax.jit(lambda x, w: jnp.sin(conv(x, w)))
    check_grads(function, (x, w), order=2, modes=("fwd", "rev"), rtol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batched", [False, True])
def test_hessian_vector_products(batched):
    x, w = arrays((6, 6), (3, 3), "float64", lead=(3,) if batched else ())

    def products(conv, x, w, direction):
        gradient = jax.grad(loss(conv), argnums=1)

        def both(x, w, v):
            forward_over_reverse = jax.jvp(lambda w: gradient(x, w), (w,), (v,))[1]
            reverse_over_reverse = jax.grad(lambda w: jnp.vdot(gradient(x, w), v))(w)
            return forward_over_reverse, reverse_over_reverse

        return (jax.vmap(both) if batched else both)(x, w, direction)

    assert_equals_lax(lambda conv, *arguments: products(bind(conv), *arguments), x, w, jnp.cos(w))


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_vmap(in_axes):
    x, w = arrays((8, 7), (3, 3), "float32", lead=(3,))
    x, w = (a if axis == 0 else a[0] for a, axis in zip((x, w), in_axes, strict=True))
    rest = ((2, 1), "SAME")

    def compute(conv, x, w):
        conv = bind(conv, *rest)
        gradient = jax.grad(loss(conv), argnums=(0, 1))
        batched = jax.vmap(conv, in_axes)
        return (
            batched(x, w),
            jax.vmap(gradient, in_axes)(x, w),
            jax.grad(lambda x, w: jnp.sum(jnp.sin(batched(x, w))), argnums=(0, 1))(x, w),
        )

    assert_equals_lax(compute, x, w)


def test_vmap_over_other_axes_and_twice():
    x, w = arrays((6, 6), (3, 3), "float32", lead=(2, 3))

    def compute(conv, x, w):
        gradient = jax.grad(loss(bind(conv)), argnums=(0, 1))
        over_clients = jax.vmap(gradient, in_axes=(3, 2), out_axes=4)
        return jax.vmap(over_clients)(jnp.moveaxis(x, 1, 4), jnp.moveaxis(w, 1, 3))

    assert_equals_lax(compute, x, w)


@pytest.mark.slow
def test_differentiating_through_training():
    """The gradient of a loss after three steps of SGD in a scan, of rematerialised layers."""
    x, w = arrays((6, 6), (3, 3), "float32")

    def final_loss(conv, w):
        objective = jax.checkpoint(loss(bind(conv)))

        def step(w, _):
            return w - 0.01 * jax.grad(objective, argnums=1)(x, w), None

        return objective(x, lax.scan(step, w, length=3)[0])

    @compiled
    def gradients(w):
        convolutions = [lax.conv_general_dilated, *VARIANTS.values()]
        return [jax.grad(final_loss, argnums=1)(conv, w) for conv in convolutions]

    expected, *actual = gradients(w)
    for gradient in actual:
        # Rounding errors of the three steps pass through products of Hessians.
        np.testing.assert_allclose(gradient, expected, atol=2e-3)


@pytest.mark.parametrize("varying", [True, False])
def test_shard_map(varying):
    """Clients over four devices; with weights replicated, their gradient is summed over devices."""
    x, w = arrays((6, 6), (3, 3), "float32", lead=(4,))
    w = w[0]
    mesh = jax.make_mesh((4,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("clients")

    def local(conv, x, w):
        w = lax.pcast(w, "clients", to="varying") if varying else w
        out, gradients = value_and_gradients(bind(conv), x[0], w)
        return out[None], gradients[0][None], gradients[1][None] if varying else gradients[1]

    def run(conv):
        out_specs = (spec, spec, spec if varying else PartitionSpec())
        mapped = jax.shard_map(
            functools.partial(local, conv),
            mesh=mesh,
            in_specs=(spec, PartitionSpec()),
            out_specs=out_specs,
        )
        return compiled(mapped)(x, w)

    expected = run(lax.conv_general_dilated)
    for conv in FORMS.values():
        assert_close(run(conv), expected)


@pytest.mark.slow
def test_without_jit():
    x, w = arrays((6, 6), (3, 3), "float32")
    with jax.disable_jit():
        actual = value_and_gradients(bind(auto), x, w)
    reference = functools.partial(value_and_gradients, bind(lax.conv_general_dilated))
    assert_close(actual, compiled(reference)(x, w))


def test_flax_modules():
    x, _ = arrays((8, 8), (3, 3), "float32")
    options = {"kernel_size": (3, 3), "strides": (2, 2), "padding": "SAME"}

    def compute(conv, x):
        linen_layer = linen.Conv(4, conv_general_dilated=conv, **options)
        nnx_layer = nnx.Conv(3, 4, conv_general_dilated=conv, rngs=nnx.Rngs(0), **options)
        return linen_layer.apply(linen_layer.init(jax.random.key(0), x), x), nnx_layer(x)

    assert_equals_lax(compute, x, variants={"auto": auto})


def training_step(conv):
    """Compiled text of a step of clients with weights of their own, inside a scan."""
    x, w = arrays((8, 8), (3, 3), "float32", lead=(4,))

    def step(w, _):
        return w - 0.1 * jax.vmap(jax.grad(loss(bind(conv)), argnums=1))(x, w), None

    return jax.jit(lambda w: lax.scan(step, w, length=2)[0]).lower(w).as_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_batched_kernels_leave_no_convolution(variant):
    assert "stablehlo.convolution" not in training_step(VARIANTS[variant])
    # The inspection would see one: plain vmap makes convolutions of 4 groups.
    assert re.search(r"(feature|batch)_group_count = 4", training_step(lax.conv_general_dilated))


def test_shared_kernels_keep_ordinary_convolutions_in_the_fast_layout():
    x, w = arrays((8, 8), (3, 3), "float32", lead=(4,))

    def layouts(conv):
        gradient = jax.grad(loss(bind(conv)), argnums=(0, 1))
        text = jax.jit(gradient).lower(x[0], w[0]).as_text()
        return re.findall(r"dim_numbers = (\[.*?->\[.*?\])", text)

    fast = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    assert len(layouts(canonical)) == 3
    assert set(layouts(canonical)) == {fast}
    assert set(layouts(lax.conv_general_dilated)) != {fast}
    assert layouts(im2col) == []
    # vmap over images alone makes no groups either.
    text = jax.jit(jax.vmap(bind(canonical), (0, None))).lower(x, w[0]).as_text()
    assert text.count("stablehlo.convolution") == 1
    assert "feature_group_count = 1" in text


def test_choice_by_operation():
    asked = []

    def rule(setting):
        asked.append(setting)
        return "gemm" if setting.operation == "kernel_grad" else "conv"

    x, w = arrays((8, 8), (3, 3), "float32")
    gradient = jax.grad(loss(bind(lowered(rule))), argnums=(0, 1))
    text = jax.jit(gradient).lower(x, w).as_text()
    assert {setting.operation for setting in asked} == {"conv", "input_grad", "kernel_grad"}
    # 3 * 3 * 3 numbers a patch, 2 images of 6 x 6 patches, 4 bytes a number, 4 output channels.
    sizes = 3, 27, 2 * 36 * 27 * 4, 4, 1
    assert {setting[1:] for setting in asked} == {("cpu", *sizes, False, True, False)}
    assert text.count("stablehlo.convolution") == 2
    assert text.count("stablehlo.dot_general") == 1


@pytest.mark.parametrize("in_axes", [(0, 0), (None, 0)])
def test_choice_of_batched_kernels(in_axes):
    asked = []

    def rule(setting):
        asked.append(setting)
        return "conv"

    x, w = arrays((8, 8), (3, 3), "float32", lead=(5,))
    x = x if in_axes[0] == 0 else x[0]
    gradient = jax.grad(loss(bind(lowered(rule))), argnums=(0, 1))
    text = jax.jit(jax.vmap(gradient, in_axes)).lower(x, w).as_text()
    assert {setting.operation for setting in asked} == {"conv", "input_grad", "kernel_grad"}
    # Sizes of one kernel, of five.
    sizes = 3, 27, 2 * 36 * 27 * 4, 4, 5
    assert {setting[1:] for setting in asked} == {("cpu", *sizes, False, True, False)}
    assert "stablehlo.convolution" not in text  # it would be a grouped one


def test_unknown_choice_is_refused():
    x, w = arrays((8, 8), (3, 3), "float32")
    with pytest.raises(ValueError, match=r"choose returned True; expected one of .*'blocks'"):
        bind(lowered(lambda setting: True))(x, w)  # pyright: ignore[reportArgumentType]


def auto_form(channels, outputs, batch=10, kernel=3, batched=(), padding="VALID"):
    """The form that ``auto`` takes on CPU, by the inner dimension of its matrix products."""
    x = jax.ShapeDtypeStruct((batch, 16, 16, channels), jnp.float32)
    w = jax.ShapeDtypeStruct((*batched, kernel, kernel, channels, outputs), jnp.float32)
    conv = bind(auto, padding=padding)
    conv = jax.vmap(conv, (None, 0)) if batched else conv
    text = jax.jit(conv).lower(x, w).as_text()
    if "stablehlo.convolution" in text:
        return "conv"
    inner, *others = re.findall(r"dot_general.*?\(tensor<\d+x\d+x\d+x(\d+)xf32>", text)
    if others:
        assert len(others) == (kernel + 1) ** 2 - 1  # a product for each pixel of a tile
        return "winograd"
    return {kernel**2 * channels: "gemm", (kernel + 1) ** 2 * channels: "blocks"}[int(inner)]


def test_auto_by_layer():
    assert auto_form(3, 6, kernel=5) == "blocks"
    assert auto_form(1, 32, kernel=5) == "gemm"  # more outputs than the 25 numbers of a patch
    assert auto_form(3, 16) == "blocks"
    assert auto_form(16, 16) == auto_form(32, 64) == "conv"
    assert auto_form(32, 64, batch=40) == "winograd"  # 2^28 operations need 38 images
    assert auto_form(32, 64, batch=40, padding="SAME") == "conv"
    assert auto_form(64, 64, batch=10, kernel=5) == "winograd"
    assert auto_form(64, 8) == "conv"  # patches of 576 numbers
    assert auto_form(64, 8, batch=2) == "gemm"  # but few of them
    assert auto_form(32, 8, batch=1000) == "conv"  # 226 MB of patches
    assert auto_form(3, 6, kernel=5, batched=(7,)) == "blocks"
    assert auto_form(16, 16, batched=(7,)) == "blocks"
    assert auto_form(64, 8, batched=(7,)) == auto_form(64, 64, 40, batched=(7,)) == "gemm"


@pytest.mark.parametrize("variant", ["im2col", "blocked", "canonical"])
def test_patches_of_shared_images_are_gathered_once(variant):
    """Kernels of many configurations on the same images, as in sweeps."""
    x, w = arrays((8, 8), (3, 3), "float32", lead=(7,))
    patches = (2, 3, 3, 48) if variant == "blocked" else (2, 6, 6, 27)

    def gathered(images, in_axes):
        gradient = jax.vmap(jax.grad(loss(bind(VARIANTS[variant])), argnums=1), in_axes)
        text = jax.jit(gradient).lower(images, w).as_text()
        shapes = re.findall(r"stablehlo.concatenate.*-> tensor<([\dx]+)xf32>", text)
        shapes = {tuple(map(int, shape.split("x"))) for shape in shapes}
        return {shape for shape in shapes if shape[-1] == patches[-1]}

    assert gathered(x[0], (None, 0)) == {patches}
    assert gathered(x, (0, 0)) == {(7, *patches)}


def lowered_for(platform, function, *arguments):
    """Text of a program lowered for a device that is not here."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_auto_on_accelerators(platform):
    """Batched kernels: GEMMs of blocks on GPUs, one convolution on TPUs; no groups.

    In blocks of 2 x 2 pixels a kernel of 3 x 3 pixels and 3 channels is one of 2 x 2 and 12.
    """
    x, w = arrays((8, 8), (3, 3), "float32", lead=(4,))
    gradient = jax.grad(loss(bind(auto)), argnums=(0, 1))
    alone = lowered_for(platform, gradient, x[0], w[0])
    together = lowered_for(platform, jax.vmap(gradient), x, w)
    assert alone.count("stablehlo.convolution") == 3
    assert together.count("stablehlo.convolution") == (3 if platform == "tpu" else 0)
    assert not re.search(r"group_count = (?!1 )", together)
    product = re.compile(rf"stablehlo.dot_general.*tensor<4x{2 * 2 * 12}x{4 * w.shape[-1]}xf32>")
    assert bool(product.search(together)) == (platform == "cuda")


@pytest.mark.parametrize(
    ("kernels", "images", "channels", "form"),
    [
        (10, 32 * 16 * 16, 128, "blocks"),  # ResNet-18's second stage
        (10, 32 * 8 * 8, 256, "gemm"),  # its third: 8 rows per output
        (1, 32 * 16 * 16, 128, "conv"),
    ],
)
def test_auto_on_gpus_by_the_rows_of_a_product(kernels, images, channels, form):
    patch = 9 * channels
    setting = Setting("conv", "gpu", channels, patch, 4 * images * patch, channels, kernels)
    assert automatic(setting) == form


def test_choice_of_the_platform_that_the_program_is_lowered_for():
    x, w = arrays((8, 8), (3, 3), "float32", lead=(4,))
    asked = []

    def rule(setting):
        asked.append(setting.platform)
        return "gemm"

    for platform, name in (("cpu", "cpu"), ("cuda", "gpu"), ("tpu", "tpu")):
        lowered_for(platform, jax.vmap(bind(lowered(rule))), x, w)
        assert asked == [name]
        asked.clear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature_group_count": 3}, "feature_group_count is 3; expected 1"),
        ({"batch_group_count": 2}, "batch_group_count is 2; expected 1"),
        ({"lhs_dilation": (2, 1)}, r"lhs_dilation is \(2, 1\); expected \(1, 1\)"),
        ({"preferred_element_type": jnp.float64}, "preferred_element_type is"),
        ({"dimension_numbers": None}, "dimension_numbers is None; expected"),
        ({"dimension_numbers": ("NHWC", "OHWI", "NHWC")}, "dimension_numbers is .*OHWI"),
        ({"window_strides": (0, 1)}, r"window_strides is \(0, 1\)"),
        ({"window_strides": (1,)}, r"window_strides is \(1,\)"),
        ({"rhs_dilation": (1, -1)}, r"rhs_dilation is \(1, -1\)"),
        ({"padding": "CIRCULAR"}, "padding is 'CIRCULAR'"),
        ({"padding": [(0, 0)]}, r"padding is \[\(0, 0\)\]"),
        ({"lhs": jnp.ones((8, 8, 3))}, r"lhs has shape \(8, 8, 3\)"),
        ({"lhs": jnp.ones((1, 8, 8, 2))}, "rhs has 3 input channels; expected 2"),
        ({"lhs": jnp.ones((1, 2, 8, 3))}, r"lhs has spatial size \(2, 8\)"),
        ({"lhs": jnp.ones((1, 8, 8, 3), jnp.bfloat16)}, "dtypes bfloat16 and float32"),
    ],
)
def test_errors(change, message):
    arguments = {
        "lhs": jnp.ones((1, 8, 8, 3)),
        "rhs": jnp.ones((3, 3, 3, 4)),
        "window_strides": (1, 1),
        "padding": "VALID",
        "dimension_numbers": LAYOUT,
    }
    with pytest.raises(ValueError, match=message):
        auto(**(arguments | change))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axes", [None, (0, 0), (0, None), (None, 0)])
def test_a_batch_without_images(form, axes):
    x, w = arrays((6, 5), (3, 3), jnp.float32, lead=(2,))
    on_x, on_w = axes or (None, None)
    x, w = x if on_x == 0 else x[0], w if on_w == 0 else w[0]
    x = x[..., :0, :, :, :]
    gradient = jax.grad(loss(bind(FORMS[form], padding=((1, 0), (0, 2)))), (0, 1))
    found = jax.jit(jax.vmap(gradient, axes) if axes else gradient)(x, w)
    lead = (2,) if axes else ()
    assert [a.shape for a in found] == [(*lead, 0, 6, 5, 3), (*lead, 3, 3, 3, 4)]
    assert not found[1].any()
