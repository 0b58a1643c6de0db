"""The report's statements about the perceptron, with two random clients per round."""

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from experiments.harness.tables import Claim, Spread, exact
from experiments.heterogeneity.perceptron_problem import Case, Cases

# Not the report's:
NEAR = 0.1  # a run has settled once its test gap stays that near to its late mean
LATE = 5  # evaluations of that mean
FAR, VERY_FAR = 10.0, 1000.0  # bound over gap: for every tau; for the largest
BETTER = 0.5  # FedProx's test gap over FedAvg's


def claims(name: str, tables: Mapping[str, pd.DataFrame], cases: Cases, seeds: int) -> list[Claim]:
    """The statements for one model.

    Args:
        tables: of all models, as :mod:`experiments.heterogeneity.perceptron` writes them.
        seeds: of which the tables have means and deviations.
    """
    history, summary = (_pair(tables[key], name) for key in ("", "summary"))
    gaps = tables["gaps"].loc[tables["gaps"]["model"] == name]
    rows = [
        *_local_steps(history, summary, cases.local_steps, seeds),
        _bound(gaps),
        *_proximal(history, summary, cases.proximal, seeds),
    ]
    return [row._replace(setting=f"model of the {name}") for row in rows]


def _local_steps(
    history: pd.DataFrame, summary: pd.DataFrame, cases: tuple[Case, ...], seeds: int
) -> list[Claim]:
    """Experiment 1."""
    rounds = {f"tau {case.tau}": settled(history, case) for case in cases}
    near = f"until the test gap stays within {100 * NEAR:g} % of its late mean"
    text = "Experiment 1: more local steps, fewer rounds"
    rows = [Claim(text, _rounds(rounds), _falls(rounds), ours=near)]
    for text, column in (
        ("a higher loss in the end", "late test gap"),
        ("gradients that differ more", "heterogeneity"),
    ):
        found = {f"tau {case.tau}": _end(summary, case, column) for case in cases}
        rising = bool((np.diff(list(found.values())) > 0).all())
        text = f"Experiment 1: more local steps, {text}"
        steps = [
            _apart(summary, (more, fewer), column, seeds)
            for fewer, more in itertools.pairwise(cases)
        ]
        rows.append(Claim(text, found, rising, margins=steps))
    return rows


def _bound(gaps: pd.DataFrame) -> Claim:
    """Figure 5."""
    ratios = dict(zip(gaps["tau"], (gaps["bound"] / gaps["pair"]).tolist(), strict=True))
    return exact(
        "Figure 5: the bound is far above the gap, for many local steps by orders of magnitude",
        {f"tau {tau}": ratio for tau, ratio in ratios.items()},
        [min(ratios.values()) - FAR, ratios[max(ratios)] - VERY_FAR],
        ours=f"{FAR:g} x, at the largest tau {VERY_FAR:g} x",
    )


def _proximal(
    history: pd.DataFrame, summary: pd.DataFrame, cases: tuple[Case, ...], seeds: int
) -> list[Claim]:
    """Experiment 2; nothing unless FedAvg and FedProx ran with the same local steps."""
    pair = {"FedProx" if case.mu else "FedAvg": case for case in cases if not case.exact}
    if len(pair) < 2:
        return []
    loss = {name: _end(summary, case, "test gap") for name, case in pair.items()}
    rounds = {name: settled(history, case) for name, case in pair.items()}
    better = loss["FedProx"] < BETTER * loss["FedAvg"]
    text, ours = "Experiment 2: FedProx reaches a much lower loss", f"{BETTER:g} x the test gap"
    apart = _apart(summary, (pair["FedAvg"], pair["FedProx"]), "test gap", seeds, BETTER)
    return [
        Claim(text, loss, better, ours=ours, margins=[apart]),
        Claim(
            "Experiment 2: FedProx takes more rounds",
            _rounds(rounds),
            rounds["FedProx"] > rounds["FedAvg"],
        ),
    ]


def settled(history: pd.DataFrame, case: Case) -> int:
    """The first evaluated round from which on a case's test gap stays near its late mean."""
    runs = history.loc[history["case"] == case.name].sort_values("round")
    gap, rounds = np.asarray(runs["test gap"]), runs["round"].tolist()
    late = gap[-LATE:].mean()
    outside = np.flatnonzero(np.abs(gap - late) > NEAR * late)
    return rounds[min(outside[-1] + 1, len(rounds) - 1)] if len(outside) else rounds[0]


def _end(summary: pd.DataFrame, case: Case, column: str) -> float:
    return float(summary.set_index("case").loc[case.name, column])


def _apart(
    summary: pd.DataFrame, cases: tuple[Case, Case], column: str, seeds: int, factor: float = 1
) -> Spread:
    """``factor`` times the first case's value minus the second's, of seeds taken as unpaired."""
    names = [case.name for case in cases]
    rows = summary.set_index("case").loc[names, [column, f"{column} std"]]
    (a, a_std), (b, b_std) = rows.to_numpy(dtype=float).tolist()
    return Spread(factor * a - b, float(np.hypot(factor * a_std, b_std)), seeds)


def _pair(table: pd.DataFrame, name: str) -> pd.DataFrame:
    return table.loc[(table["model"] == name) & (table["participation"] == "pair")]


def _rounds(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} round {count}" for name, count in values.items())


def _falls(values: Mapping[str, float]) -> bool:
    numbers = list(values.values())
    return bool((np.diff(numbers) <= 0).all()) and numbers[-1] < numbers[0]
