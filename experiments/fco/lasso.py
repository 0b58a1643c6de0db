"""Federated LASSO: the recovery of a sparse vector.

    python -m experiments.fco.lasso                                # all sets, extended grid
    python -m experiments.fco.lasso --sets I --lrs 1e-3 3e-3 1e-2 3e-2 1e-1 3e-1 1   # the paper's
    python -m experiments.fco.lasso --feature-scale 0.316

Section 4.5.2 of the thesis; the protocol is in :mod:`experiments.fco.recovery`.  Rates are selected
by the best mean F1 score of the support over the last 100 rounds; entries of at most 0.01 count as
zero.
"""

import math

import jax
import tyro

import fedjax_sim as fs
from experiments.fco.lasso_claims import EVENT, almost, statements
from experiments.fco.recovery import DataSet, Experiment, Options, Reference
from experiments.fco.recovery_report import conduct

SETS = {
    "I": DataSet(512, 1024, 64, 128),
    "II": DataSet(64, 1024, 64, 128),
    "III": DataSet(8, 1024, 64, 128),
    "IV": DataSet(512, 1024, 256, 32),
}
REFERENCE_ROUNDS = (50, 100, 200, 500)


def _f1(method: str, lr: float, server_lr: float, *values: float) -> Reference:
    return Reference(method, lr, server_lr, "f1", dict(zip(REFERENCE_ROUNDS, values, strict=True)))


_STUCK = (0.667, 0.667, 0.667, math.nan)  # diverged near round 430
REFERENCES = {
    "I": [
        _f1("FedDualAvg", 1e-3, 1.0, 0.820, 0.924, 0.994, 1.000),
        _f1("FedDualAvg", 3e-4, 1.0, 0.736, 0.767, 0.828, 0.976),
        _f1("FedMiD", 3e-4, 1.0, 0.734, 0.799, 0.898, 0.996),
        _f1("FedMiD", 1e-3, 0.3, 0.690, 0.709, 0.741, 0.861),
        _f1("FedMiD", 1e-3, 1.0, *_STUCK),
        _f1("FedDualAvg-OSP", 1e-3, 1.0, *_STUCK),
        _f1("FedMiD-OSP", 1e-3, 1.0, *_STUCK),
        _f1("FedDualAvg-OSP", 3e-4, 1.0, 0.760, 0.828, 0.969, 1.000),
        _f1("FedMiD-OSP", 3e-4, 1.0, 0.704, 0.744, 0.817, 0.976),
    ],
    "II": [
        _f1("FedDualAvg", 1e-3, 1.0, 0.569, 0.871, 1.000, 1.000),
        _f1("FedMiD", 3e-4, 1.0, 0.492, 0.677, 0.977, 1.000),
        _f1("FedDualAvg-OSP", 3e-4, 1.0, 0.444, 0.877, 1.000, 1.000),
        _f1("FedMiD-OSP", 3e-4, 1.0, 0.286, 0.380, 0.703, 1.000),
    ],
    "III": [
        _f1("FedDualAvg", 1e-3, 1.0, 0.615, 0.889, 1.000, 1.000),
        _f1("FedMiD", 3e-4, 1.0, 1.000, 1.000, 1.000, 1.000),
    ],
    "IV": [
        _f1("FedDualAvg", 1e-3, 1.0, 0.723, 0.766, 0.820, 0.973),
        _f1("FedMiD", 3e-4, 1.0, 0.699, 0.694, 0.709, 0.791),
        _f1("FedMiD", 1e-3, 1.0, 0.676, 0.687, 0.694, 0.738),
    ],
}


def recovered(weight: jax.Array, truth: jax.Array) -> dict[str, jax.Array]:
    """Scores of the recovered support."""
    scores = fs.diagnostics.recovery.support_scores(weight, truth)
    return {**scores._asdict(), "density": fs.diagnostics.recovery.density(weight)}


LASSO = Experiment(
    name="lasso",
    title="Federated LASSO",
    described="{clients} clients, {examples} examples each; {size} weights, {complexity} of them 1",
    sets=SETS,
    generate=fs.problems.recovery.sparse_regression,
    psi=fs.prox.L1,
    weight=0.2,
    recovered=recovered,
    score="f1",
    mode="max",
    shown=("f1", "precision", "recall", "density"),
    references=REFERENCES,
    structure="density",
    event=EVENT,
    reaches=lambda data, curve: almost(curve),
    statements=statements(tuple(SETS)),
)

if __name__ == "__main__":
    conduct(LASSO, tyro.cli(Options))
