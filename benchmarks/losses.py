"""Losses after 100 rounds in every precision, beside the spread of seeds.

The runs are those of :mod:`experiments.system.precision`.
"""

import pathlib

from benchmarks.jobs import Measured
from experiments.system.precision import Options, available, histories
from experiments.system.precision_report import METRICS


def measure(dataset: str, model: str, rounds: int, seeds: int, work: str) -> Measured:
    """Returns ``PRECISION METRIC`` means after the last round, and their seeds' deviation.

    Runs in a process of its own.  Every precision has the same models, cohorts and minibatches.
    """
    options = Options(
        algorithms=("fedavg",), dataset=dataset, model=model, rounds=rounds, seeds=seeds,
        eval_every=rounds, work=pathlib.Path(work),
    )  # fmt: skip
    history = histories(options, tuple(available()))
    last = history.loc[(history["round"] == rounds) & history["metric"].isin(METRICS)]
    numbers: Measured = {}
    for (precision, metric), rows in last.groupby(["precision", "metric"]):
        numbers[f"{precision} {metric}"] = float(rows["value"].mean())
        numbers[f"{precision} {metric} deviation"] = float(rows["value"].std())
    return numbers
