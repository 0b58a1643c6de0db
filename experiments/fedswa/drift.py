"""Theorem H.1 of the FedSWA paper: drift within visits with and without the decay of the rate.

    python -m experiments.fedswa.drift                      # about a minute

Liu et al., 2025, Appendix H: with rates that decay within a visit the drift is at most a third of
the bound at a constant rate, "so" it is smaller.  Visits of all clients start from one state of
FedMoSWA and differ only in their rates: on quadratics with known constants, at the theorem's rate
and at a practical one, and for a perceptron on digits.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np
import pandas as pd
import tyro

from experiments.fedswa import drift_runs as runs
from experiments.fedswa.drift_tables import EXPLAINED, claims, figure
from experiments.fedswa.methods import ALPHA, LR
from experiments.harness import Report, check_grid, save_report, settings
from fedjax_sim.checks import check_at_least, check_positive


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    rounds: tuple[int, ...] = (1, 10, 100, 1000)  # before which the visits begin, from 1
    local_steps: int = 50  # on the quadratics
    lr: float = LR  # the practical rate
    keys: int = 64  # draws of the minibatches
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        check_grid(rounds=self.rounds)
        check_at_least(2, local_steps=self.local_steps)
        check_at_least(1, keys=self.keys)
        check_positive(lr=self.lr)


def measure(options: Options) -> pd.DataFrame:
    """A row per case, round and schedule: drift with its standard error, ratios and bounds."""
    K, last = options.local_steps, max(options.rounds)
    theorem = 1 / (81 * runs.SMOOTHNESS * K * ALPHA)
    exact = runs.quadratic_problem(last, K)
    network = runs.network_problem(last)
    cases = [
        ("quadratics, theorem's rate", exact, theorem),
        (f"quadratics, lr {options.lr:g}", exact, options.lr),
        (f"perceptron, lr {options.lr:g}", network, options.lr),
    ]
    keys, rows = jax.random.split(jax.random.key(1), options.keys), []
    for name, problem, lr in cases:
        for round in options.rounds:
            state = runs.state_after(problem, lr, round - 1)
            drifts = {}
            for schedule, rates in runs.schedules(lr, problem.steps).items():
                # Clients share the keys, so a draw is one key's mean over clients.
                draws = np.asarray(runs.squared_distances(problem, state, rates, keys))
                draws = draws.astype(np.float64).mean((0, 2))
                drifts[schedule] = draws
                constant = drifts["constant"]
                rows.append(
                    {"case": name, "round": round, "schedule": schedule, "drift": draws.mean()}
                    | {"standard error": draws.std(ddof=1) / np.sqrt(len(draws))}
                    | {"sum of rates": float(rates.sum() / (lr * problem.steps))}
                    | {"ratio to constant": draws.mean() / constant.mean()}
                    | runs.bounds(problem, state, lr, rates)
                )
            print(f"{name}: round {round}", flush=True)
    return pd.DataFrame(rows)


def build(tables: dict[str, pd.DataFrame], facts: dict[str, Any]) -> tuple[Report, dict]:
    """Report and figure from the files."""
    table, options = tables[""], Options(**facts["options"])
    text = Report(
        "Theorem H.1: drift within a visit",
        f"Visits of all clients from the state of FedMoSWA (rho 1, alpha {ALPHA}) before a round; "
        f"{options.keys} draws of minibatches, K = {options.local_steps} on {runs.NUM_CLIENTS} "
        f"quadratics of dimension {runs.DIM} (beta {runs.SMOOTHNESS:g}, mu {runs.CONVEXITY:g}, "
        f"sigma {runs.NOISE:g}).  drift: mean over clients and steps 1 .. K of the squared "
        "distance from the received model.  sum of rates: relative to a constant rate.  recursion: "
        "bound of the proof's recursion at the rates.",
        table,
        EXPLAINED,
    )
    text.claims(claims(table))
    return text, {"drift": figure(table)}


def main(options: Options) -> None:
    """Measures, writes and draws."""
    folder = options.output / "fedswa" / "drift"
    save_report(folder, "drift", {"": measure(options)}, build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
