"""Settings of the FedSWA paper (section 6, Tables 2 and 7), scales and options.

All methods of a comparison run with the same partition, cohorts, initial models, minibatches and
augmentations.  Where the paper is silent: weight decay 1e-3 and clipping at norm 10, which the
authors' programs have for every method but FedSAM and MoFedSAM ("FedSAM-program" has neither); the
decay of the rate is that of the text, 0.998 per round from the second round on.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from experiments.fedswa.methods import LR, LR_DECAY, METHODS
from experiments.harness import Folders, check_grid, check_names, counted
from fedjax_sim.checks import check_at_least

# Section 6.1 and Table 7.
NUM_CLIENTS, COHORT, BATCH_SIZE, NUM_EPOCHS, MAX_STEPS = 100, 10, 50, 5, 50
PARTITION_SEED = 42  # of the authors' programs
NARROW, PUBLISHED = (6, 16, 120, 84), (64, 64, 384, 192)  # LeNet-5: channels, units
ACCURACY, TRAIN_LOSS, TEST_LOSS = "test/accuracy", "train/loss", "test/loss"
METRICS = (ACCURACY, TEST_LOSS, TRAIN_LOSS)  # of the reports
HELD_OUT, HELD_OUT_SHARE = "held_out/accuracy", 0.1  # of the training data, for choosing rates


class Setting(NamedTuple):
    """A column of a table."""

    name: str
    dataset: str
    model: str
    concentration: float  # of the Dirichlet distribution
    rounds: int
    target: float  # percent
    num_clients: int = NUM_CLIENTS
    cohort: int = COHORT


COLUMNS = {
    f"{dataset}-{model}": Setting(f"{dataset}-{model}", dataset, model, 0.6, 1000, target)
    for dataset, targets in (("cifar10", (78, 80, 85)), ("cifar100", (52, 53, 55)))
    for model, target in zip(("lenet5", "vgg11", "resnet18"), targets, strict=True)
}


def skewed(setting: Setting, concentration: float | None = None) -> Setting:
    """The setting at another skew; its name contains the skew."""
    concentration = setting.concentration if concentration is None else concentration
    name = f"{setting.name}-dirichlet{concentration:g}"
    return setting._replace(name=name, concentration=concentration)


class Scale(NamedTuple):
    """The part of the paper's setting that is run."""

    rounds: float  # share of the paper's rounds
    clients: int  # number of clients that take part; each keeps its data
    lenet5: tuple[int, int, int, int]  # channels and units
    eval_every: int
    train_examples: int | None  # for the training loss; None: all
    max_steps: int = MAX_STEPS  # local steps per visit
    test_examples: int | None = None  # for test loss and accuracy; None: all

    def described(self) -> dict[str, Any]:
        """Identity of finished runs, as the first kept ones have it.

        Later fields at their defaults do not change it, and the widths are named only if they are
        neither the narrow nor the paper's.
        """
        defaults, values = self._field_defaults, self._asdict()
        widths = values.pop("lenet5")
        values["narrow"] = widths == NARROW
        if widths not in (NARROW, PUBLISHED):
            values["lenet5"] = widths
        return {
            name: value
            for name, value in values.items()
            if name not in defaults or value != defaults[name]
        }


