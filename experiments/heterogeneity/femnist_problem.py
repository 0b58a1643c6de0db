"""Partitions, minibatches and runs of the experiment on FEMNIST."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from experiments.harness.data import pooled_test
from fedjax_sim.data import Pick
from fedjax_sim.types import Step, Weighting

LEAF_SHARE = 0.01  # LEAF's default of --iu

Iid = Literal["matched", "leaf_default"]


@functools.cache
def repeated_pass(batch_size: int, num_steps: int) -> fs.data.batches.Batches:
    """``num_steps`` full batches of one shuffled pass over ``ceil(batch_size num_steps / n)``
    copies of the client's n examples.
    """
    total = batch_size * num_steps

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        del max_steps
        size = jnp.asarray(size, jnp.int32)
        least = jnp.maximum(size, 1)
        order = fs.data.batches.permutations(key, 1, -(-total // least) * size, total + max_size)[
            0, :total
        ]
        rows = (order % least).reshape(num_steps, batch_size)
        weights = jnp.broadcast_to(size > 0, (batch_size,))

        def pick(step: Step) -> tuple[Array, Array]:
            step = jnp.asarray(step, jnp.int32)
            return jax.lax.dynamic_index_in_dim(rows, step, keepdims=False), weights

        return pick

    return fs.data.batches.Batches(lambda sizes: np.where(sizes > 0, num_steps, 0), draw)


def assignment(dataset: fs.datasets.Dataset, name: str, iid: Iid, seed: int) -> list[np.ndarray]:
    """The images of each client; ``name`` is "iid" or "by writer"."""
    if dataset.train_groups is None:
        raise ValueError(
            f"dataset {dataset.name!r} has no writers; expected their numbers, for mnist QMNIST's "
            "label files beside its own"
        )
    writers, _ = fs.data.partition.by_group(dataset.train_groups)
    if name == "by writer":
        return writers
    num_examples = len(dataset.train_groups)
    if iid == "leaf_default":
        return fs.data.partition.iid(num_examples, max(1, round(LEAF_SHARE * len(writers))), seed)
    ends = np.cumsum([len(rows) for rows in writers])[:-1]
    return np.split(np.random.default_rng(seed).permutation(num_examples), ends)


def build_model(dataset: fs.datasets.Dataset) -> fs.models.Model:
    """The report's network: its convolutions have no activation.

    Conv 5x5, 32 - pool - conv 5x5, 64 - pool - dense 512 - ReLU - dense; Glorot-uniform kernels.
    The max-pooling is the only nonlinearity between its convolutions.
    """
    return fs.models.cnn(
        (28, 28, 1),
        dataset.num_classes,
        channels=(32, 64),
        kernel_size=5,
        hidden=(512,),
        conv_activation=lambda x: x,
        kernel_init=jax.nn.initializers.glorot_uniform(),
    )


def make_setup(
    dataset: fs.datasets.Dataset,
    rows: list[np.ndarray],
    seed: int,
    *,
    rounds: int,
    cohort: int,
    num_steps: int,
    batch_size: int,
    eval_every: int,
    weighting: Weighting,
) -> tuple[fs.Setup, Array]:
    """The setup of one seed and the key of its run; ``rows`` are the images of each client."""
    model = build_model(dataset)
    data = fs.from_assignment({key: dataset.train[key] for key in ("x", "y")}, rows)
    batches = repeated_pass(batch_size, num_steps)
    task = fs.empirical_task(fs.objectives.cross_entropy(model.apply), data, batches)
    key = jax.random.fold_in(jax.random.key(0), seed)
    draw_key, init_key, run_key = jax.random.split(key, 3)
    timeline = fs.timelines.uniform(
        draw_key, rounds, task.num_clients, min(cohort, task.num_clients), num_steps
    )
    metrics = fs.objectives.classification_metrics(model.apply)
    setup = fs.Setup(
        task,
        timeline,
        jax.jit(model.init)(init_key),
        eval_fn=fs.evaluation.merge_evaluators(
            test=fs.evaluation.evaluator(metrics, pooled_test(dataset))
        ),
        eval_every=eval_every,
        weighting=weighting,
    )
    return setup, run_key
