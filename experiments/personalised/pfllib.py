"""Personalised methods on PFLlib's benchmark, beside its published accuracies.

    python -m experiments.personalised.pfllib                                # MNIST, all methods
    python -m experiments.personalised.pfllib --dataset cifar100 --seeds 1 --rounds 100
    python -m experiments.personalised.pfllib --rounds 20 --examples 7000 --seeds 2

An interrupted run continues from the work folder.  Runs that the report of the same setting has are
not repeated, so it can grow by a method or a seed per command.  PFLlib runs 2,000 rounds with one
seed and prints the best one.
"""

import dataclasses
import itertools
from typing import Any

import jax
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness.options import MACHINE, settings
from experiments.harness.redrawing import reported_rows, save_report
from experiments.harness.runs import check_finished, print_progress
from experiments.personalised.methods import EVALUATIONS_APART, METHODS
from experiments.personalised.options import Options, described
from experiments.personalised.problem import BATCH_SIZE, LR, make_setup
from experiments.personalised.report import ACCURACY, COLUMNS, build
from fedjax_sim import datasets


def run(method: str, seed: int, options: Options) -> pd.DataFrame:
    """Accuracies of all evaluated rounds of one run; a killed run continues where it was."""
    every = eval_every(method, options)
    dataset = datasets.load(options.dataset, data_dir=options.data_dir)
    setup, keys = make_setup(
        dataset, seed + 1, rounds=options.rounds, eval_every=every, examples=options.examples
    )
    params, keys = jax.tree.map(lambda x: x[seed:], (setup.params, keys))
    folder = options.work / options.name / f"{method}-every{every}-seed{seed}"
    result = fs.simulate(
        METHODS[method],
        dataclasses.replace(setup, params=params),
        keys,
        callbacks=[print_progress(folder.name, ACCURACY)],
        storage=fs.Storage(
            folder,
            config={"dataset": dataset.name, "lr": LR, "batch": BATCH_SIZE},
            checkpoint_seconds=60.0,
        ),
        options=fs.Options(seeds=[str(seed)]),
    )
    check_finished(result, folder)
    frame = result.to_frame()
    frame = pd.DataFrame(frame[frame["metric"].isin([*COLUMNS, ACCURACY])])
    return frame[["seed", "round", "metric", "value"]].assign(seed=seed, algorithm=method)


def eval_every(method: str, options: Options) -> int:
    """Rounds between two evaluations of a method."""
    return min(options.eval_every * EVALUATIONS_APART.get(method, 1), options.rounds)


def main(options: Options) -> None:
    """Does the runs that the report does not have; writes it after each of them."""
    same = settings(options, (*MACHINE, "methods", "seeds"))
    history = reported_rows(options.folder, options.name, options=same)
    runs = itertools.product(range(options.seeds), options.chosen)
    missing = [pair for pair in runs if not has_run(history, *pair)]
    for seed, method in missing:
        history = pd.concat([history, run(method, seed, options)], ignore_index=True)
        save(history, same, options)
    if not missing:
        print(f"{options.folder / options.name}.md has all of these runs", flush=True)


def has_run(history: pd.DataFrame, seed: int, method: str) -> bool:
    """Returns whether a history of finished runs has this one."""
    return bool(len(history)) and bool(
        ((history["algorithm"] == method) & (history["seed"] == seed)).any()
    )


def save(history: pd.DataFrame, same: dict[str, Any], options: Options) -> None:
    """Writes the report of all finished runs."""
    methods = [name for name in METHODS if name in {*history["algorithm"], *options.chosen}]
    seeds = max(*(seed + 1 for seed in history["seed"].tolist()), options.seeds)
    parts = [history.loc[history["algorithm"] == name, :] for name in methods]
    save_report(
        options.folder,
        options.name,
        {"": pd.concat(parts).sort_values("seed", kind="stable")},
        build,
        setting=described(options, seeds),
        file=options.name,
        options=same | {"methods": methods, "seeds": seeds},
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
