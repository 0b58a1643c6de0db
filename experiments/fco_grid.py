r"""What the composite experiments on classification share: seeds, sweeps, selection, figures.

Methods and claims are those of :mod:`experiments.fco_common`.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fco_common import (
    METHODS,
    Curve,
    Curves,
    Rates,
    check_counts,
    check_names,
)
from experiments.fco_report import PAIR, Check, curves_of, selected
from experiments.output import write
from fedjax_sim import plotting, prox
from fedjax_sim.analysis.selection import best, scores
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.plotting import heat_maps


@dataclasses.dataclass(frozen=True)
class Options:
    """What both experiments can be told."""

    methods: tuple[str, ...] = tuple(METHODS)
    rounds: int | None = None  # default: the experiment's
    seeds: int = 1  # of cohorts, initial models and minibatches; the data are the same
    lrs: tuple[float, ...] = ()  # of clients; default: the paper's
    server_lrs: tuple[float, ...] = ()
    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    work: pathlib.Path = pathlib.Path("results/fco")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        check_counts(seeds=self.seeds, **({} if self.rounds is None else {"rounds": self.rounds}))
        check_names("methods", self.methods, METHODS)
        for name in ("lrs", "server_lrs"):
            rates = getattr(self, name)
            if any(not rate > 0 for rate in rates):
                raise ValueError(f"{name} is {rates}; expected positive learning rates")


class Problem(NamedTuple):
    """What all methods are given; n seeds."""

    composite: prox.Composite
    task: fs.Task
    timeline: fs.Timeline  # [n, ...]
    params: Any  # [n, ...]
    keys: jax.Array  # [n]
    eval_fn: Any


def problem(
    composite: prox.Composite,
    task: fs.Task,
    init: Callable[[jax.Array], Any],
    eval_fn: Any,
    *,
    rounds: int,
    cohort: int,
    seeds: int,
) -> Problem:
    """Cohorts, initial models and keys of every seed; more seeds leave the first as they were."""
    keys = jnp.stack([jax.random.fold_in(jax.random.key(1), seed) for seed in range(seeds)])
    draw_keys, init_keys, run_keys = jax.vmap(
        functools.partial(jax.random.split, num=3), out_axes=1
    )(keys)
    draw = functools.partial(
        fs.timelines.uniform,
        num_rounds=rounds,
        num_clients=task.num_clients,
        cohort_size=min(cohort, task.num_clients),
        num_steps=task.num_steps,
    )
    timeline = jax.jit(jax.vmap(draw))(draw_keys)
    return Problem(composite, task, timeline, jax.jit(jax.vmap(init))(init_keys), run_keys, eval_fn)


class Selected(NamedTuple):
    """A grid's scores, and of every method the pair of rates with the best one."""

    metric: str
    last: int  # evaluations the score is the mean of
    score: pd.DataFrame  # a row per pair and seed
    chosen: pd.DataFrame  # a row per method
    winners: pd.DataFrame  # tidy histories of the chosen pairs
    curves: Curves
    rates: Rates


def select(history: pd.DataFrame, metric: str, last: int) -> Selected:
    """By the least mean of a metric over the last evaluations; diverged runs have no score."""
    last = min(last, len(set(history["round"])))
    score = scores(history, metric, PAIR, last=last)
    chosen = best(score, per="method", mode="min")
    # In the order of the history, which is that of the methods' names in the figures.
    order = {name: place for place, name in enumerate(dict.fromkeys(history["method"]))}
    chosen = chosen.sort_values("method", key=lambda names: names.map(order), ignore_index=True)
    winners = selected(history, chosen)
    rates = {
        str(row["method"]): (float(row["lr"]), float(row["server_lr"]))
        for row in chosen.to_dict("records")
    }
    return Selected(metric, last, score, chosen, winners, curves_of(winners), rates)


def at_end(curve: Curve, metric: str, last: int) -> float:
    """The mean over the last evaluations."""
    return float(np.mean(curve[metric][-last:]))


def selected_table(
    found: Selected, shown: Sequence[str], more: Callable[[str], dict[str, Any]] | None = None
) -> pd.DataFrame:
    """A row per method: its best pair, the score, the means of metrics; ``more``: of a method."""
    rows = []
    for row in found.chosen.to_dict("records"):
        curve = found.curves[str(row["method"])]
        failed = found.score.loc[found.score["method"] == row["method"], "score"].isna()
        edge = row["lr_at_edge"] or row["server_lr_at_edge"]
        rows.append(
            {name: row[name] for name in PAIR}
            | {metric: at_end(curve, metric, found.last) for metric in shown}
            | (more(str(row["method"])) if more else {})
            | {"at the grid's edge": "yes" if edge else ""}
            | {"failed runs": f"{np.sum(failed)} of {len(failed)}"}
        )
    return pd.DataFrame(rows)


def beats(
    method: str, others: Sequence[str], metric: str, last: int, sign: int, factor: float = 1.0
) -> Check:
    """Whether a metric's end is below all others' (sign 1) by a factor, or above them (-1)."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        ends = {m: at_end(curves[m], metric, last) for m in (method, *others)}
        text = ", ".join(f"{m} {value:.4g}" for m, value in ends.items())
        ours = sign * factor * ends[method]
        return text, all(ours < sign * ends[m] for m in others)

    return check


def coincide(methods: Sequence[str], metric: str, tolerance: float) -> Check:
    """Whether curves stay within a share of each other, at all evaluations of the second half."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        values = np.stack([curves[m][metric] for m in methods])
        later = values[:, values.shape[1] // 2 :]
        low, high = later.min(axis=0), later.max(axis=0)
        apart = float(np.max((high - low) / np.abs(low)))
        pairs = ", ".join(f"{m} ({rates[m][0]:g}, {rates[m][1]:g})" for m in methods)
        return f"at most {100 * apart:.2g} % apart: {pairs}", apart <= tolerance

    return check


def save(
    folder: pathlib.Path,
    name: str,
    found: Selected,
    text: str,
    shown: Sequence[str],
    facts: Mapping[str, Any],
    label: str,
) -> None:
    """Text, tables and figures: curves of the chosen pairs, every method's scores over its grid."""
    write(folder, name, found.winners, text, **facts)
    found.score.to_csv(
        folder / f"{name}-scores.csv", index=False, lineterminator="\n", float_format="%.5g"
    )
    lines = found.winners.rename(columns={"method": "algorithm"})
    figure = plotting.curves(lines, shown, band="minmax", max_columns=2)
    figure.supxlabel(label, fontsize="small")
    figure.savefig(folder / f"{name}.png", dpi=90)
    for method, part in found.score.groupby("method", sort=False):
        values = np.asarray(part["score"], np.float64)
        finite = values[np.isfinite(values)]
        wide = len(finite) > 0 and 0 < finite.min() < finite.max() / 10
        figure = heat_maps.heat_map(
            part.drop(columns="method"), "lr", "server_lr", log=wide,
            label=f"{method}: {found.metric}",
        )  # fmt: skip
        figure.supxlabel(label, fontsize="x-small")
        figure.savefig(folder / f"{name}-{str(method).lower()}-grid.png", dpi=80)


def report(sections: Mapping[str, str | pd.DataFrame]) -> str:
    """Headed sections, tables among them, as one Markdown text."""
    return "\n\n".join(
        f"{head}\n\n{body if isinstance(body, str) else markdown(body)}"
        for head, body in sections.items()
    )
