"""Report of the densities of clients' models and of the server's model."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness.redrawing import redraw_report, save_report
from experiments.harness.report import Report
from experiments.harness.tables import Claim, paired
from fedjax_sim.reports.figures.style import add_caption

NAME = "figure-1.1"
CLIENTS, AVERAGE, SERVER = "clients", "average", "server"
SPARSE = 0.5  # the paper has no number
KEYS = ["run", "seed", "round"]
Tables = Mapping[str, pd.DataFrame]


def last_values(history: pd.DataFrame) -> pd.DataFrame:
    """A row per run and seed: the values in the last round."""
    return history.loc[history["round"] == history["round"].max(), :]


def table(history: pd.DataFrame) -> pd.DataFrame:
    """A row per run: means over seeds in the last round, and their standard deviations."""
    groups: Any = last_values(history).drop(columns=["seed", "round"]).groupby("run", sort=False)
    means, deviations = groups.mean(), groups.std()
    columns = {}
    for name in means:
        columns |= {name: means[name], f"{name} +-": deviations[name]}
    return pd.DataFrame(columns).reset_index()


def claims(history: pd.DataFrame) -> list[Claim]:
    """The figure's two statements about each of FedMiD's runs, and what FedDualAvg is for."""
    rows = []
    last = last_values(history)
    tested = last.pivot(index="seed", columns="run", values=SERVER)
    primal, dual = (
        tested[[run for run in tested if str(run).startswith(f"{method},")]]
        for method in ("FedMiD", "FedDualAvg")
    )
    if len(primal.columns) and len(dual.columns):
        least, largest = primal.min(axis=1), dual.max(axis=1)
        found = {"FedMiD, least": float(least.min())}
        found |= {"FedDualAvg, largest": float(largest.max())}
        text = "FedMiD's tested models are denser than FedDualAvg's"
        rows.append(paired(text, found, [least - largest], ours="all runs"))
    for name, part in last.groupby("run", sort=False):
        if not str(name).startswith("FedMiD"):
            continue
        clients = part[CLIENTS].to_numpy()
        sparse = f"{name}: the clients' models are sparse"
        found = {"least density": float(clients.min()), "largest": float(clients.max())}
        rows.append(paired(sparse, found, [SPARSE - clients], ours=f"< {SPARSE}"))
        apart = part[AVERAGE].to_numpy() - clients
        denser = f"{name}: the average is denser than they are"
        found = {"least difference": float(apart.min()), "largest": float(apart.max())}
        rows.append(paired(denser, found, [apart]))
    return rows


def build(tables: Tables, facts: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """Text and figure."""
    history, options = tables[""], facts["options"]
    label = facts["data"]
    report = Report(
        f"Primal averaging, l1-regularised logistic regression ({label})",
        f"{options['rounds']} rounds, {options['seeds']} seeds, lambda {facts['lambda']:g}; runs "
        f"by method, client rate and server rate; densities in the last round: `{CLIENTS}` of the "
        f"cohort's last models, `{AVERAGE}` of their average (FedDualAvg: of the model of the "
        f"averaged dual state), `{SERVER}` of the model that is tested.",
        table(history),
    )
    report.claims(claims(history))
    tidy = history.melt(KEYS, var_name="metric").rename(columns={"run": "algorithm"})
    figure = fs.plotting.curves(tidy, list(dict.fromkeys(tidy["metric"])), band="minmax")
    add_caption(figure, label)
    return report, {NAME: figure}


def save(folder: pathlib.Path, history: pd.DataFrame, facts: Mapping[str, Any]) -> None:
    """Writes the report."""
    save_report(folder, NAME, {"": history}, build, **facts)


def redraw(folder: pathlib.Path) -> None:
    """Writes the report again from its kept files."""
    redraw_report(folder, NAME, build)
