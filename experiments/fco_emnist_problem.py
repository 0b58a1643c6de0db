"""Handwriting by writer as the composite experiments have it: clients, models, constraints."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim import datasets, models, prox
from fedjax_sim.data import partition

SIZE = "constraint/size"


class Constraint(NamedTuple):
    """A ball for each kernel."""

    norm: Literal["l1", "l2"]
    radius: float

    def psi(self) -> prox.Regularizer:
        """Its indicator."""
        return prox.L1Ball(self.radius) if self.norm == "l1" else prox.L2Ball(self.radius)

    def size(self, params: Any) -> jax.Array:
        """The largest kernel's norm, as a share of the radius."""
        leaves = [leaf.ravel() for leaf in jax.tree.leaves(params) if prox.kernels("", leaf)]
        order = 1 if self.norm == "l1" else 2
        norms = jnp.stack([jnp.linalg.norm(leaf, order) for leaf in leaves])
        return jnp.max(norms) / self.radius


class Task(NamedTuple):
    """One of the paper's runs."""

    classes: int  # the first so many
    hidden: tuple[int, ...]
    constraint: Constraint
    sampled: bool  # whether a tenth of the clients takes part

    def described(self) -> str:
        """The model and its constraint."""
        model = "softmax regression"
        if self.hidden:
            model = f"network 784-{'-'.join(map(str, self.hidden))}-{self.classes}"
        return (
            f"{model}, every kernel in an {self.constraint.norm} ball of {self.constraint.radius:g}"
        )


TASKS = {
    "4a": Task(10, (), Constraint("l1", 1000.0), True),
    "4b": Task(10, (), Constraint("l2", 10.0), True),
    "4c": Task(62, (200, 200), Constraint("l1", 1000.0), False),
}


def first_classes(dataset: datasets.Dataset, count: int) -> datasets.Dataset:
    """The examples of the first classes, ink 1 on background 0."""

    def part(examples: Mapping[str, np.ndarray], groups: np.ndarray | None) -> tuple[dict, Any]:
        kept = examples["y"] < count
        # LEAF's paper is white.
        x = 255 - examples["x"] if dataset.name == "femnist" else examples["x"]
        groups = None if groups is None else groups[kept]
        return {"x": x[kept], "y": examples["y"][kept]}, groups

    train, train_groups = part(dataset.train, dataset.train_groups)
    test, test_groups = part(dataset.test, dataset.test_groups)
    return dataset._replace(
        train=train,
        test=test,
        num_classes=count,
        train_groups=train_groups,
        test_groups=test_groups,
    )


def writers(
    dataset: datasets.Dataset, share: float, at_most: int | None = None
) -> fs.FederatedData:
    """The first writers in the order of their names, a share of them and at most so many."""
    if dataset.train_groups is None or dataset.group_names is None:
        raise ValueError(
            f"dataset {dataset.name!r} has no writers; expected their numbers, for mnist QMNIST's "
            "label files beside its own"
        )
    rows, names = partition.by_group(np.array(dataset.group_names)[dataset.train_groups])
    count = max(round(share * len(rows)), 1)
    count = count if at_most is None else min(count, at_most)
    return fs.from_assignment(dataset.train, rows[:count], names[:count])


def build_model(what: Task) -> models.Model:
    """As Keras makes it."""
    glorot = jax.nn.initializers.glorot_uniform()
    return models.mlp((28, 28, 1), what.hidden, what.classes, kernel_init=glorot)


class Measured(NamedTuple):
    """The static part of an evaluation."""

    constraint: Constraint

    def __call__(self, means: Partial, params: Any) -> dict[str, jax.Array]:
        return {**means(params), SIZE: self.constraint.size(params)}
