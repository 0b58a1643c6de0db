"""Names of algorithms and metrics as papers write them, and what is known about metrics.

An algorithm's name is the beginning of its docstring, up to the first colon.  So a new algorithm
costs no line here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable

import numpy as np
import pandas as pd

from fedjax_sim import algorithms
from fedjax_sim.engine import direction, is_fraction
from fedjax_sim.reports.selection import Mode

LONGEST = 30  # characters of an algorithm's name; longer beginnings are sentences

# After the name of a method whose server's model is no complete one, and its explanation.
PARTIAL = "\N{DAGGER}"
PARTIAL_NOTE = (
    f"{PARTIAL} Clients keep or train a part of the model themselves: metrics of the server's "
    "model mean nothing, those of the personal models do (--personal)."
)

UNFINISHED_NOTE = "Runs of the sweep have not finished and are missing."

# Columns and metrics that measure progress, as axes name them.
PROGRESS = {
    "round": "round",
    "time": "simulated time",
    "local_steps": "local steps",
    "bits": "bits sent",
}
_WORDS = {"train": "training", "eval": "evaluation", "valid": "validation"}
_SETTING_WORDS = {"lr": "learning rate", "num": "number of"}


def algorithm_label(name: str) -> str:
    """Returns an algorithm's name as its paper writes it; other names as they are."""
    if name not in algorithms.__all__:
        return name
    docstring = inspect.getdoc(getattr(algorithms, name)) or ""
    label, colon, _ = docstring.partition("\n")[0].partition(":")
    return label if colon and 0 < len(label) <= LONGEST and "`" not in label else name


def algorithm_labels(names: Iterable[str]) -> dict[str, str]:
    """Returns the labels of several names; names whose labels would be equal keep their names."""
    labels = {name: algorithm_label(name) for name in dict.fromkeys(names)}
    used = list(labels.values())
    return {name: label if used.count(label) == 1 else name for name, label in labels.items()}


def marked(history: pd.DataFrame, partial: Collection[str]) -> tuple[pd.DataFrame, str]:
    """Returns the history with marks after the names of partial models, and their explanation."""
    known = history["algorithm"].unique() if "algorithm" in history else ()
    if not (names := [name for name in known if name in partial]):
        return history, ""
    labels = algorithm_labels(history["algorithm"])
    texts = history["algorithm"].replace({name: f"{labels[name]} {PARTIAL}" for name in names})
    return history.assign(algorithm=texts), PARTIAL_NOTE


def metric_label(name: str) -> str:
    """Returns a metric's or a column's name as a text.

    Example:
        >>> metric_label("test/accuracy"), metric_label("train/loss"), metric_label("local_steps")
        ('test accuracy', 'training loss', 'local steps')
        >>> metric_label("valid/accuracy"), metric_label("client/accuracy/q10")
        ('validation accuracy', 'client accuracy, 10 % quantile')
    """
    if name in PROGRESS:
        return PROGRESS[name]
    name, quantile = re.sub(r"/q(\d+)$", "", name), re.search(r"/q(\d+)$", name)
    words = [_WORDS.get(word, word) for word in re.split(r"[_/\s]+", name)]
    return " ".join(words) + (f", {quantile[1]} % quantile" if quantile else "")


def setting_label(name: str | None) -> str:
    """Returns the name of a hyper-parameter or another column as a text; "" for None."""
    parts = [] if name is None else name.split("_")
    return " ".join(_SETTING_WORDS.get(part, part) for part in parts)


def better(metric: str) -> Mode:
    """Returns the better direction of a metric; "min" if its name does not say it."""
    return direction(metric) or "min"


def bounds_of(metric: str, values: np.ndarray) -> tuple[float, float] | None:
    """Returns the range of a metric: (0, 1) for accuracies and the like, None for others."""
    finite = values[np.isfinite(values)]
    inside = bool(((finite >= 0) & (finite <= 1)).all())
    return (0.0, 1.0) if is_fraction(metric) and inside else None
