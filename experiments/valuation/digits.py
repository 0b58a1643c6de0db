"""Which valuation finds faulty clients, and at which cost: digits, with the exact Shapley value.

    python -m experiments.valuation.digits

Ten clients with 140 digits each (Dirichlet 1): five honest ones, a pair with equal data, two with
false labels and a free rider.  All of them take part in every round.
"""

import dataclasses
import functools

import jax
import numpy as np
import tyro

import fedjax_sim as fs
from experiments.valuation.problem import Problem, build, kinds_of, num_parts, spoiled
from experiments.valuation.runs import ValuationOptions, value_seeds

KINDS = kinds_of(honest=5, pairs=1, mislabelled=2, riders=1)
LR, BATCH_SIZE, HIDDEN = 0.2, 20, (16,)


@dataclasses.dataclass(frozen=True)
class Options(ValuationOptions):
    """Options of this experiment."""

    marginals: int = 24  # per client, of the strata


def problem(options: Options, seed: int, key: jax.Array) -> Problem:
    """Digits of one seed; the metric is that of the test digits."""
    data = fs.datasets.load("digits")
    rng = np.random.default_rng(seed)
    rows = fs.data.partition.dirichlet(
        data.train["y"], num_parts(KINDS), 1.0, rng, disjoint=True, prior="uniform"
    )
    parts = [{k: data.train[k][r] for k in ("x", "y")} for r in rows]
    clients = spoiled(parts, KINDS, data.num_classes, options.false_labels, rng)
    model = fs.models.mlp((8, 8, 1), HIDDEN, data.num_classes)
    return build(
        clients, KINDS, data.test, model, key,
        rounds=options.rounds, cohort=len(KINDS), batch_size=BATCH_SIZE,
    )  # fmt: skip


def main(options: Options) -> None:
    """Values the clients of all seeds, prints and writes table and figure."""
    value_seeds(
        "digits", "digits", fs.fedavg(LR), functools.partial(problem, options), len(KINDS), options,
        marginals=options.marginals, exact=True,
    )  # fmt: skip


if __name__ == "__main__":
    fs.execution.use_all_cores()
    main(tyro.cli(Options, description=__doc__))
