"""Tables and figures of measured uniform stability beside the bounds of Theorem 5.1."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedswa.methods import RHO
from experiments.fedswa.stability_runs import BETA, LIPSCHITZ, METHODS, VALUES, Options
from experiments.harness import select
from fedjax_sim.reports.figures import add_caption, legend_above

CONVEX = 1e-9  # strong convexity in the limit: steps up to 2 / beta do not expand
DECAYING = ("FedSWA", "FedMoSWA")
WITHOUT_BOUND = ("SCAFFOLD",)
RUN = ["task", "skew", "n", "rate", "lr", "K", "method"]  # identity of a run


def summary(frame: pd.DataFrame, options: Options) -> pd.DataFrame:
    """A row per run and round: means over keys, of them mean and maximum over neighbours; bounds.

    The expectation of the definition is the mean over keys.
    """
    same = [*RUN, "round", "train_loss", "sigma", "sigma_g", "largest_gradient"]
    over_keys = {name: (name, "mean") for name in VALUES}
    over_neighbours = over_keys | {f"{name}_max": (name, "max") for name in VALUES}
    means = frame.groupby([*same, "neighbour"], sort=False).agg(**over_keys)
    table = means.groupby(same, sort=False).agg(**over_neighbours).reset_index()
    runs = [part for _, part in table.groupby(RUN, sort=False)]
    parts = [
        part.assign(**bounds(part.to_dict("records")[0], part["round"], options)) for part in runs
    ]
    return pd.concat(parts, ignore_index=True)


def bounds(run: Mapping[Any, Any], rounds: Any, options: Options) -> dict[str, np.ndarray]:
    """Bounds of the distance after the given rounds; NaN where there is none.

    * ``corrected``: the recursion behind the theorem, for any smooth loss;
    * ``convex``: the same with steps that do not expand, as those of convex losses up to 2 / beta;
    * ``lipschitz``: ``2 L sum eta / (m n)``, for convex losses, too (Hardt et al., 2016);
    * ``printed``: the theorem's, after the last round.
    """
    names, at = ("corrected", "convex", "lipschitz", "printed"), np.asarray(rounds)
    if run["task"] != "convex" or run["method"] in WITHOUT_BOUND:
        return {name: np.full(len(at), np.nan) for name in names}
    K, rho = run["K"], RHO if run["method"] in DECAYING else 1.0
    rates = jnp.asarray(run["lr"] * np.tile(1 - (1 - rho) * np.arange(K) / K, (options.rounds, 1)))
    constants = fs.theory.ProblemConstants(
        L=BETA, G=LIPSCHITZ, sigma=run["sigma"], sigma_g=run["sigma_g"]
    )
    sizes = {"clients": options.clients, "examples": run["n"]}
    printed = np.nan
    if run["rate"] == "theorem":
        printed = printed_bound(run, K, options)
    values = (
        np.asarray(fs.theory.fedswa.stability.distance_bound(constants, rates, **sizes))[at],
        np.asarray(
            fs.theory.fedswa.stability.distance_bound(constants._replace(mu=CONVEX), rates, **sizes)
        )[at],
        2 * LIPSCHITZ / (options.clients * run["n"]) * np.asarray(rates.sum(1).cumsum())[at - 1],
        np.where(at == options.rounds, printed, np.nan),
    )
    return dict(zip(names, values, strict=True))


def printed_bound(run: Mapping[Any, Any], K: int, options: Options) -> float:
    """Theorem 5.1 as printed, for non-convex losses, divided by L (docs/errata.md corrects it)."""
    T, sigma_g = options.rounds, run["sigma_g"]
    c = 1 + (2 + 1 / (K * T)) ** (K - 1) / T
    front = 2 / (options.clients * run["n"] * BETA) * np.exp(1 + 1 / T)
    heterogeneity = sigma_g if run["method"] == "FedMoSWA" else c * sigma_g
    return float(front * (c * LIPSCHITZ + heterogeneity + c * run["sigma"]))


def final_table(last: pd.DataFrame, *bound_names: str) -> pd.DataFrame:
    """Measured values after the last round, bounds, and their ratios to the mean distance."""
    columns = ["skew", "method", "sigma_g", "sigma", "train_loss"]
    columns += [*VALUES, *(f"{name}_max" for name in VALUES)]
    values = {name: last[name] for name in columns}
    for name in bound_names:
        values |= {name: last[name], f"{name} / distance": last[name] / last["distance"]}
    return pd.DataFrame(values)


def ordering(last: pd.DataFrame) -> pd.DataFrame:
    """FedMoSWA against FedSWA: ratio of the mean distances, and in how many pairs it is lower.

    A pair is a key and a neighbour.  The decrease of the training loss is compared, too: a method
    that has moved less is more stable for that reason alone.
    """
    where, rows = [name for name in RUN if name not in ("method", "lr")], []
    for _, part in last.groupby(where, sort=False):
        momentum, plain = (select(part, method=method) for method in ("FedMoSWA", "FedSWA"))
        distance, other = (np.asarray(half["distance"]) for half in (momentum, plain))
        decreases = [(x["start_loss"] - x["train_loss"]).mean() for x in (momentum, plain)]
        row = {
            "distance, FedMoSWA / FedSWA": distance.mean() / other.mean(),
            "lower in": f"{100 * (distance < other).mean():.0f} %",
            "loss decrease, FedMoSWA / FedSWA": decreases[0] / decreases[1],
        }
        run = part.to_dict("records")[0]
        rows.append({name: run[name] for name in where} | row)
    return pd.DataFrame(rows)


def across(last: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean distances of every method and rate against one column."""
    wide = last.pivot(index=["rate", "method"], columns=name, values="distance")
    return wide.rename(columns=f"{name} = {{}}".format).rename_axis(columns=None).reset_index()


def figure(table: pd.DataFrame, options: Options) -> Any:
    """Distances against rounds, against K and against the measured heterogeneity."""
    drawn, axes = plt.subplots(2, 4, figsize=(15, 6.5), layout="constrained")
    most, usual = {"skew": options.skews[-1]}, {"K": options.local_steps}
    panels = [("convex", "theorem"), ("convex", "practical"), ("network", "practical")]
    for i, method in enumerate(METHODS):
        style = {"color": f"C{i}", "label": method}
        runs = select(table, n=options.examples, method=method)
        for column, (task, rate) in enumerate(panels):
            curve = select(runs, task=task, rate=rate, **most, **usual)
            for row, value in enumerate(VALUES):
                axes[row, column].semilogy(curve["round"], curve[value], **style)
                axes[row, column].set(title=f"{task}, {rate} rate", xlabel="round")
                axes[row, column].set(ylabel=value.replace("_", " "))
            bound = "corrected" if rate == "theorem" else "convex"
            axes[0, column].semilogy(curve["round"], curve[bound], color=f"C{i}", ls=":")
        last = select(runs, task="convex", round=options.rounds)
        for rate, line in (("theorem", "--"), ("practical", "-")):
            for row, (name, chosen) in enumerate((("K", most), ("sigma_g", usual))):
                part = select(last, rate=rate, **chosen).sort_values(name)
                axes[row, 3].semilogy(part[name], part["distance"], marker=".", ls=line, **style)
                axes[row, 3].set(title="convex; -- theorem's rate", xlabel=name, ylabel="distance")
    legend_above(drawn, list(METHODS), len(METHODS))
    add_caption(
        drawn,
        "Dotted: bounds.  FedSAM and SCAFFOLD nearly coincide with FedAvg in the convex panels.",
    )
    return drawn
