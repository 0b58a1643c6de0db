"""Tables of CSV files: a row per run and evaluation."""

import pandas as pd

from experiments.fedswa.settings import METRICS
from experiments.harness import tidy


def wide(history: pd.DataFrame) -> pd.DataFrame:
    """The table of a CSV file: a row per run and evaluation with the metrics of the reports.

    Example:
        >>> values = {"test/accuracy": 0.5, "test/loss": 1.0, "train/loss": 0.9}
        >>> rows = [("a", 5, name, value) for name, value in values.items()]
        >>> history = pd.DataFrame(rows, columns=["method", "round", "metric", "value"])
        >>> wide(history).to_dict("records")
        [{'method': 'a', 'round': 5, 'test/accuracy': 0.5, 'test/loss': 1.0, 'train/loss': 0.9}]
        >>> tall(wide(history)).equals(history)
        True
    """
    part = pd.DataFrame(history[history["metric"].isin(METRICS)])
    names = [name for name in history.columns if name not in ("metric", "value")]
    parts = [part[part["metric"] == metric].reset_index(drop=True) for metric in METRICS]
    table = pd.DataFrame(parts[0][names])
    return table.assign(**{m: p["value"] for m, p in zip(METRICS, parts, strict=True)})


def tall(table: pd.DataFrame) -> pd.DataFrame:
    """The tidy history of a CSV file's table."""
    return tidy(table, METRICS, [name for name in table.columns if name not in METRICS])
