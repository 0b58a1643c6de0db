"""SGD drifts from its optimum: Figure 2.1 of Yuan's thesis, growth of the bias, the diffusion.

    python -m experiments.iterate_bias
    python -m experiments.iterate_bias --repetitions 4096

Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, sections 2.2 and 2.4.
The figure: F = x^2 right of 0, x^2 / 10 left of it, noise of variance 0.01, rate 0.01, start 0.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from scipy.stats import gaussian_kde

from experiments.output import write
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.diagnostics.bias_laws import (
    piecewise_quadratic_bias,
    piecewise_quadratic_limit,
    third_order_bias,
)
from fedjax_sim.diagnostics.diffusion import backward_equation, diffusion_paths
from fedjax_sim.diagnostics.gradient_noise import Noise, gaussian
from fedjax_sim.diagnostics.iterate_bias import Gradient, mean_iterates, simulate_paths
from fedjax_sim.problems.asymmetric import piecewise_quadratic, third_order_smooth

RIGHT, LEFT, STD, LR = 2.0, 0.2, 0.1, 1e-2  # Figure 2.1
RECORDED = (128, 256, 512, 1024)
KINK = partial(piecewise_quadratic, right=1.0, left=0.5)
SMOOTH = partial(third_order_smooth, smoothness=1.0, third=0.5)
SPREADS = 8.0  # half width of a grid, in standard deviations of a random walk


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    repetitions: int = 65_536
    diffusion_paths: int = 8_192
    lrs: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3)  # of the growth
    steps: int = 256
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        for name, least in (("repetitions", 2), ("diffusion_paths", 1), ("steps", 8)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if len(self.lrs) < 2 or min(self.lrs) <= 0:
            raise ValueError(f"lrs is {self.lrs}; expected at least two positive rates")


def grid(lr: float, std: float, num_steps: int, points: int = 4) -> np.ndarray:
    """Around 0, wide enough for ``num_steps``, with ``points`` points a standard deviation."""
    half = int(np.ceil(SPREADS * points * num_steps**0.5))
    return lr * std / points * np.arange(-half, half + 1)


def at_zero(
    gradient: Gradient, noise: Noise, lr: float, num_steps: int, observable: Any = None
) -> np.ndarray:
    """``E h(x_k)`` from x_0 = 0, the optimum, for k = 0 .. num_steps."""
    points = grid(lr, noise.variance**0.5, num_steps)
    return mean_iterates(gradient, noise, lr, num_steps, points, observable).mean[
        :, len(points) // 2
    ]


def figure_data(options: Options) -> tuple[np.ndarray, pd.DataFrame]:
    """The paths of Figure 2.1 ``[4, N]``, and their moments beside those of the recursion."""
    gradient = partial(piecewise_quadratic, right=RIGHT, left=LEFT)
    path_key, diffusion_key = jax.random.split(jax.random.key(options.seed))
    paths = np.asarray(
        simulate_paths(
            gradient, gaussian(STD).sample, LR, 0.0, RECORDED, options.repetitions, path_key
        )
    ).astype(np.float64)
    continuous = np.asarray(
        diffusion_paths(gradient, STD, LR, 0.0, RECORDED, options.diffusion_paths, diffusion_key)
    ).astype(np.float64)
    noise, steps = gaussian(STD, 6, panels=17), list(RECORDED)
    mean = at_zero(gradient, noise, LR, RECORDED[-1])[steps]
    second = at_zero(gradient, noise, LR, RECORDED[-1], jnp.square)[steps]
    table = pd.DataFrame(
        {
            "k": steps,
            "mean, paths": paths.mean(1),
            "standard error": paths.std(1) / options.repetitions**0.5,
            "mean, recursion": mean,
            "std, paths": paths.std(1),
            "std, recursion": np.sqrt(second - mean**2),
            "mean, diffusion": continuous.mean(1),
            "standard error, diffusion": continuous.std(1) / options.diffusion_paths**0.5,
        }
    )
    return paths, table


class Family(NamedTuple):
    """An objective whose bias is measured, and what is expected of it."""

    name: str
    gradient: Gradient
    noise: Noise
    law: Any  # (lr, k) -> bias
    slopes: tuple[float, float]  # against k and against the rate


def families() -> list[Family]:
    """The objective with a kink and the one with a third derivative; noise of variance 1."""
    kink = Family(
        "kink", KINK, gaussian(1.0, 6, panels=17),
        lambda lr, k: piecewise_quadratic_bias(1.0, 0.5, lr, 1.0, k), (1.5, 2.0),
    )  # fmt: skip
    smooth = Family(
        "third order", SMOOTH, gaussian(1.0),
        lambda lr, k: float(third_order_bias(SMOOTH, 0.0, 1.0, lr, k, "recursion")), (2.0, 3.0),
    )  # fmt: skip
    return [kink, smooth]


def growth(options: Options) -> pd.DataFrame:
    """Bias of both families for k = 1, 2, 4, ... and every rate, beside the small-time law."""
    rows = []
    for family in families():
        for lr in options.lrs:
            bias = at_zero(family.gradient, family.noise, lr, options.steps)
            for k in 2 ** np.arange(1, int(np.log2(options.steps)) + 1):
                law = family.law(lr, int(k))
                rows.append(
                    {"family": family.name, "lr": lr, "k": int(k), "bias": bias[k], "law": law}
                )
    return pd.DataFrame(rows)


def slopes(table: pd.DataFrame, options: Options) -> pd.DataFrame:
    """Log-log slopes: against k (last two powers of 2 of the least rate) and against the rate."""
    rows = []
    for family in families():
        mine = table[table["family"] == family.name]
        small = mine[mine["lr"] == min(options.lrs)]
        fixed = mine[mine["k"] == 32 if options.steps >= 32 else mine["k"] == 8]
        rows.append(
            {
                "family": family.name,
                "slope in k": _slope(small["k"].tolist()[-2:], small["bias"].tolist()[-2:]),
                "expected in k": family.slopes[0],
                "slope in lr": _slope(fixed["lr"].tolist(), fixed["bias"].tolist()),
                "expected in lr": family.slopes[1],
            }
        )
    return pd.DataFrame(rows)


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(np.abs(y)), 1)[0])


def continuous(lr: float, num_steps: int) -> pd.DataFrame:
    """Recursion, backward equation and both constants of its expansion, third-order objective."""
    points = grid(lr, 1.0, num_steps)
    middle = len(points) // 2
    recursion = mean_iterates(SMOOTH, gaussian(1.0), lr, num_steps, points).mean[:, middle]
    equation = backward_equation(SMOOTH, 1.0, lr, num_steps, points)[:, middle]
    rows = []
    for k in 2 ** np.arange(1, int(np.log2(num_steps)) + 1):
        law = {
            form: float(third_order_bias(SMOOTH, 0.0, 1.0, lr, int(k), form))
            for form in ("recursion", "diffusion", "printed")
        }
        rows.append(
            {"k": int(k), "recursion": recursion[k], "backward equation": equation[k]}
            | {
                "1/4 k (k - 1)": law["recursion"],
                "1/4 k^2": law["diffusion"],
                "1/2 k^2 (printed)": law["printed"],
                "recursion / (1/4 k (k - 1))": recursion[k] / law["recursion"],
                "equation / (1/4 k^2)": equation[k] / law["diffusion"],
            }
        )
    return pd.DataFrame(rows)


def figure(paths: np.ndarray, moments: pd.DataFrame, table: pd.DataFrame, options: Options) -> Any:
    """Densities; bias against k of both families; bias against the rate."""
    drawn, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    x = np.linspace(np.quantile(paths, 1e-3), np.quantile(paths, 1 - 1e-3), 300)
    for i, k in enumerate(RECORDED):
        density = gaussian_kde(paths[i])(x)
        axes[0, 0].plot(x, density, color=f"C{i}", label=f"k = {k}")
        axes[0, 0].axvline(moments["mean, recursion"].tolist()[i], color=f"C{i}", ls=":")
    axes[0, 0].axvline(0, color="0.6", lw=0.8)
    axes[0, 0].set(title="Density of the iterate; dotted: mean", xlabel="x", ylabel="density")
    axes[0, 0].legend(frameon=False)
    for family, axis in zip(families(), (axes[0, 1], axes[1, 0]), strict=True):
        mine = table[table["family"] == family.name]
        for i, lr in enumerate(options.lrs):
            part = mine[mine["lr"] == lr]
            axis.loglog(part["k"], np.abs(part["bias"]), f"C{i}o", ms=4, label=f"rate {lr:g}")
            axis.loglog(part["k"], np.abs(part["law"]), color=f"C{i}")
        axis.set(
            title=f"{family.name}: bias, law (lines), slope {family.slopes[0]:g}",
            xlabel="k", ylabel="|bias|",
        )  # fmt: skip
        axis.legend(frameon=False)
    for i, family in enumerate(families()):
        mine = table[table["family"] == family.name]
        for k, mark in ((8, "o"), (options.steps, "s")):
            part = mine[mine["k"] == 2 ** int(np.log2(k))]
            axes[1, 1].loglog(part["lr"], np.abs(part["bias"]), f"C{i}{mark}", ms=5)
            axes[1, 1].loglog(
                part["lr"], np.abs(part["law"]), color=f"C{i}",
                label=f"{family.name}, slope {family.slopes[1]:g}" if mark == "o" else None,
            )  # fmt: skip
    axes[1, 1].set(
        title=f"Against the rate, k = 8 (circles), {options.steps}", xlabel="rate", ylabel="|bias|"
    )
    axes[1, 1].legend(frameon=False)
    return drawn


def main(options: Options) -> None:
    """Measures, writes and draws."""
    paths, moments = figure_data(options)
    table = growth(options)
    limit = piecewise_quadratic_limit(RIGHT, LEFT, LR, STD)
    text = (
        "# Iterate bias\n\n"
        f"Figure 2.1: curvatures {RIGHT} and {LEFT}, noise of standard deviation {STD}, rate {LR}, "
        f"{options.repetitions} paths from the optimum 0.  The recursion draws nothing; the "
        f"diffusion has {options.diffusion_paths} paths.  Mean of the diffusion for k to infinity: "
        f"{limit:.4g}.\n\n{markdown(moments)}\n\n"
        "## Growth\n\nNoise of variance 1; slopes of the recursion's bias, against k between the "
        f"last two powers of 2 at rate {min(options.lrs):g}.\n\n"
        f"{markdown(slopes(table, options))}\n\n"
        "## Diffusion\n\nThird-order objective, L = 1, Q = 0.5, rate 0.001, start 0: the "
        "recursion, the backward equation by finite differences, and their leading terms.\n\n"
        f"{markdown(continuous(1e-3, 64))}"
    )
    print(text, flush=True)
    folder = options.output / "iterate_bias"
    write(folder, "iterate_bias", table, text, options=dataclasses.asdict(options))
    drawn = figure(paths, moments, table, options)
    drawn.savefig(folder / "iterate_bias.png", dpi=90)
    plt.close(drawn)


if __name__ == "__main__":
    main(tyro.cli(Options))
