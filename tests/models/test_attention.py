"""Attention against loops in NumPy; rotations by their defining properties."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from small_problems import compiled

from fedjax_sim.models.layers import attend, causal, rotary

RNG = np.random.default_rng(0)
T, HEADS, D = 4, 2, 6
QUERIES, KEYS, VALUES = (RNG.standard_normal((1, T, HEADS, D)) for _ in range(3))


def test_causal_attention_is_that_of_numpy(x64):
    expected = np.empty((1, T, HEADS, D))
    for head in range(HEADS):
        for t in range(T):
            scores = KEYS[0, : t + 1, head] @ QUERIES[0, t, head] / np.sqrt(D)
            weights = np.exp(scores) / np.exp(scores).sum()
            expected[0, t, head] = weights @ VALUES[0, : t + 1, head]
    actual = compiled(lambda *x: attend(*x, causal(T)))(QUERIES, KEYS, VALUES)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def rotated(x, position):
    """The rotations as products of complex numbers."""
    pairs = x[: D // 2] + 1j * x[D // 2 :]
    turned = pairs * np.exp(1j * position * 10_000.0 ** (-2 * np.arange(D // 2) / D))
    return np.concatenate([turned.real, turned.imag])


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_scores_depend_on_relative_positions(p, q, shift):
    """Angles up to 1,000 in single precision have errors of about 6e-5."""
    query, key = QUERIES[0, 0, 0].astype(np.float32), KEYS[0, 0, 0].astype(np.float32)
    at = jnp.array([p, q, p + shift, q + shift])
    pairs = jnp.stack([query, key, query, key])[:, None]
    here = np.asarray(rotary(pairs, at))[:, 0].astype(np.float64)
    np.testing.assert_allclose(here[0] @ here[1], here[2] @ here[3], atol=2e-3)
    np.testing.assert_allclose(here[0], rotated(query.astype(np.float64), p), atol=5e-4)
    np.testing.assert_allclose(np.linalg.norm(here[0]), np.linalg.norm(query), rtol=1e-5)


def test_positions_are_distinct_in_low_precision():
    """bfloat16 has no number between 256 and 258; the angles are computed in float32."""
    x = jnp.ones((2, 1, 2), jnp.bfloat16)
    first, second = rotary(x, jnp.array([256, 257]))
    assert first.dtype == jnp.bfloat16
    assert np.abs(np.asarray(first - second, np.float32)).max() > 0.5
