"""Whole training runs of the FedSWA paper's Table 2, one method on a column per job.

A run continues where it was interrupted.  Its history goes to the folder of
``python -m experiments.fedswa.table2 --checkpoints --pilot-rounds 0``, which reports the finished
runs of its ``--work`` with ``--finished``.  All methods have the rate 0.1.
"""

import json
import pathlib
import time
from typing import Any

from benchmarks.jobs import Measured
from experiments.fedswa.methods import LR
from experiments.fedswa.runs import kept_history
from experiments.fedswa.settings import ACCURACY, COLUMNS, skewed
from experiments.fedswa.table2 import Table2


def measure(
    column: str, concentration: float, method: str, seeds: int, scale: Any, work: str
) -> Measured:
    """Runs in a process of its own; prints what it has after every seed."""
    options = Table2(
        columns=(column,), concentrations=(concentration,), methods=(method,), seeds=seeds,
        scale=scale, pilot_rounds=0, checkpoints=True, work=pathlib.Path(work),
    )  # fmt: skip
    setting = skewed(COLUMNS[column], concentration)
    numbers: Measured = {}
    for seed in range(seeds):
        began = time.perf_counter()
        history = kept_history(setting, {"method": method, "lr": LR}, seed, options)
        accuracy = history.loc[history["metric"] == ACCURACY]
        numbers[f"seed{seed} accuracy"] = float(accuracy["value"].iloc[-1])
        numbers[f"seed{seed} rounds"] = float(accuracy["round"].iloc[-1])
        numbers[f"seed{seed} part_seconds"] = time.perf_counter() - began
        print(json.dumps(numbers), flush=True)
    return numbers
