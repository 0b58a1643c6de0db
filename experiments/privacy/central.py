"""Setting and runs of the experiments on central privacy.

pfl-research's benchmark CIFAR-10 IID with central privacy (https://github.com/apple/pfl-research,
benchmarks/image_classification): clip 0.4, 50 users per round with the noise of 1,000 users of a
population of 10^6, 50 examples per user in batches of 10, one epoch, rates 0.1 and 1, uniform
weights, epsilon 2 at delta 10^-6.
"""

import dataclasses
import math
import pathlib
import types
from collections.abc import Mapping
from typing import Self

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness import (
    MACHINE,
    Folders,
    check_finished,
    check_grid,
    read_facts,
    reported_rows,
    seed_keys,
    settings,
)
from fedjax_sim import datasets
from fedjax_sim.checks import check_at_least
from fedjax_sim.runs import folder_names

COHORT = 50
CLIP, DELTA, LR, BATCH_SIZE = 0.4, 1e-6, 0.1, 10
PLAIN, CLIPPED = "no bound", "clip only"


@dataclasses.dataclass(frozen=True)
class CentralOptions(Folders):
    """Options of both experiments."""

    rounds: int = 300
    seeds: int = 5
    epsilons: tuple[float, ...] = (8.0, 2.0, 0.5, 0.125)
    eval_every: int = 10
    users: int = 1000  # simulated population
    noise_cohort: int = 1000  # users whose noise is added
    population: int = 10**6  # of which these are drawn
    test_examples: int | None = None  # default: all
    work: pathlib.Path = pathlib.Path("results/privacy")

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds, seeds=self.seeds, eval_every=self.eval_every)
        check_at_least(1, noise_cohort=self.noise_cohort, test_examples=self.test_examples)
        check_at_least(COHORT, users=self.users)
        check_at_least(self.noise_cohort, population=self.population)
        check_grid(epsilons=self.epsilons)

    def folder(self, name: str) -> pathlib.Path:
        """Folder of a report: by the data set, with which its name begins."""
        return self.output / "privacy" / name.partition("-")[0]

    def with_reported(self, name: str) -> Self:
        """These options with the targets of an earlier report too, which keeps them."""
        if not len(reported(name, self)):
            return self
        earlier = read_facts(self.folder(name), name)["options"]["epsilons"]
        return dataclasses.replace(self, epsilons=tuple(sorted({*earlier, *self.epsilons})))


def forecasts(options: CentralOptions) -> dict[str, fs.privacy.NoiseCohort]:
    """The noise of the larger cohort by target, from little to much."""
    return {
        f"epsilon {epsilon:g}": fs.privacy.noise_cohort(
            epsilon, DELTA, num_rounds=options.rounds, cohort_size=COHORT,
            noise_cohort_size=options.noise_cohort, population=options.population,
        )
        for epsilon in sorted(options.epsilons, reverse=True)
    }  # fmt: skip


def algorithms(noise: Mapping[str, fs.privacy.NoiseCohort]) -> dict[str, fs.FedAlgorithm]:
    """FedAvg without a bound, with the clip, and with the clip and the noise of every target."""
    plain = fs.fedavg(LR)
    multipliers = {CLIPPED: 0.0} | {name: x.noise_multiplier for name, x in noise.items()}
    return {PLAIN: plain} | {
        name: fs.privacy.privatize(plain, CLIP, z, expected_uploads=COHORT)
        for name, z in multipliers.items()
    }


