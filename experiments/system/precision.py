"""The effect of the precision of local steps on the trained models.

    python -m experiments.system.precision
    python -m experiments.system.precision --dataset femnist --partition natural --rounds 60
    python -m experiments.system.precision --model small-resnet --algorithms fedavg --seeds 5

With ``--dataset cifar10 --model lenet5 --algorithms fedavg --seeds 3 --lr 0.1 --alpha 0.6
--batch-size 50 --local-steps 50 --eval-every 10`` it takes an hour of one core.

The comparison of ``fedjax-sim run`` in every precision that the machine supports, beside the same
runs in float64: the same initial models, cohorts and minibatches, so that differences come from the
arithmetic alone.  bfloat16 applies to local gradients; iterates, uploads and the server are in
float32.  TF32 exists on GPUs only and is left out elsewhere, where products requested in it are
computed in float32.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness import Folders, check_finished, save_report, settings
from experiments.harness.data import dirichlet_uniform_prior
from experiments.system.precision_report import EXACT, build, effect
from fedjax_sim.cli.run import compare
from fedjax_sim.datasets import Dataset
from fedjax_sim.studies.setups import Dirichlet, Run, Study, resolve
from fedjax_sim.studies.setups import options as run_options

PRECISIONS = ("float32", "tf32", "bfloat16")
OWN = {
    "small-resnet": lambda: fs.models.resnet(  # of digits
        10, channels=(8, 16), blocks=(1, 1), image_channels=1
    )
}


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    algorithms: tuple[str, ...] = ("fedavg", "scaffold", "fedadam")
    dataset: str = "digits"
    model: str | None = None  # of the command line, or of OWN; default: the data set's
    partition: Literal["dirichlet", "iid", "natural"] = "dirichlet"
    rounds: int = 100
    seeds: int = 10
    cohort_size: int | None = None  # default: as of a run
    local_steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None  # of all algorithms
    alpha: float | None = None  # of the Dirichlet partition
    eval_every: int | None = None
    work: pathlib.Path = pathlib.Path("results/precision")  # finished runs, to continue from

    @property
    def name(self) -> str:
        """Name of the results."""
        return "-".join(filter(None, (self.dataset, self.model)))


def available() -> list[str]:
    """The precisions that this machine supports besides float64."""
    return [name for name in PRECISIONS if name != "tf32" or jax.default_backend() == "gpu"]


def _rows(run: Run) -> Callable[[Dataset, int], Sequence[np.ndarray]]:
    """Returns the partition of committed results, with the numbers of the options."""
    assert isinstance(run.partition, Dirichlet)
    clients, alpha = run.population.num_clients, run.partition.alpha
    return functools.partial(dirichlet_uniform_prior, num_clients=clients, alpha=alpha)


def histories(options: Options, precisions: tuple[str, ...]) -> pd.DataFrame:
    """Histories in all precisions: algorithm, seed, round, metric, value, precision."""
    parts = []
    own = OWN[options.model]() if options.model in OWN else None
    names = ("cohort_size", "local_steps", "batch_size", "lr", "alpha", "eval_every")
    names += ("model",) if own is None else ()
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    for precision in precisions:
        run = run_options(
            algorithms=options.algorithms,
            dataset=options.dataset,
            partition=options.partition,
            rounds=options.rounds,
            seeds=options.seeds,
            precision=precision,
            data_dir=options.data_dir,
            output=options.work / options.name / precision,
            **given,
        )
        rows = _rows(run) if options.partition == "dirichlet" else None
        result = compare(resolve(Study(run, rows=rows, model=own)))
        check_finished(result, run.output)
        parts.append(result.history.assign(precision=precision))
    return pd.concat(parts, ignore_index=True)


def main(options: Options) -> None:
    """Runs all precisions, prints and writes their table."""
    table = effect(histories(options, (*available(), EXACT)))
    folder = options.output / "system" / "precision"
    save_report(folder, options.name, {"": table}, build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
