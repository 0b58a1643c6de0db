"""Tables 4 to 6 and Figure 5 of the FedSWA paper on a problem that allows whole grids.

    python -m experiments.fedswa.digits                     # 10 seeds, about 15 minutes of 2 cores
    python -m experiments.fedswa.digits --rounds 100 --seeds 2 --participations partial

Liu et al., 2025, Tables 4, 5 and 6 and Figure 5 are of CIFAR-100 with ResNet-18.  Here a perceptron
over-fits 600 digits: rho x alpha x gamma x lr for ten seeds, so the shapes of the tables come with
intervals.  FedAvg and FedMo are FedSWA and FedMoSWA with rho = alpha = 1.
"""

from typing import Any

import pandas as pd
import tyro

from experiments.fedswa import digits_tables as tables
from experiments.fedswa.digits_runs import Options, histories
from experiments.fedswa.settings import METRICS, TEST_LOSS, TRAIN_LOSS
from experiments.fedswa.table4_rho import PAPER, RHOS
from experiments.fedswa.tables5_6 import TABLE5, TABLE6
from experiments.harness import Report, late_scores, save_report, settings

LAST_ROUNDS = 50


def late(history: pd.DataFrame) -> pd.DataFrame:
    """A row per run: the means of its metrics over the last rounds, NaN where it diverged."""
    parts = [late_scores(history, name, LAST_ROUNDS, "min") for name in METRICS]
    table = parts[0].drop(columns="score")
    return table.assign(**{n: part["score"] for n, part in zip(METRICS, parts, strict=True)})


def report(runs: pd.DataFrame, options: Options) -> Report:
    """The text, from the table of the CSV file."""
    text = Report(
        "Tables 4 to 6 and Figure 5 on digits",
        f"{options.clients} clients with {options.examples} digits each, {options.cohort} per "
        f"round ({options.rounds} rounds) or all ({options.full_rounds} rounds), a perceptron of "
        f"{options.hidden} hidden units, {options.seeds} seeds, rates times 0.998 per round.  "
        f"Percent, means over the last {LAST_ROUNDS} rounds with the 95 % interval over seeds; "
        "differences are paired by seed.  The paper's rows are of CIFAR-100 with ResNet-18.",
    )
    if "partial" in options.participations:
        table6 = {method: entry.accuracy for method, entry in TABLE6.items()}
        text.section("Table 4: rho", tables.over_rho(runs, PAPER, RHOS))
        text.section("Figure 5a: alpha (paper: 1.5 is best)", tables.over_one(runs, "alpha"))
        text.section("Figure 5b: gamma (paper: 0.2 is best)", tables.over_one(runs, "gamma"))
        text.section(
            "Table 6: partial participation",
            tables.by_method(runs, "partial", table6),
            tables.orderings(runs, "partial", table6),
        )
        for name in (TRAIN_LOSS, TEST_LOSS):
            text.section(
                f"Table 6's methods: {name}", tables.by_method(runs, "partial", table6, name)
            )
    if "full" in options.participations:
        table5 = {method: entry.accuracy for method, entry in TABLE5.items()}
        text.section(
            "Table 5: full participation",
            tables.by_method(runs, "full", table5),
            tables.orderings(runs, "full", table5),
        )
    text.claims(tables.claims(runs))
    return text


def build(files: dict[str, pd.DataFrame], facts: dict[str, Any]) -> tuple[Report, dict]:
    """Report and figure from the files."""
    runs, options = files[""], Options(**facts["options"])
    figures = {}
    if "partial" in options.participations:
        figures["digits"] = tables.figure(runs, PAPER, RHOS)
    return report(runs, options), figures


def main(options: Options) -> None:
    """Runs the grids, and writes tables and figure."""
    folder = options.output / "fedswa" / "digits"
    runs = {"": late(histories(options))}
    save_report(folder, "digits", runs, build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
