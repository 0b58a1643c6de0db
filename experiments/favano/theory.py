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
from matplotlib.figure import Figure

from experiments.favano.quadratics import (
    DIM,
    FAST,
    NUM_CLIENTS,
    SLOW,
    SLOW_FRACTIONS,
    batch,
    over_all,
    problem,
)
from experiments.favano.theory_bounds import WORST, Curves, admitted, over_time, row
from experiments.favano.theory_units import EPSILONS, unit_table
from experiments.harness import Report, legends, settings
from fedjax_sim.checks import check_at_least
from fedjax_sim.theory.favano.progress import Version

COHORTS, CAPS = (2, 5, 20), (5, 20)
SHARES = (1.0, 0.1)  # of the largest rate of the theorem
VERSIONS: tuple[Version, ...] = ("stochastic", "deterministic")
DRAWN = (5, 0.5, 1.0, "stochastic")  # K, fraction of slow clients, share and alpha of the figure


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    server_steps: int = 1000
    repetitions: int = 16
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        check_at_least(2, server_steps=self.server_steps, repetitions=self.repetitions)


def grid(options: Options) -> tuple[pd.DataFrame, dict[str, Curves]]:
    """A row per setting, and curves of the settings that are drawn."""
    instance = problem(options.seed)
    rows, curves = [], {}
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
                            curves[f"s = {s}"] = over_time(traces[j, at].mean(axis=0), these)
                print(pd.DataFrame(rows[-1:]).to_string(index=False, header=False), flush=True)
    return pd.DataFrame(rows), curves


def figure(curves: dict[str, Curves], times: pd.DataFrame) -> Figure:
    """Gradients and bounds, potentials and their bounds, times."""
    drawn = Figure(figsize=(14, 4), layout="constrained")
    left, middle, right = drawn.subplots(1, 3)
    for i, (name, curve) in enumerate(curves.items()):
        steps = np.arange(1, len(curve.lemma) + 1)
        left.loglog(steps, curve.gradient, f"C{i}", label=name)
        left.loglog(steps, curve.theorem, f"C{i}--")
        middle.semilogy(steps, curve.potential, f"C{i}", label=name)
        middle.semilogy(steps, curve.lemma, f"C{i}--")
    setting = f"half slow, K = {DRAWN[0]}, {DRAWN[-1]} alpha"
    left.set(xlabel="server steps", ylabel="mean ||grad f(mu)||^2; dashed: bound", title=setting)
    middle.set(xlabel="server steps", ylabel="E Phi_t; dashed: lemma iterated", title=setting)
    for i, method in enumerate(dict.fromkeys(times["method"])):
        part = times[(times["slow"] == "1/3") & (times["method"] == method)]
        values = [part[f"eps = {eps:g}"].item() for eps in EPSILONS]
        right.loglog(EPSILONS, values, f"C{i}o-", label=method)
    right.set(xlabel="epsilon", ylabel="units of time (orders)", title="1/3 slow")
    legends((left, middle, right))
    return drawn


def main(options: Options) -> None:
    """Runs, compares, writes and draws."""
    with jax.enable_x64(True):
        table, curves = grid(options)
        times = unit_table(options.seed)
        constants = problem(options.seed).constants
    loose, lemma = table["bound / mean"], table["kappa': bound / potential"]
    known = ", ".join(f"{name} = {value:.4g}" for name, value in constants.known.items())
    text = Report(
        "FAVANO beside its theory",
        f"Quadratics: d = {DIM}, n = {NUM_CLIENTS}, {known}; {options.server_steps} server steps, "
        f"{options.repetitions} repetitions; steps geometric on 1, 2, ..., {FAST:g} for fast and "
        f"{SLOW:g} for slow clients, at most K. A bound holds where the average is at most "
        f"{WORST:g} standard errors above it (our threshold), for the potential after every single "
        "server step.",
        table,
        f"All bounds hold in {np.count_nonzero(table['holds'])} of {len(table)} settings. "
        f"Theorem 1 is {loose.min():.3g} to {loose.max():.3g} times the average, the potential "
        f"lemma with kappa' {lemma.min():.3g} to {lemma.max():.3g} times.",
    )
    orders = Report(
        "Units of time to a mean squared gradient of epsilon (Table 1 of FAVANO)",
        "Orders, constants taken as 1, times the length of a server step: only their dependence "
        "on the constants matters, not their values. The quadratics of "
        "`experiments.favano.quadratics`; n = 100, s = 20, K = 20, buffer 10; delays and FedBuff's "
        "step from long schedules.",
        times,
    )
    folder, facts = options.output / "favano" / "theory", settings(options)
    text.save(folder, "theory", table, {"theory": figure(curves, times)}, options=facts)
    orders.save(folder, "units", times, options=facts)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
