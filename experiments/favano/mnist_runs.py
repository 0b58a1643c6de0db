"""Settings and runs of FAVANO's Table 2: a small network on MNIST."""

import dataclasses
import pathlib
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd
from jax import Array

import fedjax_sim as fs
from experiments.favano import clock_runs
from experiments.favano.methods import Clock, Method, Variance
from experiments.favano.problem import Problem, Split, assignment
from experiments.harness import Folders, check_names, subsample
from fedjax_sim.checks import check_at_least
from fedjax_sim.types import Params

LR, BATCH_SIZE, HIDDEN = 0.5, 128, 32
MEAN, STD = 0.1307, 0.3081  # of the train pixels / 255
HORIZON, EVAL_TIME = 5000.0, 100.0
SERVER_LRS = (0.03, 0.1, 0.3, 1.0)  # FedBuff's, tried on one seed each
# (split, fraction of slow clients) of each column.
SETTINGS: dict[str, tuple[Split, float]] = {
    "IID, 2/3 fast": ("iid", 1 / 3),
    "non-IID, 2/3 fast": ("shards", 1 / 3),
    "non-IID, 1/9 fast": ("shards", 8 / 9),
}


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    part: Literal["table", "sensitivity", "iid", "factorial", "others", "variance"] = "table"
    seeds: int | None = None  # default: 10 for the table, 3 for the others
    further_seeds: int = 10  # that report what the factorial selects
    horizon: float = HORIZON  # simulated time; the paper's is 5000
    settings: tuple[str, ...] = tuple(SETTINGS)
    work: pathlib.Path = pathlib.Path("results/favano_mnist")  # finished runs, to continue from

    def __post_init__(self) -> None:
        check_names("settings", self.settings, SETTINGS)
        check_at_least(1, seeds=self.num_seeds, further_seeds=self.further_seeds)

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        if self.seeds is None:
            return 10 if self.part == "table" else 3
        return self.seeds

    @property
    def facts(self) -> dict[str, float]:
        """The part of the paper's setting that is run."""
        return {"horizon": self.horizon, "seeds": self.num_seeds}

    @property
    def skewed_settings(self) -> list[str]:
        """The chosen settings whose clients have two classes each."""
        return [setting for setting in self.settings if SETTINGS[setting][0] != "iid"]

    @property
    def folder(self) -> pathlib.Path:
        """Folder of the results."""
        return self.output / "favano" / "mnist"


class Changes(NamedTuple):
    """Changes of the problem that Table 2 leaves open; None is the default."""

    standardised: bool = False  # pixels less their mean, by their deviation; else from [0, 1]
    lecun_init: bool = False  # kernels normal with variance 1 / fan-in, biases 0
    batch_size: int | None = None
    with_replacement: bool = False  # minibatches; else from epochs that continue over contacts
    train_examples: int | None = None  # of all clients together
    lr: float | None = None


UNCHANGED = Changes()


def problem(
    dataset: fs.datasets.Dataset, split: Split, num_clients: int = 100, changes: Changes = UNCHANGED
) -> Problem:
    """The paper's network and rates on one of the splits."""
    model = fs.models.mlp(dataset.train["x"].shape[1:], (HIDDEN,), dataset.num_classes)
    train = subsample(dataset.train, changes.train_examples)
    apply = model.apply
    if changes.standardised:
        apply = fs.data.augmentation.normalized(apply, MEAN, STD)
    batches = fs.with_replacement if changes.with_replacement else fs.stream
    return Problem(
        examples={key: jnp.asarray(value) for key, value in train.items()},
        assignment=assignment(train["y"], split, num_clients),
        objective=fs.objectives.cross_entropy(apply),
        batches=batches(changes.batch_size or BATCH_SIZE, Clock().max_steps),
        init=model.init if changes.lecun_init else lambda key: uniform_start(model, key),
        evaluate=fs.evaluation.evaluator(fs.objectives.classification_metrics(apply), dataset.test),
        lr=changes.lr or LR,
    )


def uniform_start(model: fs.models.Model, key: Array) -> Params:
    """PyTorch's initial values of linear layers: uniform within +-1 / sqrt(fan-in)."""
    layers = model.init(key)
    keys = jax.random.split(key, 2 * len(layers))
    start = {}
    for i, (name, layer) in enumerate(sorted(layers.items())):
        bound = layer["kernel"].shape[1] ** -0.5
        start[name] = {
            part: jax.random.uniform(
                keys[2 * i + j], layer[part].shape, minval=-bound, maxval=bound
            )
            for j, part in enumerate(("kernel", "bias"))
        }
    return start


class Runs:
    """Runs of methods in the settings, kept on disk."""

    def __init__(self, options: Options):
        self.options = options
        self.dataset = fs.datasets.load("mnist", data_dir=options.data_dir)

    def __call__(
        self,
        method: Method,
        setting: str,
        seeds: range,
        *,
        split: Split | None = None,
        changes: Changes = UNCHANGED,
        variance: Variance = "none",
        **clock: Any,
    ) -> pd.DataFrame:
        usual, slow = SETTINGS[setting]
        split = split or usual
        changed = {
            name: value
            for name, value in changes._asdict().items()
            if value != getattr(UNCHANGED, name)
        }
        frame = clock_runs.run(
            problem(self.dataset, split, changes=changes),
            Clock(slow, self.options.horizon, **clock), method, seeds, eval_time=EVAL_TIME,
            variance=variance, work=self.options.work, facts={"split": split, **changed},
        )  # fmt: skip
        return frame.assign(setting=setting)
