"""FedSWA's two parts apart: the decay within a round and the server step.

    python -m experiments.fedswa_parts                     # CIFAR-10, small LeNet-5
    python -m experiments.fedswa_parts --scale paper --column cifar100-resnet18

Liu et al., 2025, have no such table; theirs (5 and 6) always change both.  FedSWA with rho = 1 and alpha = 1 is FedAvg.
The deviation is that of a run's last five evaluations and says how restless the run still is.
"""  # noqa: E501

import dataclasses

import numpy as np
import pandas as pd
import tyro

from experiments import fedswa_common as common
from experiments.fedswa_table2 import COLUMNS
from experiments.output import write
from fedjax_sim.analysis.tables import markdown

PARTS = {
    "neither (FedAvg)": {"rho": 1.0, "alpha": 1.0},
    "decay": {"rho": common.RHO, "alpha": 1.0},
    "server step": {"rho": 1.0, "alpha": common.ALPHA},
    "both (FedSWA)": {"rho": common.RHO, "alpha": common.ALPHA},
}
LAST = 5


@dataclasses.dataclass(frozen=True)
class Parts(common.Options):
    """Options of this experiment."""

    column: str = "cifar10-lenet5"

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_column(self.column, COLUMNS)


def row(name: str, point: dict[str, float], history: pd.DataFrame) -> dict[str, float | str]:
    """What the last evaluations of a part's runs say; accuracies in percent."""
    mine = history[(history["rho"] == point["rho"]) & (history["alpha"] == point["alpha"])]

    def at_end(metric: str) -> np.ndarray:
        """The last evaluations, ``[seeds, LAST]``."""
        of = pd.DataFrame(mine[mine["metric"] == metric])
        by_round = of.pivot(index="seed", columns="round", values="value")
        return by_round.sort_index(axis=1).to_numpy()[:, -LAST:]

    accuracy = 100 * at_end(common.ACCURACY)
    return {
        "part": name,
        **point,
        "accuracy": accuracy[:, -1].mean(),
        f"mean of last {LAST}": accuracy.mean(),
        "their deviation": accuracy.std(axis=1, ddof=1).mean(),
        "train loss": at_end(common.TRAIN_LOSS)[:, -1].mean(),
        "test loss": at_end(common.TEST_LOSS)[:, -1].mean(),
    }


def main(options: Parts) -> None:
    """Runs FedSWA with both parts, one, and none, and writes the table."""
    setting = common.skewed(COLUMNS[options.column])
    print(common.describe(setting, options), flush=True)
    history, lrs = common.compared(setting, {"FedSWA": list(PARTS.values())}, options)
    table = pd.DataFrame([row(name, point, history) for name, point in PARTS.items()])
    facts = f"{common.describe(setting, options)}; client rate {lrs['FedSWA']:g}."
    text = f"# FedSWA's parts: {setting.name}\n\n{facts}\n\n{markdown(table)}"
    print(text, flush=True)
    folder = options.output / f"fedswa_parts-{common.run_label(options)}"
    write(folder, setting.name, history, text, options=options)


if __name__ == "__main__":
    main(tyro.cli(Parts))
