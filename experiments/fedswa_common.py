r"""What the experiments of the FedSWA paper share: settings, methods, the problem, a comparison.

Liu et al., "Improving Generalization in Federated Learning with Highly Heterogeneous Data via
Momentum-Based Stochastic Controlled Weight Averaging", 2025, section 6.  All methods of a
comparison run with the same partition, cohorts, initial models, minibatches and augmentations.

Where the paper is silent: weight decay 1e-3 and clipping at norm 10 (the authors' programs have
them), for every method; the decay of the rate is that of the text, 0.998 a round from the second
round on.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Console

import fedjax_sim as fs
from fedjax_sim import datasets, models, objectives
from fedjax_sim.analysis.selection import best, scores
from fedjax_sim.cli.console import sweep_progress
from fedjax_sim.cli.sweep import frame
from fedjax_sim.data import augmentation, partition
from fedjax_sim.evaluation import evaluator, merge_evaluators
from fedjax_sim.local import exponential_decay
from fedjax_sim.transforms import add_decayed_weights, clip_by_global_norm, transform_oracle

# Section 6.1 and Table 7.
NUM_CLIENTS, COHORT, BATCH_SIZE, NUM_EPOCHS, MAX_STEPS = 100, 10, 50, 5, 50
LR, LR_DECAY = 0.1, 0.998
LR_GRID = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
RHO, ALPHA, GAMMA = 0.1, 1.5, 0.2
# Of the authors' programs.
WEIGHT_DECAY, MAX_NORM, PARTITION_SEED = 1e-3, 10.0, 42

ACCURACY, TRAIN_LOSS, TEST_LOSS = "test/accuracy", "train/loss", "test/loss"


class Scale(NamedTuple):
    """How much of the paper's setting is run."""

    rounds: float  # share of the paper's rounds
    clients: int  # of the clients, those that take part; each keeps its data
    narrow: bool  # the classical LeNet-5 (6-16-120-84) for the paper's 64-64-384-192
    eval_every: int
    train_examples: int | None  # of them the training loss is taken; None: all
    max_steps: int = MAX_STEPS  # local steps of a visit
    test_examples: int | None = None  # of them test loss and accuracy are taken; None: all

    def described(self) -> dict[str, Any]:
        """For the folder of finished runs; later fields at their defaults do not disown them."""
        defaults = self._field_defaults
        return {
            name: value
            for name, value in self._asdict().items()
            if name not in defaults or value != defaults[name]
        }


