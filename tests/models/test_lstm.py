"""The LSTM against one in NumPy, written token by token; its gradients against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import compiled

from fedjax_sim import models
from fedjax_sim.objectives import cross_entropy

VOCABULARY, EMBEDDING, WIDTH, DEPTH = 7, 3, 4, 2
MODEL = models.lstm(VOCABULARY, embedding=EMBEDDING, width=WIDTH, depth=DEPTH)
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (3, 6)).astype(np.int32)


def drawn(seed, dtype: type = np.float64):
    """Parameters of order one, so that gates saturate and biases matter."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(dtype), shapes)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(params, tokens):
    """Logits ``[L, vocabulary]`` of one sequence."""
    xs = [params["embedding"][token] for token in tokens]
    for name in ("layer1", "layer2"):
        layer, h, c, hs = params[name], np.zeros(WIDTH), np.zeros(WIDTH), []
        for x in xs:
            a = layer["input"]["kernel"] @ x + layer["hidden"]["kernel"] @ h + layer["bias"]
            input_gate, forget_gate, candidate, output_gate = a.reshape(4, WIDTH)
            c = sigmoid(forget_gate) * c + sigmoid(input_gate) * np.tanh(candidate)
            h = sigmoid(output_gate) * np.tanh(c)
            hs.append(h)
        xs = hs
    return np.stack([params["head"]["kernel"] @ h + params["head"]["bias"] for h in xs])


def test_outputs_are_those_of_numpy(x64):
    params = drawn(1)
    expected = np.stack([reference(params, tokens) for tokens in TOKENS])
    np.testing.assert_allclose(compiled(MODEL.apply)(params, TOKENS), expected, rtol=1e-12)


@pytest.mark.slow
def test_derivatives_are_those_of_differences(x64):
    """Gradient and Hessian-vector product along a direction, of order 1e-9 in double precision."""
    params, direction, step = drawn(1), drawn(2), 1e-5
    loss = cross_entropy(MODEL.apply)
    examples = {"x": TOKENS, "y": np.roll(TOKENS, -1, axis=1)}

    @compiled
    def derivatives(params):
        gradient = jax.value_and_grad(lambda params: loss(params, examples, None).mean())
        return jax.jvp(gradient, (params,), (direction,))

    (_, gradient), (slope, product) = derivatives(params)
    (value, low), (above, high) = (
        derivatives(jax.tree.map(lambda x, v, s=s: x + s * step * v, params, direction))[0]
        for s in (-1, 1)
    )
    along = sum(
        float(np.vdot(g, v))
        for g, v in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    assert along == pytest.approx((float(above) - float(value)) / (2 * step), rel=1e-7)
    assert float(slope) == pytest.approx(along, rel=1e-12)
    for exact, a, b in zip(*map(jax.tree.leaves, (product, high, low)), strict=True):
        np.testing.assert_allclose(exact, (a - b) / (2 * step), rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_parameters_per_client():
    """vmap over models gives each model's outputs; one position is the last of all."""
    last = models.lstm(
        VOCABULARY, embedding=EMBEDDING, width=WIDTH, depth=DEPTH, every_position=False
    )
    several = [drawn(seed, np.float32) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *several)
    together = compiled(jax.vmap(last.apply, (0, None)))(stacked, TOKENS)
    assert together.shape == (2, len(TOKENS), VOCABULARY)
    for params, logits in zip(several, together, strict=True):
        expected = [reference(params, tokens)[-1] for tokens in TOKENS]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
