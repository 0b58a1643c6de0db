"""Tables of selected runs, of equal rates and of the fastest pairs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.fco.methods import PENALTY_METHODS
from experiments.fco.selection import PAIR, RUN, Selected
from experiments.harness.options import counted
from experiments.harness.tables import edge_marks


def grid_text(selected: Selected) -> str:
    """The number of pairs of rates that were run per method, their range, and the seeds."""
    pairs = selected.score.loc[:, PAIR].drop_duplicates()
    counts = sorted(set(pairs.groupby("method").size()))
    number = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    seeds = counted(len(set(selected.score["seed"])), "seed")
    if counts == [1]:
        return f"One pair of rates per method, {seeds}"
    lrs, server_lrs = (f"{pairs[rate].min():g} to {pairs[rate].max():g}" for rate in PAIR[1:])
    return (
        f"{number} pairs of rates per method, client rates from {lrs}, server rates from "
        f"{server_lrs}, {seeds}"
    )


def selected_table(selected: Selected, columns: Callable[[str], Mapping[str, Any]]) -> pd.DataFrame:
    """A row per method: its best pair, a mark at the grid's edge, and ``columns(method)``."""
    rows = []
    chosen = selected.chosen.to_dict("records")
    for row, edge in zip(chosen, edge_marks(selected.chosen), strict=True):
        failed = selected.score.loc[selected.score["method"] == row["method"], "score"].isna()
        rows.append(
            {name: row[name] for name in PAIR}
            | dict(columns(str(row["method"])))
            | {"at the grid's edge": edge, "failed runs": f"{np.sum(failed)} of {len(failed)}"}
        )
    return pd.DataFrame(rows)


def equal_rates_table(selected: Selected, metric: str | None = None) -> pd.DataFrame:
    """Scores of all methods at equal rates, with the server rate of FedDualAvg's best pair."""
    first = "FedDualAvg" if "FedDualAvg" in selected.rates else next(iter(selected.rates))
    server_lr = selected.rates[first][1]
    rows = selected.score.merge(selected.ends, on=RUN)
    wide = rows.loc[np.isclose(rows["server_lr"], server_lr)].pivot_table(
        index=["server_lr", "lr"], columns="method", values=metric or "score", dropna=False
    )
    names = [name for name in PENALTY_METHODS if name in wide]
    return wide[names].dropna(how="all").reset_index().rename_axis(columns=None)


def fastest_table(selected: Selected, event: str) -> pd.DataFrame:
    """A row per method: the pair of rates that has an event first, or the better score."""
    if event not in selected.ends:  # runs of which only the scores were kept
        return pd.DataFrame()
    rows = selected.score.merge(selected.ends, on=RUN).dropna(subset=["score", event])
    means = rows.pivot_table(index=PAIR, values=[event, "score"], sort=False).reset_index()
    means = means.loc[np.isfinite(means[event]), [*PAIR, event, "score"]]
    means = means.sort_values([event, "score"], ascending=[True, selected.mode == "min"])
    order = list(selected.rates)
    return means.drop_duplicates("method").sort_values(
        "method", key=lambda names: names.map(order.index), ignore_index=True
    )
