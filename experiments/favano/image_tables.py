"""The four methods of FAVANO's experiments on images: runs, tables, claims, reports."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.favano import methods
from experiments.favano.images import Runs
from experiments.favano.outcomes import accuracy, final, late, panels, tuned
from experiments.harness import Build, Claim, Report, means, paired

Tables = Mapping[str, pd.DataFrame]
Facts = Mapping[str, Any]


def row(frame: pd.DataFrame, **names: Any) -> dict[str, Any]:
    """A row of a table of results."""
    mean, deviation = accuracy(frame)
    columns = ["round", "local_steps", "reports", "bits"]
    means = final(frame)[columns].to_numpy(dtype=float).mean(axis=0)
    counts = dict(zip(columns, means.tolist(), strict=True))
    return {**names, "accuracy": mean, "+-": deviation, **counts}


def compared(runs: Runs, chosen: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The four methods: their histories, and FedBuff's server rates on one seed of their own."""
    histories, rates = [], []
    for setting in chosen:
        buffered, tuning = tuned(runs, setting, runs.options.server_lrs)
        rates.append(tuning)
        for name, method in [
            ("FedAvg", methods.fedavg()), ("QuAFL", methods.quafl()),
            ("FedBuff", buffered), ("FAVANO", methods.favano()),
        ]:  # fmt: skip
            frame = runs(method, setting, variance="exact").assign(algorithm=name)
            histories.append(frame)
            print(row(frame, setting=setting, method=name), flush=True)
    return {"": pd.concat(histories), "rates": pd.concat(rates)}


def by_setting(table: pd.DataFrame, column: str) -> dict[str, dict[str, float]]:
    """A column's values by method in every setting."""
    return {
        str(setting): dict(zip(part["method"], part[column].tolist(), strict=True))
        for setting, part in table.groupby("setting", sort=False)
    }


def best_two(scores: pd.DataFrame, ours: str = "") -> list[Claim]:
    """The paper's claim that FedBuff and FAVANO are ahead of the other two."""
    rows = []
    for setting, part in scores.groupby("setting", sort=False):
        by = part.pivot(index="seed", columns="algorithm", values="accuracy")
        ahead = [by[a] - by[b] for a in ("FedBuff", "FAVANO") for b in ("FedAvg", "QuAFL")]
        text, found = (
            "FedBuff and FAVANO are best",
            means(by, part["algorithm"].unique().tolist()),
        )
        rows.append(paired(text, found, ahead, str(setting), ours))
    return rows


def larger(text: str, measured: pd.DataFrame, column: str) -> list[Claim]:
    """The claim that a measure of FedBuff is above FAVANO's, per setting; one value per seed."""
    rows = []
    for setting, part in measured.groupby("setting", sort=False):
        by = part.pivot(index="seed", columns="algorithm", values=column)
        pair = means(by, ["FedBuff", "FAVANO"])
        apart = (by["FedBuff"] - by["FAVANO"]).dropna()
        rows.append(paired(text, pair, [apart], str(setting)))
    return rows


def variances(history: pd.DataFrame) -> pd.DataFrame:
    """The clients' late variance by ``setting``, ``algorithm`` and ``seed``."""
    known, keys = history.dropna(subset=["variance"]), ["setting", "algorithm", "seed"]
    groups: Any = known.groupby(keys, sort=False)
    end = known[known["time"] >= 0.8 * groups["time"].transform("max")]
    ends: Any = end.groupby(keys, sort=False)
    return ends["variance"].mean().reset_index()


def methods_report(
    title: str, explained: str, claims: Callable[[pd.DataFrame], Iterable[Claim]]
) -> Build:
    """A report of the four methods, from their histories and FedBuff's server rates."""

    def build(tables: Tables, facts: Facts) -> tuple[Report, dict[str, Figure]]:
        history, rates, rows = tables[""], tables["rates"], []
        groups: Any = history.groupby(["setting", "algorithm"], sort=False)
        for (setting, name), frame in groups:
            chosen = rates[(rates["setting"] == setting) & rates["best"].notna()]
            note = f"server rate {chosen['server rate'].item():g}" if name == "FedBuff" else ""
            rows.append(row(frame, setting=setting, method=name, note=note))
            measured = frame.dropna(subset=["variance"])
            if len(measured):
                rows[-1]["variance"] = float(np.mean(late(measured)["variance"].to_numpy()))
        table = pd.DataFrame(rows)
        report = Report(title, facts["scale"], explained, table)
        report.section("FedBuff's server rate, one seed of its own", rates.fillna(""))
        report.claims(claims(history))
        return report, {"methods": panels(history, [("accuracy", "time"), ("variance", "time")])}

    return build
