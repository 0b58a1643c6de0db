"""FedSWA's two parts apart: the decay within a round and the server step.

    python -m experiments.fedswa.parts                     # CIFAR-10, small LeNet-5
    python -m experiments.fedswa.parts --scale paper --column cifar100-resnet18

Liu et al., 2025, have no such table; Tables 5 and 6 always change both.  FedSWA with rho = 1 and
alpha = 1 is FedAvg.  The deviation is that of a run's last five evaluations and measures how much
the accuracy still moves.
"""

import numpy as np
import pandas as pd
import tyro

from experiments.fedswa.comparison import compared, edge
from experiments.fedswa.methods import ALPHA, RHO
from experiments.fedswa.settings import (
    ACCURACY,
    COLUMNS,
    TEST_LOSS,
    TRAIN_LOSS,
    OneColumn,
    describe,
    skewed,
)
from experiments.harness.options import settings
from experiments.harness.report import Report

PARTS = {
    "neither (FedAvg)": {"rho": 1.0, "alpha": 1.0},
    "decay": {"rho": RHO, "alpha": 1.0},
    "server step": {"rho": 1.0, "alpha": ALPHA},
    "both (FedSWA)": {"rho": RHO, "alpha": ALPHA},
}
LAST = 5


def row(name: str, point: dict[str, float], history: pd.DataFrame) -> dict[str, float | str]:
    """A row of the table from the last evaluations of a part's runs; accuracies in percent."""
    runs = history[(history["rho"] == point["rho"]) & (history["alpha"] == point["alpha"])]

    def at_end(metric: str) -> np.ndarray:
        """The last evaluations, ``[seeds, LAST]``."""
        rows = pd.DataFrame(runs[runs["metric"] == metric])
        by_round = rows.pivot(index="seed", columns="round", values="value")
        return by_round.sort_index(axis=1).to_numpy()[:, -LAST:]

    accuracy = 100 * at_end(ACCURACY)
    return {
        "part": name,
        **point,
        "accuracy": accuracy[:, -1].mean(),
        f"mean of last {LAST}": accuracy.mean(),
        "deviation of the last": accuracy.std(axis=1, ddof=1).mean(),
        "train loss": at_end(TRAIN_LOSS)[:, -1].mean(),
        "test loss": at_end(TEST_LOSS)[:, -1].mean(),
    }


def main(options: OneColumn) -> None:
    """Runs FedSWA with both parts, one, and none, and writes the table."""
    setting = skewed(COLUMNS[options.column])
    history, lrs = compared(setting, {"FedSWA": list(PARTS.values())}, options)
    table = pd.DataFrame([row(name, point, history) for name, point in PARTS.items()])
    mark = edge(lrs["FedSWA"], options)
    rate = f"client rate {lrs['FedSWA']:g}" + (f" ({mark} of the pilot's grid)" if mark else "")
    text = Report(f"FedSWA's parts: {setting.name}", f"{describe(setting, options)}; {rate}.")
    text.add(table)
    text.save(options.folder("parts"), setting.name, history, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(OneColumn, description=__doc__))
