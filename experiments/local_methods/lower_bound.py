"""FedAvg on the lower-bound instance: no rate makes it fast.

    python -m experiments.local_methods.lower_bound
    python -m experiments.local_methods.lower_bound --repetitions 50 --rates 9

Section 2.3.1 of the thesis: the expected value E F of the last model, at every rate of a
logarithmic grid up to 2 / L, and mu B^2.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro

from experiments.harness.options import settings
from experiments.harness.redrawing import save_report
from experiments.harness.report import Report
from experiments.harness.tables import at_edge, exact
from experiments.local_methods.instance_runs import DISTANCE, PARTS, Case, sweep
from fedjax_sim.checks import check_at_least

LEAST = 0.01  # of E F / (2 mu B^2); the theorem has a constant without a number
CASES = (Case(8, 16, 32, 1.0, 0.0), Case(8, 16, 32, 1.0, 1.0), Case(8, 64, 32, 4.0, 0.0))


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    repetitions: int = 400
    rates: int = 25  # from 1e-3 to 2 / L
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results/local_methods")

    def __post_init__(self) -> None:
        check_at_least(2, repetitions=self.repetitions, rates=self.rates)


def figure(tables: list[pd.DataFrame]) -> Any:
    """E F and its parts against the rate, a panel per case."""
    drawn, axes = plt.subplots(1, len(tables), figsize=(11, 3.4), layout="constrained", sharey=True)
    for axis, table in zip(np.atleast_1d(axes), tables, strict=True):
        case = table.to_dict("records")[0]
        axis.loglog(table["lr"], table["E F"], "k", lw=2, label="E F")
        for i, name in enumerate(PARTS):
            axis.loglog(table["lr"], table[name].clip(lower=1e-8), f"C{i}", ls="--", label=name)
        axis.axhline(case["mu"] * DISTANCE**2, color="0.5", ls=":", label="mu B^2")
        title = "K = {local_steps}, R = {rounds}, sigma = {std:g}, zeta = {zeta:g}".format(**case)
        axis.set(title=title, xlabel="rate", ylim=(1e-5, 1))
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8)
    np.atleast_1d(axes)[0].set(ylabel="value after the last round")
    return drawn


def build(
    kept: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """Text and figure."""
    tables = [table for _, table in kept[""].groupby(list(Case._fields), sort=False)]
    best = pd.concat([table.loc[[table["E F"].idxmin()]] for table in tables])
    shown = [*Case._fields, "mu", "lr", "E F", "standard error", *PARTS, "E F / (2 mu B^2)"]
    best = best.loc[:, shown].assign(
        **{"at the grid's edge": [at_edge(lr, list(tables[0]["lr"])) for lr in best["lr"]]}
    )
    options = facts["options"]
    report = Report(
        "FedAvg on the lower-bound instance",
        f"L = B = 1, {options['repetitions']} repetitions, {options['rates']} rates from 0.001 to "
        "2; the best of them.  F1 to F4 are the means of the four coordinates' parts of F.",
        best,
    )
    theorems = {0.0: "2.8", 1.0: "2.10"}
    rows = zip(best["zeta"], best["std"], best["E F / (2 mu B^2)"], strict=True)
    report.claims(
        exact(
            f"Theorem {theorems[zeta]}: E F is at least of the order mu B^2 at every rate",
            {"E F / (2 mu B^2)": least}, [least - LEAST], f"sigma {std:g}", f"at least {LEAST:g}",
        )
        for zeta, std, least in rows
    )  # fmt: skip
    return report, {"lower_bound": figure(tables)}


def main(options: Options) -> None:
    """Sweeps and writes the report."""
    history = pd.concat(
        [sweep(case, options.rates, options.repetitions, options.seed) for case in CASES],
        ignore_index=True,
    )
    folder, facts = options.output / "lower_bound", settings(options)
    save_report(folder, "lower_bound", {"": history}, build, options=facts)


if __name__ == "__main__":
    main(tyro.cli(Options))
