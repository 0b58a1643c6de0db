"""SGD drifts from its optimum: Figure 2.1 of Yuan's thesis, growth of the bias, the diffusion.

    python -m experiments.local_methods.iterate_bias
    python -m experiments.local_methods.iterate_bias --repetitions 4096

Sections 2.2 and 2.4 of the thesis.  The figure: F = x^2 right of 0, x^2 / 10 left of it, noise of
variance 0.01, rate 0.01, start 0.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro

from experiments.harness.figures import legends
from experiments.harness.options import check_grid, settings
from experiments.harness.redrawing import save_report
from experiments.harness.report import Report
from experiments.harness.tables import TOLERANCES, exact
from experiments.local_methods.bias_growth import (
    continuous,
    draw_growth,
    draw_rates,
    families,
    growth,
    slopes,
)
from experiments.local_methods.bias_laws import piecewise_quadratic_limit
from experiments.local_methods.figure_2_1 import LEFT, LR, RIGHT, STD, densities, figure_data
from fedjax_sim.checks import check_at_least


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


def figure(tables: Mapping[str, pd.DataFrame], options: Mapping[str, Any]) -> Any:
    """Densities; bias against k of both families; bias against the rate."""
    table, moments = tables[""], tables["moments"].set_index("k")
    drawn, axes = plt.subplots(2, 2, figsize=(9, 6.6), layout="constrained")
    for i, (k, part) in enumerate(tables["densities"].groupby("k")):
        axes[0, 0].plot(part["x"], part["density"], color=f"C{i}", label=f"k = {k}")
        axes[0, 0].axvline(moments["mean, recursion"].to_dict()[k], color=f"C{i}", ls=":")
    axes[0, 0].axvline(0, color="0.6", lw=0.8)
    axes[0, 0].set(title="Density of the iterate; dotted: mean", xlabel="x", ylabel="density")
    for family, axis in zip(families(), (axes[0, 1], axes[1, 0]), strict=True):
        draw_growth(axis, family, table, options["lrs"])
    draw_rates(axes[1, 1], table, options["steps"])
    legends(axes.flat)
    return drawn


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """Text and figure."""
    options = facts["options"]
    limit = piecewise_quadratic_limit(RIGHT, LEFT, LR, STD)
    report = Report(
        "Iterate bias",
        f"Figure 2.1: curvatures {RIGHT} and {LEFT}, noise of standard deviation {STD}, rate {LR}, "
        f"{options['repetitions']} paths from the optimum 0.  The recursion has no sampling error; "
        f"the diffusion has {options['diffusion_paths']} paths.  Mean of the diffusion for k to "
        f"infinity: {limit:.4g}.",
        tables["moments"],
    )
    report.section(
        "Growth",
        "Noise of variance 1; slopes of the recursion's bias, against k between the last two "
        f"powers of 2 at rate {min(options['lrs']):g}.",
        slopes(tables[""]),
    )
    report.section(
        "Diffusion",
        "Third-order objective, L = 1, Q = 0.5, rate 0.001, start 0: the recursion, the backward "
        "equation by finite differences, and their leading terms.",
        tables["diffusion"],
    )
    means = tables["moments"]["mean, recursion"].to_numpy(dtype=float)
    close = TOLERANCES["exponent of a rate"]
    report.claims(
        [
            exact(
                "Figure 2.1: the mean drifts from the optimum to the flat side, further with k",
                {"k least": means[0], "k largest": means[-1]},
                [-means[0], -np.diff(means).max()],
            ),
            *(
                exact(
                    f"{row['family']}: the bias grows as k^{row['expected in k']:g}",
                    {"slope": row["slope in k"]},
                    [close - abs(row["slope in k"] - row["expected in k"])],
                    ours=f"within {close:g}",
                )
                for row in slopes(tables[""]).to_dict("records")
            ),
        ]
    )
    return report, {"iterate_bias": figure(tables, options)}


def main(options: Options) -> None:
    """Measures and writes the report."""
    paths, moments = figure_data(options.repetitions, options.diffusion_paths, options.seed)
    tables = {"": growth(options.lrs, options.steps), "moments": moments}
    tables |= {"densities": densities(paths), "diffusion": continuous(1e-3, 64)}
    folder = options.output / "iterate_bias"
    save_report(folder, "iterate_bias", tables, build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
