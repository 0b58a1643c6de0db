r"""FAVANO on CIFAR-10: methods against the clock, clients per contact, networks of few bits.

    python -m experiments.favano_cifar                      # non-IID and IID, Figures 3a and 6
    python -m experiments.favano_cifar --part selected      # clients per contact, Figure 7
    python -m experiments.favano_cifar --part quantized     # FAVANO[QNN], messages of few bits
    python -m experiments.favano_cifar --part rates         # every method at its best of some rates

FAVANO divides what a client did by its steps, so a contact moves the server by about one step,
where a report to QuAFL, FedBuff or FedAvg counts all of them: the paper's one rate for all is not
equally good for them, least of all on a short horizon.  ``--lr`` sets another for the other parts.

The scale ``cpu`` takes about an hour of two cores for the three parts together.

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and Appendix C.
The networks have group normalisation where the paper's ResNet-20 has batch normalisation, whose
averages over asynchronous clients the paper does not define.  Where the paper is silent otherwise,
see ``favano_mnist``.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments import favano_common as common
from experiments import favano_methods as methods
from experiments.favano_common import Problem, Split
from experiments.favano_methods import Clock, Method
from experiments.favano_mnist import accuracy, draw, final, tuned
from experiments.fedswa_common import some
from experiments.output import write
from fedjax_sim import datasets, models, objectives
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.compression import lattice, uniform
from fedjax_sim.data import augmentation
from fedjax_sim.evaluation import evaluator
from fedjax_sim.execution import devices
from fedjax_sim.models.convolution.lowering import auto
from fedjax_sim.models.dense import dense_product
from fedjax_sim.models.quantized import Build, quantized

HORIZON, NUM_CLIENTS, COHORT, BUFFER, MAX_STEPS, BATCH_SIZE = 10_000.0, 100, 20, 10, 20, 128
SELECTED = (10, 20, 50)  # of 100 clients, contacted at a time
BITS, CELL = 14, 1e-4  # of messages: the lattice of QuAFL's program
SPLITS: dict[str, Split] = {"non-IID": "shards", "IID": "iid"}


class Images(NamedTuple):
    """What is learnt, and the paper's rate."""

    dataset: str
    networks: Mapping[str, Callable[..., models.Model]]  # (num_classes, conv, dot); first: paper's
    transform: augmentation.Transform
    mean: tuple[float, ...]
    std: tuple[float, ...]
    lr: float


CIFAR = Images(
    "cifar10",
    {
        "ResNet-20": lambda classes, conv, dot: models.resnet20(classes, conv=conv, dot=dot),
        "LeNet-5": lambda classes, conv, dot: models.lenet5(classes, conv=conv, dot=dot),
    },
    augmentation.crop_and_flip,
    augmentation.CIFAR_MEAN,
    augmentation.CIFAR_STD,
    lr=0.005,
)


class Scale(NamedTuple):
    """How much of the paper's setting is run; contacts and buffers shrink with the clients."""

    horizon: float  # simulated time
    clients: int  # a multiple of 10
    network: str
    seeds: int
    evaluations: int  # per run
    max_steps: int = MAX_STEPS
    batch_size: int = BATCH_SIZE
    examples: int | None = None  # train examples of a client; None: an equal share of all
    test_examples: int | None = None
    compressed: bool = True  # rates as much larger as the horizon is shorter


