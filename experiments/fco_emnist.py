"""Classification of handwriting by writer under norm constraints.

    python -m experiments.fco_emnist --clients all                  # 4a, 4b on FEMNIST, scale cpu
    python -m experiments.fco_emnist --clients all --tasks 4c
    python -m experiments.fco_emnist --dataset mnist --tasks 4a 4b
    python -m experiments.fco_emnist --scale paper --tasks 4a 4b 4c

Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021; section 4.5.5 of Yuan, "On Principled
Local Optimization Methods for Federated Learning", 2023.  Softmax regression on the digits with the
kernel in an l1 ball (4a) or in a Frobenius ball (4b), and a network of two hidden layers on all
62 classes whose three kernels are each in an l1 ball (4c).  Of the digits the first tenth of the
clients take part, as in the authors' program; ``--clients all`` is for files that hold a sample of
FEMNIST's writers.  Rates are selected by the mean training loss of the last ten evaluations.

Where the paper is silent: initial models are those of Keras, Glorot-uniform kernels and zero
biases, and FedMiD projects one that lies outside; test images are those of writers that have train
images, of all writers where there is none.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments import fco_grid as grid
from experiments.fco_common import METHODS, Claim, check_names, swept
from experiments.fco_emnist_problem import (
    SIZE,
    TASKS,
    Measured,
    build_model,
    first_classes,
    writers,
)
from experiments.fco_report import claims_table
from experiments.fedswa_common import some
from experiments.femnist_heterogeneity import pooled_test
from fedjax_sim import datasets, objectives, prox
from fedjax_sim.evaluation import evaluator, merge_evaluators
from fedjax_sim.execution.devices import use_all_cores

COHORT, BATCH_SIZE, NUM_EPOCHS, ROUNDS = 10, 10, 10, 5000
LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of clients
SERVER_LRS = (0.01, 0.03, 0.1, 0.3, 1.0)
EVALUATIONS, LAST = 50, 10  # in a run; those that runs are compared by
SHARE = 0.1  # of the clients that have digits
SHOWN = ("train/loss", "train/accuracy", "test/accuracy")
# Not the paper's, which shows curves:
NEARLY, CLEARLY = 0.02, 1.5  # curves that coincide; a loss that is far above another
BOUNDARY = 0.999  # of a radius

Data = Literal["femnist", "mnist"]
Clients = Literal["tenth", "all"]
ScaleName = Literal["paper", "cpu", "smoke"]


class Scale(NamedTuple):
    """How much of the paper's setting is run; None: no limit."""

    rounds: int
    clients: int | None  # that take part
    max_steps: int | None  # of a visit; the paper's ten epochs are about a hundred
    train_examples: int | None  # of which the training loss is taken


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
class Options(grid.Options):
    """Options of this experiment."""

    dataset: Data = "femnist"
    tasks: tuple[str, ...] = ("4a", "4b")
    scale: ScaleName = "cpu"
    clients: Clients = "tenth"  # of the writers that have digits

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("dataset", Data), ("scale", ScaleName), ("clients", Clients)):
            if (value := getattr(self, name)) not in get_args(known):
                raise ValueError(f"{name} is {value!r}; expected one of {get_args(known)}")
        check_names("tasks", self.tasks, TASKS)
        if self.dataset == "mnist" and any(TASKS[name].classes > 10 for name in self.tasks):
            raise ValueError(f"tasks is {self.tasks}; expected 4a, 4b with mnist, which has digits")

    def limits(self, name: str) -> Scale:
        """A task's scale, with the rounds that were asked for."""
        limits = SCALES[self.scale][name]
        return limits if self.rounds is None else limits._replace(rounds=self.rounds)

    def folder(self) -> str:
        """What was run, in a word."""
        return f"{self.dataset}-{self.scale}{'-all' if self.clients == 'all' else ''}"


def problem(
    name: str, dataset: datasets.Dataset, options: Options
) -> tuple[grid.Problem, fs.FederatedData]:
    """A task, ready to run, and its clients."""
    what, limits = TASKS[name], options.limits(name)
    chosen = first_classes(dataset, what.classes)
    tenth = what.sampled and options.clients == "tenth"
    data = writers(chosen, SHARE if tenth else 1.0, limits.clients)
    model = build_model(what)
    task = fs.empirical_task(
        objectives.cross_entropy(model.apply),
        data,
        fs.epochs(NUM_EPOCHS, BATCH_SIZE, limits.max_steps),
    )
    metrics = objectives.classification_metrics(model.apply)
    means = merge_evaluators(
        train=evaluator(metrics, some(data.examples, limits.train_examples)),
        test=evaluator(metrics, pooled_test(chosen)),
    )
    shared = grid.problem(
        prox.composite(what.constraint.psi(), where=prox.kernels),
        task,
        model.init,
        Partial(Measured(what.constraint), means),
        rounds=limits.rounds,
        cohort=COHORT,
        seeds=options.seeds,
    )
    return shared, data


