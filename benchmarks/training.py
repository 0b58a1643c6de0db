"""Whole training runs of the FedSWA paper's Table 2, one run per job.

A run continues where it was interrupted.  Its history goes to the folder of
``python -m experiments.fedswa.table2 --checkpoints --pilot-rounds 0``, which reports the finished
runs of its ``--work`` with ``--finished``.  All methods have the rate 0.1.
"""

import pathlib
import time
from typing import Any

from benchmarks.jobs import Measured
from experiments.fedswa.methods import LR
from experiments.fedswa.runs import kept_history
from experiments.fedswa.settings import ACCURACY, COLUMNS, skewed
from experiments.fedswa.table2 import Table2


def measure(
    column: str, concentration: float, method: str, seed: int, scale: Any, work: str
) -> Measured:
    """Runs in a process of its own.

    Args:
        column: key of ``COLUMNS``.
        concentration: of the Dirichlet distribution.
        method: of the paper's table.
        seed: of cohorts, model and draws.
        scale: of the experiment.
        work: folder of runs.
    """
    options = Table2(
        columns=(column,), concentrations=(concentration,), methods=(method,), seeds=seed + 1,
        scale=scale, pilot_rounds=0, checkpoints=True, work=pathlib.Path(work),
    )  # fmt: skip
    began = time.perf_counter()
    setting = skewed(COLUMNS[column], concentration)
    history = kept_history(setting, {"method": method, "lr": LR}, seed, options)
    accuracy = history.loc[history["metric"] == ACCURACY]
    return {
        "accuracy": float(accuracy["value"].iloc[-1]),
        "rounds": float(accuracy["round"].iloc[-1]),
        "seconds_of_the_last_part": time.perf_counter() - began,
    }
