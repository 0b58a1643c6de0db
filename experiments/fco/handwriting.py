"""Handwriting by writer: clients, models and constraints of task 4."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.fco import methods
from experiments.harness.data import pooled_test, subsample

SIZE = "constraint/size"
EVALUATIONS = 50  # in a run


class Constraint(NamedTuple):
    """A ball for each kernel."""

    norm: Literal["l1", "l2"]
    radius: float

    def psi(self) -> fs.prox.Regularizer:
        """The indicator of the ball."""
        return fs.prox.L1Ball(self.radius) if self.norm == "l1" else fs.prox.L2Ball(self.radius)

    def size(self, params: Any) -> jax.Array:
        """The largest norm of a kernel, as a share of the radius."""
        leaves = [leaf.ravel() for leaf in jax.tree.leaves(params) if fs.prox.kernels("", leaf)]
        order = 1 if self.norm == "l1" else 2
        norms = jnp.stack([jnp.linalg.norm(leaf, order) for leaf in leaves])
        return jnp.max(norms) / self.radius


class Task(NamedTuple):
    """One of the paper's runs."""

    classes: int  # the first ones
    hidden: tuple[int, ...]
    constraint: Constraint
    sampled: bool  # whether only a tenth of the clients takes part

    def described(self) -> str:
        """The model and its constraint."""
        model = "softmax regression"
        if self.hidden:
            model = f"network 784-{'-'.join(map(str, self.hidden))}-{self.classes}"
        norm, radius = self.constraint
        return f"{model}, every kernel in an {norm} ball of {radius:g}"

    def build_model(self) -> fs.models.Model:
        """The model with the initial values of Keras."""
        glorot = jax.nn.initializers.glorot_uniform()
        return fs.models.mlp((28, 28, 1), self.hidden, self.classes, initializer=glorot)


TASKS = {
    "4a": Task(10, (), Constraint("l1", 1000.0), True),
    "4b": Task(10, (), Constraint("l2", 10.0), True),
    "4c": Task(62, (200, 200), Constraint("l1", 1000.0), False),
}


class Scale(NamedTuple):
    """The part of the paper's setting that is run; None: no limit."""

    rounds: int
    clients: int | None  # that take part
    max_steps: int | None  # of a visit; the paper's ten epochs are about a hundred
    train_examples: int | None  # over which the training loss is averaged

    @property
    def eval_every(self) -> int:
        """Rounds between evaluations."""
        return max(self.rounds // EVALUATIONS, 1)


def first_classes(dataset: fs.datasets.Dataset, count: int) -> fs.datasets.Dataset:
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
    dataset: fs.datasets.Dataset, share: float, at_most: int | None = None
) -> fs.FederatedData:
    """The data of a share of the writers, or of fewer, the first in the order of their names."""
    if dataset.train_groups is None or dataset.group_names is None:
        raise ValueError(
            f"dataset {dataset.name!r} has no writers; expected their numbers, for mnist QMNIST's "
            "label files beside its own"
        )
    rows, names = fs.data.partition.by_group(np.array(dataset.group_names)[dataset.train_groups])
    count = max(round(share * len(rows)), 1)
    count = count if at_most is None else min(count, at_most)
    return fs.from_assignment(dataset.train, rows[:count], names[:count])


class Measured(NamedTuple):
    """The static part of an evaluation."""

    constraint: Constraint

    def __call__(self, means: Partial, params: Any) -> dict[str, jax.Array]:
        return {**means(params), SIZE: self.constraint.size(params)}


def make_problem(
    task: Task,
    dataset: fs.datasets.Dataset,
    scale: Scale,
    batches: fs.data.batches.Batches,
    *,
    share: float,
    cohort: int,
    seeds: int,
) -> tuple[methods.Problem, fs.FederatedData]:
    """A task and its clients, a share of the writers."""
    chosen = first_classes(dataset, task.classes)
    data = writers(chosen, share, scale.clients)
    model = task.build_model()
    metrics = fs.objectives.classification_metrics(model.apply)
    means = fs.evaluation.merge_evaluators(
        train=fs.evaluation.evaluator(metrics, subsample(data.examples, scale.train_examples)),
        test=fs.evaluation.evaluator(metrics, pooled_test(chosen)),
    )
    shared = methods.make_problem(
        fs.prox.composite(task.constraint.psi(), where=fs.prox.kernels),
        fs.empirical_task(fs.objectives.cross_entropy(model.apply), data, batches),
        model.init,
        Partial(Measured(task.constraint), means),
        rounds=scale.rounds,
        cohort=cohort,
        seeds=seeds,
    )
    return shared, data


def described_data(shared: methods.Problem, data: fs.FederatedData) -> str:
    """Numbers of clients, examples and local steps."""
    sizes, steps = np.asarray(data.sizes), np.asarray(shared.task.num_steps)
    return (
        f"{len(sizes)} clients with {sizes.min()} to {sizes.max()} examples, {sizes.sum()} in all, "
        f"{steps.min()} to {steps.max()} local steps"
    )
