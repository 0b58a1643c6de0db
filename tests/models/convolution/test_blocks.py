"""Blocks of pixels as channels, entry by entry."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.models.convolution.blocks import collect, depth_to_space, space_to_depth, spread

BLOCKS = [(2, 2), (1, 3), (2, 1)]


@pytest.mark.parametrize("block", BLOCKS)
def test_space_to_depth_and_back(block):
    bh, bw = block
    x = np.arange(2 * 6 * 6 * 3, dtype=np.float32).reshape(2, 6, 6, 3)
    y = np.asarray(space_to_depth(jnp.asarray(x), block))
    assert y.shape == (2, 6 // bh, 6 // bw, bh * bw * 3)
    for i, j, k in np.ndindex(6, 6, 3):
        channel = ((i % bh) * bw + j % bw) * 3 + k
        np.testing.assert_array_equal(y[:, i // bh, j // bw, channel], x[:, i, j, k])
    np.testing.assert_array_equal(depth_to_space(jnp.asarray(y), block), x)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("kernel_size", [(5, 4), (1, 1), (2, 3)])
def test_spread_places_the_kernel_at_each_position(block, kernel_size):
    (kh, kw), (bh, bw) = kernel_size, block
    w = 1 + np.arange(kh * kw * 3 * 2, dtype=np.float32).reshape(kh, kw, 3, 2)
    blocks = np.asarray(spread(jnp.asarray(w), block))
    qh, qw = blocks.shape[:2]
    assert (qh, qw) == (int(np.ceil((kh + bh - 1) / bh)), int(np.ceil((kw + bw - 1) / bw)))
    blocks = blocks.reshape(qh, qw, bh, bw, 3, bh, bw, 2)
    # The output at place (i, j) of a block sees the input at row r, column s of its patch through
    # entry (r - i, s - j) of the kernel, where there is one.
    for r, s, i, j in np.ndindex(qh * bh, qw * bw, bh, bw):
        inside = 0 <= r - i < kh and 0 <= s - j < kw
        expected = w[r - i, s - j] if inside else np.zeros((3, 2))
        actual = blocks[r // bh, s // bw, r % bh, s % bw, :, i, j]
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_collect_is_the_transpose_of_spread(block):
    rng = np.random.default_rng(0)
    # Small integers, so that both sides are exact.
    w = jnp.asarray(rng.integers(-4, 5, (5, 4, 3, 2)), jnp.float32)
    blocks = spread(w, block)
    other = jnp.asarray(rng.integers(-4, 5, blocks.shape), jnp.float32)
    assert jnp.vdot(blocks, other) == jnp.vdot(w, collect(other, (5, 4), block))