SCALES = {
    "paper": Scale(1.0, 100, False, 1, None),
    "cpu": Scale(0.2, 100, True, 5, 5000),
    "smoke": Scale(0.002, 10, True, 1, 500, max_steps=3, test_examples=500),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of every experiment."""

    scale: Literal["paper", "cpu", "smoke"] = "cpu"
    rounds: int | None = None  # in place of the scale's
    seeds: int = 1
    methods: tuple[str, ...] = ()  # default: all of the table
    lrs: tuple[float, ...] = (0.03, 0.1, 0.3)  # tried in the pilot
    pilot_rounds: int = 30  # 0: no pilot, every method has lr 0.1
    compressed: bool = False  # the rate falls as much over the rounds run as over the paper's
    pretrained: pathlib.Path | None = None  # of a vision transformer, see models.load_vit
    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    work: pathlib.Path = pathlib.Path("results/fedswa")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("pilot_rounds", 0), ("rounds", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; expected at least {least}")
        if not self.lrs or min(self.lrs) <= 0:
            raise ValueError(f"lrs is {self.lrs}; expected positive learning rates")
        if unknown := [name for name in self.methods if name not in METHODS]:
            raise ValueError(f"methods has {unknown}; expected some of {', '.join(METHODS)}")


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


def check_column(name: str, columns: Mapping[str, Setting]) -> None:
    """Refuses a column that a table does not have."""
    if name not in columns:
        raise ValueError(f"column is {name!r}; expected one of {', '.join(columns)}")


def skewed(setting: Setting, concentration: float | None = None) -> Setting:
    """The setting at another skew, which its name says."""
    concentration = setting.concentration if concentration is None else concentration
    name = f"{setting.name}-dirichlet{concentration:g}"
    return setting._replace(name=name, concentration=concentration)


def regular(oracle: fs.Oracle) -> fs.Oracle:
    """Clipping, then decay: of the gradient that enters the step."""
    return add_decayed_weights(clip_by_global_norm(oracle, MAX_NORM, 1e-6), WEIGHT_DECAY)


def _plain(factory: Callable[..., fs.FedAlgorithm], **hyper: Any) -> Callable:
    return lambda lr, **swept: transform_oracle(factory(lr, **(hyper | swept)), regular)


def _sharp(factory: Callable[..., fs.FedAlgorithm], **hyper: Any) -> Callable:
    return lambda lr, **swept: factory(lr, transform=regular, **(hyper | swept))


# Section 6.1 and the baselines' papers; radii and momenta as the authors' programs have them.
METHODS: dict[str, Callable[..., fs.FedAlgorithm]] = {
    "FedAvg": _plain(fs.fedavg),
    "FedDyn": _plain(fs.feddyn, weight=0.01),
    "SCAFFOLD": _plain(fs.scaffold),
    "FedSAM": _sharp(fs.fedsam, radius=0.05),
    "MoFedSAM": _sharp(fs.mofedsam, radius=0.1, mix=0.1),
    "FedLESAM": _sharp(fs.fedlesam, radius=0.1),
    "FedASAM": _sharp(fs.fedasam, radius=0.5, eta=0.01),
    "FedACG": _plain(fs.fedacg, momentum=0.85, weight=0.01),
    "FedGAMMA": _sharp(fs.fedgamma, radius=0.1),
    "FedSMOO": _sharp(fs.fedsmoo, weight=0.1, radius=0.1),
    "FedAvgM": _plain(fs.fedavgm, momentum=0.9),
    "FedSWA": _plain(fs.fedswa, rho=RHO, alpha=ALPHA),
    "FedMo": _plain(fs.fedmo, gamma=GAMMA),
    "FedMoSWA": _plain(fs.fedmoswa, rho=RHO, alpha=ALPHA, gamma=GAMMA),
}


class Algorithm(NamedTuple):
    """A method whose rate is ``lr * decay^t`` in round t; equal for equal methods."""

    method: str
    decay: float = LR_DECAY

    def __call__(self, lr: Any, **hyper: Any) -> fs.FedAlgorithm:
        return METHODS[self.method](exponential_decay(lr, self.decay), **hyper)


def build_model(setting: Setting, scale: Scale, num_classes: int) -> models.Model:
    """The model of a column, on inputs normalised with CIFAR's constants, ViT-Base at 224 x 224."""
    plain = {
        "lenet5": lambda: (
            models.lenet5(num_classes)
            if scale.narrow
            else models.lenet5(num_classes, channels=(64, 64), widths=(384, 192))
        ),
        "vgg11": lambda: models.vgg11(num_classes),
        "resnet18": lambda: models.resnet18(num_classes),
        "vit_tiny": lambda: models.vit_tiny((64, 64, 3), num_classes, patch_size=8),
        "vit_base16": lambda: models.vit_base16(num_classes),
    }[setting.model]()
    apply = plain.apply
    if setting.model == "vit_base16":
        apply = functools.partial(_at_224, apply)
    apply = augmentation.normalized(apply, augmentation.CIFAR_MEAN, augmentation.CIFAR_STD)
    return models.Model(plain.init, apply)


def _at_224(apply: Callable, params: Any, x: jax.Array) -> jax.Array:
    return apply(params, jax.image.resize(x, (x.shape[0], 224, 224, 3), "bilinear"))


class Problem(NamedTuple):
    """What all methods are given; n seeds."""

    task: fs.Task
    timeline: fs.Timeline
    params: Any
    keys: jax.Array
    eval_fn: Any


def clients(setting: Setting, scale: Scale, dataset: datasets.Dataset) -> fs.FederatedData:
    """The Dirichlet clients that take part."""
    rows = partition.dirichlet(
        dataset.train["y"], setting.num_clients, setting.concentration, PARTITION_SEED
    )
    taking_part = min(scale.clients, setting.num_clients)
    images = {key: dataset.train[key] for key in ("x", "y")}
    return fs.from_assignment(images, rows[:taking_part])


def some(examples: Mapping[str, Any], count: int | None) -> dict[str, Any]:
    """Images and labels of so many examples at random, always the same ones; None: of all."""
    rows = np.arange(len(examples["y"]))
    if count is not None and count < len(rows):
        rows = np.sort(np.random.default_rng(0).choice(len(rows), count, replace=False))
    return {key: examples[key][rows] for key in ("x", "y")}


def problem(
    setting: Setting,
    scale: Scale,
    rounds: int,
    num_seeds: int,
    dataset: datasets.Dataset,
    pretrained: pathlib.Path | None = None,
) -> Problem:
    """The setting at a scale; seeds differ in cohorts, models and draws, not in the partition.

    Raises:
        ValueError: published parameters for a model that is no vision transformer.
    """
    if pretrained is not None and not setting.model.startswith("vit"):
        raise ValueError(f"pretrained is {pretrained}; expected none for {setting.model}")
    model = build_model(setting, scale, dataset.num_classes)
    data = clients(setting, scale, dataset)
    loss = augmentation.transformed(
        objectives.cross_entropy(model.apply), augmentation.crop_and_flip
    )
    task = fs.empirical_task(loss, data, fs.epochs(NUM_EPOCHS, BATCH_SIZE, scale.max_steps))
    cohort = min(setting.cohort, task.num_clients)
    # More seeds leave the first ones as they were.
    keys = jnp.stack([jax.random.fold_in(jax.random.key(0), seed) for seed in range(num_seeds)])
    draw_keys, init_keys, run_keys = jax.vmap(lambda key: jax.random.split(key, 3), out_axes=1)(
        keys
    )
    draw = functools.partial(
        fs.timelines.uniform,
        num_rounds=rounds,
        num_clients=task.num_clients,
        cohort_size=cohort,
        num_steps=task.num_steps,
    )
    metrics = objectives.classification_metrics(model.apply)
    train = some(data.examples, scale.train_examples)
    test = some(dataset.test, scale.test_examples)
    params = jax.jit(jax.vmap(model.init))(init_keys)
    if pretrained is not None:  # heads differ between seeds, the rest does not
        seeds = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(num_seeds)]
        loaded = [models.load_vit(pretrained, seed).params for seed in seeds]
        params = jax.tree.map(lambda *x: jnp.stack(x), *loaded)
    return Problem(
        task,
        jax.jit(jax.vmap(draw))(draw_keys),
        params,
        run_keys,
        merge_evaluators(train=evaluator(metrics, train), test=evaluator(metrics, test)),
    )


