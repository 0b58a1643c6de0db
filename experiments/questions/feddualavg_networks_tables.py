"""Tables of networks in l1 balls: scores of all seeds, ratios of methods paired by seed."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from experiments.harness import Estimate, select

POINT = ("model", "radius", "alpha", "num_steps")
PROJECTED = "projected"
TITLES = {
    "train loss": "Training loss, means over seeds",
    "test accuracy": "Accuracy on digits for testing",
    "density": "Density of the kernels",
}


def scores(table: pd.DataFrame, metric: str, **point: Any) -> np.ndarray:
    """A metric of one cell and method by seed, ``[n]``; the projected start unless named."""
    found = select(table, **{"start": PROJECTED} | point)
    if len(found) != 1:
        raise ValueError(f"point is {point}, which {len(found)} rows have; expected one row")
    return found[columns(table, metric)].to_numpy(np.float64)[0]


def columns(table: pd.DataFrame, metric: str) -> list[str]:
    """The columns of a metric, one per seed."""
    return [name for name in table.columns if re.fullmatch(rf"{metric} \d+", name)]


def ratio(left: np.ndarray, right: np.ndarray) -> Estimate:
    """Geometric mean over seeds of ``left / right``, with its interval."""
    return Estimate(*np.exp(Estimate.of(np.log(left) - np.log(right))))


def over(table: pd.DataFrame, metric: str, method: str, other: str, **point: Any) -> Estimate:
    """The ratio of two methods in one cell, paired by seed."""
    return ratio(*(scores(table, metric, method=name, **point) for name in (method, other)))


def overall(table: pd.DataFrame, metric: str, method: str, other: str, **only: Any) -> Estimate:
    """The geometric mean over the cells with ``only`` of :func:`over`; seeds are paired."""
    logs = [
        np.log(scores(table, metric, method=method, **point))
        - np.log(scores(table, metric, method=other, **point))
        for point in points(table, **only)
    ]
    return Estimate(*np.exp(Estimate.of(np.mean(logs, axis=0))))


def points(table: pd.DataFrame, **only: Any) -> list[dict[str, Any]]:
    """The cells with the projected start, each by its names; ``only`` restricts them."""
    found: Any = select(table, start=PROJECTED, method="FedMiD", **only)[list(POINT)]
    return found.to_dict("records")


def means(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Means over seeds, a row per cell and a column per method."""
    own = select(table, start=PROJECTED)
    flat = own.assign(value=own[columns(table, metric)].mean(axis=1))
    wide: Any = flat.pivot(index=list(POINT), columns="method", values="value")
    return wide[list(own["method"].unique())].reset_index().rename_axis(columns=None)


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """FedDualAvg over FedMiD in every cell: ratios with intervals."""

    def rows() -> Iterator[dict[str, Any]]:
        for point in points(table):
            row = dict(point)
            for metric in ("train loss", "density"):
                row[metric] = f"{over(table, metric, 'FedDualAvg', 'FedMiD', **point):.3f}"
            more = [
                scores(table, "test accuracy", method=name, **point)
                for name in ("FedDualAvg", "FedMiD")
            ]
            row["points of accuracy more"] = f"{Estimate.of(100 * (more[0] - more[1])):.1f}"
            yield row

    return pd.DataFrame(rows())


def inside(table: pd.DataFrame) -> pd.DataFrame:
    """Densities of clients and the server, their l1 norms over the radius, and units that live."""

    def rows() -> Iterator[dict[str, Any]]:
        for point in points(table):
            for method in ("FedDualAvg", "FedMiD"):
                row: dict[str, Any] = {**point, "method": method}
                for metric in ("client density", "density", "size", "live units"):
                    row[metric] = scores(table, metric, method=method, **point).mean()
                yield row

    return pd.DataFrame(rows())


def starts(table: pd.DataFrame) -> pd.DataFrame:
    """Starts over the projected one, paired by seed."""

    def rows() -> Iterator[dict[str, Any]]:
        others: Any = table[table["start"] != PROJECTED]
        for row in others.to_dict("records"):
            point = {name: row[name] for name in (*POINT, "method")}
            yield {
                "start": row["start"],
                "method": row["method"],
                **{
                    metric: f"{started(table, metric, row['start'], **point):.3f}"
                    for metric in ("train loss", "density")
                },
            }

    return pd.DataFrame(rows())


def started(table: pd.DataFrame, metric: str, start: str, **point: Any) -> Estimate:
    """One start over the projected one, of one method."""
    changed = scores(table, metric, start=start, **point)
    return ratio(changed, scores(table, metric, **point))


def rates(table: pd.DataFrame) -> pd.DataFrame:
    """Chosen rates of every method: how large, and how often at the edge of the client rates."""
    grouped: Any = select(table, start=PROJECTED).groupby("method", sort=False)
    return pd.DataFrame(
        {
            "method": method,
            "median client rate": part["lr"].median(),
            "geometric mean of lr times server_lr": product(part),
            "lr at the grid's edge": f"{int(part['at edge'].sum())} of {len(part)}",
        }
        for method, part in grouped
    )


def product(chosen: pd.DataFrame) -> float:
    """The geometric mean over rows of the client rate times the server rate."""
    return float(np.exp(np.log(chosen["lr"] * chosen["server_lr"]).mean()))
