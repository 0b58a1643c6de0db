"""Sparse logistic regression on scans of brains, a client being a session.

    python -m experiments.fco_fmri                      # Haxby et al. if at hand, else a stand-in
    python -m experiments.fco_fmri --voxels 4000 --rounds 100

Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021; section 4.5.4 of Yuan, "On Principled
Local Optimization Methods for Federated Learning", 2023: is a picture a house or a face?  Five
subjects train, the sixth validates.  Rates are selected by the lowest validation loss, l1 penalty
included, in the last round; entries of at most 1e-4 count as zero.

Without the recordings (``nilearn``'s folder ``haxby2001`` in the data directory) the data are a
SYNTHETIC STAND-IN of the same shapes, :func:`fedjax_sim.problems.fmri.sparse_classification`, which
every output says.

Where the paper is silent: lambda, of 0.01, 0.02, 0.03 and 0.05 the one at which the centralised
baseline is most accurate on the stand-in, and has as many non-zero weights as the truth; the start
(zeros); the baselines' steps use all their data, one an epoch; the client that trains alone is the
first one.
"""

import dataclasses
import os
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments import fco_grid as grid
from experiments.fco_common import LRS, SERVER_LRS, check_counts, swept
from experiments.fco_fmri_report import (
    ACCURACY,
    DENSITY,
    LOSS,
    claims,
    progress,
    reaches,
    scatter,
)
from experiments.fco_report import claims_table
from fedjax_sim import models, objectives, prox
from fedjax_sim.data.batches import Batches
from fedjax_sim.data.federated import FederatedData
from fedjax_sim.datasets.names import DATA_DIR_VARIABLE
from fedjax_sim.diagnostics.recovery import density
from fedjax_sim.evaluation import evaluator, merge_evaluators
from fedjax_sim.execution.devices import use_all_cores
from fedjax_sim.problems import fmri

COHORT, ROUNDS, EPOCHS = 20, 300, 300  # batch 1, one epoch a round
BASELINE_LRS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
CUTOFF = 1e-4
SHOWN = (LOSS, ACCURACY, DENSITY)
# Not the paper's:
WEIGHT = 0.02  # lambda
EVALUATED = 10  # rounds between evaluations
PROBLEM_SEED = 0

Source = Literal["auto", "haxby", "synthetic"]


@dataclasses.dataclass(frozen=True)
class Options(grid.Options):
    """Options of this experiment."""

    source: Source = "auto"  # auto: the stand-in where there are no recordings
    voxels: int = fmri.VOXELS  # of the stand-in
    weight: Annotated[float, tyro.conf.arg(name="lambda")] = WEIGHT

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(voxels=self.voxels)
        if self.source not in get_args(Source):
            raise ValueError(f"source is {self.source!r}; expected one of {get_args(Source)}")
        if not self.weight >= 0:
            raise ValueError(f"lambda is {self.weight}; expected at least 0")

    @property
    def num_rounds(self) -> int:
        """The rounds to run."""
        return ROUNDS if self.rounds is None else self.rounds

    def folder(self, data: "Data") -> str:
        """What was run, in a word."""
        name = "haxby" if data.real else f"standin-{data.scans.train.examples['x'].shape[1]}"
        return f"{name}{'' if self.weight == WEIGHT else f'-lambda{self.weight:g}'}"


class Data(NamedTuple):
    """Scans, and whether they are anybody's."""

    scans: fmri.Scans
    real: bool

    @property
    def label(self) -> str:
        """For titles."""
        return "Haxby et al." if self.real else "SYNTHETIC STAND-IN, no recordings"