def run(
    setting: Setting,
    configurations: Sequence[Mapping[str, Any]],
    options: Options,
    *,
    rounds: int,
    seeds: int,
    directory: pathlib.Path,
    eval_every: int | None = None,
    decay: float = LR_DECAY,
) -> pd.DataFrame:
    """Runs ``{"method", "lr", further hyper-parameters}`` on a setting; the tidy history.

    Finished runs are kept in the directory, one for each decay of the rate, and not repeated.
    """
    scale = SCALES[options.scale]
    dataset = datasets.load(setting.dataset, options.data_dir)
    shared = problem(setting, scale, rounds, seeds, dataset, options.pretrained)
    every = min(eval_every or scale.eval_every, rounds)

    def setup(method: str) -> fs.Setup:
        return fs.Setup(
            Algorithm(method, decay),
            shared.task,
            shared.timeline,
            shared.params,
            eval_fn=shared.eval_fn,
            eval_every=every,
            config={"setting": setting._asdict(), "scale": scale.described()},
        )

    with sweep_progress(Console(stderr=True)) as on_progress:
        result = fs.sweep(
            setup,
            [dict(configuration) for configuration in configurations],
            shared.keys,
            directory=directory,
            on_progress=on_progress,
        )
    if result.interrupted:
        raise SystemExit(f"interrupted; the same command continues from {directory}")
    return frame(result)


