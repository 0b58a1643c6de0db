"""Accuracies, tuning and figures that the FAVANO experiments have in common."""

from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.figure import Figure

from experiments.favano import methods
from experiments.favano.methods import Method
from experiments.harness import at_edge, tidy
from fedjax_sim import plotting


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last row of every seed; a run that diverged has chance's accuracy."""
    return frame.sort_values("round").groupby("seed").tail(1)


def accuracy(frame: pd.DataFrame) -> tuple[float, float]:
    """Mean and standard deviation over the seeds, percent."""
    values = 100 * final(frame)["accuracy"].to_numpy(dtype=float)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def tuned(
    runs: Callable[..., pd.DataFrame], setting: str, server_lrs: Sequence[float]
) -> tuple[Method, pd.DataFrame]:
    """FedBuff with the server rate that is best on one seed that the table does not use.

    Returns:
        the method, and a row per server rate with a mark at the best one if the grid ends there.
    """
    rows = []
    for server_lr in server_lrs:
        frame = runs(methods.fedbuff(server_lr), setting, range(100, 101))
        rows.append({"setting": setting, "server rate": server_lr, "accuracy": accuracy(frame)[0]})
    table = pd.DataFrame(rows)
    best = int(table["accuracy"].argmax())
    marks = [""] * len(rows)
    marks[best] = at_edge(server_lrs[best], server_lrs) or "best"
    return methods.fedbuff(server_lrs[best]), table.assign(best=marks)


def curves(history: pd.DataFrame, settings: Sequence[str], metric: str, x: str) -> dict:
    """A figure per setting: ``{setting-metric-x: figure}``."""
    return {
        f"{slug(setting)}-{metric}-{x}": curve(history.query("setting == @setting"), metric, x)
        for setting in settings
    }


def curve(history: pd.DataFrame, metric: str, x: str) -> Figure:
    """A metric of every algorithm against a column."""
    return plotting.curves(tidy(history, [metric], ["algorithm", "seed", x]), metric, x=x)


def slug(setting: str) -> str:
    """A setting's name in names of files.

    Example:
        >>> slug("non-IID, 2/3 fast")
        'non-iid-2of3-fast'
    """
    return setting.replace(", ", "-").replace("/", "of").replace(" ", "-").lower()
