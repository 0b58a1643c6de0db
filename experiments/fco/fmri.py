"""Sparse logistic regression on scans of brains, a client being a session.

    python -m experiments.fco.fmri                      # Haxby et al. if available, else a stand-in
    python -m experiments.fco.fmri --voxels 4000 --rounds 100

Section 4.5.4 of the thesis: is a picture a house or a face?  Five subjects train, the sixth
validates.  Rates are selected by the lowest validation loss, l1 penalty included, in the last
round; entries of at most 1e-4 count as zero.

Without the recordings (``nilearn``'s folder ``haxby2001`` in the data directory) the data are a
SYNTHETIC STAND-IN of the same shapes, :func:`experiments.fco.brains.sparse_classification`, and
every output says so.

Where the paper is silent: lambda, of 0.01, 0.02, 0.03 and 0.05 the one at which the centralised
baseline is most accurate on the stand-in, and has as many non-zero weights as the truth; the
initial model (that of the authors' program, a Keras layer: Glorot-uniform weights and no bias, for
the baselines, too); the baselines' steps use all their data, one step per epoch; the client that
trains alone is the first one.
"""

import dataclasses
from typing import Annotated

import numpy as np
import tyro

import fedjax_sim as fs
from experiments.fco import fmri_report, methods, scans
from experiments.fco.brains import VOXELS
from experiments.fco.scans import CUTOFF, LOSS, METRICS, Data, Source
from experiments.fco.selection import Selected, select
from experiments.harness.options import check_choice, settings
from fedjax_sim.checks import check_at_least

COHORT, ROUNDS, EPOCHS = 20, 300, 300  # batch 1, one epoch per round
BASELINE_LRS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# Not the paper's:
WEIGHT = 0.02  # lambda
EVAL_EVERY = 10  # rounds


@dataclasses.dataclass(frozen=True)
class Options(methods.Options):
    """Options of this experiment."""

    known_methods = methods.PENALTY_METHODS

    methods: tuple[str, ...] = tuple(methods.PENALTY_METHODS)
    source: Source = "auto"  # auto: the stand-in if there are no recordings
    rounds: int = ROUNDS
    voxels: int = VOXELS  # of the stand-in
    weight: Annotated[float, tyro.conf.arg(name="lambda")] = WEIGHT

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, rounds=self.rounds, voxels=self.voxels)
        check_choice(source=(self.source, Source))
        check_at_least(0, **{"lambda": self.weight})

    def folder(self, data: Data) -> str:
        """The name of the folder for these options."""
        name = "haxby" if data.real else f"standin-{data.scans.train.examples['x'].shape[1]}"
        return f"{name}{'' if self.weight == WEIGHT else f'-lambda{self.weight:g}'}"


def baseline(name: str, data: Data, options: Options) -> Selected:
    """Proximal gradient descent on all train data or on one client's, at its best rate.

    That is FedMiD-OSP with one client and one step per round.
    """
    train = data.scans.train
    rows = np.arange(train.num_examples if name == "centralised" else int(train.sizes[0]))
    alone = fs.from_assignment(train.examples, [rows])
    epochs = min(EPOCHS, options.rounds)  # fewer for trials
    shared = scans.make_problem(
        data.scans, alone, weight=options.weight, batches=fs.full_batch(1), rounds=epochs,
        cohort=1, seeds=1,
    )  # fmt: skip
    history = methods.run(
        shared,
        "FedMiD-OSP",
        BASELINE_LRS,
        (1.0,),
        options.work / "fco_fmri" / options.folder(data) / f"{name}-{epochs}",
        eval_every=min(EVAL_EVERY, epochs),
        identity={"baseline": name, "lambda": options.weight},
    )
    return select(history.assign(method=name), LOSS, 1)


def describe(data: Data, options: Options) -> str:
    """The part of the paper's setting that was run."""
    train, test = data.scans.train, data.scans.test
    kind = "" if data.real else (
        "**These are not the recordings of Haxby et al. but a synthetic stand-in of their shapes: "
        "nothing here is a result about brains.**  "
    )  # fmt: skip
    return (
        f"{kind}{train.num_clients} train and {test.num_clients} validation clients of "
        f"{int(train.sizes[0])} scans of {train.examples['x'].shape[1]} voxels; lambda "
        f"{options.weight:g}; {options.rounds} of the paper's {ROUNDS} rounds of {COHORT} "
        f"clients, batch 1, one epoch; baselines of {min(EPOCHS, options.rounds)} epochs.  Loss, "
        "accuracy and density are those of the last round; the loss has the penalty; entries "
        f"above {CUTOFF:g} count for the density"
    )


def main(options: Options) -> None:
    """Runs baselines and methods and writes the report."""
    fs.execution.use_all_cores()
    data = scans.load(options.source, options.voxels, options.data_dir)
    baselines = {name: baseline(name, data, options) for name in fmri_report.BASELINES}
    shared = scans.make_problem(
        data.scans, data.scans.train, weight=options.weight, batches=fs.epochs(1, 1),
        rounds=options.rounds, cohort=COHORT, seeds=options.seeds,
    )  # fmt: skip
    history = methods.run_all(
        shared,
        options,
        options.work / "fco_fmri" / options.folder(data) / f"rounds{options.rounds}",
        eval_every=min(EVAL_EVERY, options.rounds),
        identity={"lambda": options.weight},
    )
    history = history.loc[history["metric"].isin(METRICS)]
    facts = {
        "data": data.label,
        "options": settings(options),
        "setting": describe(data, options),
        "baselines": {
            name: {metric: alone.at_end(name, metric) for metric in METRICS}
            for name, alone in baselines.items()
        },
    }
    folder = options.output / f"fmri-{options.folder(data)}"
    fmri_report.save(folder, history, baselines, facts, options.widen)


if __name__ == "__main__":
    main(tyro.cli(Options))
