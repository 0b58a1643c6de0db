"""Client data by stratum, padded to the largest stratum, for sharding over devices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.data import ClientSource
from fedjax_sim.timelines import Strata
from fedjax_sim.types import PyTree


@dataclasses.dataclass(frozen=True)
class BlockedData:
    """Examples of the clients of each stratum, with equally many rows per stratum.

    Within a stratum, examples are ordered by client as in
    :class:`~fedjax_sim.data.federated.FederatedData`.  All arrays of this pytree can be sharded on
    their first axis.
    """

    examples: PyTree  # [strata * rows, ...]
    offsets: Array | np.ndarray  # [strata, width + 1] int    first rows of clients in their stratum
    placement: Any  # maps clients to local rows of the table of clients

    def place(self, client: Array) -> tuple[Array, Array]:
        """First row of a client in the local part of the table, and its number of rows."""
        num_strata, width = self.offsets.shape[0], self.offsets.shape[1] - 1
        rows = jax.tree.leaves(self.examples)[0].shape[0] // num_strata
        row = self.placement.rows(client)
        stratum, local = row // width, row % width
        offsets = jnp.asarray(self.offsets)
        first = offsets[stratum, local]
        return stratum * rows + first, offsets[stratum, local + 1] - first


jax.tree_util.register_dataclass(
    BlockedData, data_fields=["examples", "offsets"], meta_fields=["placement"]
)


def blocked(source: ClientSource, strata: Strata, placement: Any, sharding: Any) -> BlockedData:
    """Loads the blocks of this process's devices."""
    sizes = np.asarray(source.sizes)
    offsets = np.zeros((strata.number, strata.width + 1), np.int32)
    for stratum in range(strata.number):
        ends = np.cumsum(sizes[strata.clients(stratum)])
        offsets[stratum, 1 : len(ends) + 1] = ends
        offsets[stratum, len(ends) + 1 :] = ends[-1]  # rows without a client
    rows = max(int(offsets[:, -1].max()), 1)
    leaves, structure = jax.tree.flatten(source.load(0, 0))
    # Each stratum is loaded once for all leaves and deleted when it has been placed; otherwise the
    # host would hold the examples of all clients as well.
    loaded: dict[tuple[int, int], np.ndarray] = {}

    def of_stratum(stratum: int, leaf: int) -> np.ndarray:
        if (stratum, leaf) not in loaded:
            clients = strata.clients(stratum)
            parts = jax.tree.leaves(source.load(clients.start, clients.stop))
            loaded.update(((stratum, i), part) for i, part in enumerate(parts) if i >= leaf)
        part = loaded.pop((stratum, leaf))
        if len(part) == rows:
            return part
        return np.concatenate([part, np.zeros((rows - len(part), *part.shape[1:]), part.dtype)])

    def leaf(number: int) -> Array:
        def block(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(strata.number * rows)
            parts = [of_stratum(s, number) for s in range(first // rows, last // rows)]
            return np.concatenate(parts) if len(parts) > 1 else parts[0]

        like = leaves[number]
        dtype = jax.dtypes.canonicalize_dtype(like.dtype)
        shape = (strata.number * rows, *like.shape[1:])
        return jax.make_array_from_callback(shape, sharding, block, dtype=dtype)

    examples = jax.tree.unflatten(structure, [leaf(i) for i in range(len(leaves))])
    local_offsets = jax.make_array_from_callback(
        offsets.shape, sharding, lambda index: offsets[index or ...]
    )
    return BlockedData(examples, local_offsets, placement)