def make_setup(
    dataset: datasets.Dataset, model: fs.models.Model, options: CentralOptions
) -> fs.Setup:
    """IID users with equally many examples; cohorts and initial models differ between seeds."""
    rows = fs.data.partition.iid(len(dataset.train["y"]), options.users, seed=0)
    data = fs.from_assignment({key: dataset.train[key] for key in ("x", "y")}, rows)
    batches = fs.epochs(1, BATCH_SIZE)
    task = fs.empirical_task(fs.objectives.cross_entropy(model.apply), data, batches)
    keys = jax.vmap(jax.random.split)(seed_keys(options.seeds, root=1))
    timelines = [
        fs.timelines.uniform(key, options.rounds, options.users, COHORT, task.num_steps)
        for key in keys[:, 0]
    ]
    test = {key: dataset.test[key][: options.test_examples] for key in ("x", "y")}
    metrics = fs.evaluation.evaluator(fs.objectives.classification_metrics(model.apply), test)
    return fs.Setup(
        task,
        fs.timelines.stacked(timelines),
        jax.jit(jax.vmap(model.init))(keys[:, 1]),
        eval_fn=fs.evaluation.merge_evaluators(test=metrics),
        eval_every=options.eval_every,
    )


def reported(name: str, options: CentralOptions) -> pd.DataFrame:
    """The histories of an earlier report that differs in its targets only."""
    same = settings(options, (*MACHINE, "epsilons"))
    return reported_rows(options.folder(name), name, options=same)


def tables(name: str, setup: fs.Setup, options: CentralOptions) -> dict[str, pd.DataFrame]:
    """The tables of an experiment's report.  Runs that an earlier one has are not repeated."""
    earlier = reported(name, options)
    noise = forecasts(options)
    runs = algorithms(noise)
    missing = runs
    if len(earlier):
        missing = {run: x for run, x in runs.items() if run not in set(earlier["run"])}
    new = histories(name, missing, setup, options) if missing else pd.DataFrame()
    both = pd.concat([earlier, new], ignore_index=True)
    rows = pd.concat([both.loc[both["run"] == run, :] for run in runs])
    size = sum(math.prod(x.shape[1:]) for x in jax.tree.leaves(setup.params))
    return {"": rows, "noise": noise_table(setup, options, noise, size)}


def histories(
    name: str, runs: Mapping[str, fs.FedAlgorithm], setup: fs.Setup, options: CentralOptions
) -> pd.DataFrame:
    """Accuracies of all seeds by round; runs have checkpoints, so a killed command continues."""
    sizes = options.rounds, options.seeds, options.noise_cohort, options.population
    folder = options.work / "-".join([name, *map(str, sizes)])

    def finished(name: str, result: fs.Simulation) -> None:
        check_finished(result, folder)
        print(f"{name}: {result.run_seconds or 0:.0f} s", flush=True)

    result = fs.compare(
        runs,
        setup,
        seed_keys(options.seeds),
        callbacks=[types.SimpleNamespace(finished=finished)],
        storage=fs.Storage(folder, config={"clip": CLIP}, checkpoint_seconds=60.0),
    )
    check_finished(result, folder)
    parts = []
    for run, file in folder_names(list(runs)).items():
        history = pd.read_csv(folder / file / "history.csv").rename(columns={"replica": "seed"})
        part = history.loc[history["metric"] == "test/accuracy", ["seed", "round", "value"]]
        parts.append(part.assign(run=run))
    return pd.concat(parts, ignore_index=True)


def noise_table(
    setup: fs.Setup, options: CentralOptions, noise: Mapping[str, fs.privacy.NoiseCohort], size: int
) -> pd.DataFrame:
    """A row per target: its noise, and the epsilon that the simulated run has itself.

    ``size`` is the number of the model's parameters.
    """
    private = algorithms(noise)
    rows = []
    for name, forecast in noise.items():
        own = fs.privacy.epsilon(private[name], setup, DELTA)
        std = forecast.noise_multiplier * CLIP / COHORT
        rows.append(
            {
                "run": name,
                "epsilon": forecast.guarantee.epsilon,
                "z": forecast.noise_multiplier * options.noise_cohort / COHORT,
                "std of the mean": std,
                "noise / clip": std * np.sqrt(size) / CLIP,
                "own epsilon": own.epsilon,
                "parameters": size,
            }
        )
    return pd.DataFrame(rows)
