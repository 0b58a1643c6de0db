"""A run of Flower's FedProx baseline or of PFLlib here, with the recorded draws of their program.

python -m experiments.porting.ours flower flower.npz FOLDER_OF_MNIST experiments/results/porting
python -m experiments.porting.ours pfllib pfllib.npz FOLDER_OF_MNIST experiments/results/porting

The partition, the cohorts, the epochs of every visit and the initial model are theirs; the orders
of the minibatches are ours, for three seeds.
"""

import argparse
import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

import fedjax_sim as fs
from experiments.harness.figures import save

SEEDS, BATCH_SIZE = 3, 10


def parts_of(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each client."""
    return np.split(rows, np.cumsum(sizes)[:-1])


def recorded(cohorts: np.ndarray, clients: int, steps: np.ndarray) -> fs.Timeline:
    """Returns the timeline of recorded cohorts; ``steps`` has their shape."""
    rounds, size = cohorts.shape
    timeline = fs.timelines.uniform(jax.random.key(0), rounds, clients, size, 1)
    return dataclasses.replace(
        timeline, clients=cohorts, num_steps=steps, max_steps=int(steps.max())
    )


def flower(drawn: Any, mnist: fs.datasets.Dataset) -> tuple[fs.FedAlgorithm, fs.Setup]:
    """Returns FedProx with mu = 1 on softmax regression, 10 of 1,000 clients per round."""
    net = fs.models.softmax_regression((28, 28, 1), 10)
    model = fs.data.augmentation.normalized(net, 0.1307, 0.3081)
    cross_entropy = fs.objectives.cross_entropy(model)

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        return cross_entropy(params, batch, key) + 0.001 / 2 * fs.tree.vdot(params, params)

    data = fs.from_assignment(mnist.train, parts_of(drawn["train"], drawn["train_sizes"]))
    minibatches = -(-drawn["train_sizes"] // BATCH_SIZE)
    epochs = drawn["epochs"]
    task = fs.empirical_task(loss, data, fs.epochs(int(epochs.max()), BATCH_SIZE))
    cohorts = drawn["cohorts"]
    timeline = recorded(cohorts, len(minibatches), (epochs * minibatches[cohorts]).astype(np.int32))
    kernel, bias = drawn["initial_0"], drawn["initial_1"]
    params = {"linear": {"bias": jnp.asarray(bias), "kernel": jnp.asarray(kernel)}}
    evaluate = fs.evaluation.evaluator(fs.objectives.classification_metrics(model), mnist.test)

    def by_minibatches(work: fs.Work) -> jax.Array:
        return (work.num_examples + BATCH_SIZE - 1) // BATCH_SIZE

    return fs.fedprox(0.03, mu=1.0), fs.Setup(task, timeline, params, evaluate, 1, by_minibatches)


def pfllib(drawn: Any, mnist: fs.datasets.Dataset) -> tuple[fs.FedAlgorithm, fs.Setup]:
    """Returns FedAvg on PFLlib's network, 4 of 20 clients per round, one epoch."""
    net = fs.models.cnn((28, 28, 1), 10, channels=(32, 64), kernel_size=5, hidden=(512,))
    model = fs.data.augmentation.normalized(net, 0.5, 0.5)
    both = fs.datasets.merged(mnist).train
    data = fs.from_assignment(both, parts_of(drawn["train"], drawn["train_sizes"]))
    task = fs.empirical_task(fs.objectives.cross_entropy(model), data, fs.epochs(1, BATCH_SIZE))
    full = (drawn["train_sizes"] // BATCH_SIZE).astype(np.int32)  # its loader drops the last one
    cohorts = drawn["cohorts"]
    initial = [jnp.asarray(drawn[f"initial_{i}"]) for i in range(8)]
    # PyTorch's kernels are [out, in, height, width], and its images are flattened channels first.
    dense = initial[4].reshape(512, 64, 4, 4).transpose(0, 2, 3, 1).reshape(512, 1024)
    params = {
        "conv1": {"bias": initial[1], "kernel": initial[0].transpose(2, 3, 1, 0)},
        "conv2": {"bias": initial[3], "kernel": initial[2].transpose(2, 3, 1, 0)},
        "head": {
            "dense1": {"bias": initial[5], "kernel": dense},
            "dense2": {"bias": initial[7], "kernel": initial[6]},
        },
    }
    tests = {key: value[drawn["test"]] for key, value in both.items()}
    evaluate = fs.evaluation.evaluator(
        fs.objectives.classification_metrics(model), tests, batch_size=500
    )
    timeline = recorded(cohorts, len(full), full[cohorts])
    return fs.fedavg(0.005), fs.Setup(task, timeline, params, evaluate, 1, fs.weight_by_examples)


def draw(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Draws the accuracies of all columns by round."""
    figure, axes = plt.subplots(figsize=(6, 4))
    for column in table.columns[1:]:
        axes.plot(table["round"], table[column], "k--" if column == "theirs" else "-", label=column)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="round", ylabel="test accuracy")
    axes.legend()
    save(figure, path)


def main() -> None:
    """Runs three seeds and writes the accuracies beside theirs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulator", choices=("flower", "pfllib"))
    for name in ("drawn", "mnist", "out"):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    drawn = dict(np.load(options.drawn))
    mnist = fs.datasets.load("mnist", data_dir=options.mnist.parent)
    algorithm, setup = {"flower": flower, "pfllib": pfllib}[options.simulator](drawn, mnist)
    theirs = drawn["accuracy"]
    if options.simulator == "pfllib":  # its first evaluation is of the initial model
        assert setup.eval_fn is not None
        initial = setup.eval_fn(setup.params)["accuracy"]
        print(f"initial model: theirs {theirs[0]:.6f}, ours {initial:.6f}", flush=True)
        theirs = theirs[1:]
    table = pd.DataFrame({"round": np.arange(1, len(theirs) + 1), "theirs": theirs})
    run = jax.jit(lambda key: fs.run(algorithm, setup, key)[1].metrics["accuracy"])
    for seed in range(SEEDS):
        table[f"ours, seed {seed}"] = np.asarray(run(jax.random.key(seed)))
    options.out.mkdir(parents=True, exist_ok=True)
    table.round(4).to_csv(options.out / f"{options.simulator}.csv", index=False)
    draw(table, options.out / f"{options.simulator}.png")
    print(table.round(4).to_string(index=False))


if __name__ == "__main__":
    main()