SCALES = {
    "paper": Scale(HORIZON, NUM_CLIENTS, "ResNet-20", 3, 100),
    "cpu": Scale(2500.0, 20, "LeNet-5", 2, 25, batch_size=64, examples=500, test_examples=2000),
    "smoke": Scale(
        200.0,
        10,
        "LeNet-5",
        1,
        2,
        max_steps=3,
        batch_size=8,
        examples=20,
        test_examples=50,
        compressed=False,
    ),
}


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Options of the experiments on images."""

    scale: Literal["paper", "cpu", "smoke"] = "cpu"
    network: str | None = None  # default: the scale's
    seeds: int | None = None  # default: the scale's
    horizon: float | None = None  # simulated time, default: the scale's
    lr: float | None = None  # default: the paper's, as much larger as the horizon is shorter
    server_lrs: tuple[float, ...] = (0.1, 0.3, 1.0)  # FedBuff's, tried on a seed of its own
    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    work: pathlib.Path = pathlib.Path("results/favano_images")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    images: ClassVar[Images]
    scales: ClassVar[Mapping[str, Scale]]

    def __post_init__(self) -> None:
        if self.network is not None and self.network not in self.images.networks:
            raise ValueError(
                f"network is {self.network!r}; expected one of {', '.join(self.images.networks)}"
            )
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; expected at least 1")
        if self.horizon is not None and not self.horizon > 0:
            raise ValueError(f"horizon is {self.horizon}; expected a positive time")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr is {self.lr}; expected a positive rate")
        if not self.server_lrs or min(self.server_lrs) <= 0:
            raise ValueError(f"server_lrs is {self.server_lrs}; expected positive rates")

    @property
    def chosen(self) -> Scale:
        """The scale with what was put in its place."""
        given = {"network": self.network, "seeds": self.seeds, "horizon": self.horizon}
        changes = {name: value for name, value in given.items() if value is not None}
        return self.scales[self.scale]._replace(**changes)

    def folder(self, name: str) -> pathlib.Path:
        """Where results go."""
        rate = "" if self.lr is None else f"-lr{self.lr:g}"
        return self.output / f"{name}-{self.scale}{rate}"


@dataclasses.dataclass(frozen=True)
class Options(ImageOptions):
    """Options of this experiment."""

    part: Literal["methods", "rates", "selected", "quantized"] = "methods"
    lrs: tuple[float, ...] = (0.0625, 0.2)  # of the part rates; the first is the paper's at 800

    images = CIFAR
    scales = SCALES


class Runs:
    """An experiment's runs, kept on disk."""

    def __init__(self, options: ImageOptions):
        self.options, self.images, self.scale = options, options.images, options.chosen
        dataset = datasets.load(self.images.dataset, data_dir=options.data_dir)
        count = self.scale.examples and self.scale.examples * self.scale.clients
        self.train = some(dataset.train, count)
        self.test = some(dataset.test, self.scale.test_examples)
        self.num_classes = dataset.num_classes

    @property
    def lr(self) -> float:
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
        variance: common.Variance = "none",
        low_bit: bool = False,
        cohort: int | None = None,
    ) -> pd.DataFrame:
        scale = self.scale
        clock = Clock(
            horizon=scale.horizon, num_clients=scale.clients, max_steps=scale.max_steps,
            cohort_size=cohort or shrunk(COHORT, scale), buffer=shrunk(BUFFER, scale),
        )  # fmt: skip
        facts = {"images": self.images.dataset, "scale": scale._asdict(), "low_bit": low_bit}
        frame = common.run(
            self.problem(SPLITS[setting], low_bit), clock, method, seeds or range(scale.seeds),
            eval_time=scale.horizon / scale.evaluations, variance=variance,
            work=self.options.work, facts=facts | {"split": setting},
        )  # fmt: skip
        return frame.assign(setting=setting)

    def problem(self, split: Split, low_bit: bool) -> Problem:
        """The network on one of the splits; ``low_bit``: 3 bits, neural gradients of 4."""
        images, scale = self.images, self.scale
        build: Build = functools.partial(_normalised, images, scale.network, self.num_classes)
        plain = build(auto, dense_product)
        objective, apply = objectives.cross_entropy(plain.apply), plain.apply
        if low_bit:
            keyed = quantized(build)
            objective = objectives.keyed(objectives.cross_entropy, keyed)
            apply = lambda params, x: keyed(params, x, jax.random.key(0))  # noqa: E731
        return Problem(
            examples={key: jnp.asarray(value) for key, value in self.train.items()},
            assignment=common.assignment(self.train["y"], split, scale.clients),
            objective=augmentation.transformed(objective, images.transform),
            batches=fs.stream(scale.batch_size, scale.max_steps),
            init=plain.init,
            evaluate=evaluator(objectives.classification_metrics(apply), self.test, 500),
            lr=self.lr,
        )

    def describe(self) -> str:
        """What was run of the paper's setting."""
        s, images = self.scale, self.images
        paper = next(iter(images.networks))
        network = s.network if s.network == paper else f"{s.network} (paper: {paper})"
        norm = "; group normalisation (paper: batch)" if "ResNet" in s.network else ""
        return (
            f"scale {self.options.scale}: {network} on {images.dataset}{norm}, "
            f"{s.horizon:g} of {HORIZON:g} time units, {s.clients} of {NUM_CLIENTS} clients with "
            f"{len(self.train['y']) // s.clients} train images each, {shrunk(COHORT, s)} a contact "
            f"(paper: {COHORT}), buffer {shrunk(BUFFER, s)} ({BUFFER}), at most {s.max_steps} "
            f"({MAX_STEPS}) steps of {s.batch_size} ({BATCH_SIZE}) images, rate {self.lr:g} "
            f"({images.lr:g}), {len(self.test['y'])} test images, "
            f"{s.seeds} seed{'s' if s.seeds > 1 else ''}."
        )


