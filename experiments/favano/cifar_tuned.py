r"""FAVANO on CIFAR-10 over the paper's whole time: every method at the best of five client rates.

    python -m experiments.favano.cifar_tuned

100 clients, 20 per contact, 20 local steps at most and buffers of 10 updates as in the paper; the
network is a perceptron of 32 units on images of 16 x 16 pixels, in batches of 32.  A method's rate
is the one with the largest accuracy over the last fifth of the time on a seed that the table does
not use.  FedBuff averages its buffer with server rate 1, as the paper says.

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5, Figures 3a and
6.  The paper's networks, augmentation and rate: :mod:`experiments.favano.cifar`.
"""

import dataclasses
from typing import Any, Literal

import numpy as np
import pandas as pd
import tyro
from jax import Array

import fedjax_sim as fs
from experiments.favano import methods
from experiments.favano.cifar_tuned_report import COLUMNS, NAME, build
from experiments.favano.images import SPLITS, ImageOptions, Images, Runs, Scale
from experiments.favano.methods import Method
from experiments.favano.outcomes import late
from experiments.harness import save_report, settings
from fedjax_sim.engine import devices
from fedjax_sim.models import Product

SIDE, HIDDEN = 16, 32
NETWORK = f"perceptron of {HIDDEN} units on {SIDE} x {SIDE} pixels"
# Client rates per method: one server step of FAVANO is about one local step, one of QuAFL or FedAvg
# about as many as a client does.  FedBuff's are multiplied by Z / n.
RATES = {
    "FedAvg": (0.02, 0.04, 0.08, 0.16, 0.32),
    "QuAFL": (0.01, 0.02, 0.04, 0.08, 0.16),
    "FedBuff": (0.005, 0.01, 0.02, 0.04, 0.08),
    "FAVANO": (0.02, 0.04, 0.08, 0.16, 0.32),
}
TUNING_SEED = 100


def halved(images: np.ndarray) -> np.ndarray:
    """Images of half the side: rounded means of four pixels, ``[N, H, W, C]`` of uint8."""
    n, height, width, channels = images.shape
    cells = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    return ((cells.sum(axis=(2, 4), dtype=np.uint16) + 2) // 4).astype(np.uint8)


def unchanged(images: Array, key: Array) -> Array:
    """No augmentation: a flip per batch costs more than the perceptron's step."""
    del key
    return images


def perceptron(classes: int, conv: Any, dot: Product) -> fs.models.Model:
    """The network; it has no convolutions."""
    del conv
    return fs.models.mlp((SIDE, SIDE, 3), (HIDDEN,), classes, dot=dot)


IMAGES = Images(
    "cifar10", {NETWORK: perceptron}, unchanged,
    fs.data.augmentation.CIFAR_MEAN, fs.data.augmentation.CIFAR_STD, lr=0.005, prepare=halved,
)  # fmt: skip
SCALES = {
    "cpu": Scale(10_000.0, 100, NETWORK, 5, 25, batch_size=32),
    "smoke": Scale(
        200.0, 10, NETWORK, 2, 2, max_steps=3, batch_size=8, examples=20, test_examples=50
    ),
}


@dataclasses.dataclass(frozen=True)
class Options(ImageOptions):
    """Options of this experiment; ``lr`` is one rate for all methods."""

    scale: Literal["cpu", "smoke"] = "cpu"  # pyright: ignore[reportIncompatibleVariableOverride]
    server_lrs: tuple[float, ...] = (1.0,)  # FedBuff's, each tried with every client rate

    images = IMAGES
    scales = SCALES

    def rates(self, name: str) -> tuple[float, ...]:
        """The method's client rates."""
        return RATES[name] if self.lr is None else (self.lr,)

    def candidates(self, name: str) -> list[Method]:
        """The method, FedBuff at each of its server rates."""
        if name == "FedBuff":
            return [methods.fedbuff(server_lr) for server_lr in self.server_lrs]
        return [
            {"FedAvg": methods.fedavg, "QuAFL": methods.quafl, "FAVANO": methods.favano}[name]()
        ]


def tuned(options: Options, runs: Runs, setting: str, name: str) -> pd.DataFrame:
    """A row per candidate and client rate of a method: its late accuracy on the tuning seed."""
    rows = []
    for method in options.candidates(name):
        frame = runs(method, setting, range(TUNING_SEED, TUNING_SEED + 1), lrs=options.rates(name))
        scores: Any = late(frame).groupby("lr")["accuracy"].mean()
        rows += [
            {"setting": setting, "method": name, "variant": method.label, "lr": lr, "accuracy": x}
            for lr, x in scores.items()
        ]
    return pd.DataFrame(rows)


def main(options: Options) -> None:
    """Tunes, runs, reports."""
    devices.use_all_cores()
    runs = Runs(options)
    tunings, histories = [], []
    for setting in SPLITS:
        for name in RATES:
            tuning = tuned(options, runs, setting, name)
            best: Any = tuning.loc[tuning["accuracy"].idxmax()]
            method = next(m for m in options.candidates(name) if m.label == best["variant"])
            frame = runs(method, setting, variance="exact", lrs=[float(best["lr"])])
            tunings.append(tuning)
            histories.append(frame.assign(algorithm=name))
            print(tuning.to_string(index=False), flush=True)
    tables = {"": pd.concat(histories).filter(COLUMNS), "rates": pd.concat(tunings)}
    facts = {"scale": runs.describe("rates below"), "options": settings(options)}
    save_report(options.folder("cifar-tuned"), NAME, tables, build, **facts)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
