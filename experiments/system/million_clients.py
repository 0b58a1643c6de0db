r"""From a thousand clients to a million: time per round, memory, and final losses.

    python -m experiments.system.million_clients
    python -m experiments.system.million_clients --clients 1000 1000000 --algorithms scaffold

Logistic regression by FedAvg and SCAFFOLD on M clients, 1,000 per round;
:mod:`experiments.system.populations` describes the clients.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import tyro
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness import Report, check_names, counted, in_own_process, kept_json
from experiments.harness.figures import legends
from experiments.harness.redrawing import save_report
from experiments.system import populations
from experiments.system.populations import (
    ALGORITHMS,
    BATCH_SIZE,
    EPOCHS,
    EXAMPLES,
    FEATURES,
    LR,
    STRATA,
)
from fedjax_sim.checks import check_at_least

COHORT = 1000
TARGET_SECONDS, TARGET_GB = 0.1, 8.0  # per round; of the process


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    clients: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    rounds: int = 500
    cohort: int = COHORT
    seeds: int = 3
    work: pathlib.Path = pathlib.Path("results/million_clients")  # finished cases, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds, seeds=self.seeds)
        if self.cohort < 1 or self.cohort % STRATA:
            raise ValueError(
                f"cohort is {self.cohort}; expected a multiple of {STRATA}, the strata"
            )
        if not self.clients or min(self.clients) < self.cohort:
            raise ValueError(
                f"clients is {self.clients}; expected at least the {self.cohort} per round"
            )
        check_names("algorithms", self.algorithms, ALGORITHMS)


def measured(options: Options, algorithm: str, clients: int) -> dict[str, Any]:
    """Numbers of a case, from an earlier call if there was one."""
    setting = {"algorithm": algorithm, "clients": clients, "rounds": options.rounds}
    setting |= {"cohort": options.cohort, "seeds": options.seeds}
    file = options.work / ("-".join(str(value) for value in setting.values()) + ".json")
    return kept_json(file, lambda: setting | in_own_process(populations.case, **setting))


def rows(cases: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per case, with intervals over its seeds."""
    table = []
    for c in cases:
        row = {"algorithm": c["algorithm"], "clients": c["clients"]}
        row |= {"ms per round": 1e3 * min(c["seconds"]), "peak GB": c["peak_gb"]}
        row |= {"data, analytic GB": 4e-9 * c["clients"] * EXAMPLES * (FEATURES + 1)}
        for name in ("train/loss", "test/loss"):
            mean, low, high = fs.analysis.mean_interval(c[name])
            row |= {name: mean, f"{name} +-": (high - low) / 2}
        table.append(row)
    return pd.DataFrame(table)


def figure(table: pd.DataFrame) -> Figure:
    """Time, memory and losses against the number of clients."""
    drawn = Figure(figsize=(11, 3.2), layout="constrained")
    time, memory, losses = drawn.subplots(1, 3)
    for algorithm, part in table.groupby("algorithm", sort=False):
        clients = part["clients"]
        (line,) = time.plot(clients, part["ms per round"], "o-", label=str(algorithm))
        memory.plot(clients, part["peak GB"], "o-", label=str(algorithm))
        for name, style in (("test/loss", "o-"), ("train/loss", "o:")):
            label = "fresh clients" if name == "test/loss" else "the population"
            losses.errorbar(
                clients, part[name], part[f"{name} +-"], fmt=style, color=line.get_color(),
                label=f"{algorithm}, {label}", capsize=2,
            )  # fmt: skip
    first = table[table["algorithm"] == table["algorithm"].iloc[0]]
    memory.plot(first["clients"], first["data, analytic GB"], "k--", label="data")
    time.axhline(1e3 * TARGET_SECONDS, color="grey", lw=1, label="target")
    memory.axhline(TARGET_GB, color="grey", lw=1, label="target")
    for axes, label in ((time, "ms per round"), (memory, "GB at the peak"), (losses, "final loss")):
        axes.set(xscale="log", xlabel="clients M", ylabel=label)
    legends((time, memory, losses), fontsize="small")
    time.set_yscale("log")
    memory.set_yscale("log")
    return drawn


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figure."""
    table, cases = tables[""], facts["cases"]
    rounds, cohort, seeds = (cases[0][name] for name in ("rounds", "cohort", "seeds"))
    largest = table.loc[table["clients"] == table["clients"].max()]
    report = Report(
        "A thousand to a million clients",
        f"Logistic regression, {EXAMPLES} examples of {FEATURES} features per client, "
        f"{cohort} clients per round ({STRATA} strata), {EPOCHS} epochs of batches of "
        f"{BATCH_SIZE}, rate {LR:g}, {rounds} rounds, {counted(seeds, 'seed')}; "
        f"{cases[0]['devices']} x {cases[0]['device']}. Time: the quickest seed; losses with 95 % "
        "intervals, of the population's clients and of fresh ones.",
        table,
        f"At {largest['clients'].iloc[0]:,} clients: {largest['ms per round'].max() / 1e3:.3g} s "
        f"per round (our target {TARGET_SECONDS:g}), {largest['peak GB'].max():.3g} GB (our target "
        f"{TARGET_GB:g}).",
    )
    return report, {"million_clients": figure(table)}


def main(options: Options) -> None:
    """Runs all cases, prints and writes the table and the figure."""
    cases = [
        measured(options, algorithm, clients)
        for algorithm in options.algorithms
        for clients in options.clients
    ]
    folder = options.output / "system" / "million_clients"
    save_report(folder, "million_clients", {"": rows(cases)}, build, cases=cases)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