def shrunk(count: int, scale: Scale) -> int:
    """The same share of the clients that are left, at least one."""
    return max(1, round(count * scale.clients / NUM_CLIENTS))


def _normalised(images: Images, network: str, classes: int, conv: Any, dot: Any) -> models.Model:
    model = images.networks[network](classes, conv, dot)
    return model._replace(apply=augmentation.normalized(model.apply, images.mean, images.std))


def row(frame: pd.DataFrame, **names: Any) -> dict[str, Any]:
    """A row of a table of results."""
    mean, deviation = accuracy(frame)
    last = final(frame)
    columns = ["round", "local_steps", "reports", "bits"]
    means = last[columns].to_numpy(dtype=float).mean(axis=0)
    counts = dict(zip(columns, means.tolist(), strict=True))
    return {**names, "accuracy": mean, "+-": deviation, **counts}


def compared(runs: Runs, settings: list[str]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The four methods: their table, their histories, FedBuff's tuning."""
    rows, histories, tunings = [], [], []
    for setting in settings:
        buffered, tuning = tuned(runs, setting, runs.options.server_lrs)
        tunings.append(tuning)
        for name, method in [
            ("FedAvg", methods.fedavg()), ("QuAFL", methods.quafl()),
            ("FedBuff", buffered), ("FAVANO", methods.favano()),
        ]:  # fmt: skip
            frame = runs(method, setting, variance="exact").assign(algorithm=name)
            histories.append(frame)
            found = row(frame, setting=setting, method=name, note=method.label)
            if "variance" in frame:
                known = frame.dropna(subset=["variance"])
                late = known["time"] >= 0.8 * known["time"].max()
                found["variance"] = float(known.loc[late, "variance"].mean())
            rows.append(found)
            print(found, flush=True)
    return pd.DataFrame(rows), pd.concat(histories, ignore_index=True), pd.concat(tunings)


def claim(setting: str, text: str, values: Mapping[str, float], holds: bool) -> dict[str, str]:
    """A row of the table of claims."""
    found = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return {"setting": setting, "claim": text, "found": found, "holds": "yes" if holds else "no"}


def four_methods(runs: Runs, folder: pathlib.Path) -> None:
    """Figures 3a and 6: the four methods, and how far their clients' models are apart."""
    table, history, tuning = compared(runs, list(SPLITS))
    rows = []
    for setting, part in table.groupby("setting", sort=False):
        values = dict(zip(part["method"], part["accuracy"], strict=True))
        best = set(sorted(values, key=lambda name: -values[name])[:2]) == {"FedBuff", "FAVANO"}
        rows.append(claim(str(setting), "FedBuff and FAVANO are best", values, best))
        apart = dict(zip(part["method"], part["variance"], strict=True))
        apart = {name: apart[name] for name in ("FedBuff", "FAVANO")}
        larger = apart["FedBuff"] > apart["FAVANO"]
        rows.append(claim(str(setting), "FedBuff's variance is larger", apart, larger))
    text = [
        "# CIFAR-10 against the clock (Figures 3a and 6 of FAVANO)",
        "Accuracy on test images, percent. `variance`: the sum over the clients of the squared "
        "distance of their models from the server's, mean over the last fifth of the time.",
        markdown(table),
        "## FedBuff's server rate, one seed of its own",
        markdown(tuning),
    ]
    save(runs, folder, "methods", history, text, rows)
    for setting in SPLITS:
        for metric in ("accuracy", "variance"):
            draw(folder, history, setting, metric, "time")


def rates(runs: Runs, folder: pathlib.Path) -> None:
    """The four methods, each at the best of some rates."""
    options, tables, histories, tunings = runs.options, [], [], []
    assert isinstance(options, Options)
    for lr in options.lrs:
        own = Runs(dataclasses.replace(options, lr=lr))
        table, history, tuning = compared(own, list(SPLITS))
        tables.append(table.assign(lr=lr))
        histories.append(history.assign(lr=lr))
        tunings.append(tuning.assign(lr=lr))
    table = pd.concat(tables, ignore_index=True)
    # A run that is no longer finite has the accuracy of chance.
    best = table.loc[table.groupby(["setting", "method"], sort=False)["accuracy"].idxmax()]
    claims = []
    for setting, part in best.groupby("setting", sort=False):
        values = dict(zip(part["method"], part["accuracy"], strict=True))
        first = set(sorted(values, key=lambda name: -values[name])[:2]) == {"FedBuff", "FAVANO"}
        claims.append(claim(str(setting), "FedBuff and FAVANO are best", values, first))
    text = [
        "# CIFAR-10 against the clock, at several rates",
        f"Rates {', '.join(f'{lr:g}' for lr in options.lrs)}, for that above; accuracy on test "
        "images, percent.",
        markdown(table.filter(["setting", "method", "lr", "note", "accuracy", "+-", "variance"])),
        "## At the best rate",
        markdown(best.filter(["setting", "method", "lr", "accuracy", "+-"])),
        "## FedBuff's server rate, one seed of its own",
        markdown(pd.concat(tunings)),
    ]
    save(runs, folder, "rates", pd.concat(histories, ignore_index=True), text, claims)


def selected(runs: Runs, folder: pathlib.Path) -> None:
    """Figure 7: FAVANO with more and fewer clients per contact."""
    rows, histories = [], []
    for s in dict.fromkeys(shrunk(count, runs.scale) for count in SELECTED):
        frame = runs(methods.favano(), "non-IID", cohort=s).assign(algorithm=f"s = {s}")
        histories.append(frame)
        rows.append(row(frame, s=s))
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    values = {f"s = {s}": value for s, value in zip(table["s"], table["accuracy"], strict=True)}
    rising = table["accuracy"].is_monotonic_increasing
    history = pd.concat(histories, ignore_index=True)
    text = ["# FAVANO's clients per contact (Figure 7)", "Non-IID.", markdown(table)]
    claims = [claim("non-IID", "a larger s helps", values, bool(rising))]
    save(runs, folder, "selected", history, text, claims)
    draw(folder, history.assign(setting="selected"), "selected", "accuracy", "time")


def quantised(runs: Runs, folder: pathlib.Path) -> None:
    """FAVANO[QNN], and messages of few bits."""
    up, down = lattice(BITS, CELL), uniform(2**BITS)
    in_bits = methods.coded(methods.favano(), f"messages of {BITS} bits", up, down)
    cases = {
        "FAVANO": (methods.favano(), False),
        "FAVANO[QNN]": (methods.favano(), True),
        f"FAVANO, {BITS}-bit messages": (in_bits, False),
        f"FAVANO[QNN], {BITS}-bit messages": (in_bits, True),
        f"QuAFL, {BITS}-bit lattice": (methods.quafl_coded(BITS, CELL), False),
    }
    rows, histories = [], []
    for name, (method, low_bit) in cases.items():
        frame = runs(method, "non-IID", low_bit=low_bit).assign(algorithm=name)
        histories.append(frame)
        rows.append(row(frame, method=name))
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    values = dict(zip(table["method"], table["accuracy"], strict=True))
    gap = values["FAVANO"] - values["FAVANO[QNN]"]
    text = [
        "# FAVANO with networks and messages of few bits",
        "Non-IID. QNN: weights and activations of 3 bits, neural gradients of 4, in all layers but "
        "the last; evaluated in 3 bits as well. Messages without a codec have 32 bits an entry. "
        f"Models go up on a lattice of {BITS} bits and cells of {CELL:g}, near the model that the "
        f"client started from, and come down rounded at random to {2**BITS} values a tensor.",
        markdown(table),
    ]
    values["difference"] = gap
    # Close: a tenth of what the full precision has above chance.
    close = 0 < gap <= (values["FAVANO"] - 100 / runs.num_classes) / 10
    history = pd.concat(histories, ignore_index=True)
    claims = [claim("non-IID", "QNN close to full precision and below it", values, bool(close))]
    save(runs, folder, "quantized", history, text, claims)
    for x in ("time", "bits"):
        draw(folder, history.assign(setting="quantized"), "quantized", "accuracy", x)


def save(
    runs: Runs,
    folder: pathlib.Path,
    name: str,
    history: pd.DataFrame,
    text: list[str],
    claims: list[dict[str, str]],
) -> None:
    """A part's table, text and facts; the scale comes after the title."""
    parts = [text[0], runs.describe(), *text[1:], "## Claims", markdown(pd.DataFrame(claims))]
    whole = "\n\n".join(parts)
    print(whole, flush=True)
    options = dataclasses.asdict(runs.options)
    write(folder, name, history, whole, scale=runs.describe(), options=options)


def main(options: Options) -> None:
    """Runs one part."""
    devices.use_all_cores()
    parts = {"methods": four_methods, "rates": rates, "selected": selected}
    part = (parts | {"quantized": quantised})[options.part]
    part(Runs(options), options.folder("favano_cifar"))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
