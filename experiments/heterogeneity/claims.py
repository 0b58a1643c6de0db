"""The report's statements about the perceptron, with two random clients per round."""

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from experiments.harness.tables import Claim, Spread, exact
from experiments.heterogeneity.perceptron_problem import LEFT, Case, Cases

# Not the report's:
FAR, VERY_FAR = 10.0, 1000.0  # bound over gap: for every tau; for the largest
BETTER = 0.5  # FedProx's test gap over FedAvg's
ROUNDS = (
    f"until the server's model has gone {100 * (1 - LEFT):g} % of the way to its late mean, on a "
    "line between rounds"
)


def claims(name: str, tables: Mapping[str, pd.DataFrame], cases: Cases, seeds: int) -> list[Claim]:
    """The statements for one model."""
    table = tables["summary"]
    pair = (table["model"] == name) & (table["participation"] == "pair")
    summary = table.loc[pair]
    gaps = tables["gaps"].loc[tables["gaps"]["model"] == name]
    rows = [
        *_local_steps(summary, cases.local_steps, seeds),
        _bound(gaps),
        *_proximal(summary, cases.proximal, seeds),
    ]
    return [row._replace(setting=f"model of the {name}") for row in rows]


def _local_steps(summary: pd.DataFrame, cases: tuple[Case, ...], seeds: int) -> list[Claim]:
    """Experiment 1."""
    rows = []
    for text, column, sign, ours in (
        ("fewer rounds", "rounds", -1, ROUNDS),
        ("a higher loss in the end", "late test gap", 1, ""),
        ("gradients that differ more", "heterogeneity", 1, ""),
    ):
        found = {f"tau {case.tau}": _end(summary, case, column) for case in cases}
        holds = bool((sign * np.diff(list(found.values())) > 0).all())
        steps = [
            _apart(summary, (more, fewer) if sign > 0 else (fewer, more), column, seeds)
            for fewer, more in itertools.pairwise(cases)
        ]
        text = f"Experiment 1: more local steps, {text}"
        rows.append(Claim(text, found, holds, ours=ours, margins=steps))
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


def _proximal(summary: pd.DataFrame, cases: tuple[Case, ...], seeds: int) -> list[Claim]:
    """Experiment 2; nothing unless FedAvg and FedProx ran with the same local steps."""
    pair = {"FedProx" if case.mu else "FedAvg": case for case in cases if not case.exact}
    if len(pair) < 2:
        return []
    fedavg, fedprox = pair["FedAvg"], pair["FedProx"]
    loss, rounds = (
        {name: _end(summary, case, column) for name, case in pair.items()}
        for column in ("test gap", "rounds")
    )
    return [
        Claim(
            "Experiment 2: FedProx reaches a much lower loss",
            loss,
            loss["FedProx"] < BETTER * loss["FedAvg"],
            ours=f"{BETTER:g} x the test gap",
            margins=[_apart(summary, (fedavg, fedprox), "test gap", seeds, BETTER)],
        ),
        Claim(
            "Experiment 2: FedProx takes more rounds",
            rounds,
            rounds["FedProx"] > rounds["FedAvg"],
            ours=ROUNDS,
            margins=[_apart(summary, (fedprox, fedavg), "rounds", seeds)],
        ),
    ]


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
