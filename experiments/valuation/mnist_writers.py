"""Which valuation finds faulty clients among 30 writers of MNIST, too many for exact values.

    python -m experiments.valuation.mnist_writers

18 honest writers, two pairs with equal data, five writers with false labels and three free riders;
ten of them take part in a round.  The reference is the estimate by the most permutations.
"""

import dataclasses
import pathlib

import jax
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness import Folders, pooled_test, save_report, seed_keys, settings, subsample
from experiments.valuation import methods, report
from experiments.valuation.problem import Problem, build, kinds_of, num_parts, spoiled
from fedjax_sim import datasets, models
from fedjax_sim.checks import check_at_least
from fedjax_sim.execution.devices import use_all_cores

KINDS = kinds_of(honest=18, pairs=2, mislabelled=5, riders=3)
LR, BATCH_SIZE, HIDDEN, COHORT = 0.1, 20, (32,), 10
LEAST = 100  # images of a writer


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    rounds: int = 40
    false_labels: float = 0.3  # share of a mislabelled client's labels
    seeds: int = 2
    permutations: tuple[int, ...] = (4, 16, 64)
    held_out: int = 1000  # test images of the metric
    work: pathlib.Path = pathlib.Path("results/valuation")  # finished coalitions, to continue from

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds, seeds=self.seeds, held_out=self.held_out)


def problem(options: Options, seed: int, key: jax.Array) -> Problem:
    """Random writers of one seed; the metric is that of test images of all writers."""
    data = datasets.load("mnist", data_dir=options.data_dir)
    writers = data.clients()
    rng = np.random.default_rng(seed)
    enough = np.flatnonzero(np.asarray(writers.sizes) >= LEAST)
    chosen = rng.choice(enough, num_parts(KINDS), replace=False)
    parts = [jax.tree.map(np.asarray, writers.client(int(i))) for i in chosen]
    clients = spoiled(parts, KINDS, data.num_classes, options.false_labels, rng)
    model = models.mlp((28, 28, 1), HIDDEN, data.num_classes)
    return build(
        clients, KINDS, subsample(pooled_test(data), options.held_out), model, key,
        rounds=options.rounds, cohort=COHORT, batch_size=BATCH_SIZE,
    )  # fmt: skip


def main(options: Options) -> None:
    """Values the clients of all seeds, prints and writes table and figure."""
    folder = options.work / "mnist_writers" / f"{options.false_labels:g}"
    frames = []
    for seed, key in enumerate(seed_keys(options.seeds)):
        keys = jax.random.split(key)
        one = problem(options, seed, keys[0])
        every = methods.methods(
            fs.fedavg(LR), one, keys[1], folder / str(seed),
            permutations=options.permutations, marginals=None, exact=False,
            on_progress=lambda progress: print(progress.status, flush=True),
        )  # fmt: skip
        frames.append(methods.valued(every, one, seed))
    values = pd.concat(frames, ignore_index=True)
    save_report(
        options.output / "valuation" / "mnist_writers", "mnist_writers",
        {"": report.scores(values), "values": values}, report.build, options=settings(options),
        data="MNIST by writer", figure="mnist_writers", cohort=COHORT,
    )  # fmt: skip


if __name__ == "__main__":
    use_all_cores()
    main(tyro.cli(Options, description=__doc__))
