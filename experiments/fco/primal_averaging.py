r"""The curse of primal averaging: clients' sparse models have a dense average.

    python -m experiments.fco.primal_averaging
    python -m experiments.fco.primal_averaging --voxels 4000 --rounds 100

Figure 1.1 of the thesis, whose example is l1-regularised logistic regression: that of the scans
(:mod:`experiments.fco.fmri`), on the stand-in if there are no recordings.  In every round: the mean
density of the clients' last models; the density of their average, for FedDualAvg of P(mean dual);
that of the server's model after its proximal step, which is tested; and its validation accuracy.
The thesis prints neither rates nor densities.  Shown are the pairs that :mod:`experiments.fco.fmri`
has selected from zeros, and two client rates at server rate 1, at which FedMiD's server applies its
proximal step to the average itself.  Entries count above 1e-4, as in the thesis's other figures of
scans.
"""

import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fco import fmri, methods, scans
from experiments.fco.brains import VOXELS
from experiments.fco.primal_averaging_report import AVERAGE, CLIENTS, SERVER, save
from experiments.harness.options import check_choice, settings
from fedjax_sim.checks import check_at_least

EVERY = 10  # rounds between evaluations


class Run(NamedTuple):
    """A method at a pair of rates."""

    method: str
    lr: float
    server_lr: float


RUNS = (
    Run("FedMiD", 3e-4, 3.0),
    Run("FedMiD", 1e-3, 1.0),
    Run("FedMiD", 1e-2, 1.0),
    Run("FedDualAvg", 1e-2, 0.1),
    Run("FedDualAvg", 1e-3, 1.0),
    Run("FedDualAvg", 1e-2, 1.0),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    source: scans.Source = "auto"  # auto: the stand-in if there are no recordings
    voxels: int = VOXELS  # of the stand-in
    rounds: int = fmri.ROUNDS
    seeds: int = 3
    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    output: pathlib.Path = pathlib.Path("experiments/results/fco")

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds, voxels=self.voxels, seeds=self.seeds)
        check_choice(source=(self.source, scans.Source))


def density(params: Any) -> jax.Array:
    """The density of a model's weights."""
    return fs.diagnostics.recovery.density(params["linear"]["kernel"], scans.CUTOFF)


def after(run: Run, shared: methods.Problem, message: Any, upload: Any) -> Any:
    """The model that a message and an upload, of one client or a mean, stand for."""
    if run.method != "FedDualAvg":
        return fs.tree.sub(message, upload.descent)
    dual, elapsed = message
    return shared.composite.argmin(fs.tree.sub(dual, upload.descent), elapsed + upload.elapsed)


def measure(run: Run, shared: methods.Problem) -> pd.DataFrame:
    """A row per seed and evaluated round: densities and validation accuracy."""
    algorithm = methods.METHODS[run.method](run.lr, shared.composite, server_lr=run.server_lr)

    def of_client(visit: fs.Visit) -> jax.Array:
        return density(after(run, shared, visit.message, visit.upload))

    def of_average(update: fs.Update) -> jax.Array:
        message = algorithm.broadcast(update.state, update.round)
        return density(after(run, shared, message, update.mean))

    probes = fs.Probes(
        client={CLIENTS: of_client},
        server={AVERAGE: of_average, SERVER: lambda update: density(update.new_state.params)},
    )
    program = jax.jit(functools.partial(fs.run, algorithm, probes=probes))
    parts = []
    for seed in range(len(shared.keys)):
        timeline, params = jax.tree.map(lambda x, i=seed: x[i], (shared.timeline, shared.params))
        setup = fs.Setup(
            shared.task, timeline, params, eval_fn=shared.eval_fn, eval_every=EVERY,
            weighting=fs.weight_by_examples,
        )  # fmt: skip
        _, history = program(setup, shared.keys[seed])
        rounds = np.asarray(history.round)
        columns = {scans.ACCURACY: np.asarray(history.metrics[scans.ACCURACY])}
        for name, values in history.probes.items():
            in_rounds = values.reshape(len(values), -1).mean(axis=1)  # over the cohort
            columns[name] = np.asarray(in_rounds)[rounds - 1]
        parts.append(pd.DataFrame({"round": rounds, "seed": seed, **columns}))
        print(f"{run}: seed {seed}", flush=True)
    label = f"{run.method}, {run.lr:g}, {run.server_lr:g}"
    return pd.concat(parts, ignore_index=True).assign(run=label)


def main(options: Options) -> None:
    """Runs the methods and writes the report."""
    data = scans.load(options.source, options.voxels, options.data_dir)
    shared = scans.make_problem(
        data.scans, data.scans.train, weight=fmri.WEIGHT, batches=fs.epochs(1, 1),
        rounds=options.rounds, cohort=fmri.COHORT, seeds=options.seeds,
    )  # fmt: skip
    history = pd.concat([measure(run, shared) for run in RUNS], ignore_index=True)
    facts = {"options": settings(options), "data": data.label, "lambda": fmri.WEIGHT}
    save(options.output / "primal_averaging", history, facts)


if __name__ == "__main__":
    main(tyro.cli(Options))
