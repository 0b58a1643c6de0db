"""SGD drifts from its optimum: Figure 2.1 of Yuan's thesis, growth of the bias, the diffusion.

    python -m experiments.local_methods.iterate_bias
    python -m experiments.local_methods.iterate_bias --repetitions 4096

Sections 2.2 and 2.4 of the thesis.  The figure: F = x^2 right of 0, x^2 / 10 left of it, noise of
variance 0.01, rate 0.01, start 0.
"""

import dataclasses
import pathlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from scipy.stats import gaussian_kde

from experiments.harness.figures import legends
from experiments.harness.options import check_grid, settings
from experiments.harness.report import Report
from experiments.local_methods.bias_growth import (
    at_zero,
    continuous,
    draw_growth,
    draw_rates,
    families,
    growth,
    slopes,
)
from fedjax_sim.checks import check_at_least
from fedjax_sim.diagnostics.bias_laws import piecewise_quadratic_limit
from fedjax_sim.diagnostics.diffusion import diffusion_paths
from fedjax_sim.diagnostics.gradient_noise import gaussian
from fedjax_sim.diagnostics.iterate_bias import simulate_paths
from fedjax_sim.problems.asymmetric import piecewise_quadratic

RIGHT, LEFT, STD, LR = 2.0, 0.2, 0.1, 1e-2  # Figure 2.1
RECORDED = (128, 256, 512, 1024)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    repetitions: int = 65_536
    diffusion_paths: int = 8_192
    lrs: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3)  # of the growth
    steps: int = 256
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results/local_methods")

    def __post_init__(self) -> None:
        check_at_least(2, repetitions=self.repetitions)
        check_at_least(1, diffusion_paths=self.diffusion_paths)
        check_at_least(8, steps=self.steps)
        check_grid(lrs=self.lrs)
        if len(self.lrs) < 2:
            raise ValueError(f"lrs is {self.lrs}; expected at least two rates")


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
    for family, axis in zip(families(), (axes[0, 1], axes[1, 0]), strict=True):
        draw_growth(axis, family, table, options.lrs)
    draw_rates(axes[1, 1], table, options.steps)
    legends(axes.flat)
    return drawn


def main(options: Options) -> None:
    """Measures and writes the report."""
    paths, moments = figure_data(options)
    table = growth(options.lrs, options.steps)
    limit = piecewise_quadratic_limit(RIGHT, LEFT, LR, STD)
    report = Report(
        "Iterate bias",
        f"Figure 2.1: curvatures {RIGHT} and {LEFT}, noise of standard deviation {STD}, rate {LR}, "
        f"{options.repetitions} paths from the optimum 0.  The recursion has no sampling error; "
        f"the diffusion has {options.diffusion_paths} paths.  Mean of the diffusion for k to "
        f"infinity: {limit:.4g}.",
        moments,
    )
    report.section(
        "Growth",
        "Noise of variance 1; slopes of the recursion's bias, against k between the last two "
        f"powers of 2 at rate {min(options.lrs):g}.",
        slopes(table),
    )
    report.section(
        "Diffusion",
        "Third-order objective, L = 1, Q = 0.5, rate 0.001, start 0: the recursion, the backward "
        "equation by finite differences, and their leading terms.",
        continuous(1e-3, 64),
    )
    drawn = {"iterate_bias": figure(paths, moments, table, options)}
    folder = options.output / "iterate_bias"
    report.save(folder, "iterate_bias", table, drawn, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
