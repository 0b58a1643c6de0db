"""Tables, claims and the figure of the grids on digits, beside the shapes of the paper's.

All functions take the table of the CSV file: a row per run with its hyper-parameters, seed, and the
means of accuracy and losses over the last rounds (NaN: diverged).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedswa.methods import ALPHA, GAMMA, LR, RHO
from experiments.fedswa.settings import ACCURACY
from experiments.harness import Claim, interval_text, ordering, select
from fedjax_sim.reports.figures import add_caption

PAPER_SKEW = 0.6  # of Table 4
BELOW = 3.0  # points under the best accuracy of a panel, where it ends

# FedAvg and FedMo are FedSWA and FedMoSWA with rho = alpha = 1.
POINTS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "FedSWA", "rho": 1.0, "alpha": 1.0},
    "FedSWA": {"method": "FedSWA", "rho": RHO, "alpha": ALPHA},
    "FedMo": {"method": "FedMoSWA", "rho": 1.0, "alpha": 1.0, "gamma": GAMMA},
    "FedMoSWA": {"method": "FedMoSWA", "rho": RHO, "alpha": ALPHA, "gamma": GAMMA},
}
COMPARED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    *(
        (
            f"Table 4: {method} with alpha {alpha:g} is better with rho 0.1 than with rho 1",
            POINTS[method] | {"alpha": alpha},
            POINTS[method] | {"alpha": alpha, "rho": 1.0},
        )
        for method in ("FedSWA", "FedMoSWA")
        for alpha in (1.0, ALPHA)
    ),
    (
        "Figure 5: gamma 0.2 ends above gamma 0.05",
        POINTS["FedMoSWA"],
        POINTS["FedMoSWA"] | {"gamma": 0.05},
    ),
)
ORDERED: Mapping[str, tuple[tuple[str, str], ...]] = {  # in the paper's tables and their text
    "Table 5": (
        ("FedSWA", "FedAvg"), ("FedMo", "SCAFFOLD"), ("FedMoSWA", "SCAFFOLD"), ("FedMoSWA", "FedMo")
    ),
    "Table 6": (
        ("FedSWA", "FedAvg"), ("FedSWA", "FedSAM"), ("FedMo", "FedSWA"), ("FedMo", "SCAFFOLD"),
        ("FedMoSWA", "FedMo"), ("FedMoSWA", "FedAvg"),
    ),
}  # fmt: skip


def scores(runs: pd.DataFrame, metric: Any = ACCURACY, **values: Any) -> pd.Series:
    """Scores by seed of one configuration; accuracies in percent."""
    part = select(runs, **values)
    scale = 100.0 if metric == ACCURACY else 1.0
    return pd.Series(scale * np.asarray(part[metric], float), index=list(part["seed"]))


def entry(values: pd.Series, digits: int = 2) -> str:
    """Mean with the 95 % interval over seeds; "diverged" if a run did."""
    if not len(values):
        return ""
    if values.isna().any():
        return "diverged"
    return f"{values.mean():.{digits}f} {interval_text(values, digits)}".strip()


def over_rho(
    runs: pd.DataFrame, paper: Mapping[str, Sequence[float]], rhos: Sequence[float]
) -> pd.DataFrame:
    """Table 4: a row per method, skew, alpha and rate; the paper's rows last."""
    rows = []
    runs = select(runs, participation="partial")
    for method in paper:
        fixed: dict[str, Any] = {} if method == "FedSWA" else {"gamma": GAMMA}
        for skew, alpha, lr in _product(runs, "skew", "lr", alpha=(1.0, ALPHA)):
            where = fixed | {"method": method, "skew": skew, "alpha": alpha, "lr": lr}
            cells = {rho: scores(runs, rho=rho, **where) for rho in rhos}
            row = {"method": method, "skew": skew, "alpha": alpha, "lr": lr}
            row |= {f"rho {rho:g}": entry(cell) for rho, cell in cells.items()}
            rows.append(row | {"first - last": entry(cells[rhos[0]] - cells[rhos[-1]])})
    for method, printed in paper.items():
        row = {"method": f"{method}, paper", "skew": 0.6, "alpha": "", "lr": ""}
        row |= {f"rho {rho:g}": f"{value}" for rho, value in zip(rhos, printed, strict=True)}
        rows.append(row | {"first - last": f"{printed[0] - printed[-1]:.1f}"})
    return pd.DataFrame(rows)


