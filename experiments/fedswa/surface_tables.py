"""Tables, claims and figures of flatness and loss surfaces, from their files."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedswa.flatness import Measured
from experiments.fedswa.settings import OneColumn, Setting, describe
from experiments.harness import Claim, Report, interval_text, means, paired

SURFACE_RADIUS = 0.5  # in units of the filters' norms
RISES = {name: f"{name} rise, r = {SURFACE_RADIUS}" for name in ("train", "test")}
TOP = "top eigenvalue"


def tables(results: Mapping[tuple[str, int], Measured]) -> dict[str, pd.DataFrame]:
    """The tables of the CSV files: a row per run; surfaces and dots of the first seed's runs.

    A row of the surfaces has the losses at one a, at equal distances from ``low`` to ``high`` in b.
    """
    least = min(seed for _, seed in results)
    first = {method: result for (method, seed), result in results.items() if seed == least}
    grids, dots = [], []
    for method, result in first.items():
        for name, drawn in result.surfaces.items():
            values = pd.DataFrame(np.asarray(drawn.values))
            ends = {"low": float(drawn.b[0]), "high": float(drawn.b[-1])}
            place = {"surface": name, "method": method, "a": np.asarray(drawn.a)} | ends
            grids.append(pd.concat([pd.DataFrame(place), values.add_prefix("b")], axis=1))
        dots.append(pd.DataFrame(result.dots, columns=["a", "b"]).assign(method=method))
    rows = pd.DataFrame([result.row for result in results.values()])
    return {"": rows, "surfaces": pd.concat(grids), "dots": pd.concat(dots)}


def claims(table: pd.DataFrame) -> list[Claim]:
    """FedSWA's and FedMoSWA's models beside FedAvg's and FedSAM's, by three measures."""
    rows, methods = [], list(dict.fromkeys(table["method"]))
    for measure in (TOP, *RISES.values()):
        by = table.pivot(index="seed", columns="method", values=measure)
        by_means = means(by, methods)
        for method in ("FedSWA", "FedMoSWA"):
            for other in ("FedAvg", "FedSAM"):
                if {method, other} <= set(by_means):
                    text = f"{method} is flatter than {other}: {measure}"
                    found = {name: by_means[name] for name in (method, other)}
                    apart = [(by[other] - by[method]).dropna()]
                    rows.append(paired(text, found, apart, ours="the measure"))
    return rows


def build(files: dict[str, pd.DataFrame], facts: dict[str, Any]) -> tuple[Report, dict]:
    """Report and figures from the files."""
    setting, options, table = Setting(**facts["setting"]), OneColumn.of(facts), files[""]
    rows = []
    for method, part in table.groupby("method", sort=False):
        means = part.drop(columns=["method", "seed"]).mean()
        row = {"method": method, "seeds": len(part), **dict(zip(means.index, means, strict=True))}
        rows.append(row | {f"{TOP}, interval": interval_text(part[TOP])})
    text = Report(
        f"Flatness: {setting.name}",
        describe(setting, options),
        "Means over seeds; losses without augmentation.  rise, r = 0.05: along one SAM step; +-: "
        "an eigenvalue is at most this far from the top one that was found; median and max: of "
        f"the clients' own top eigenvalues; train and test rise, r = {SURFACE_RADIUS}: mean rise "
        "of the loss surface within this radius of filter-normalised directions.  A top eigenvalue "
        "grows with the size of the gradients that are left, so compare it at similar training "
        "losses.",
        pd.DataFrame(rows),
    )
    text.claims(claims(table))
    grids = {
        str(name): {str(m): _surface(grid) for m, grid in part.groupby("method", sort=False)}
        for name, part in files["surfaces"].groupby("surface", sort=False)
    }
    dots = {
        str(method): part[["a", "b"]].to_numpy()
        for method, part in files["dots"].groupby("method", sort=False)
    }
    name, figures = options.file(setting), {}
    for part in ("train", "test"):
        middle = [float(s.values[s.values.shape[0] // 2].max()) for s in grids[part].values()]
        drawn = fs.plotting.contours(grids[part], high=1.5 * max(middle), label=f"{part} loss")
        figures[f"{name}-{part}-contours"] = drawn
    figures[f"{name}-clients"] = fs.plotting.contours(
        grids["clients"], dots=dots, label="test loss"
    )
    return text, figures


def _surface(grid: pd.DataFrame) -> Any:
    values = grid.drop(columns=["surface", "method", "a", "low", "high"]).to_numpy()
    b = np.linspace(grid["low"].iloc[0], grid["high"].iloc[0], values.shape[1])
    return fs.diagnostics.surfaces.Surface(grid["a"].to_numpy(), b, values)  # pyright: ignore