def load(options: Options) -> Data:
    """The recordings or the stand-in."""
    where = options.data_dir or os.environ.get(DATA_DIR_VARIABLE) or None
    if options.source == "haxby" or (options.source == "auto" and fmri.is_at_hand(where)):
        if where is None:
            raise ValueError(
                f"data_dir is not given and {DATA_DIR_VARIABLE} is not set; expected it"
            )
        return Data(fmri.haxby(where), True)
    nonzero = max(options.voxels * 5 // 1000, 1)
    scans = fmri.sparse_classification(PROBLEM_SEED, dim=options.voxels, num_nonzero=nonzero)
    return Data(scans, False)


class _Measured(NamedTuple):
    """The static part of an evaluation."""

    composite: prox.Composite

    def __call__(self, means: Partial, params: Any) -> dict[str, jax.Array]:
        values = means(params)
        return {
            LOSS: values[LOSS] + self.composite.value(params),
            ACCURACY: values[ACCURACY],
            DENSITY: density(params["linear"]["kernel"], CUTOFF),
        }


def problem(
    scans: fmri.Scans,
    train: FederatedData,
    options: Options,
    *,
    batches: Batches,
    rounds: int,
    seeds: int,
) -> grid.Problem:
    """The model on some clients' data, ready to run."""
    model = models.logistic_regression(scans.test.examples["x"].shape[1])
    composite = prox.composite(prox.L1(options.weight), where=prox.kernels)
    metrics = objectives.binary_classification_metrics(model.apply)
    means = merge_evaluators(validation=evaluator(metrics, scans.test.examples))
    return grid.problem(
        composite,
        fs.empirical_task(objectives.binary_cross_entropy(model.apply), train, batches),
        model.init,
        Partial(_Measured(composite), means),
        rounds=rounds,
        cohort=COHORT,
        seeds=seeds,
    )


def baseline(name: str, data: Data, options: Options) -> grid.Selected:
    """Proximal gradient descent on all train data or on one client's, at its best rate.

    That is FedMiD-OSP with one client and one step a round.
    """
    mine = data.scans.train
    rows = np.arange(mine.num_examples if name == "centralised" else int(mine.sizes[0]))
    alone = fs.from_assignment(mine.examples, [rows])
    epochs = min(EPOCHS, options.num_rounds)  # fewer for trials
    shared = problem(
        data.scans, alone, options, batches=fs.full_batch(1), rounds=epochs, seeds=1
    )  # fmt: skip
    history = swept(
        shared,
        "FedMiD-OSP",
        {"lr": BASELINE_LRS, "server_lr": (1.0,)},
        options.work / "fco_fmri" / options.folder(data) / f"{name}-{epochs}",
        eval_every=min(EVALUATED, epochs),
        config={"baseline": name, "lambda": options.weight},
    )
    return grid.select(history.assign(method=name), LOSS, 1)


def federated(data: Data, shared: grid.Problem, method: str, options: Options) -> pd.DataFrame:
    """The history of a method over its grid."""
    rounds = options.num_rounds
    return swept(
        shared,
        method,
        {"lr": options.lrs or LRS, "server_lr": options.server_lrs or SERVER_LRS},
        options.work / "fco_fmri" / options.folder(data) / f"rounds{rounds}" / method,
        eval_every=min(EVALUATED, rounds),
        config={"lambda": options.weight},
    )


def describe(data: Data, options: Options) -> str:
    """What was run of the paper's setting."""
    train, test = data.scans.train, data.scans.test
    kind = "" if data.real else (
        "**These are not the recordings of Haxby et al. but a synthetic stand-in of their shapes: "
        "nothing here is a result about brains.**  "
    )  # fmt: skip
    return (
        f"{kind}{train.num_clients} train and {test.num_clients} validation clients of "
        f"{int(train.sizes[0])} scans of {train.examples['x'].shape[1]} voxels; lambda "
        f"{options.weight:g}; {options.num_rounds} of the paper's {ROUNDS} rounds of {COHORT} "
        f"clients, batch 1, one epoch; baselines of {min(EPOCHS, options.num_rounds)} epochs; "
        f"{len(options.lrs or LRS)} client rates, "
        f"{len(options.server_lrs or SERVER_LRS)} server rates, {options.seeds} "
        f"seed{'s' if options.seeds > 1 else ''}.  Loss, accuracy and density are those of the "
        f"last round; the loss has the penalty; entries above {CUTOFF:g} count for the density"
    )


def main(options: Options) -> None:
    """Runs baselines and methods, prints and writes what was found."""
    use_all_cores()
    data = load(options)
    alone = {name: baseline(name, data, options) for name in ("centralised", "local")}
    ends = {
        name: {metric: grid.at_end(found.curves[name], metric, 1) for metric in SHOWN}
        for name, found in alone.items()
    }
    shared = problem(
        data.scans, data.scans.train, options,
        batches=fs.epochs(1, 1), rounds=options.num_rounds, seeds=options.seeds,
    )  # fmt: skip
    runs = [federated(data, shared, method, options) for method in options.methods]
    history = pd.concat(runs, ignore_index=True)
    found = grid.select(history, LOSS, 1)
    rows = progress(history)
    shares = reaches(rows, ends["centralised"])
    told = claims(ends["centralised"], ends["local"], shares)
    title = f"Sparse logistic regression on fMRI ({data.label})"
    tables = {
        f"# {title}": f"{describe(data, options)}.",
        "## Selected runs": grid.selected_table(found, SHOWN),
        "## Baselines": pd.concat([grid.selected_table(f, SHOWN) for f in alone.values()]),
        "## The paper's claims": claims_table("fmri", told, found.curves, found.rates),
        "## Share of pairs as accurate and as sparse as the centralised baseline": shares,
    }
    text = grid.report(tables)
    print(text, flush=True)
    facts = {"data": data.label, "options": dataclasses.asdict(options), "baselines": ends}
    folder = options.output / f"fco_fmri-{options.folder(data)}"
    both = pd.concat([found.winners, *(f.winners for f in alone.values())], ignore_index=True)
    grid.save(folder, "fmri", found._replace(winners=both), text, SHOWN, facts, data.label)
    if len(rows):
        rows.to_csv(folder / "figure-4.11.csv", index=False, float_format="%.5g")
        scatter(rows, data.label).savefig(folder / "figure-4.11.png", dpi=90)


if __name__ == "__main__":
    main(tyro.cli(Options))