def over_one(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Figure 5: FedMoSWA's accuracy over alpha or gamma, a row per skew and rate."""
    rows = []
    runs = select(runs, participation="partial")
    rest = {key: value for key, value in POINTS["FedMoSWA"].items() if key != name}
    values = sorted(set(select(runs, **rest)[name]))
    for skew, lr in _product(runs, "skew", "lr"):
        cells = {v: scores(runs, skew=skew, lr=lr, **rest, **{name: v}) for v in values}
        best = max(values, key=lambda v: (cells[v].mean(skipna=False), 0))
        row = {"skew": skew, "lr": lr} | {f"{name} {v:g}": entry(c) for v, c in cells.items()}
        rows.append(row | {"best": best})
    return pd.DataFrame(rows)


def by_method(
    runs: pd.DataFrame, participation: str, methods: Mapping[str, float], metric: str = ACCURACY
) -> pd.DataFrame:
    """Tables 5 and 6: a row per skew and rate, a column per method; the paper's row last."""
    runs = select(runs, participation=participation)
    rows, digits = [], 2 if metric == ACCURACY else 3
    for skew, lr in _product(runs, "skew", "lr"):
        cells = {method: _cell(runs, method, metric, skew=skew, lr=lr) for method in methods}
        rows.append({"skew": skew, "lr": lr} | {m: entry(c, digits) for m, c in cells.items()})
    if metric == ACCURACY:
        rows.append(
            {"skew": "paper", "lr": ""} | {method: f"{value}" for method, value in methods.items()}
        )
    return pd.DataFrame(rows)


def orderings(runs: pd.DataFrame, participation: str, methods: Mapping[str, float]) -> str:
    """Agreement of the order with the paper's, per skew, at the rate of the authors' commands."""
    runs = select(runs, participation=participation, lr=LR)
    texts = []
    for skew in sorted(set(runs["skew"])):
        means = [_cell(runs, method, ACCURACY, skew=skew, lr=LR).mean() for method in methods]
        texts.append(f"Dirichlet {skew:g}, lr {LR}: {ordering(means, methods.values())}")
    return "  ".join(texts)


def claims(runs: pd.DataFrame) -> list[Claim]:
    """Statements of the paper per skew, at all rates; they are judged at the authors' rate."""
    rows = []
    for skew in sorted(set(runs["skew"])):
        setting = f"Dirichlet {skew:g}"
        full, part = (select(runs, skew=skew, participation=p) for p in ("full", "partial"))
        if len(full):
            rows += _ordered("Table 5", full, setting)
        if not len(part):
            continue
        rows += [_better(text, part, first, other, setting) for text, first, other in COMPARED]
        rows += _ordered("Table 6", part, setting)
        for name, best in (("alpha", ALPHA), ("gamma", GAMMA)):
            table = over_one(part, name).set_index("lr")["best"].to_dict()
            found = "; ".join(f"lr {lr:g}: {value:g}" for lr, value in table.items())
            text = f"Figure 5: {name} {best} is best"
            rows.append(Claim(text, found, table.get(LR) == best, setting, f"means at lr {LR}"))
    return rows


def _ordered(table: str, runs: pd.DataFrame, setting: str) -> list[Claim]:
    return [
        _better(
            f"{table}: {better} is better than {worse}",
            runs,
            _point(better),
            _point(worse),
            setting,
        )
        for better, worse in ORDERED[table]
    ]


def _point(method: str) -> dict[str, Any]:
    return POINTS.get(method, {"method": method})


def _better(
    text: str, runs: pd.DataFrame, first: Mapping[str, Any], second: Mapping[str, Any], setting: str
) -> Claim:
    """The claim that the first configuration is better, by the differences at all rates."""
    found, judged = [], np.array([])
    for lr in sorted(set(runs["lr"])):
        points = scores(runs, lr=lr, **first) - scores(runs, lr=lr, **second)
        found.append(f"lr {lr:g}: {entry(points)}")
        if lr == LR:
            judged = points.dropna().to_numpy()
    claim = Claim(text, "; ".join(found), False, setting, f"at lr {LR}")
    if not len(judged):
        return claim
    holds = float(fs.analysis.mean_interval(judged).low) > 0
    return claim._replace(holds=holds, margins=[judged])


def figure(runs: pd.DataFrame, paper: Mapping[str, Sequence[float]], rhos: Sequence[float]) -> Any:
    """Gains over rho = 1 with the paper's, and FedMoSWA over alpha and gamma; a row per skew.

    Rates at which FedMoSWA learns nothing are left out, as they would set the axes.
    """
    runs = select(runs, participation="partial")
    skews = sorted(set(runs["skew"]))
    usual = select(runs, **POINTS["FedMoSWA"])
    means = {lr: float(scores(usual, lr=lr).mean()) for lr in sorted(set(usual["lr"]))}
    lrs = [lr for lr, mean in means.items() if mean > max(means.values()) / 2]
    drawn, axes = plt.subplots(
        len(skews), 4, figsize=(14, 3.2 * len(skews)), layout="constrained", squeeze=False
    )
    for skew, row in zip(skews, axes, strict=True):
        for axis, method in zip(row, paper, strict=False):
            for i, lr in enumerate(lrs):
                for alpha, line in ((1.0, "--"), (ALPHA, "-")):
                    where: dict[str, Any] = POINTS[method] | {"skew": skew, "lr": lr}
                    where |= {"alpha": alpha}
                    base = scores(runs, **(where | {"rho": 1.0}))
                    gains = {r: scores(runs, **(where | {"rho": r})) - base for r in rhos}
                    _line(axis, gains, f"lr {lr:g}, alpha {alpha:g}", color=f"C{i}", ls=line)
            if skew == PAPER_SKEW:
                printed = np.asarray(paper[method])
                axis.plot(rhos, printed - printed[-1], "k.:", label="paper")
            axis.set(title=f"{method}, Dirichlet {skew:g}", xlabel="rho")
            axis.set(ylabel="points over rho = 1")
        for axis, name in zip(row[2:], ("alpha", "gamma"), strict=True):
            rest = {k: v for k, v in POINTS["FedMoSWA"].items() if k != name}
            values, best = sorted(set(select(runs, **rest)[name])), 0.0
            for i, lr in enumerate(lrs):
                cells = {v: scores(runs, skew=skew, lr=lr, **rest, **{name: v}) for v in values}
                _line(axis, cells, f"lr {lr:g}", color=f"C{i}")
                best = max(best, *(cell.mean() for cell in cells.values()))
            axis.set_ylim(best - BELOW, best + 1)
            axis.set(title=f"FedMoSWA, Dirichlet {skew:g}", xlabel=name, ylabel="accuracy, %")
    lines = dict(zip(*axes[-1, 0].get_legend_handles_labels()[::-1], strict=True))
    drawn.legend(lines.values(), lines, loc="outside upper center", ncols=4, frameon=False)
    note = f"alpha and gamma: rho {RHO:g}, alpha {ALPHA:g}, gamma {GAMMA:g} but for the axis.  "
    left_out = [f"{lr:g}" for lr in means if lr not in lrs]
    if left_out:
        note += f"Without lr {', '.join(left_out)}, at which most runs fail."
    add_caption(drawn, note)
    return drawn


def _line(axis: Any, cells: Mapping[float, pd.Series], label: str, **look: Any) -> None:
    """Means with their 95 % intervals over seeds."""
    intervals = [fs.analysis.mean_interval(cell.to_numpy(np.float64)) for cell in cells.values()]
    means = [cell.mean() for cell in cells.values()]
    half = [float(interval.high - interval.low) / 2 for interval in intervals]
    axis.errorbar(list(cells), means, half, label=label, marker=".", capsize=2, lw=1, **look)


def _cell(runs: pd.DataFrame, method: str, metric: str, **where: Any) -> pd.Series:
    return scores(runs, metric, **_point(method), **where)


def _product(runs: pd.DataFrame, *names: str, **values: Sequence[Any]) -> list[tuple]:
    """All combinations, the last name varying fastest; given values stand before the last name."""
    axes: list[Sequence[Any]] = [sorted(set(runs[name])) for name in names]
    axes[-1:-1] = list(values.values())
    return list(itertools.product(*axes))
