"""Which valuation finds faulty clients among 30 writers of MNIST, too many for exact values.

    python -m experiments.valuation.mnist_writers

18 honest writers, two pairs with equal data, five writers with false labels and three free riders;
ten of them take part in a round.  The reference is the estimate by the most permutations.
"""

import dataclasses
import functools

import jax
import numpy as np
import tyro

import fedjax_sim as fs
from experiments.harness import pooled_test, subsample
from experiments.valuation.problem import Problem, build, kinds_of, num_parts, spoiled
from experiments.valuation.runs import ValuationOptions, value_seeds
from fedjax_sim.checks import check_at_least

KINDS = kinds_of(honest=18, pairs=2, mislabelled=5, riders=3)
LR, BATCH_SIZE, HIDDEN, COHORT = 0.1, 20, (32,), 10
LEAST = 100  # images of a writer


@dataclasses.dataclass(frozen=True)
class Options(ValuationOptions):
    """Options of this experiment."""

    rounds: int = 40
    seeds: int = 2
    held_out: int = 1000  # test images of the metric

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, held_out=self.held_out)


def problem(options: Options, seed: int, key: jax.Array) -> Problem:
    """Random writers of one seed; the metric is that of test images of all writers."""
    data = fs.datasets.load("mnist", data_dir=options.data_dir)
    writers = data.clients()
    rng = np.random.default_rng(seed)
    enough = np.flatnonzero(np.asarray(writers.sizes) >= LEAST)
    chosen = rng.choice(enough, num_parts(KINDS), replace=False)
    parts = [jax.tree.map(np.asarray, writers.client(int(i))) for i in chosen]
    clients = spoiled(parts, KINDS, data.num_classes, options.false_labels, rng)
    model = fs.models.mlp((28, 28, 1), HIDDEN, data.num_classes)
    return build(
        clients, KINDS, subsample(pooled_test(data), options.held_out), model, key,
        rounds=options.rounds, cohort=COHORT, batch_size=BATCH_SIZE,
    )  # fmt: skip


def main(options: Options) -> None:
    """Values the clients of all seeds, prints and writes table and figure."""
    value_seeds(
        "mnist_writers", "MNIST by writer", fs.fedavg(LR), functools.partial(problem, options),
        COHORT, options, marginals=None, exact=False,
        on_progress=lambda done, total: print(f"{done}/{total} coalitions", flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    fs.execution.use_all_cores()
    main(tyro.cli(Options, description=__doc__))
