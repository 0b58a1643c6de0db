"""Classification of handwriting by writer under norm constraints.

    python -m experiments.fco.emnist --clients all                  # 4a, 4b on FEMNIST, scale cpu
    python -m experiments.fco.emnist --clients all --tasks 4c
    python -m experiments.fco.emnist --dataset mnist --tasks 4a 4b
    python -m experiments.fco.emnist --scale paper --tasks 4a 4b 4c

Section 4.5.5 of the thesis.  Softmax regression on the digits with the kernel in an l1 ball (4a) or
in a Frobenius ball (4b), and a network of two hidden layers on all 62 classes whose three kernels
are each in an l1 ball (4c).  Of the digits the first tenth of the clients takes part, as in the
authors' program; ``--clients all`` is for files that hold a sample of FEMNIST's writers.  Rates are
selected by the mean training loss of the last ten evaluations.

Where the paper is silent: initial models are those of Keras, Glorot-uniform kernels and zero
biases, and FedMiD projects one that lies outside; test images are those of writers that have train
images, of all writers if none has.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fco import emnist_report, handwriting, methods
from experiments.fco.handwriting import TASKS, Scale, described_data
from experiments.harness.options import check_choice, check_names, settings
from fedjax_sim import datasets
from fedjax_sim.checks import check_at_least

COHORT, BATCH_SIZE, NUM_EPOCHS, ROUNDS = 10, 10, 10, 5000
LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of clients
SERVER_LRS = (0.01, 0.03, 0.1, 0.3, 1.0)
SHARE = 0.1  # of the clients that have digits

Data = Literal["femnist", "mnist"]
Clients = Literal["tenth", "all"]
ScaleName = Literal["paper", "cpu", "smoke"]

SCALES: dict[ScaleName, Mapping[str, Scale]] = {
    "paper": dict.fromkeys(TASKS, Scale(ROUNDS, None, None, None)),
    # 25 pairs of rates, four methods: 4a and 4b together, and 4c, take 45 to 60 minutes each on
    # two idle cores.
    "cpu": {
        **dict.fromkeys(("4a", "4b"), Scale(2000, 110, None, None)),
        "4c": Scale(250, 50, 30, 1000),
    },
    "smoke": dict.fromkeys(TASKS, Scale(2, 10, 3, 200)),
}


@dataclasses.dataclass(frozen=True)
class Options(methods.Options):
    """Options of this experiment."""

    dataset: Data = "femnist"
    tasks: tuple[str, ...] = ("4a", "4b")
    scale: ScaleName = "cpu"
    rounds: int | None = None  # default: the scale's
    clients: Clients = "tenth"  # of the writers that have digits
    lrs: tuple[float, ...] = LRS
    server_lrs: tuple[float, ...] = SERVER_LRS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(
            dataset=(self.dataset, Data),
            scale=(self.scale, ScaleName),
            clients=(self.clients, Clients),
        )
        check_at_least(1, rounds=1 if self.rounds is None else self.rounds)
        check_names("tasks", self.tasks, TASKS)
        if self.dataset == "mnist" and any(TASKS[name].classes > 10 for name in self.tasks):
            raise ValueError(f"tasks is {self.tasks}; expected 4a, 4b with mnist, which has digits")

    def limits(self, name: str) -> Scale:
        """The scale of a task, with the rounds that were asked for."""
        limits = SCALES[self.scale][name]
        return limits if self.rounds is None else limits._replace(rounds=self.rounds)

    def tenth(self, name: str) -> bool:
        """True if only a tenth of the clients takes part in a task."""
        return TASKS[name].sampled and self.clients == "tenth"

    def folder(self) -> str:
        """The name of the folder for these options."""
        return f"{self.dataset}-{self.scale}{'-all' if self.clients == 'all' else ''}"


def make_problem(
    name: str, dataset: datasets.Dataset, options: Options
) -> tuple[methods.Problem, fs.FederatedData]:
    """A task and its clients."""
    limits = options.limits(name)
    batches = fs.epochs(NUM_EPOCHS, BATCH_SIZE, limits.max_steps)
    share = SHARE if options.tenth(name) else 1.0
    return handwriting.make_problem(
        TASKS[name], dataset, limits, batches, share=share, cohort=COHORT, seeds=options.seeds
    )


def trained(name: str, shared: methods.Problem, options: Options) -> pd.DataFrame:
    """The tidy history of every method over its grid."""
    limits = options.limits(name)
    return methods.run_all(
        shared,
        options,
        options.work / "fco_emnist" / options.folder() / f"{name}-{limits.rounds}",
        eval_every=limits.eval_every,
        identity={"task": name, "constraint": TASKS[name].constraint._asdict()},
    )


def main(options: Options) -> None:
    """Runs the tasks and writes their reports."""
    fs.execution.use_all_cores()
    dataset = datasets.load(options.dataset, options.data_dir)
    for name in options.tasks:
        shared, data = make_problem(name, dataset, options)
        history = trained(name, shared, options)
        facts = {
            "options": settings(options),
            "limits": options.limits(name)._asdict(),
            "setting": describe(name, shared, data, options),
        }
        folder = options.output / f"emnist-{options.folder()}"
        emnist_report.save(folder, name, history, facts, options.widen)


def describe(name: str, shared: methods.Problem, data: fs.FederatedData, options: Options) -> str:
    """The part of the paper's setting that was run."""
    limits, total = options.limits(name), data.num_examples
    capped = "" if limits.max_steps is None else f" (at most {limits.max_steps})"
    return (
        f"Scale {options.scale}: {options.dataset}, {TASKS[name].classes} classes, "
        f"{'first tenth of the writers' if options.tenth(name) else 'writers'}: "
        f"{described_data(shared, data)}{capped}; {limits.rounds} of the paper's {ROUNDS} rounds "
        f"of {min(COHORT, data.num_clients)} clients, {NUM_EPOCHS} epochs of batches of "
        f"{BATCH_SIZE}; evaluated every {limits.eval_every} rounds, the training loss on "
        f"{min(limits.train_examples or total, total)} examples"
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
