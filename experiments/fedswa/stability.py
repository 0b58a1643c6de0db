"""Uniform stability, measured by its definition, beside the bounds of FedSWA's Theorem 5.1.

    python -m experiments.fedswa.stability
    python -m experiments.fedswa.stability --keys 20 --neighbours 100 --skews inf 1 0.1 0.03

Liu et al., 2025, section 5.1: full participation, one example per step, server rate 1, controls of
option I.  Models are trained on data sets that differ in one example of one client, with the same
randomness, at two rates: the theorem's 1 / (beta K T), and a practical one.
"""

import pandas as pd
import tyro

from experiments.fedswa import stability_runs as runs
from experiments.fedswa.stability_runs import BETA, LIPSCHITZ, METHODS, Options, point, problem
from experiments.fedswa.stability_tables import (
    across,
    figure,
    final_table,
    ordering,
    summary,
)
from experiments.harness import Report, select, settings


def measure(options: Options) -> pd.DataFrame:
    """A row per run, key, neighbour and evaluation, of all methods."""
    K, n = options.local_steps, options.examples
    rates = ("theorem", "practical")
    convex = [problem("convex", skew, n, options) for skew in options.skews]
    many = sorted({*options.many_local_steps, K})
    cases = [(part, point(rate, K, options)) for part in convex[:-1] for rate in rates]
    cases += [(convex[-1], point(rate, k, options)) for rate in rates for k in many]
    double = problem("convex", options.skews[-1], 2 * n, options)
    networks = [problem("network", skew, n, options) for skew in options.skews]
    programs = {
        "softmax regression": cases,
        "n doubled": [(double, point(rate, K, options)) for rate in rates],
        "network": [(part, point("practical", K, options)) for part in networks],
    }
    frames = []
    for title, group in programs.items():
        for method in METHODS:
            print(f"{title}, {method}: {len(group)} cases", flush=True)
            frames.append(runs.measured(method, group, options))
    return pd.concat(frames, ignore_index=True)


def report(frame: pd.DataFrame, table: pd.DataFrame, options: Options) -> Report:
    """The text: measured stability beside bounds, against K, n and the method."""
    last, n, K = select(table, round=options.rounds), options.examples, options.local_steps
    convex, network = (select(last, task=task, n=n, K=K) for task in ("convex", "network"))
    skewed = select(last, task="convex", skew=options.skews[-1])
    doubled = across(select(skewed, K=K), "n")
    doubled["ratio"] = doubled[f"n = {2 * n}"] / doubled[f"n = {n}"]
    label = "with the same label" if options.same_label else "with a label of the client"
    text = Report(
        "Uniform stability",
        f"m = {options.clients} clients of n = {n} digits, K = {K}, T = {options.rounds}, "
        f"batch 1, full participation; {options.neighbours} neighbours, replacements {label}, "
        f"{options.keys} keys.  distance is ||theta_T - theta'_T||, loss_difference the largest "
        "over the test digits; both are means over keys, of them mean and (_max) maximum over "
        "neighbours.  sigma and sigma_g are the largest along the trajectory.  Bounds are for the "
        "mean distance; those of FedMoSWA and FedSAM are not proven, SCAFFOLD has none.  "
        "lipschitz is 2 L sum eta / (m n).",
    )
    text.section(
        f"Softmax regression, theorem's rate 1 / (beta K T) (L = {LIPSCHITZ}, beta = {BETA})",
        final_table(select(convex, rate="theorem"), "corrected", "lipschitz", "printed"),
    )
    text.section(
        f"Softmax regression, rate {options.lr}: the printed bound's condition does not hold",
        final_table(select(convex, rate="practical"), "corrected", "convex", "lipschitz"),
    )
    skew = f"Dirichlet {options.skews[-1]:g}"
    text.section(f"Distance against K, {skew}", across(select(skewed, n=n), "K"))
    text.section(f"n doubled, {skew}: 1 / (m n) predicts a ratio of 1/2", doubled)
    text.section("FedMoSWA against FedSWA", ordering(select(frame, round=options.rounds, n=n)))
    text.section(
        f"Network of {options.hidden} hidden units, rate {options.lr}: no bound; largest_gradient "
        "is a local L",
        final_table(network).assign(largest_gradient=network["largest_gradient"]),
    )
    return text


def main(options: Options) -> None:
    """Measures, writes and draws."""
    frame = measure(options)
    table = summary(frame, options)
    text, figures = report(frame, table, options), {"stability": figure(table, options)}
    folder = options.output / "fedswa" / "stability"
    text.save(folder, "stability", table, figures, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
