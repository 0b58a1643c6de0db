"""Federated low-rank matrix estimation: the recovery of a matrix under the nuclear norm.

    python -m experiments.fco.lowrank                              # all sets, extended grid
    python -m experiments.fco.lowrank --sets II --methods FedDualAvg --rounds 100

Section 4.5.3 of the thesis; the protocol is in :mod:`experiments.fco.recovery`.  Rates are selected
by the least mean error in the Frobenius norm over the last 100 rounds; singular values of at most
0.01 count as zero.
"""

import functools

import jax
import tyro

import fedjax_sim as fs
from experiments.fco.lowrank_claims import EVENT, exact, statements
from experiments.fco.recovery import DataSet, Experiment, Options, Reference
from experiments.fco.recovery_report import conduct

SETS = {
    "I": DataSet(16, 32, 64, 128),
    "II": DataSet(4, 32, 64, 128),
    "III": DataSet(1, 32, 64, 128),
    "IV": DataSet(16, 32, 256, 32),
}
REFERENCE_ROUNDS = (50, 100, 200, 300)


def _references(method: str, lr: float, *values: tuple[int, float]) -> list[Reference]:
    """References for pairs (rank, error) at the rounds, with server rate 1."""
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
        "rank": fs.diagnostics.recovery.numerical_rank(weight).astype(weight.dtype),
        "error": fs.diagnostics.recovery.recovery_error(weight, truth),
    }


LOW_RANK = Experiment(
    name="lowrank",
    title="Federated low-rank matrix estimation",
    described="{clients} clients, {examples} examples each; {size} x {size}, of rank {complexity}",
    sets=SETS,
    generate=fs.problems.recovery.low_rank_regression,
    psi=fs.prox.Nuclear,
    weight=0.3,
    recovered=recovered,
    score="error",
    mode="min",
    shown=("rank", "error"),
    references=REFERENCES,
    structure="rank",
    event=EVENT,
    reaches=lambda data, curve: exact(data.complexity, curve),
    statements=statements({name: data.complexity for name, data in SETS.items()}),
)


if __name__ == "__main__":
    conduct(LOW_RANK, tyro.cli(Options))