def run(name: str, shared: grid.Problem, method: str, options: Options) -> pd.DataFrame:
    """The history of a method over its grid."""
    limits = options.limits(name)
    rates = {"lr": options.lrs or LRS, "server_lr": options.server_lrs or SERVER_LRS}
    folder = options.work / "fco_emnist" / options.folder() / f"{name}-{limits.rounds}"
    return swept(
        shared,
        method,
        rates,
        folder / method,
        eval_every=max(limits.rounds // EVALUATIONS, 1),
        config={"task": name, "constraint": TASKS[name].constraint._asdict()},
    )


def _claims() -> tuple[Claim, ...]:
    every = tuple(METHODS)
    dual, osp, mid, mid_osp = every
    found = []
    for metric, sign, words in zip(
        SHOWN, (1, -1, -1), ("least", "highest", "highest"), strict=True
    ):
        for name in TASKS:
            others = (osp, mid, mid_osp) if name == "4a" else (mid, mid_osp)
            text = f"{dual} has the {words} {metric.replace('/', ' ')}"
            text += "" if name == "4a" else f" but for {osp}"
            check = grid.beats(dual, others, metric, LAST, sign)
            found.append(Claim((name,), (dual, *others), text, check))
    text = f"{mid} and {mid_osp} nearly coincide: training losses within {100 * NEARLY:g} %"
    near = grid.coincide((mid, mid_osp), SHOWN[0], NEARLY)
    found.append(Claim(tuple(TASKS), (mid, mid_osp), text, near))
    text = f"{osp} is close to them, too"
    near = grid.coincide((osp, mid, mid_osp), SHOWN[0], NEARLY)
    found.append(Claim(("4a",), (osp, mid, mid_osp), text, near))
    others = (dual, mid, mid_osp)
    for name, text in (("4b", "much worse"), ("4c", "off the plot")):
        text = f"{osp} is {text}: training loss above {CLEARLY:g} times the others'"
        # Above a factor times the others: below them, with both sides turned around.
        check = grid.beats(osp, others, SHOWN[0], LAST, -1, 1 / CLEARLY)
        found.append(Claim((name,), every, text, check))
    for metric in SHOWN[1:]:
        text = f"{osp} has the highest {metric.replace('/', ' ')}"
        check = grid.beats(osp, others, metric, LAST, -1)
        found.append(Claim(("4b",), every, text, check))
    return tuple(found)


CLAIMS = _claims()


def at_boundary(history: pd.DataFrame) -> float:
    """The share of evaluated models with a kernel at its ball's boundary, or close to it."""
    sizes = np.asarray(history.loc[history["metric"] == SIZE, "value"], np.float64)
    return float(np.mean(sizes > BOUNDARY))


def violations(history: pd.DataFrame) -> dict[str, float]:
    """By method the largest excess over a radius, as a share of it, at all evaluated models."""
    rows = history.loc[history["metric"] == SIZE, ["method", "value"]]
    names, sizes = np.asarray(rows["method"]), np.asarray(rows["value"], np.float64)
    # Diverged models have no size.
    return {
        str(name): max(float(np.nanmax(sizes[names == name])) - 1, 0.0)
        for name in history["method"].unique()
    }


def describe(name: str, shared: grid.Problem, data: fs.FederatedData, options: Options) -> str:
    """What was run of the paper's setting."""
    what, limits = TASKS[name], options.limits(name)
    sizes, steps = np.asarray(data.sizes), np.asarray(shared.task.num_steps)
    capped = "" if limits.max_steps is None else f", at most {limits.max_steps}"
    part = (
        "first tenth of the writers" if what.sampled and options.clients == "tenth" else "writers"
    )
    seen = min(limits.train_examples or sizes.sum(), sizes.sum())
    return (
        f"Scale {options.scale}: {options.dataset}, {what.classes} classes, {part}: "
        f"{len(sizes)} clients with {sizes.min()} to {sizes.max()} examples, {sizes.sum()} in all; "
        f"{limits.rounds} of the paper's {ROUNDS} rounds of {min(COHORT, len(sizes))} clients, "
        f"{NUM_EPOCHS} epochs of batches of {BATCH_SIZE}: {steps.min()} to {steps.max()} local "
        f"steps{capped}; {len(options.lrs or LRS)} client rates, "
        f"{len(options.server_lrs or SERVER_LRS)} server rates, {options.seeds} "
        f"seed{'s' if options.seeds > 1 else ''}; evaluated every "
        f"{max(limits.rounds // EVALUATIONS, 1)} rounds, the training loss on {seen} examples"
    )


def main(options: Options) -> None:
    """Runs the tasks, prints and writes what was found."""
    use_all_cores()
    dataset = datasets.load(options.dataset, options.data_dir)
    for name in options.tasks:
        shared, data = problem(name, dataset, options)
        history = pd.concat(
            [run(name, shared, method, options) for method in options.methods], ignore_index=True
        )
        found = grid.select(history, SHOWN[0], LAST)
        beyond = violations(history)
        more = functools.partial(_of_method, found, beyond)
        label = f"{name}, scale {options.scale}, {options.dataset}"
        text = grid.report(
            {
                f"# Task {name}: {TASKS[name].described()}": (
                    f"{describe(name, shared, data, options)}.  Largest violation of the "
                    f"constraint at any evaluated model of any run, as a share of the radius: "
                    f"{max(beyond.values()):.2g}.  Of all evaluated models "
                    f"{100 * at_boundary(history):.3g} % have a kernel at the boundary; where none "
                    "has, the methods hardly differ from FedAvg."
                ),
                "## Best rates": f"By the mean training loss of the last {found.last} evaluations, "
                "over which all metrics here are means.",
                "## Selected runs": grid.selected_table(found, SHOWN, more),
                "## The paper's claims": claims_table(name, CLAIMS, found.curves, found.rates),
            }
        )
        print(text, flush=True)
        facts = {"options": dataclasses.asdict(options), "limits": options.limits(name)._asdict()}
        folder = options.output / f"fco_emnist-{options.folder()}"
        grid.save(folder, name, found, text, (*SHOWN, SIZE), facts, label)


def _of_method(found: grid.Selected, beyond: Mapping[str, float], method: str) -> dict[str, Any]:
    return {
        "norm / radius": grid.at_end(found.curves[method], SIZE, 1),
        "largest violation": beyond[method],
    }


if __name__ == "__main__":
    main(tyro.cli(Options))
