"""Coins of timelines."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.timelines.coins import occurs

LAST = 2**32 - 1


def test_a_word_decides_with_all_its_bits():
    """At 10^-6 the limit is 4294.97 of 2^32, rounded; probability 1 is certain, 0 never occurs."""
    words = jnp.array([0, 4294, 4295, LAST - 256, LAST], jnp.uint32)
    below_one = np.nextafter(np.float32(1), np.float32(0))  # 1 - 2^-24
    for probability, expected in [
        (0.0, [False] * 5),
        (1e-6, [True, True, False, False, False]),
        (float(below_one), [True, True, True, True, False]),
        (1.0, [True] * 5),
    ]:
        assert occurs(words, probability).tolist() == expected
        assert jax.jit(occurs)(words, probability).tolist() == expected
        with jax.enable_x64(True):
            assert occurs(words, probability).tolist() == expected


def test_a_probability_per_word():
    words = jnp.full(3, 2**31, jnp.uint32)
    assert occurs(words, np.array([0.4, 0.5, 0.6])).tolist() == [False, False, True]
