"""FAVANO beside its theory: quadratic clients whose constants are known exactly.

    python -m experiments.favano.theory
    python -m experiments.favano.theory --server-steps 40 --repetitions 4

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 4 and Appendix B.
:mod:`experiments.favano.quadratics` describes the clients.
"""

import dataclasses
import pathlib

import jax
import numpy as np
import pandas as pd
import tyro

from experiments.favano import theory_report
from experiments.favano.quadratics import NUM_CLIENTS, SLOW_FRACTIONS, batch, over_all, problem
from experiments.favano.theory_bounds import admitted, over_time, row
from experiments.favano.theory_units import unit_table
from experiments.harness import save_report, settings
from fedjax_sim.checks import check_at_least
from fedjax_sim.theory import Version

COHORTS, CAPS = (2, 5, 20), (5, 20)
SHARES = (1.0, 0.1)  # of the largest rate of the theorem
VERSIONS: tuple[Version, ...] = ("stochastic", "deterministic")
DRAWN = (5, 0.5, 1.0, "stochastic")  # K, fraction of slow clients, share and alpha of the curves


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    server_steps: int = 1000
    repetitions: int = 16
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        check_at_least(2, server_steps=self.server_steps, repetitions=self.repetitions)


def grid(options: Options) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row per setting, and curves of the settings that are drawn."""
    instance = problem(options.seed)
    rows, curves = [], []
    for s in COHORTS:
        for K in CAPS:
            runs = batch(s, K, options.server_steps, options.repetitions, options.seed)
            for version in VERSIONS:
                known = [admitted(instance, s, K, p, version) for p in SLOW_FRACTIONS]
                largest = [each["lr"] for each in known]
                lrs = np.repeat(np.outer(SHARES, largest), options.repetitions, axis=1)
                traces = over_all(instance, runs, lrs, version, K)
                for i, fraction in enumerate(SLOW_FRACTIONS):
                    at = slice(i * options.repetitions, (i + 1) * options.repetitions)
                    for j, share in enumerate(SHARES):
                        these = known[i] | {"lr": share * largest[i]}
                        rows.append(row(traces[j, at], these, version, fraction, share))
                        if s < NUM_CLIENTS and (K, fraction, share, version) == DRAWN:
                            curves.append(over_time(traces[j, at].mean(axis=0), these))
                print(pd.DataFrame(rows[-1:]).to_string(index=False, header=False), flush=True)
    return pd.DataFrame(rows), pd.concat(curves)


def main(options: Options) -> None:
    """Runs, compares, writes and draws."""
    with jax.enable_x64(True):
        table, curves = grid(options)
        times = unit_table(options.seed)
        constants = problem(options.seed).constants
    folder, facts = options.output / "favano" / "theory", {"options": settings(options)}
    facts |= {"constants": {name: float(value) for name, value in constants.known.items()}}
    tables = {"": table, "curves": curves}
    save_report(folder, "theory", tables, theory_report.theory, **facts)
    save_report(folder, "units", {"": times}, theory_report.units, **facts)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
