"""Federated low-rank matrix estimation: the recovery of a matrix under the nuclear norm.

    python -m experiments.fco_lowrank                              # all sets, extended grid
    python -m experiments.fco_lowrank --sets II --methods FedDualAvg --rounds 100

Yuan, 2023, section 4.5.3; see :mod:`experiments.fco_common`.  Rates are selected by the least mean
error in the Frobenius norm over the last 100 rounds; singular values of at most 0.01 count as zero.
"""

import functools

import jax
import numpy as np
import tyro

from experiments import fco_report as report
from experiments.fco_common import (
    METHODS,
    Claim,
    Curve,
    Curves,
    DataSet,
    Experiment,
    Options,
    Rates,
    Reference,
)
from fedjax_sim import prox
from fedjax_sim.diagnostics.recovery import numerical_rank, recovery_error
from fedjax_sim.problems.recovery import low_rank_regression

SETS = {
    "I": DataSet(16, 32, 64, 128),
    "II": DataSet(4, 32, 64, 128),
    "III": DataSet(1, 32, 64, 128),
    "IV": DataSet(16, 32, 256, 32),
}
REFERENCE_ROUNDS = (50, 100, 200, 300)


def _references(method: str, lr: float, *values: tuple[int, float]) -> list[Reference]:
    """Of (rank, error) at the rounds, with server rate 1."""
    ranks, errors = zip(*values, strict=True)
    return [
        Reference(method, lr, 1.0, metric, dict(zip(REFERENCE_ROUNDS, found, strict=True)))
        for metric, found in (("rank", ranks), ("error", errors))
    ]


_of = {
    "FedDualAvg": functools.partial(_references, "FedDualAvg", 1e-3),
    "FedMiD": functools.partial(_references, "FedMiD", 3e-4),
    "FedDualAvg-OSP": functools.partial(_references, "FedDualAvg-OSP", 3e-4),
    "FedMiD-OSP": functools.partial(_references, "FedMiD-OSP", 3e-4),
}
REFERENCES = {
    "I": [
        *_of["FedDualAvg"]((20, 1.64), (16, 1.02), (16, 0.76), (16, 0.72)),
        *_of["FedMiD"]((22, 3.00), (18, 2.41), (16, 1.79), (16, 1.52)),
        *_of["FedDualAvg-OSP"]((22, 2.90), (18, 2.31), (16, 1.87), (16, 1.90)),
        *_of["FedMiD-OSP"]((24, 2.85), (24, 2.15), (19, 1.40), (16, 1.05)),
    ],
    "II": [
        *_of["FedDualAvg"]((7, 0.73), (4, 0.41), (4, 0.32), (4, 0.31)),
        *_of["FedMiD"]((11, 1.47), (4, 1.15), (4, 0.81), (4, 0.68)),
        *_of["FedDualAvg-OSP"]((9, 1.43), (4, 1.13), (4, 0.91), (4, 0.93)),
        *_of["FedMiD-OSP"]((16, 1.40), (13, 1.03), (7, 0.63), (4, 0.46)),
    ],
    "III": [
        *_of["FedDualAvg"]((3, 0.33), (1, 0.17), (1, 0.13), (1, 0.13)),
        *_of["FedMiD"]((1, 0.74), (1, 0.57), (1, 0.40), (1, 0.33)),
        *_of["FedDualAvg-OSP"]((1, 0.72), (1, 0.57), (1, 0.46), (1, 0.48)),
        *_of["FedMiD-OSP"]((5, 0.70), (4, 0.50), (1, 0.30), (1, 0.22)),
    ],
}


def recovered(weight: jax.Array, truth: jax.Array) -> dict[str, jax.Array]:
    """Rank and distance from the truth."""
    return {
        "rank": numerical_rank(weight).astype(weight.dtype),
        "error": recovery_error(weight, truth),
    }


def _exact(rank: int, curve: Curve) -> np.ndarray:
    return curve["rank"] == rank


def _slower(method: str, round: int) -> report.Check:
    """Whether a method's loss is above FedDualAvg's in a round that was evaluated."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        ours, theirs = (
            float(curve["train/loss"][curve["round"] <= round][-1])
            for curve in (curves["FedDualAvg"], curves[method])
        )
        return f"{theirs:.3g} against {ours:.3g}", theirs > ours

    return check


def _inaccurate(method: str, factor: float) -> report.Check:
    """Whether a method's last error is so many times FedDualAvg's."""

    def check(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        ours, theirs = (float(curves[m]["error"][-1]) for m in ("FedDualAvg", method))
        return f"{theirs:.3g} against {ours:.3g}", theirs > factor * ours

    return check


def _claims() -> tuple[Claim, ...]:
    dual, osp, mid, mid_osp = METHODS
    found = []
    for name, what in SETS.items():
        bound = 200 if name == "IV" else 100
        exact, rank = functools.partial(_exact, what.complexity), what.complexity

        def low(value: float, rank: int = rank) -> bool:
            return value <= rank

        text = f"{dual} finds the exact rank before round {bound}"
        found.append(Claim((name,), (dual,), text, report.within(dual, exact, bound)))
        text, check = f"{dual} is the first at the exact rank", report.fastest(dual, exact)
        found.append(Claim((name,), tuple(METHODS), text, check))
        text, check = f"{osp} ends at a rank of at most {rank}", report.at_end(osp, "rank", low)
        found.append(Claim((name,), (osp,), text, check))
    for method in (mid, mid_osp):
        text = f"{method} converges slower: training loss in round 100"
        found.append(Claim(tuple(SETS), (dual, method), text, _slower(method, 100)))
    text = f"{osp} is far less accurate: error in the end above 1.5 times {dual}'s"
    found.append(Claim(tuple(SETS), (dual, osp), text, _inaccurate(osp, 1.5)))
    return tuple(found)


LOW_RANK = Experiment(
    name="fco_lowrank",
    title="Federated low-rank matrix estimation",
    described="{clients} clients, {examples} examples each; {size} x {size}, of rank {complexity}",
    sets=SETS,
    generate=low_rank_regression,
    psi=prox.Nuclear,
    weight=0.3,
    recovered=recovered,
    score="error",
    mode="min",
    shown=("rank", "error"),
    references=REFERENCES,
    claims=_claims(),
)


if __name__ == "__main__":
    report.conduct(LOW_RANK, tyro.cli(Options))
