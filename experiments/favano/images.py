"""Settings, options and runs of FAVANO's experiments on images.

FAVANO divides a client's progress by its steps, so a contact moves the server by about one step,
while a report to QuAFL, FedBuff or FedAvg counts all of them: the paper's one rate for all is not
equally good for them, especially on a short horizon.  ``--lr`` sets another.  The networks have
group normalisation instead of the batch normalisation of the paper's ResNets, whose averages over
asynchronous clients the paper does not define.  Where the paper is silent otherwise, the choices
are those of :mod:`experiments.favano.mnist`.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.favano import clock_runs
from experiments.favano.methods import Clock, Method, Variance
from experiments.favano.problem import Problem, Split, assignment
from experiments.harness import Folders, check_grid, check_names, counted, subsample
from fedjax_sim.checks import check_at_least, check_positive
from fedjax_sim.models import Build, dense_product

HORIZON, NUM_CLIENTS, COHORT, BUFFER, MAX_STEPS, BATCH_SIZE = 10_000.0, 100, 20, 10, 20, 128
SPLITS: dict[str, Split] = {"non-IID": "shards", "IID": "iid"}


class Images(NamedTuple):
    """A data set with its networks, and the paper's rate."""

    dataset: str
    networks: Mapping[
        str, Callable[..., fs.models.Model]
    ]  # (num_classes, conv, dot); first: paper's
    transform: fs.data.augmentation.Transform
    mean: tuple[float, ...]
    std: tuple[float, ...]
    lr: float
    prepare: Callable[[np.ndarray], np.ndarray] = lambda images: images  # once, before all else


class Scale(NamedTuple):
    """The part of the paper's setting that is run; contacts and buffers shrink with the clients."""

    horizon: float  # simulated time
    clients: int  # a multiple of 10
    network: str
    seeds: int
    evaluations: int  # per run
    max_steps: int = MAX_STEPS
    batch_size: int = BATCH_SIZE
    examples: int | None = None  # train examples per client; None: an equal share of all
    test_examples: int | None = None
    compressed: bool = True  # rates are multiplied by the factor that the horizon is shorter by


@dataclasses.dataclass(frozen=True)
class ImageOptions(Folders):
    """Options of the experiments on images."""

    scale: Literal["paper", "cpu", "smoke"] = "cpu"
    network: str | None = None  # default: the scale's
    seeds: int | None = None  # default: the scale's
    horizon: float | None = None  # simulated time, default: the scale's
    lr: float | None = None  # default: the paper's times its horizon over this one
    server_lrs: tuple[float, ...] = (0.1, 0.3, 1.0)  # FedBuff's, tried on a seed of its own
    work: pathlib.Path = pathlib.Path("results/favano_images")  # finished runs, to continue from

    images: ClassVar[Images]
    scales: ClassVar[Mapping[str, Scale]]

    def __post_init__(self) -> None:
        chosen = self.chosen
        check_names("network", chosen.network, self.images.networks)
        check_at_least(1, seeds=chosen.seeds)
        check_positive(horizon=chosen.horizon, lr=1.0 if self.lr is None else self.lr)
        check_grid(server_lrs=self.server_lrs)

    @property
    def chosen(self) -> Scale:
        """The scale with the values that replace its own."""
        given = {"network": self.network, "seeds": self.seeds, "horizon": self.horizon}
        changes = {name: value for name, value in given.items() if value is not None}
        return self.scales[self.scale]._replace(**changes)

    def folder(self, name: str) -> pathlib.Path:
        """Folder of the results, named after the scale and what replaces its values."""
        given = (("horizon", self.horizon), ("lr", self.lr))
        changes = "" if self.network is None else f"-{self.network}"
        changes += "".join(f"-{option}{value:g}" for option, value in given if value is not None)
        return self.output / "favano" / f"{name}-{self.scale}{changes}"


