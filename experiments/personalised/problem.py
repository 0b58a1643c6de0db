"""PFLlib's benchmark: 20 clients with labels by Dirichlet(0.1), each with test examples of its own.

Zhang et al., "PFLlib: Personalized Federated Learning Algorithm Library", 2023.  Training and test
examples are merged, divided by PFLlib's rule, and a quarter of every client's is for testing.  All
clients take part in every round: one epoch in batches of 10 at rate 0.005, uploads weighted by
training examples, pixels shifted and scaled to [-1, 1].
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from experiments.harness.runs import seed_keys

CLIENTS, ALPHA, BATCH_SIZE, LR = 20, 0.1, 10, 0.005
NAMES = ("mnist", "cifar100")


def network(dataset: fs.datasets.Dataset) -> fs.models.Model:
    """Returns PFLlib's four-layer network: two convolutions of side 5, two dense layers.

    PFLlib draws initial values as PyTorch does; these are LeCun-normal kernels and zero biases.
    """
    net = fs.models.cnn(
        dataset.train["x"].shape[1:],
        dataset.num_classes,
        channels=(32, 64),
        kernel_size=5,
        hidden=(512,),
    )
    return fs.data.augmentation.normalized(net, 0.5, 0.5)


def divided(
    dataset: fs.datasets.Dataset, seed: int, examples: int | None = None
) -> tuple[fs.FederatedData, fs.FederatedData]:
    """Returns the clients' training and test examples.

    Args:
        dataset: with training and test examples, which are merged.
        seed: of the partition; PFLlib's is 1.
        examples: use so many of the merged examples only, drawn at random; None: all.
    """
    both = fs.datasets.merged(dataset).train
    if examples is not None:
        rows = np.sort(np.random.default_rng(0).permutation(len(both["y"]))[:examples])
        both = {key: both[key][rows] for key in ("x", "y")}
    random = np.random.RandomState(seed)
    rows = fs.data.partition.pfllib_dirichlet(both["y"], CLIENTS, ALPHA, random)
    train, test = fs.data.partition.pfllib_split(rows, random)
    part = {key: both[key] for key in ("x", "y")}
    return fs.from_assignment(part, train), fs.from_assignment(part, test)


def make_setup(
    dataset: fs.datasets.Dataset,
    num_seeds: int,
    *,
    rounds: int,
    eval_every: int,
    examples: int | None = None,
) -> tuple[fs.Setup, Any]:
    """Returns the setup of all seeds, with one partition, and the keys of their runs."""
    model = network(dataset)
    train, test = divided(dataset, 1, examples)
    task = fs.empirical_task(fs.objectives.cross_entropy(model), train, fs.epochs(1, BATCH_SIZE))
    metrics = fs.objectives.classification_metrics(model)
    keys = seed_keys(num_seeds)
    params = jax.vmap(model.init)(jax.vmap(jax.random.fold_in, (0, None))(keys, 1))
    setup = fs.Setup(
        task,
        fs.timelines.full(rounds, CLIENTS, task.num_steps),
        jax.tree.map(jnp.asarray, params),
        fs.evaluation.personal_evaluator(metrics, test, per_client=True),
        eval_every,
        fs.weight_by_examples,
    )
    return setup, keys
