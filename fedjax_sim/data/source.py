"""Clients' examples that are loaded when they are needed, from memory or from files."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.data.federated import FederatedData, check_assignment
from fedjax_sim.types import PyTree


class ClientSource(NamedTuple):
    """Sizes of the clients, and a function that loads their examples.

    ``load(start, stop)`` returns the concatenated examples of the clients ``start .. stop - 1``;
    leaves have length 0 if there are none.  It may be called from another thread.
    """

    sizes: np.ndarray  # [M] int
    load: Callable[[int, int], PyTree]

    @property
    def num_clients(self) -> int:
        return len(self.sizes)


def from_data(data: FederatedData) -> ClientSource:
    """Source that slices ``data``; leaves may be memory maps of files larger than memory."""
    offsets = np.asarray(data.offsets)

    def load(start: int, stop: int) -> PyTree:
        rows = slice(int(offsets[start]), int(offsets[stop]))
        return jax.tree.map(lambda x: np.asarray(x[rows]), data.examples)

    return ClientSource(np.diff(offsets), load)


def assigned(examples: PyTree, assignment: Sequence[np.ndarray]) -> ClientSource:
    """Source in which client ``i`` has the rows ``assignment[i]``, read when they are loaded."""
    check_assignment(examples, assignment, disjoint=True)

    def load(start: int, stop: int) -> PyTree:
        parts = [np.asarray(part, np.int64) for part in assignment[start:stop]]
        rows = np.concatenate([np.empty(0, np.int64), *parts])
        return jax.tree.map(lambda x: np.asarray(x[rows]), examples)

    return ClientSource(np.array([len(part) for part in assignment]), load)