class Runs:
    """Runs of methods in the settings IID and non-IID, kept on disk."""

    def __init__(self, options: ImageOptions):
        self.options, self.images, self.scale = options, options.images, options.chosen
        dataset = fs.datasets.load(self.images.dataset, data_dir=options.data_dir)
        count = self.scale.examples and self.scale.examples * self.scale.clients
        parts = (dataset.train, count), (dataset.test, self.scale.test_examples)
        self.train, self.test = (
            {**part, "x": self.images.prepare(part["x"])}
            for part in (subsample(examples, number) for examples, number in parts)
        )
        self.num_classes = dataset.num_classes

    @property
    def lr(self) -> float:
        """The client rate."""
        if self.options.lr is not None:
            return self.options.lr
        scale = self.scale
        return self.images.lr * (HORIZON / scale.horizon if scale.compressed else 1.0)

    def __call__(
        self,
        method: Method,
        setting: str,
        seeds: range | None = None,
        *,
        variance: Variance = "none",
        low_bit: bool = False,
        cohort: int | None = None,
        lrs: Sequence[float] | None = None,
    ) -> pd.DataFrame:
        """Histories of a method; with ``lrs`` at each of these client rates: column lr."""
        scale = self.scale
        clock = Clock(
            horizon=scale.horizon, num_clients=scale.clients, max_steps=scale.max_steps,
            cohort_size=cohort or shrunk(COHORT, scale), buffer=shrunk(BUFFER, scale),
        )  # fmt: skip
        facts = {"images": self.images.dataset, "scale": scale._asdict(), "low_bit": low_bit}
        frame = clock_runs.swept(
            self.problem(SPLITS[setting], low_bit), clock, method, seeds or range(scale.seeds),
            [self.lr] if lrs is None else lrs, eval_time=scale.horizon / scale.evaluations,
            variance=variance, work=self.options.work, facts=facts | {"split": setting},
        )  # fmt: skip
        frame = frame.drop(columns="lr") if lrs is None else frame
        return frame.assign(setting=setting)

    def problem(self, split: Split, low_bit: bool) -> Problem:
        """The network on one of the splits; ``low_bit``: 3 bits, neural gradients of 4."""
        images, scale = self.images, self.scale
        build: Build = functools.partial(_normalised, images, scale.network, self.num_classes)
        plain = build(fs.models.auto, dense_product)
        objective, apply = fs.objectives.cross_entropy(plain.apply), plain.apply
        if low_bit:
            keyed = fs.models.quantized(build)
            objective = fs.objectives.keyed(fs.objectives.cross_entropy, keyed)
            apply = lambda params, x: keyed(params, x, jax.random.key(0))  # noqa: E731
        return Problem(
            examples={key: jnp.asarray(value) for key, value in self.train.items()},
            assignment=assignment(self.train["y"], split, scale.clients),
            objective=fs.data.augmentation.transformed(objective, images.transform),
            batches=fs.stream(scale.batch_size, scale.max_steps),
            init=plain.init,
            evaluate=fs.evaluation.evaluator(
                fs.objectives.classification_metrics(apply), self.test, 500
            ),
            lr=self.lr,
        )

    def describe(self, rates: str = "") -> str:
        """One line: the part of the paper's setting that was run; ``rates`` replaces the rate."""
        s, images = self.scale, self.images
        paper = next(iter(images.networks))
        network = s.network if s.network == paper else f"{s.network} (paper: {paper})"
        norm = "; group normalisation (paper: batch)" if "ResNet" in s.network else ""
        return (
            f"scale {self.options.scale}: {network} on {images.dataset}{norm}, "
            f"{s.horizon:g} of {HORIZON:g} time units, {s.clients} of {NUM_CLIENTS} clients with "
            f"{len(self.train['y']) // s.clients} train images each, {shrunk(COHORT, s)} per "
            f"contact (paper: {COHORT}), buffer {shrunk(BUFFER, s)} ({BUFFER}), at most "
            f"{s.max_steps} ({MAX_STEPS}) steps of {s.batch_size} ({BATCH_SIZE}) images, "
            f"{rates or f'rate {self.lr:g}'} ({images.lr:g}), {len(self.test['y'])} test images, "
            f"{counted(s.seeds, 'seed')}."
        )


def shrunk(count: int, scale: Scale) -> int:
    """The share of ``count`` for the clients that take part, at least one."""
    return max(1, round(count * scale.clients / NUM_CLIENTS))


def _normalised(images: Images, network: str, classes: int, conv: Any, dot: Any) -> fs.models.Model:
    model = images.networks[network](classes, conv, dot)
    return model._replace(
        apply=fs.data.augmentation.normalized(model.apply, images.mean, images.std)
    )
