"""Personalised methods on PFLlib's benchmark, beside its published accuracies.

    python -m experiments.personalised.pfllib                                # MNIST, all methods
    python -m experiments.personalised.pfllib --dataset cifar100 --seeds 1 --rounds 100
    python -m experiments.personalised.pfllib --rounds 20 --examples 7000 --seeds 2

Finished methods are kept in the work folder, and an interrupted one continues.  Methods that the
report of the same setting has are not repeated, so it can grow by one method per command.  PFLlib
runs 2,000 rounds with one seed and prints the best one.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness.options import (
    MACHINE,
    Folders,
    check_choice,
    check_names,
    counted,
    settings,
)
from experiments.harness.redrawing import reported_rows, save_report
from experiments.harness.runs import check_finished
from experiments.personalised.methods import DEFAULT, METHODS
from experiments.personalised.problem import ALPHA, BATCH_SIZE, CLIENTS, LR, make_setup
from experiments.personalised.report import ACCURACY, COLUMNS, build
from fedjax_sim import datasets
from fedjax_sim.checks import check_at_least
from fedjax_sim.simulation.compare import folder_names

Data = Literal["mnist", "cifar100"]


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    dataset: Data = "mnist"
    methods: tuple[str, ...] | None = None  # default: all for mnist, three for cifar100
    rounds: int = 200
    eval_every: int = 5
    seeds: int = 5
    examples: int | None = None  # of the merged data set; default: all
    work: pathlib.Path = pathlib.Path("results/personalised")
    output: pathlib.Path = pathlib.Path("experiments/results/personalised")

    def __post_init__(self) -> None:
        check_choice(dataset=(self.dataset, Data))
        check_names("methods", self.chosen, METHODS)
        check_at_least(1, rounds=self.rounds, eval_every=self.eval_every, seeds=self.seeds)
        if self.examples is not None:
            check_at_least(CLIENTS, examples=self.examples)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The methods to run."""
        return DEFAULT[self.dataset] if self.methods is None else self.methods

    @property
    def name(self) -> str:
        """Name of the files and of the folder with the runs."""
        part = "" if self.examples is None else f"-{self.examples}"
        return f"{self.dataset}{part}"


def described(options: Options) -> str:
    """The setting that was run."""
    rate = f"rate {LR}, batches of {BATCH_SIZE}, one epoch per round"
    data = "all examples" if options.examples is None else f"{options.examples} examples"
    return (
        f"{CLIENTS} clients, all in every round, labels by PFLlib's Dirichlet({ALPHA}), {data}; "
        f"{rate}, {options.rounds} rounds, {counted(options.seeds, 'seed')}.  Accuracies in % on "
        "the clients' own test examples, personal models, in the best evaluated round of a run."
    )


def histories(methods: Sequence[str], options: Options) -> pd.DataFrame:
    """Accuracies of all evaluated rounds of methods that are run, or found in the work folder."""
    dataset = datasets.load(options.dataset, data_dir=options.data_dir)
    setup, keys = make_setup(
        dataset,
        options.seeds,
        rounds=options.rounds,
        eval_every=options.eval_every,
        examples=options.examples,
    )
    folder = options.work / f"{options.name}-{options.seeds}"

    def finished(name: str, result: fs.Simulation) -> None:
        check_finished(result, folder)
        if result.history is not None:
            done = len(result.history.round[0]) * options.eval_every
            print(f"{name}: {result.run_seconds / done:.2f} s per round", flush=True)

    result = fs.compare(
        {name: METHODS[name] for name in methods},
        setup,
        keys,
        directory=folder,
        config={"dataset": dataset.name, "lr": LR, "batch": BATCH_SIZE},
        checkpoint_seconds=60.0,
        on_finished=finished,
    )
    check_finished(result, folder)
    parts = []
    for name in methods:
        history = pd.read_csv(folder / folder_names([name])[name] / "history.csv")
        history = history.rename(columns={"replica": "seed"})
        parts.append(history[history["metric"].isin([*COLUMNS, ACCURACY])].assign(algorithm=name))
    return pd.concat(parts, ignore_index=True)


def main(options: Options) -> None:
    """Runs the methods that are not in the report or in the work folder; extends the report."""
    folder, same = options.output / "pfllib", settings(options, (*MACHINE, "methods"))
    history = reported_rows(folder, options.name, options=same)
    reported = set(history["algorithm"]) if len(history) else set()
    missing = [name for name in options.chosen if name not in reported]
    if missing:
        history = pd.concat([history, histories(missing, options)], ignore_index=True)
    known = [name for name in METHODS if name in set(history["algorithm"])]
    history = pd.concat([history.loc[history["algorithm"] == name, :] for name in known])
    save_report(
        folder,
        options.name,
        {"": history},
        build,
        setting=described(options),
        file=options.name,
        options=same | {"methods": known},
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
