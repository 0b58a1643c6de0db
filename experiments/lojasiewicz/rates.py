"""FedAvg under clients' Lojasiewicz inequalities: gaps, bounds, and how far apart they are.

    python -m experiments.lojasiewicz.rates
    python -m experiments.lojasiewicz.rates --repetitions 50

Appendix F of the paper: Theorems F.2 and F.4, Lemmas F.1 and F.3.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import tyro

from experiments.harness.options import settings
from experiments.harness.redrawing import save_report
from experiments.harness.report import Report
from experiments.harness.tables import TOLERANCES, bounds_hold, exact
from experiments.lojasiewicz.cases import cases, exact_cases, reference_cases, sweep_cases
from experiments.lojasiewicz.tables import (
    families_figure,
    histories,
    looseness,
    rates_table,
    reference_table,
    sweeps_figure,
    thinned,
)
from fedjax_sim.checks import check_at_least

# From an independent program, to the digits given: the gap, and the corrected closed form.
REFERENCES = {
    "tilted quadratic": {
        "round": [10, 50, 200],
        "gap": [1.8630, 0.12718, 0.08327],
        "closed": [7.004, 5.002, 3.311],
    },
    "softmax bandit": {"round": [100, 1000, 4000], "gap": [0.2993, 0.0480, 0.0088]},
    "power 4": {
        "round": [1, 10, 100, 1000],
        "gap": [0.6104, 0.05588, 1.0176e-3, 1.1222e-5],
        "closed": [0.9298, 0.1780, 4.06e-3, 4.50e-5],
    },
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    repetitions: int = 200
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results/lojasiewicz")

    def __post_init__(self) -> None:
        check_at_least(2, repetitions=self.repetitions)


def measure(options: Options) -> dict[str, pd.DataFrame]:
    """Thinned curves of all groups of cases, and the report's tables."""
    run = functools.partial(histories, seed=options.seed)
    families = run([*cases(1, options.repetitions), *cases(10, options.repetitions)])
    sweeps = {name: run(group) for name, group in sweep_cases(options.repetitions).items()}
    exact, checks = run(exact_cases()), run(reference_cases(options.repetitions))
    swept = [table for tables in sweeps.values() for table in tables]
    groups = {"families": families, "exact": exact}
    groups |= {f"sweep over {name}": tables for name, tables in sweeps.items()}
    return {
        "": pd.concat(
            [thinned(table).assign(group=name) for name, part in groups.items() for table in part],
            ignore_index=True,
        ),
        "families": looseness(families),
        "sweeps": looseness(swept),
        "slopes": rates_table(exact),
        "references": reference_table(checks, REFERENCES),
    }


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """Text and figures."""
    report = Report(
        "FedAvg under clients' Lojasiewicz inequalities",
        f"{facts['options']['repetitions']} repetitions, noise of fixed norm unless stated; rate "
        "1 / (2 L) for K = 1, else 1 / (18 L K).  Gaps are F - F*, F* the mean of the clients' "
        "infima; none is below the floor inf F - F*.  `recursion` iterates the inequality of one "
        "round, `closed` is Theorem F.2, Lemma F.3 or Theorem F.4, corrected.  Ratios are over all "
        "rounds but the first; `violated` means by more than 3 standard errors.  `trajectory`: mu "
        "and zeta hold at the models visited.",
    )
    report.section("Families", tables["families"])
    report.section("Sweeps of the tilted quadratic", tables["sweeps"])
    report.section("Rates, exact gradients", tables["slopes"])
    report.section("Reference runs", "Normal noise in the first.", tables["references"])
    curves, slopes = tables[""], tables["slopes"].dropna(subset=["expected"])
    apart = float(np.abs(slopes["gap"] - slopes["expected"]).max())
    close = TOLERANCES["exponent of a rate"]
    kept = ~pd.concat([tables["families"], tables["sweeps"]])["violated"].astype(bool)
    report.claims(
        [
            bounds_hold("Lemma F.1, Theorems F.2 and F.4, Lemma F.3, corrected", kept),
            exact(
                "Theorem F.4: the gap falls as R^(-1 / (alpha - 1))",
                f"largest difference {apart:.3g}", [close - apart], ours=f"within {close:g}",
            ),
        ]
    )  # fmt: skip
    return report, {"rates": families_figure(curves), "sweeps": sweeps_figure(curves)}


def main(options: Options) -> None:
    """Runs and writes the report."""
    save_report(options.output, "rates", measure(options), build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
