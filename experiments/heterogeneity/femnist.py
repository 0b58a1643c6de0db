"""FedAvg on FEMNIST by writer and at random: Experiment 3.

    python -m experiments.heterogeneity.femnist                              # FEMNIST, 250 rounds
    python -m experiments.heterogeneity.femnist --dataset mnist --seeds 2
    python -m experiments.heterogeneity.femnist --iid leaf_default

Sections 3.2 and 4.3 of the report: FEMNIST by writer against the same images distributed at random,
20 clients per round, 25 local steps of 20 images at rate 0.02, the same initial model.  Batch,
model and weights are those of the authors' program; the report does not state them.

LEAF's command for the report's IID data leaves the number of its clients at 1 % of the writers
(``--iu 0.01``), so their sizes differ from the writers', too: ``iid="leaf_default"``.  Here the
clients keep their sizes and exchange their images: ``iid="matched"``.
"""

import dataclasses
import pathlib
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness.data import pooled_test
from experiments.harness.options import Folders, check_choice, counted, settings
from experiments.harness.redrawing import save_report
from experiments.harness.runs import check_finished, print_progress
from experiments.heterogeneity.femnist_problem import Iid, assignment, make_setup
from experiments.heterogeneity.femnist_report import ACCURACY, LOSS, PARTITIONS, build
from fedjax_sim import datasets
from fedjax_sim.checks import check_at_least
from fedjax_sim.types import Weighting

COHORT, NUM_STEPS, BATCH_SIZE, LR = 20, 25, 20, 0.02
EVAL_EVERY = 3
ROUNDS = {"femnist": 250, "mnist": 60}

Data = Literal["femnist", "mnist"]
Weights = Literal["seen", "uniform"]


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    dataset: Data = "femnist"
    iid: Iid = "matched"
    weighting: Weights = "seen"  # of the uploads: by the images that a visit sees, or equal
    rounds: int | None = None  # default: 250 for femnist, 60 for mnist
    seeds: int = 1
    work: pathlib.Path = pathlib.Path("results/femnist_heterogeneity")
    output: pathlib.Path = pathlib.Path("experiments/results/heterogeneity")

    def __post_init__(self) -> None:
        check_choice(
            dataset=(self.dataset, Data), iid=(self.iid, Iid), weighting=(self.weighting, Weights)
        )
        check_at_least(1, rounds=self.num_rounds, seeds=self.seeds)

    @property
    def num_rounds(self) -> int:
        """The rounds to run."""
        return ROUNDS[self.dataset] if self.rounds is None else self.rounds


def seen_examples(work: fs.Work) -> jax.Array:
    """Weights by the number of different examples that a visit can see: ``min(n_i, 500)``."""
    return jnp.minimum(work.num_examples, BATCH_SIZE * NUM_STEPS)


WEIGHTINGS: dict[Weights, Weighting] = {"seen": seen_examples, "uniform": fs.uniform_weights}


def trained(dataset: datasets.Dataset, name: str, seed: int, options: Options) -> pd.DataFrame:
    """The history of one run; a run that is on disk is continued.

    Seeds differ in the partition, cohorts, initial models and draws; partitions of one seed with
    equal numbers of clients share the last three.
    """
    setup, key = make_setup(
        dataset,
        assignment(dataset, name, options.iid, seed),
        seed,
        rounds=options.num_rounds,
        cohort=COHORT,
        num_steps=NUM_STEPS,
        batch_size=BATCH_SIZE,
        eval_every=EVAL_EVERY,
        weighting=WEIGHTINGS[options.weighting],
    )
    kind = {"by writer": "by_writer", "iid": f"iid_{options.iid}"}[name]
    folder = f"{options.dataset}-{options.weighting}-{options.num_rounds}/{kind}-seed{seed}"
    result = fs.simulate(
        fs.fedavg(LR),
        setup,
        key,
        callbacks=[fs.callbacks.Divergence("record"), print_progress(folder, ACCURACY)],
        storage=fs.Storage(
            options.work / folder,
            config={"dataset": dataset.name, "lr": LR, "batch": BATCH_SIZE, "steps": NUM_STEPS},
            checkpoint_seconds=60.0,
        ),
    )
    check_finished(result, options.work / folder)
    if result.history is not None:
        done = int(result.history.round[-1] - result.history.round[0]) + EVAL_EVERY
        print(f"{folder}: {result.run_seconds / done:.2f} s per round", flush=True)
    history = pd.read_csv(options.work / folder / "history.csv")
    history = history[history["metric"].isin((ACCURACY, LOSS))].drop(columns="replica")
    diverged_at = int(np.asarray(result.state.diverged_at))
    return history.assign(partition=name, seed=seed, diverged_at=diverged_at)


def described(dataset: datasets.Dataset, options: Options) -> str:
    """The setting that was run, and its differences from the report."""
    iid, writers = (len(assignment(dataset, name, options.iid, 0)) for name in PARTITIONS)
    test = len(pooled_test(dataset)["y"])
    data = (
        "the writers in FEMNIST's files, also those with fewer than 100 images"
        if dataset.name == "femnist"
        else "MNIST by QMNIST's writers, its own test images by other writers"
    )
    return (
        f"{data}: {writers} clients by writer, {iid} at random ({options.iid}), "
        f"{len(dataset.train['y'])} images, {test} test "
        f"images (report: FEMNIST, 3597 writers of at least 100 images).  {options.num_rounds} "
        f"rounds of {min(COHORT, writers)} clients by writer and {min(COHORT, iid)} IID, "
        f"{NUM_STEPS} steps of {BATCH_SIZE} images, rate {LR:g}, weights {options.weighting}, "
        f"{counted(options.seeds, 'seed')}.  The equivalent target is the "
        "mean accuracy of the last tenth of the evaluations by writer; final accuracies are the "
        f"same mean.  Accuracy is evaluated every {EVAL_EVERY} rounds."
    )


def main(options: Options) -> None:
    """Trains, compares and writes the report."""
    dataset = datasets.load(options.dataset, options.data_dir)
    seeds = range(options.seeds)
    runs = [trained(dataset, name, seed, options) for seed in seeds for name in PARTITIONS]
    history = pd.concat(runs, ignore_index=True)
    facts = {"described": described(dataset, options), "options": settings(options)}
    name = f"{options.dataset}-{options.iid}"
    save_report(options.output / "femnist", name, {"": history}, build, **facts)


if __name__ == "__main__":
    main(tyro.cli(Options))
