"""Keys whose draws compile and run fast, with the same bits as those of JAX's default generator.

On a CPU, JAX lowers a Threefry hash to a loop over its twenty rounds.  LLVM unrolls that loop's
kernels for small arrays, so the hashes were half of what a run compiled.  Here the rounds are
written out, with constants, where JAX's loop takes the distances of its rotations from arrays: one
large kernel, which compiles in a tenth to a half of the time.  XLA fuses it into what consumes the
words, so a function that reads a word many times stores it, as a constant of a loop.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import define_prng_impl

from fedjax_sim.types import PyTree


def normal(key: Array, std: Array | float, like: PyTree) -> PyTree:
    """Returns independent normal numbers of mean 0, one key per leaf.

    They are drawn in single precision, so that runs in double precision see the same noise.
    """
    leaves, structure = jax.tree.flatten(like)

    def of(number: int, leaf: Any) -> Array:
        drawn = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, jnp.float32)
        scaled = drawn.astype(np.promote_types(leaf.dtype, np.float32))
        return (jnp.asarray(std).astype(scaled.dtype) * scaled).astype(leaf.dtype)

    return structure.unflatten([of(number, leaf) for number, leaf in enumerate(leaves)])


_NAME = "threefry2x32"  # of JAX's generator
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)  # table 2 of the paper, N = 2, W = 32
_PARITY = np.uint32(0x1BD11BDA)
_MOST_WORDS = 2**32  # that one word can count


def fast(key: Array) -> Array:
    """Returns keys with the same draws as JAX's default ones; other keys as they are.

    ``jax.random`` accepts them.  They stay inside a function: :func:`usual` gives users their own.
    """
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    by_counter = jax.config.values["jax_threefry_partitionable"]
    if typed and by_counter and str(jax.random.key_impl(key)) == _NAME:
        return jax.random.wrap_key_data(jax.random.key_data(key), impl=_FAST)
    return key


def usual(key: Array) -> Array:
    """Returns keys of JAX's generator for those of :func:`fast`; other keys as they are."""
    if jax.random.key_impl(key) == _FAST:
        return jax.random.wrap_key_data(jax.random.key_data(key), impl=_NAME)
    return key


def _rounds(x: Array, y: Array, distances: tuple[int, ...]) -> tuple[Array, Array]:
    for distance in distances:
        x = x + y
        y = x ^ ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance)))
    return x, y


def _threefry(key: Array, count: Array) -> tuple[Array, Array]:
    """Returns both words of the hash of a counter below 2^32 by a key ``[2]``."""
    first, second = _ROTATIONS
    a, b, c = key[0] ^ key[1] ^ _PARITY, key[0], key[1]
    x, y = _rounds(b + jnp.zeros_like(count), c + count, first)
    x, y = x + c, y + a + np.uint32(1)
    for group in 2, 4:
        x, y = _rounds(x, y, second)
        x, y = x + a, y + b + np.uint32(group)
        x, y = _rounds(x, y, first)
        x, y = x + b, y + c + np.uint32(group + 1)
        a, b, c = c, a, b
    return x, y


def _counts(shape: tuple[int, ...]) -> Array:
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


def _seed(seed: Array) -> Array:
    raise NotImplementedError("fast keys derive from others")


@jax.jit
def _derived(key: Array, count: Array) -> Array:
    return jnp.stack(_threefry(key, count), axis=-1)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _derived(key, _counts(shape))


def _fold_in(key: Array, data: Array | int) -> Array:
    return _derived(key, jnp.asarray(data, jnp.uint32))


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    def theirs(key: Array) -> Array:
        return jax.random.bits(jax.random.wrap_key_data(key, impl=_NAME), shape, f"uint{width}")

    def ours(key: Array) -> Array:
        x, y = _threefry(key, _counts(shape))
        if width == 64:
            return (x.astype(jnp.uint64) << np.uint64(32)) | y.astype(jnp.uint64)
        return (x ^ y).astype(f"uint{width}")

    if math.prod(shape) >= _MOST_WORDS:
        return theirs(key)
    # Accelerators have kernels for this, and hosts start every iteration of a GPU's loop.
    return jax.lax.platform_dependent(key, cpu=ours, default=theirs)


_FAST = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,  # pyright: ignore[reportArgumentType]
    name="fast_threefry2x32",
    tag="fast",
)