SCALES = {
    "paper": Scale(1.0, 100, PUBLISHED, 1, None),
    "gpu": Scale(1.0, 100, PUBLISHED, 5, 5000),  # the paper's, with fewer evaluations
    "cpu": Scale(0.2, 100, NARROW, 5, 5000),
    "cpu-wide": Scale(0.2, 100, (32, 32, 192, 96), 5, 5000),
    "smoke": Scale(0.002, 10, NARROW, 1, 500, max_steps=3, test_examples=500),
}


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of every experiment."""

    scale: Literal["paper", "gpu", "cpu", "cpu-wide", "smoke"] = "cpu"
    rounds: int | None = None  # instead of the scale's
    seeds: int = 1
    methods: tuple[str, ...] = ()  # default: all of the table
    lrs: tuple[float, ...] = (0.03, 0.1, 0.3)  # candidates of the pilot
    pilot_rounds: int = 30  # 0: no pilot, every method has lr 0.1
    pilot_on: Literal["held-out", "test"] = "held-out"  # data whose accuracy decides
    compressed: bool = False  # the rate falls as much over the rounds run as over the paper's
    # Parameters of a vision transformer, see models.load_vit.
    pretrained: pathlib.Path | None = None
    checkpoints: bool = False  # of every run: a killed one continues, and its final state is kept
    finished: bool = False  # report the finished runs of --work and start none
    work: pathlib.Path = pathlib.Path("results/fedswa")  # finished runs, to continue from

    def __post_init__(self) -> None:
        check_at_least(1, seeds=self.seeds, rounds=1 if self.rounds is None else self.rounds)
        check_at_least(0, pilot_rounds=self.pilot_rounds)
        check_grid(lrs=self.lrs)
        check_names("methods", self.methods, METHODS, empty=True)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The options that a report's JSON file names."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: v for name, v in facts["options"].items() if name in names})

    @property
    def size(self) -> Scale:
        """The chosen scale."""
        return SCALES[self.scale]

    @property
    def label(self) -> str:
        """Name of the folder of results: the scale, and whether the decay is compressed."""
        return f"{self.scale}-compressed" if self.compressed else self.scale

    def folder(self, experiment: str) -> pathlib.Path:
        """Folder of an experiment's results; its name has ``rounds`` if they are given."""
        rounds = "" if self.rounds is None else f"-{self.rounds}"
        return self.output / "fedswa" / f"{experiment}-{self.label}{rounds}"

    def file(self, setting: Setting) -> str:
        """Name of a setting's results; without a pilot it has the rate of all methods."""
        return setting.name if self.pilot_rounds else f"{setting.name}-lr{LR:g}"

    def num_rounds(self, setting: Setting) -> int:
        """Number of rounds to run of a setting."""
        return self.rounds or max(1, round(self.size.rounds * setting.rounds))

    def lr_decay(self, setting: Setting) -> float:
        """Factor of the rate per round."""
        if not self.compressed:
            return LR_DECAY
        return LR_DECAY ** (setting.rounds / self.num_rounds(setting))


@dataclasses.dataclass(frozen=True)
class OneColumn(Options):
    """Options of an experiment on one column of Table 2."""

    column: str = "cifar10-lenet5"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("column", self.column, COLUMNS)


def describe(setting: Setting, options: Options) -> str:
    """One line: the part of the paper's setting that was run."""
    scale, model = options.size, setting.model
    if model == "lenet5":
        widths, program = ("-".join(map(str, x)) for x in (scale.lenet5, PUBLISHED))
        model = f"LeNet-5 {widths}" + f" (authors' program: {program})" * (widths != program)
    decay = options.lr_decay(setting)
    falling = f", rates times {decay:.4g} per round (paper: {LR_DECAY})" * options.compressed
    rounds, part = options.num_rounds(setting), min(scale.clients, setting.num_clients)
    rates = f"lr {LR:g} for all methods"
    if options.pilot_rounds:
        rates = (
            f"rates by the {options.pilot_on} accuracy after a pilot of {options.pilot_rounds} "
            f"rounds of seed 0 ({', '.join(f'{lr:g}' for lr in options.lrs)})"
        )
    return (
        f"scale {options.scale}: {model} on {setting.dataset}, "
        f"Dirichlet {setting.concentration:g}, {rounds} of the paper's {setting.rounds} rounds, "
        f"{part} of {setting.num_clients} clients, {min(setting.cohort, part)} per round, "
        f"up to {scale.max_steps} of {MAX_STEPS} local steps of {BATCH_SIZE}, "
        f"{counted(options.seeds, 'seed')}{falling}; {rates}"
    )
