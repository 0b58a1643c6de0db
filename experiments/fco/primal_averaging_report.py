"""Reports of the densities of clients' models, of their average and of the server's model."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.fco.recovery import COHORT
from experiments.harness.report import Report, read_facts, rounded

CLIENTS, AVERAGE, SERVER = "clients", "average", "server"
SHOWN = (50, 100, 200, 500)  # rounds in tables


def table(history: pd.DataFrame) -> pd.DataFrame:
    """A row per run and quantity: the density in some rounds."""
    last = int(np.max(history["round"]))
    rounds = [done for done in SHOWN if done < last] + [last]
    shown = history.loc[history["round"].isin(rounds), :]
    wide = shown.pivot_table(
        index=["run", "metric"], columns="round", values="value", sort=False
    ).reset_index()
    names = {"metric": "density of"} | {done: f"round {done}" for done in rounds}
    return wide.rename(columns=names).rename_axis(columns=None)


def build(name: str, history: pd.DataFrame, facts: Mapping[str, Any]) -> tuple[Report, Figure]:
    """Text and figure of a data set."""
    report = Report(
        f"Primal averaging, federated LASSO, set {name}",
        f"Density of the truth {facts['truth']:.4g}; {COHORT} clients per round, server rate 1, "
        f"lambda {facts['lambda']:g}.  `{AVERAGE}` is the mean of the clients' last models, "
        f"`{SERVER}` the model after the server's proximal step; `> c` counts the entries above c.",
        table(history),
    )
    panels = list(dict.fromkeys(history["metric"]))
    figure = fs.plotting.curves(history, panels, by="run", band=None)
    for axes in figure.axes:
        axes.set_ylim(0, 1.05)
        axes.axhline(facts["truth"], color="0.6", lw=0.8)
    return report, figure


def save(folder: pathlib.Path, name: str, history: pd.DataFrame, facts: Mapping[str, Any]) -> None:
    """Writes the report of a data set, with a column per metric in ``name.csv``."""
    wide = rounded(
        history.pivot_table(
            index=["run", "seed", "round"], columns="metric", values="value", sort=False
        ).reset_index()
    )
    report, figure = build(name, _tidy(wide), facts)
    report.save(folder, name, wide, {name: figure}, **facts)


def redraw(folder: pathlib.Path, name: str) -> None:
    """Writes the report of a data set again from its kept files."""
    history = _tidy(pd.read_csv(folder / f"{name}.csv"))
    report, figure = build(name, history, read_facts(folder, name))
    report.redraw(folder, name, {name: figure})


def _tidy(wide: pd.DataFrame) -> pd.DataFrame:
    return wide.melt(["run", "seed", "round"], var_name="metric")
