"""Data, objective and model of a FAVANO experiment."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jax import Array

import fedjax_sim as fs
from fedjax_sim.types import EvalFn, Params, PyTree

Split = Literal["iid", "shards", "pairs"]


class Problem(NamedTuple):
    """Data, objective and model of an experiment."""

    examples: PyTree  # [N, ...]
    assignment: Callable[[int], list[np.ndarray]]  # seed -> rows of each client, equally many
    objective: fs.objectives.Objective
    batches: fs.data.batches.Batches
    init: Callable[[Array], Params]
    evaluate: EvalFn
    lr: float


def assignment(
    labels: np.ndarray, split: Split, num_clients: int
) -> Callable[[int], list[np.ndarray]]:
    """Rows of every client by seed, equally many per client: random, or of two classes each."""

    def by_seed(seed: int) -> list[np.ndarray]:
        if split == "iid":
            parts = fs.data.partition.iid(len(labels), num_clients, seed)
            return [rows[: len(labels) // num_clients] for rows in parts]
        parts = fs.data.partition.classes_per_client(labels, num_clients, 2, seed, method=split)
        if split == "pairs":
            return parts
        smallest = min(map(len, parts))  # shards of different classes differ a little
        rng = np.random.default_rng(seed)
        return [rng.permutation(rows)[:smallest] for rows in parts]

    return by_seed
