"""Tables and figures of DiLoCo beside data-parallel AdamW."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import Claim, Report, at_edge, claims_table, counted

BYTES = 4  # per parameter that is sent
CASE = ["method", "workers", "local_steps"]
Frame: TypeAlias = Any  # a data frame; pandas' own types make every cell a union


def curves(history: Frame, tokens: int, parameters: int) -> pd.DataFrame:
    """Test losses against the tokens of all workers and the megabytes that one worker uploads.

    Args:
        history: the tidy history of the sweep.
        tokens: of one worker's minibatch.
        parameters: of the model.
    """
    chosen = history[history["metric"] == "loss"]
    steps = chosen["round"] * chosen["local_steps"]
    table = chosen.assign(
        steps=steps,
        tokens=steps * chosen["workers"] * tokens,
        megabytes=chosen["round"] * parameters * BYTES / 1e6,
    )
    columns = [*CASE, "outer_rate", "seed", "steps", "tokens", "megabytes", "value"]
    return table[columns].rename(columns={"value": "loss"})


def summary(table: Frame) -> pd.DataFrame:
    """A row per run: the test loss after the last step, the mean over seeds."""
    end = table[table["steps"] == table["steps"].max()]
    by = [*CASE, "outer_rate", "tokens", "megabytes"]
    return end.groupby(by, dropna=False, sort=False)["loss"].mean().reset_index()


def best(ends: Frame) -> pd.DataFrame:
    """The rows of ``summary`` with the best outer rate of every case."""
    return ends.loc[ends.groupby(CASE, sort=False)["loss"].idxmin()]


def claims(ends: Frame) -> list[Claim]:
    """Expectations of Douillard et al., 2023, on this problem, at the best outer rates."""
    chosen: Frame = best(ends).set_index(CASE)["loss"]
    most = int(ends["workers"].max())
    steps = sorted(ends.loc[ends["method"] == "DiLoCo", "local_steps"].unique())
    parallel = float(chosen[("data-parallel", most, 1)])
    many = [float(chosen[("DiLoCo", most, h)]) for h in steps]
    result = [
        Claim(
            "more local steps, so less communication, cost loss",
            {f"H = {h}": loss for h, loss in zip(steps, many, strict=True)},
            bool(np.all(np.diff(many) >= 0)),
            f"{most} workers",
        ),
        Claim(
            "DiLoCo is as good as data-parallel AdamW with the same tokens",
            {"DiLoCo": min(many), "data-parallel": parallel},
            min(many) <= parallel + 0.02,
            f"{most} workers, best H",
            ours="0.02 nats more",
        ),
    ]
    if most == 1:
        return result
    one = float(chosen[("data-parallel", int(ends["workers"].min()), 1)])
    first = Claim(
        "DiLoCo beats one replica at equal steps",
        {f"H = {h}": loss for h, loss in zip(steps, many, strict=True)} | {"one replica": one},
        max(many) < one,
        f"{most} workers",
    )
    return [first, *result]


def lines(table: Frame, entropy: float | None) -> Figure:
    """Losses of the largest number of workers and of one replica, at the best outer rates."""
    ends: Frame = best(summary(table)).set_index(CASE)["outer_rate"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
    most, least = table["workers"].max(), table["workers"].min()
    for number, ((method, workers, steps), rate) in enumerate(ends.items()):
        if workers != most and not (method == "data-parallel" and workers == least):
            continue
        case = (table["method"] == method) & (table["workers"] == workers)
        case &= table["local_steps"] == steps
        case &= (table["outer_rate"] == rate) | np.isnan(rate)
        mean = table[case].groupby("steps")[["tokens", "megabytes", "loss"]].mean()
        label = f"{method}, W = {workers}"
        label += f", H = {steps}, outer rate {rate:g}" if method == "DiLoCo" else ""
        style = {"color": f"C{number}", "linewidth": 1.4}
        if method == "data-parallel":
            style |= {"color": "black", "linestyle": "-" if workers == most else ":"}
        for ax, over in zip(axes, ("tokens", "megabytes"), strict=True):
            ax.plot(mean[over], mean["loss"], label=label, **style)
    axes[0].set(xlabel="tokens of all workers", ylabel="test loss, nats per character")
    axes[1].set(xlabel="megabytes uploaded per worker", xscale="log")
    for ax in axes:
        if entropy is not None:
            ax.axhline(entropy, color="grey", linewidth=0.8, label="entropy of the text")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False,
        fontsize=8,
    )  # fmt: skip
    return figure


def rates(ends: Frame) -> Figure:
    """Final losses against the outer rate, a panel per number of workers."""
    workers = sorted(ends["workers"].unique())
    figure, axes = plt.subplots(
        1, len(workers), figsize=(3 * len(workers), 3), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for ax, count in zip(axes[0], workers, strict=True):
        part = ends[ends["workers"] == count]
        for steps, of_steps in part[part["method"] == "DiLoCo"].groupby("local_steps"):
            ax.plot(of_steps["outer_rate"], of_steps["loss"], marker="o", label=f"H = {steps}")
        parallel = part.loc[part["method"] == "data-parallel", "loss"].iloc[0]
        ax.axhline(parallel, color="black", linewidth=0.8, label="data-parallel")
        ax.set(xlabel="outer rate", title=f"W = {count}")
    axes[0, 0].set(ylabel="test loss at the end")
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


def build(
    tables: Mapping[str, Frame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figures."""
    options, entropy, ends = facts["options"], facts.get("entropy"), tables[""]
    if entropy is None:
        source = f"The text is {options['text']}. "
    else:
        source = (
            f"The text has {options['characters']:,} characters of a Markov chain over a lexicon "
            f"of 200 words, whose entropy is {entropy:.4f} nats per character. "
        )
    chosen = best(ends)
    edges = [at_edge(rate, options["outer_rates"]) for rate in chosen["outer_rate"]]
    chosen.insert(list(chosen.columns).index("outer_rate") + 1, "grid", edges)
    report = Report(
        f"DiLoCo and data-parallel AdamW, {counted(options['seeds'], 'seed')}",
        f"A transformer with {facts['parameters']:,} parameters ({options['depth']} blocks of "
        f"width {options['width']}) predicts characters of a vocabulary of "
        f"{facts['vocabulary']}. {source}Every worker has a contiguous shard and takes "
        f"{options['steps']} steps of AdamW (rate {options['lr']:g} with a cosine schedule, betas "
        "0.9 and 0.99, weight decay 0.1, gradients clipped to norm 1) on minibatches of "
        f"{options['batch_size']} windows of {options['context']} characters. DiLoCo's outer "
        "optimizer is Nesterov's with momentum 0.9. Losses are those of "
        f"{options['test_windows']} windows of the end of the text, in nats per character; "
        "megabytes are uploads of one worker in float32.",
        chosen,
    )
    report.section("Expectations", claims_table(claims(ends)))
    report.section("All outer rates", ends[ends["method"] == "DiLoCo"])
    return report, {"diloco": lines(tables["curves"], entropy), "rates": rates(ends)}
