"""Digests of data that are equal in other processes."""

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.data import ClientSource
from fedjax_sim.runs.storage.files import digest
from fedjax_sim.types import PyTree, Timeline


def check_json(value: object, argument: str) -> None:
    """Refuses a description that is no dict, or has values that JSON does not have; None passes."""
    expected = f"{argument} is {value!r:.60}; expected a dict of values that JSON has"
    if not (value is None or isinstance(value, Mapping)):
        raise ValueError(expected)
    try:
        json.dumps(dict(value or {}), sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{expected}: {error}") from error


def arrays_digest(tree: PyTree) -> str:
    """Returns a hash of the arrays of a pytree; functions in it do not count."""
    return digest(*(as_numpy(leaf) for leaf in jax.tree.leaves(tree) if not callable(leaf)))


def timeline_arrays(timeline: Timeline) -> list[np.ndarray]:
    """Returns the arrays of a timeline that count in digests.

    Times count in single precision, so that digests do not depend on where a timeline was made,
    and folders of versions that kept times in single precision remain valid.
    """
    arrays = [as_numpy(leaf) for leaf in jax.tree.leaves(timeline)]
    return [x.astype(np.float32) if x.dtype == np.float64 else x for x in arrays]


def source_digest(source: ClientSource, most_bytes: int = 2**26) -> str:
    """Returns a hash of the clients' sizes, and of the examples that a source loads.

    Of a source with more than ``most_bytes`` bytes, the examples of evenly spaced clients count,
    about ``most_bytes`` together: a change of others is not noticed.
    """
    sizes = np.asarray(source.sizes, np.int64)
    empty = source.load(0, 0)
    row = sum(
        int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize
        for leaf in map(np.asarray, jax.tree.leaves(empty))
    )
    step = max(-(-int(sizes.sum()) * row // most_bytes), 1)
    clients = np.flatnonzero(sizes)[::step].tolist()
    examples = [arrays_digest(source.load(client, client + 1)) for client in clients]
    return digest(str(jax.tree.structure(empty)), arrays_digest(empty), sizes, examples)


def sharded_digest(tree: PyTree) -> str:
    """Returns a hash of arrays that may be divided over devices and processes.

    Equal for every division: the devices sum exact checksums, and nothing is gathered.
    """
    arrays = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if not callable(leaf)]
    kinds = [[list(x.shape), str(x.dtype)] for x in arrays]
    return digest(kinds, [int(_checksum(x)) for x in arrays])


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
    """Sums the words of an array, each times an odd number that its position determines."""
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    word = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = jax.lax.bitcast_convert_type(x, word).astype(jnp.uint32)
    position = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        position = position * jnp.uint32(size)
        position += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    weights = (position * jnp.uint32(2654435761)) | jnp.uint32(1)
    return jnp.sum(words * weights, dtype=jnp.uint32)


def as_numpy(x: Any) -> np.ndarray:
    """Returns an array on the host; of random keys their words."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)
