"""The vision transformer against the one in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_vit
from small_problems import compiled

from fedjax_sim import models
from fedjax_sim.engine.execution.chunks import peak_bytes

# Not square, two channels, and patches of more than one pixel, so that every order matters.
SHAPE = (6, 4, 2)
SETTING = {"patch_size": 2, "width": 6, "depth": 2, "heads": 3, "mlp_dim": 10}


def small(**change):
    return models.vit(SHAPE, 3, **(SETTING | change))


@pytest.fixture(scope="module")
def network():
    """The small model, its compiled forward pass, and parameters."""
    model = small()
    return model, compiled(model.apply), drawn(compiled(model.init)(jax.random.key(0)))


def drawn(params, dtype=np.float32):
    """Parameters of order one, so that attention is far from uniform and biases matter."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: np.asarray(0.5 * rng.standard_normal(x.shape) + np.asarray(x), dtype), params
    )


def images(shape=SHAPE, dtype=np.float32):
    return np.asarray(np.random.default_rng(1).standard_normal((5, *shape)), dtype)


def test_forward_pass(network):
    _, apply, params = network
    x = images()
    expected = reference_vit.forward(reference_vit.timm(params, 2), x, heads=3)
    assert np.ptp(expected, axis=0).min() > 0.1  # the images matter
    # Some ten float32 operations in sequence on numbers of order one, sums of up to 10 terms.
    np.testing.assert_allclose(apply(params, x), expected, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("x64")
def test_forward_pass_double_precision(network):
    _, apply, params = network
    params, x = jax.tree.map(np.float64, params), images(dtype=np.float32)
    outputs = apply(params, x)  # the images adopt the parameters' dtype
    assert outputs.dtype == jnp.float64
    expected = reference_vit.forward(reference_vit.timm(params, 2), x, heads=3)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)


def test_bfloat16(network):
    _, apply, params = network
    x = images()
    outputs = apply(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), x)
    assert outputs.dtype == jnp.bfloat16
    # 8 bits of significand, a few dozen roundings of numbers of order one to ten.
    np.testing.assert_allclose(np.asarray(outputs, np.float32), apply(params, x), atol=0.5)


@pytest.mark.slow
def test_initial_parameters():
    model = models.vit((8, 8, 3), 10, patch_size=4, width=96, depth=2, heads=2)
    params = compiled(model.init)(jax.random.key(0))
    first, second = params["blocks"]["attn"]["qkv"]["kernel"]
    assert not np.array_equal(first, second)
    # The standard deviation of 27,648 normal draws with sigma 0.02, cut off at 2 sigma, is within
    # 2 % (some 5 standard errors) of 0.02 * 0.8796.
    np.testing.assert_allclose(np.std(first), 0.02 * 0.8796, rtol=0.02)
    assert np.abs(first).max() <= 0.04
    for norm in (params["norm"], params["blocks"]["norm1"]):
        np.testing.assert_array_equal(norm["scale"], 1)
        np.testing.assert_array_equal(norm["bias"], 0)
    np.testing.assert_array_equal(params["head"]["bias"], 0)


def squares(model):
    return lambda params, x: jnp.sum(jnp.square(model.apply(params, x)))


@pytest.mark.slow
def test_remat_changes_memory_only(network):
    (plain, _, params), remat, x = network, small(remat=True), images()
    more, less = (
        peak_bytes(jax.make_jaxpr(jax.grad(squares(model)))(params, x)) for model in (plain, remat)
    )
    assert less < more  # of the programs as traced
    expected = compiled(jax.grad(squares(plain)))(params, x)
    actual = compiled(jax.grad(squares(remat)))(params, x)
    # The same operations, perhaps fused otherwise: gradients of order 100 in float32.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), actual, expected
    )


@pytest.mark.parametrize(
    ("options", "loops", "barriers"),
    [({}, 2, False), ({"unroll": True}, 0, False), ({"unroll": True, "remat": True}, 0, True)],
)
def test_unrolled_blocks(options, loops, barriers):
    """No loop is left. What ``remat`` recomputes is not merged again."""
    start, x = jax.eval_shape(small().init, jax.random.key(0)), images()
    text = jax.jit(jax.grad(squares(small(**options)))).lower(start, x).as_text()
    assert text.count("stablehlo.while") == loops
    assert ("stablehlo.optimization_barrier" in text) == barriers


def test_batched_parameters(network):
    """Clients' own weights: the same numbers, and matrix products only."""
    model, apply, params = network
    params, x = jax.tree.map(lambda p: np.stack([p, np.sin(p), 2 * p]), params), images()
    batched = compiled(jax.vmap(model.apply, (0, None)))
    clients = [jax.tree.map(lambda p: p[i], params) for i in range(3)]  # noqa: B023
    expected = [apply(client, x) for client in clients]
    # As in the forward pass.
    np.testing.assert_allclose(batched(params, x), expected, rtol=0, atol=1e-4)
    assert "convolution" not in batched.lower(params, x).as_text()