def num_rounds(setting: Setting, options: Options) -> int:
    """The rounds to run of a setting."""
    return options.rounds or max(1, round(SCALES[options.scale].rounds * setting.rounds))


def lr_decay(setting: Setting, options: Options) -> float:
    """By which the rate is multiplied every round."""
    if not options.compressed:
        return LR_DECAY
    return LR_DECAY ** (setting.rounds / num_rounds(setting, options))


def run_label(options: Options) -> str:
    """Of a folder of results: the scale, and whether the decay is compressed."""
    return f"{options.scale}-compressed" if options.compressed else options.scale


def tuned(setting: Setting, methods: Sequence[str], options: Options) -> dict[str, float]:
    """The client rate of each method with the best test accuracy after the pilot's rounds."""
    if not options.pilot_rounds:
        return dict.fromkeys(methods, LR)
    history = run(
        setting,
        [{"method": method, "lr": lr} for method in methods for lr in options.lrs],
        options,
        rounds=options.pilot_rounds,
        seeds=1,
        eval_every=max(1, options.pilot_rounds // 6),
        directory=options.work / options.scale / f"{setting.name}-pilot{options.pilot_rounds}",
    )
    chosen = best(scores(history, ACCURACY, mode="max"), per="method", mode="max")
    return dict(zip(chosen["method"].tolist(), chosen["lr"].tolist(), strict=True))


def compared(
    setting: Setting, grid: Mapping[str, Sequence[Mapping[str, Any]]], options: Options
) -> tuple[pd.DataFrame, dict[str, float]]:
    """The history of all methods, ``{method: hyper-parameters of its runs}``, and their rates.

    The rates are those that were best in the pilot at the paper's other hyper-parameters.
    """
    lrs = tuned(setting, list(grid), options)
    rounds = num_rounds(setting, options)
    history = run(
        setting,
        [{"method": m, "lr": lrs[m], **point} for m, points in grid.items() for point in points],
        options,
        rounds=rounds,
        seeds=options.seeds,
        directory=options.work / run_label(options) / f"{setting.name}-{rounds}",
        decay=lr_decay(setting, options),
    )
    return history, lrs


def describe(setting: Setting, options: Options) -> str:
    """One line that says what was run of the paper's setting."""
    scale = SCALES[options.scale]
    model = setting.model
    if model == "lenet5":
        model = "LeNet-5 6-16-120-84" if scale.narrow else "LeNet-5 64-64-384-192"
        model += " (paper: 64-64-384-192)" if scale.narrow else ""
    decay = lr_decay(setting, options)
    falling = f", rates times {decay:.4g} a round (paper: {LR_DECAY})" * options.compressed
    rounds, part = num_rounds(setting, options), min(scale.clients, setting.num_clients)
    return (
        f"scale {options.scale}: {model} on {setting.dataset}, "
        f"Dirichlet {setting.concentration:g}, {rounds} of the paper's {setting.rounds} rounds, "
        f"{part} of {setting.num_clients} clients, "
        f"{min(setting.cohort, part)} a round, up to {scale.max_steps} of {MAX_STEPS} local steps "
        f"of {BATCH_SIZE}, "
        f"{options.seeds} seed{'s' if options.seeds > 1 else ''}{falling}"
    )
