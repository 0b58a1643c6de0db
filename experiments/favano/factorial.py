"""FAVANO's Table 2 over every combination of the choices that the paper leaves open.

One setting has one choice of each kind for all methods and columns.  Selected is the setting with
the least sum of ``|ours - paper|`` over the twelve cells of the table; it and the default are then
run with seeds that the selection has not seen.  FedBuff's server rate is tuned as in the table, in
each column by accuracy on a seed of its own, never by the distance.

A run is bound by products of matrices, about 30 seconds on one core, so batches of runs save
nothing: cells run one after another, and a killed run continues with the seed it was in.  All 108
cells with three seeds, and FedBuff's rates, take about three core-hours.  The table of cells is
written after each of them and read at the start, so another machine continues from it.
"""

import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.favano import methods, mnist_report
from experiments.favano.methods import LAWS, Method
from experiments.favano.mnist_iid import PRINTED
from experiments.favano.mnist_report import PAPER, distances
from experiments.favano.mnist_runs import SERVER_LRS, SETTINGS, Changes, Options, Runs
from experiments.favano.outcomes import final, tuned
from experiments.harness import save_report
from experiments.harness.report import write_csv

ALPHAS = {
    "stochastic": methods.favano(),
    "deterministic": methods.favano("deterministic"),
    "of the printed law": PRINTED,
}
BUFFER_SHARE = 10 / 100  # Z / n
# The products of the local and the server rate are those of the scaled local rate.
UNSCALED_SERVER_LRS = tuple(rate * BUFFER_SHARE for rate in SERVER_LRS)


class Choices(NamedTuple):
    """A setting, or the part of it that a cell depends on: other fields are empty."""

    pixels: str = "raw"  # in [0, 1]; or standardised
    alpha: str = "stochastic"
    law: str = "renewal"  # of the steps between contacts
    rate: str = "scaled"  # FedBuff's local rate: times Z / n, or not

    def seen_by(self, method: str) -> "Choices":
        """The choices that change a method's runs."""
        # The law "literal" is the printed one, so its own means are the printed law's.
        kept = self._replace(rate="") if method != "FedBuff" else self
        if method != "FAVANO":
            kept = kept._replace(alpha="")
        elif self.law == "literal" and self.alpha == "of the printed law":
            kept = kept._replace(alpha="deterministic")
        return kept if method in ("FAVANO", "QuAFL") else kept._replace(law="")


DEFAULT = Choices()


def all_choices() -> Iterator[Choices]:
    """The 48 settings, the default first."""
    pixels, rates = ("raw", "standardised"), ("scaled", "unscaled")
    return itertools.starmap(Choices, itertools.product(pixels, ALPHAS, LAWS, rates))


def cell(
    runs: Runs, method: str, column: str, choices: Choices, seeds: Sequence[int]
) -> pd.DataFrame:
    """Accuracies, percent, of a method in a column of the table: a row per seed."""
    changes = Changes(standardised=choices.pixels == "standardised")
    clock: dict[str, Any] = {"law": choices.law} if choices.law else {}

    def run(algorithm: Method, setting: str, of: range) -> pd.DataFrame:
        return runs(algorithm, setting, of, changes=changes, **clock)

    if method == "FedBuff":
        scaled = choices.rate == "scaled"
        server_lrs = SERVER_LRS if scaled else UNSCALED_SERVER_LRS
        algorithm, _ = tuned(run, column, server_lrs, scaled=scaled)
    else:
        algorithm = {
            "FedAvg": methods.fedavg(), "QuAFL": methods.quafl(),
            "FAVANO": ALPHAS.get(choices.alpha, methods.favano()),
        }[method]  # fmt: skip
    last = final(run(algorithm, column, range(seeds[0], seeds[-1] + 1)))
    return pd.DataFrame(
        {
            "method": method, "column": column, **choices._asdict(), "label": algorithm.label,
            "seed": last["seed"], "accuracy": 100 * last["accuracy"],
        }
    )  # fmt: skip


def cells(
    runs: Runs,
    columns: Sequence[str],
    settings: Sequence[Choices],
    seeds: Sequence[int],
    kept: pathlib.Path,
) -> pd.DataFrame:
    """The accuracies of every cell that some setting has, each cell once."""
    horizon = runs.options.horizon
    todo = [
        (method, column, choices)
        for method in PAPER
        for column in columns
        for choices in dict.fromkeys(setting.seen_by(method) for setting in settings)
    ]
    frames = []
    for done, (method, column, choices) in enumerate(todo, 1):
        wanted = {"method": method, "column": column, **choices._asdict(), "horizon": horizon}
        frame, others = _finished(kept, wanted, seeds)
        if len(frame) < len(seeds):
            made = cell(runs, method, column, choices, seeds).assign(horizon=horizon)
            write_csv(kept, pd.concat([others, made]))
            frame, _ = _finished(kept, wanted, seeds)  # with the digits that another start reads
        frames.append(frame)
        mean = frame["accuracy"].mean()
        paper = PAPER[method][list(SETTINGS).index(column)][0]
        print(f"cell {done} of {len(todo)}: {method}, {column}, {choices}: "
              f"{mean:.2f}, paper {paper}", flush=True)  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def _finished(
    path: pathlib.Path, wanted: dict[str, Any], seeds: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of a cell in the table of finished cells, and the other rows."""
    if not path.exists():
        return pd.DataFrame(), pd.DataFrame()
    table = pd.read_csv(path, keep_default_na=False)
    found = table["seed"].isin(seeds)
    for name, value in wanted.items():
        found &= table[name] == value
    return table.loc[found, :], table.loc[~found, :]


def with_cells(settings: Sequence[Choices], accuracies: pd.DataFrame) -> pd.DataFrame:
    """A row per setting, method and column: the mean over seeds beside the paper's number."""
    keys = ["method", "column", *Choices._fields]
    groups: Any = accuracies.groupby(keys)["accuracy"]
    means, deviations = groups.mean(), groups.std()
    rows = [
        {
            **setting._asdict(), "column": column, "method": method,
            "accuracy": float(means[(method, column, *setting.seen_by(method))]),
            "+-": float(deviations[(method, column, *setting.seen_by(method))]),
            "paper": PAPER[method][list(SETTINGS).index(column)][0],
        }
        for setting in settings
        for column in dict.fromkeys(accuracies["column"])
        for method in PAPER
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    return table.assign(difference=table["accuracy"] - table["paper"])


def nearest(table: pd.DataFrame) -> Choices:
    """The setting with the least distance; of equals the first."""
    ranked = distances(table)
    best = ranked.iloc[int(np.argmin(ranked["distance"]))]
    return Choices(*(str(best[name]) for name in Choices._fields))


def factorial(options: Options) -> None:
    """Selects a setting on the first seeds and reports it, and the default, on others."""
    runs, count = Runs(options), options.num_seeds
    settings = list(all_choices())
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = options.folder / "factorial-cells.csv"
    first = cells(runs, options.settings, settings, range(count), kept)
    selecting = with_cells(settings, first)
    shown = list(dict.fromkeys([DEFAULT, nearest(selecting)]))
    further = range(count, count + options.further_seeds)
    fresh = cells(runs, options.settings, shown, further, kept)
    tables = {
        "": with_cells(shown, fresh), "selection": distances(selecting),
        "cells": pd.concat([first, fresh]),
    }  # fmt: skip
    save_report(options.folder, "factorial", tables, mnist_report.factorial, **options.facts)
