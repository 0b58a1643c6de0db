"""Options of the comparison on PFLlib's benchmark, and the description of its setting."""

import dataclasses
import pathlib
from typing import Literal

from experiments.harness.options import Folders, check_choice, check_names, counted
from experiments.personalised.methods import DEFAULT, METHODS
from experiments.personalised.problem import ALPHA, BATCH_SIZE, CLIENTS, LR
from fedjax_sim.checks import check_at_least

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
        return f"{self.dataset}_{self.rounds}_rounds{part}"

    @property
    def folder(self) -> pathlib.Path:
        """Folder of the report."""
        return self.output / "pfllib"


def described(options: Options, seeds: int) -> str:
    """The setting that was run."""
    rate = f"rate {LR}, batches of {BATCH_SIZE}, one epoch per round"
    data = "all examples" if options.examples is None else f"{options.examples} examples"
    return (
        f"{CLIENTS} clients, all in every round, labels by PFLlib's Dirichlet({ALPHA}), {data}; "
        f"{rate}, {options.rounds} rounds, {counted(seeds, 'seed')}.  Accuracies in % on "
        "the clients' own test examples, personal models, in the best evaluated round of a run."
    )
