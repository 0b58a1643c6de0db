"""Forms of layers and models for accelerators against plain formulations, with gradients.

All comparisons are in double precision: both sides compute the same function by some hundred
operations in another order, so errors of 1e-12 of the largest entry are a thousand roundings.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from random_params import draws, random_params
from small_problems import compiled

from fedjax_sim import models
from fedjax_sim.models import layers
from fedjax_sim.models.layers import attend, causal, gelu, normalise_groups, standardise

pytestmark = pytest.mark.usefixtures("x64")
PLATFORMS = ["tpu", "default"]


@pytest.fixture(params=PLATFORMS)
def on(request, monkeypatch):
    """Traces the branch of a platform, to run it on the CPU."""

    def platform_dependent(*args, default, **forms):
        return forms.get(request.param, default)(*args)

    monkeypatch.setattr(lax, "platform_dependent", platform_dependent)
    return request.param


def assert_close(actual, expected):
    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())

    jax.tree.map(compare, actual, expected)


def with_gradients(function, *args):
    """The function's value and gradients."""
    out = jax.eval_shape(function, *args)
    weights = jnp.cos(jnp.arange(out.size)).reshape(out.shape)

    def loss(*args):
        return jnp.sum(weights * function(*args))

    @compiled
    def both(*args):
        return function(*args), jax.grad(loss, tuple(range(len(args))))(*args)

    return both(*args)


def with_derivatives(function, x):
    """What :func:`with_gradients` returns, and a derivative of it along a direction."""
    return jax.jvp(lambda x: with_gradients(function, x), (x,), (jnp.sin(x),))


@pytest.mark.parametrize(("shape", "axes"), [((3, 5), (-1,)), ((2, 3, 4, 2, 3), (1, 2, 4))])
def test_standardise(shape, axes):
    def plain(x):
        mean = x.mean(axes, keepdims=True)
        return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-3)

    (x,) = draws(shape)
    actual = with_derivatives(lambda x: standardise(x, axes, 1e-3), x + 2)
    assert_close(actual, with_derivatives(plain, x + 2))


