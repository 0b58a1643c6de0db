"""The four methods of FAVANO's experiments on images: runs, tables, claims, files."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.favano import methods
from experiments.favano.images import Runs
from experiments.favano.outcomes import accuracy, final, tuned
from experiments.harness import Claim, Report, settings


def row(frame: pd.DataFrame, **names: Any) -> dict[str, Any]:
    """A row of a table of results."""
    mean, deviation = accuracy(frame)
    columns = ["round", "local_steps", "reports", "bits"]
    means = final(frame)[columns].to_numpy(dtype=float).mean(axis=0)
    counts = dict(zip(columns, means.tolist(), strict=True))
    return {**names, "accuracy": mean, "+-": deviation, **counts}


def compared(runs: Runs, chosen: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The four methods: their table, their histories, FedBuff's tuning."""
    rows, histories, tunings = [], [], []
    for setting in chosen:
        buffered, tuning = tuned(runs, setting, runs.options.server_lrs)
        tunings.append(tuning)
        for name, method in [
            ("FedAvg", methods.fedavg()), ("QuAFL", methods.quafl()),
            ("FedBuff", buffered), ("FAVANO", methods.favano()),
        ]:  # fmt: skip
            frame = runs(method, setting, variance="exact").assign(algorithm=name)
            histories.append(frame)
            rows.append(row(frame, setting=setting, method=name, note=method.label))
            if "variance" in frame:
                known = frame.dropna(subset=["variance"])
                late = known["time"] >= 0.8 * known["time"].max()
                rows[-1]["variance"] = float(known.loc[late, "variance"].mean())
            print(rows[-1], flush=True)
    return pd.DataFrame(rows), pd.concat(histories, ignore_index=True), pd.concat(tunings)


def by_setting(table: pd.DataFrame, column: str) -> dict[str, dict[str, float]]:
    """A column's values by method in every setting."""
    return {
        str(setting): dict(zip(part["method"], part[column].tolist(), strict=True))
        for setting, part in table.groupby("setting", sort=False)
    }


def best_two(table: pd.DataFrame) -> list[Claim]:
    """The paper's claim that FedBuff and FAVANO are ahead."""
    return [
        Claim(
            "FedBuff and FAVANO are best", values,
            set(sorted(values, key=lambda name: -values[name])[:2]) == {"FedBuff", "FAVANO"},
            setting,
        )
        for setting, values in by_setting(table, "accuracy").items()
    ]  # fmt: skip


def save(
    runs: Runs,
    folder: pathlib.Path,
    name: str,
    title: str,
    history: pd.DataFrame,
    parts: Sequence[str | pd.DataFrame],
    tuning: pd.DataFrame | None,
    claims: Sequence[Claim],
    figures: Mapping[str, Figure] | None = None,
) -> None:
    """Writes the text, table, facts and figures of a part."""
    text = Report(title, runs.describe(), *parts)
    if tuning is not None:
        text.section("FedBuff's server rate, one seed of its own", tuning)
    text.claims(claims)
    facts = {"scale": runs.describe(), "options": settings(runs.options)}
    text.save(folder, name, history, figures, **facts)
