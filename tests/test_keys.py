"""Keys with fast draws: the bits are those of JAX's generator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.tree.keys import fast, usual

_KEYS = jax.random.split(jax.random.key(5), (3, 4))
_DRAWS = {
    "bits": lambda key: jax.random.bits(key, (5, 7)),
    "one word": jax.random.bits,
    "no words": lambda key: jax.random.bits(key, (0,)),
    "bytes": lambda key: jax.random.bits(key, (5,), jnp.uint8),
    "half words": lambda key: jax.random.bits(key, (5,), jnp.uint16),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "fold in": lambda key: jax.random.key_data(jax.random.fold_in(key, np.uint32(2**32 - 3))),
    "normal": lambda key: jax.random.normal(key, (9,)),
    "permutation": lambda key: jax.random.permutation(key, 30),
    "integers": lambda key: jax.random.randint(key, (4,), 0, 17),
}


@pytest.fixture(scope="module")
def drawn():
    """All draws of all keys, from JAX's keys and from fast ones."""

    @jax.jit
    def draws(keys):
        return {name: jax.vmap(jax.vmap(draw))(keys) for name, draw in _DRAWS.items()}

    return draws(_KEYS), draws(fast(_KEYS))


@pytest.mark.parametrize("name", _DRAWS)
def test_draws_equal_those_of_jax(name, drawn):
    theirs, ours = (draws[name] for draws in drawn)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_draws_of_double_precision_equal_those_of_jax():
    with jax.enable_x64(True):
        key = jax.random.key(1)
        theirs, ours = (jax.random.normal(k, (9,), jnp.float64) for k in (key, fast(key)))
    np.testing.assert_array_equal(ours, theirs)


def test_hash_of_zeros_is_the_known_answer():
    # From the file of known answers of Random123 1.09: threefry2x32, 20 rounds, counter and key 0.
    key = fast(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)))
    assert jax.random.key_data(jax.random.fold_in(key, 0)).tolist() == [0x6B200159, 0x99BA4EFE]


def test_usual_keys_return():
    keys = usual(fast(_KEYS))
    assert jax.random.key_impl(keys) == jax.random.key_impl(_KEYS)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(_KEYS))


@pytest.mark.parametrize("generator", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators_stay(generator):
    key = jax.random.key(0, impl=generator)
    assert fast(key) is key
    assert usual(key) is key


def test_keys_stay_where_draws_are_not_by_counter():
    with jax.threefry_partitionable(False):
        assert fast(_KEYS) is _KEYS