@pytest.mark.parametrize(("pixels", "most_added"), [(1, 64), (2, 64), (1, 1)])
def test_normalise_groups(on, pixels, most_added, monkeypatch):
    """Images of 3 x 2 groups, alone and with neighbouring pixels as more channels."""
    monkeypatch.setattr(layers, "_MAX_ADDED", most_added)

    def plain(x, scale, bias):
        parts = []
        for part in jnp.split(x, 3, 3):
            centred = part - part.mean((1, 2, 3), keepdims=True)
            parts.append(centred / jnp.sqrt((centred**2).mean((1, 2, 3), keepdims=True) + 1e-3))
        return jnp.concatenate(parts, 3) * scale + bias

    def ours(x, scale, bias):
        pairs = x.reshape(*x.shape[:2], x.shape[2] // pixels, -1)
        return normalise_groups(pairs, scale, bias, 3, 1e-3).reshape(x.shape)

    x, scale, bias = draws((2, 5, 4, 6), (6,), (6,))
    arguments = x + 2, scale, bias
    expected = with_gradients(plain, *arguments)
    assert_close(with_gradients(ours, *arguments), expected)
    # Forward mode of all arguments, over reverse mode.
    directions = tuple(map(jnp.sin, arguments))
    both = (
        jax.jvp(lambda *args, f=f: with_gradients(f, *args), arguments, directions)[1]
        for f in (ours, plain)
    )
    assert_close(*both)


def test_normalise_groups_without_the_pixels_outside(on):
    """Rows of four pixels, with one more at both ends, in shifted pairs."""
    x, scale, bias, ends = draws((2, 5, 4, 6), (6,), (6,), (2, 5, 2, 6))

    def plain(x, scale, bias, ends):
        out = normalise_groups(x, scale, bias, 3, 1e-3)
        return jnp.pad(out, ((0, 0), (0, 0), (1, 1), (0, 0))) + 0 * ends.sum()

    def ours(x, scale, bias, ends):
        pairs = jnp.concatenate([ends[:, :, :1], x, ends[:, :, 1:]], 2).reshape(2, 5, 3, 12)
        return normalise_groups(pairs, scale, bias, 3, 1e-3, 1).reshape(2, 5, 6, 6)

    arguments = x + 2, scale, bias, 100 * ends
    expected = with_gradients(plain, *arguments)
    assert_close(with_gradients(ours, *arguments), expected)


@pytest.mark.parametrize(("platform", "images", "reductions"), [
    ("cuda", 5, False), ("cuda", 65, True), ("tpu", 5, True), ("cpu", 5, True),
])  # fmt: skip
def test_gradients_of_scales_add_images_on_gpus(platform, images, reductions):
    """There a reduction over images would make XLA transpose all statistics, see the log."""
    x, scale, bias = draws((images, 5, 4, 6), (6,), (6,))

    def loss(scale, bias):
        return normalise_groups(x, scale, bias, 3, 1e-3).sum()

    traced = jax.jit(jax.grad(loss, (0, 1))).trace(scale, bias)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    over_images = re.search(rf"dimensions = \[0[^\]]*\] : \(tensor<{images}x", text)
    assert bool(over_images) == reductions, text


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_means_of_half_precision(dtype):
    """In one pass: the result of rounded entries is exact up to its own rounding."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(5 + rng.standard_normal((4, 6, 6, 4)), dtype)  # mean of 5 deviations
    exact = np.asarray(x, np.float64).reshape(4, -1, 2, 2)
    exact = exact - exact.mean((1, 3), keepdims=True)
    exact = exact / np.sqrt((exact**2).mean((1, 3), keepdims=True) + 1e-5)
    scale, bias = jnp.ones(4, dtype), jnp.zeros(4, dtype)
    actual = np.asarray(normalise_groups(x, scale, bias, 2, 1e-5), np.float64)
    # Half a unit in the last place of entries below 4, and 72 float32 terms that cancel to 1 / 26.
    tolerance = 2 * float(jnp.finfo(dtype).eps) + 1e-4
    np.testing.assert_allclose(actual, exact.reshape(x.shape), rtol=0, atol=tolerance)


def test_gelu():
    x = jnp.linspace(-9, 9, 50)
    plain = functools.partial(jax.nn.gelu, approximate=False)
    assert_close(with_derivatives(gelu, x), with_derivatives(plain, x))


@pytest.mark.parametrize("masked", [False, True])
def test_attention(on, masked):
    mask = causal(5) if masked else jnp.ones((5, 5), bool)

    def plain(qkv):
        heads = []
        for i in range(2):
            q, k, v = (x[:, :, i] for x in qkv)
            scores = jnp.where(mask, q @ k.swapaxes(1, 2) / jnp.sqrt(3.0), -jnp.inf)
            weights = jnp.exp(scores) / jnp.exp(scores).sum(-1, keepdims=True)
            heads.append(weights @ v)
        return jnp.stack(heads, 2)

    (qkv,) = draws((3, 4, 5, 2, 3))
    actual = with_derivatives(lambda qkv: attend(*qkv, mask if masked else None), qkv)
    assert_close(actual, with_derivatives(plain, qkv))


def attention_by_hand(queries, keys, values, out):
    """Attention of one head and its derivatives along ``out`` by NumPy, all ``[B, T, d]``."""
    root = np.sqrt(queries.shape[-1])
    weights = np.exp(queries @ keys.swapaxes(1, 2) / root)
    weights = weights / weights.sum(-1, keepdims=True)
    by_weight = out @ values.swapaxes(1, 2)
    by_score = weights * (by_weight - (weights * by_weight).sum(-1, keepdims=True)) / root
    gradients = by_score @ keys, by_score.swapaxes(1, 2) @ queries, weights.swapaxes(1, 2) @ out
    return weights @ values, *gradients


def test_attention_in_half_precision(on):
    """Scores, weights, the gradients of both and the results are rounded to 8 bits.

    Scores up to 4 have errors up to 2^-7, which their exponentials have relatively; 1 / sqrt(16) is
    exact.  The other roundings are four of 2^-9 of an entry, so 2^-6 of the largest in total.
    """
    rounded = [x.astype(jnp.bfloat16) for x in draws(*[(4, 5, 2, 16)] * 4)]

    def pulled(queries, keys, values, out):
        result, pull = jax.vjp(attend, queries, keys, values)
        return result, *pull(out)

    actual = compiled(pulled)(*rounded)
    exact = [np.asarray(x, np.float64) for x in rounded]
    heads = [attention_by_hand(*(x[:, :, i] for x in exact)) for i in range(2)]
    for mine, theirs in zip(actual, map(np.stack, zip(*heads, strict=True), [2] * 4), strict=True):
        assert mine.dtype == jnp.bfloat16
        tolerance = 2**-6 * np.abs(theirs).max()
        np.testing.assert_allclose(mine.astype(np.float64), theirs, rtol=0, atol=tolerance)


def test_gradients_of_attention_sum_over_heads_inside_products(monkeypatch):
    """No product of the gradients of attention returns the entries of all heads for each head."""
    monkeypatch.setattr(
        lax, "platform_dependent", lambda *args, default, **forms: forms["tpu"](*args)
    )
    arrays = draws(*[(3, 5, 2, 7)] * 3)
    gradient = jax.grad(lambda *x: attend(*x).sum(), (0, 1, 2))
    program = str(jax.make_jaxpr(gradient)(*arrays))
    products = re.findall(r"(\w+):f64\[([\d,]*)\] = dot_general", program)
    sizes = {name: np.prod([int(n) for n in shape.split(",")]) for name, shape in products}
    # Scores and means forward; the gradients of both operands of each backward.
    assert sorted(sizes.values()) == [3 * 2 * 5 * 5] * 2 + [3 * 5 * 2 * 7] * 4


@pytest.mark.parametrize("adapted", [False, True])
def test_product_in_parts(on, adapted):
    kernel, bias, x, a, b = draws((6, 4), (6,), (3, 5, 4), (2, 4), (3, 2))

    def ours(kernel, bias, x, a, b):
        if adapted:
            kernel = layers.Adapted(kernel, ({"a": a, "b": b},), jnp.asarray(0.5), ((1, 4),))
        return jnp.stack(layers.product_in_parts(kernel, bias, x, 3))

    def plain(kernel, bias, x, a, b):
        change = jnp.zeros((6, 4)).at[1:4].set(0.5 * b @ a) if adapted else 0
        return jnp.stack(jnp.split(x @ (kernel + change).T + bias, 3, axis=-1))

    arguments = kernel, bias, x, a, b
    directions = tuple(map(jnp.sin, arguments))
    both = (
        jax.jvp(lambda *args, f=f: with_gradients(f, *args), arguments, directions)
        for f in (ours, plain)
    )
    assert_close(*both)


def test_gradients_of_biases_do_not_join_parts_on_tpus(monkeypatch):
    """A sum over joined parts is a pass of its own there, see the log."""
    monkeypatch.setattr(
        lax, "platform_dependent", lambda *args, default, **forms: forms["tpu"](*args)
    )
    kernel, bias, x = draws((6, 4), (6,), (3, 5, 4))

    def loss(kernel, bias, x):
        return sum(jnp.sum(jnp.sin(p)) for p in layers.product_in_parts(kernel, bias, x, 3))

    program = str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(kernel, bias, x))
    sums = re.findall(r"f64\[([\d,]+)\] = reduce_sum\[axes=\(0, 1\)", program)
    assert set(sums) == {"2"}, program  # [6] would be the joined parts
    products = re.findall(r"f64\[([\d,]+)\] = dot_general", program)
    # One product for the gradient of the whole kernel, and one for that of the inputs.
    assert products.count("6,4") == products.count("3,5,4") == 1, program


def plain_vit(params, x, heads, patch):
    """The transformer by the equations of its docstring, block by block."""

    def linear(layer, x):
        return x @ layer["kernel"].T + layer["bias"]

    def norm(layer, x):
        centred = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return centred / deviation * layer["scale"] + layer["bias"]

    rows, columns = (n // patch for n in x.shape[1:3])
    cells = [
        x[:, i * patch : (i + 1) * patch, j * patch : (j + 1) * patch].reshape(len(x), -1)
        for i, j in np.ndindex(rows, columns)
    ]
    z = linear(params["patch"], jnp.stack(cells, 1))
    token = jnp.broadcast_to(params["class_token"], (len(x), 1, z.shape[2]))
    z = jnp.concatenate([token, z], 1) + params["positions"]
    size = z.shape[2] // heads
    for number in range(params["blocks"]["norm1"]["scale"].shape[0]):
        block = jax.tree.map(lambda leaf: leaf[number], params["blocks"])  # noqa: B023
        qkv, parts = linear(block["attn"]["qkv"], norm(block["norm1"], z)), []
        for head in range(heads):
            q, k, v = (
                qkv[..., (i * heads + head) * size : (i * heads + head + 1) * size]
                for i in range(3)
            )
            scores = jnp.exp(q @ k.swapaxes(1, 2) / jnp.sqrt(1.0 * size))
            parts.append(scores / scores.sum(-1, keepdims=True) @ v)
        z = z + linear(block["attn"]["proj"], jnp.concatenate(parts, -1))
        hidden = linear(block["mlp"]["fc1"], norm(block["norm2"], z))
        hidden = hidden * jax.scipy.stats.norm.cdf(hidden)
        z = z + linear(block["mlp"]["fc2"], hidden)
    return linear(params["head"], norm(params["norm"], z)[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"remat": True}, {"unroll": True}])
def test_vision_transformer(on, options):
    model = models.vit((8, 12, 3), 5, patch_size=4, width=6, depth=2, heads=3, **options)
    start = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten(start)
    params = structure.unflatten([0.5 * x for x in draws(*(leaf.shape for leaf in leaves))])
    (x,) = draws((3, 8, 12, 3))
    expected = with_gradients(lambda p, x: plain_vit(p, x, 3, 4), params, x)
    assert_close(with_gradients(model.apply, params, x), expected)


def plain_resnet(params, x, strides, groups):
    """The residual network with convolutions of JAX."""

    def convolve(x, layer, stride=1):
        pad = layer["kernel"].shape[0] // 2
        return lax.conv_general_dilated(
            x, layer["kernel"], (stride, stride), [(pad, pad)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    def norm(x, layer):
        parts = []
        for part in jnp.split(x, groups, 3):
            mean = part.mean((1, 2, 3), keepdims=True)
            variance = ((part - mean) ** 2).mean((1, 2, 3), keepdims=True)
            parts.append((part - mean) / jnp.sqrt(variance + 1e-5))
        return jnp.concatenate(parts, 3) * layer["scale"] + layer["bias"]

    x = jax.nn.relu(norm(convolve(x, params["conv"]), params["norm"]))
    for i, stride in enumerate(strides):
        block = params["blocks"][str(i)]
        h = jax.nn.relu(norm(convolve(x, block["conv1"], stride), block["norm1"]))
        h = norm(convolve(h, block["conv2"]), block["norm2"])
        if "shortcut" in block:
            x = norm(convolve(x, block["shortcut"]["conv"], stride), block["shortcut"]["norm"])
        x = jax.nn.relu(h + x)
    last = params["head"]["dense1"]
    return x.mean((1, 2)) @ last["kernel"].T + last["bias"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "pairs", "remat"),
    [
        ((7, 8), True, False), ((7, 8), False, False), ((6, 7), False, False),
        ((7, 8), True, True), ((6, 7), False, True),
    ],
)  # fmt: skip
def test_residual_network(size, pairs, remat):
    model = models.resnet(5, channels=(4, 8, 6), blocks=(2, 1, 1), pairs=pairs, remat=remat)
    params = random_params(model, np.float64)
    (x,) = draws((3, *size, 3))
    shapes = str(jax.make_jaxpr(model.apply)(params, x))
    for width in (size[1] // 2, size[1] // 2 + 1):  # pairs, and shifted ones
        assert (f"3,{size[0]},{width},8]" in shapes) == pairs
    expected = with_gradients(lambda p, x: plain_resnet(p, x, (1, 1, 2, 2), 2), params, x)
    assert_close(with_gradients(model.apply, params, x), expected)


def test_pairs_that_do_not_fit_are_refused():
    sizes = {"channels": (4, 8), "blocks": (1, 1), "pairs": True}
    with pytest.raises(ValueError, match="pairs is True, with 2 stages and large_stem True"):
        models.resnet(5, **sizes, large_stem=True)
    with pytest.raises(ValueError, match="pairs is True, with 1 stages"):
        models.resnet(5, channels=(4,), blocks=(1,), pairs=True)
    model = models.resnet(5, **sizes)
    with pytest.raises(ValueError, match="images of width 7; expected an even one"):
        jax.eval_shape(model.apply, random_params(model, np.float64), np.ones((1, 6, 7, 3)))
