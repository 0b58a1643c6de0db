"""Exponents of FedAvg's value on the lower-bound instance in the local steps and the rounds.

    python -m experiments.local_methods.exponents
    python -m experiments.local_methods.exponents --repetitions 10 --rates 9

Theorems 2.8 and 2.10 of the thesis: at its best rate FedAvg is as slow as ``K^(-1/3) R^(-2/3)``
with equal clients, and as ``R^(-2/3)`` with different ones.  E F after R rounds at the best of the
rates, for K = 4 .. 256 and R = 8 .. 256, and the least-squares fit of
``log E F = c + a log K + b log R`` with 95 % intervals.  Where the theorems' minimum is another
term, a cell stays out of the fit: with sigma = 4 the bias term is the least for ``K <= 16 R``.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure
from scipy import stats

from experiments.harness.options import settings
from experiments.harness.redrawing import save_report
from experiments.harness.report import Report
from experiments.harness.tables import TOLERANCES, exact
from experiments.local_methods.instance_runs import Case, sweep
from fedjax_sim.checks import check_at_least
from fedjax_sim.reports.figures.style import style_axes

CLIENTS = 16
LEAST_RATE = 1e-4
TOLERANCE = TOLERANCES["exponent of a rate"]
LOCAL_STEPS, ROUNDS = (4, 16, 64, 256), (8, 16, 32, 64, 128, 256)
# By theorem: sigma, zeta_*, and the exponents of K and of R.
THEOREMS = {"2.8": (4.0, 0.0, (-1 / 3, -2 / 3)), "2.10": (0.1, 1.0, (0.0, -2 / 3))}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    repetitions: int = 50
    rates: int = 33  # from LEAST_RATE to 2 / L
    seed: int = 0
    local_steps: tuple[int, ...] = LOCAL_STEPS
    rounds: tuple[int, ...] = ROUNDS
    output: pathlib.Path = pathlib.Path("experiments/results/local_methods")

    def __post_init__(self) -> None:
        check_at_least(2, repetitions=self.repetitions, rates=self.rates)


def in_regime(case: Case) -> bool:
    """True if the bias or drift term is the theorem's least: ``K <= sigma^2 R``, or ``zeta > 0``.

    For L = B = 1 the terms are sigma / sqrt(K R) and sigma^(2/3) / (K^(1/3) R^(2/3)).
    """
    return case.zeta > 0 or case.local_steps <= case.std**2 * case.rounds


def fitted(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows for the exponents of K and R, with the half-widths of their 95 % intervals."""
    logs = [np.log(cells[name].to_numpy(dtype=float)) for name in ("local_steps", "rounds")]
    design = np.stack([np.ones(len(cells)), *logs], axis=1)
    values = np.log(cells["E F"].to_numpy(dtype=float))
    solution, *_ = np.linalg.lstsq(design, values, rcond=None)
    residuals, free = values - design @ solution, len(cells) - design.shape[1]
    covariance = residuals @ residuals / free * np.linalg.inv(design.T @ design)
    widths = stats.t.ppf(0.975, free) * np.sqrt(np.diag(covariance))
    return pd.DataFrame({"of": ["K", "R"], "exponent": solution[1:], "+-": widths[1:]})


def build(tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> tuple[Report, dict]:
    """Text and figure."""
    table, options = tables[""], facts["options"]
    report = Report(
        "FedAvg's exponents on the lower-bound instance",
        f"L = B = 1, {CLIENTS} clients, {options['repetitions']} repetitions, the best of "
        f"{options['rates']} rates from {LEAST_RATE:g} to 2; it is at the grid's edge in "
        f"{np.sum(table['at edge'])} of {len(table)} cells.",
    )
    claims, groups = [], table.groupby("theorem", sort=False)
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, (name, part) in zip(panels, groups, strict=True):
        theorem = str(name).removeprefix("T")  # a number would lose the last digit of 2.10
        sigma, zeta, exponents = THEOREMS[theorem]
        cells = part.loc[part["in regime"].astype(bool), :]
        fit = fitted(cells).assign(theorem=exponents)
        report.section(
            f"Theorem {theorem}: sigma {sigma:g}, zeta {zeta:g}; {len(cells)} cells", fit
        )
        for row in fit.to_dict("records"):
            text = f"Theorem {theorem}: the exponent of {row['of']} is {row['theorem']:.3f}"
            found = {"exponent": row["exponent"], "+-": row["+-"]}
            margin = TOLERANCE - abs(row["exponent"] - row["theorem"])
            claims.append(exact(text, found, [margin], ours=f"within {TOLERANCE:g}"))
        lines: Any = part.groupby("local_steps")
        for i, (steps, line) in enumerate(lines):
            axes.loglog(line["rounds"], line["E F"], f"C{i}o-", ms=4, label=f"K = {steps}")
        axes.set(title=f"Theorem {theorem}", xlabel="rounds R", ylabel="E F at the best rate")
        axes.legend(frameon=False, fontsize=8)
        style_axes(axes)
    report.claims(claims)
    return report, {"exponents": figure}


def main(options: Options) -> None:
    """Runs the cells and writes the report."""
    rows = []
    for theorem, (sigma, zeta, _) in THEOREMS.items():
        for steps, rounds in itertools.product(options.local_steps, options.rounds):
            case = Case(CLIENTS, steps, rounds, sigma, zeta)
            swept = sweep(case, options.rates, options.repetitions, options.seed, LEAST_RATE)
            best = swept.loc[swept["E F"].idxmin(), [*Case._fields, "mu", "lr", "E F"]]
            at_edge = best["lr"] in (swept["lr"].iloc[0], swept["lr"].iloc[-1])
            rows.append({"theorem": f"T{theorem}", **best, "at edge": at_edge})
            rows[-1]["in regime"] = in_regime(case)
            print(rows[-1], flush=True)
    folder, facts = options.output / "exponents", settings(options)
    save_report(folder, "exponents", {"": pd.DataFrame(rows)}, build, options=facts)


if __name__ == "__main__":
    main(tyro.cli(Options))
