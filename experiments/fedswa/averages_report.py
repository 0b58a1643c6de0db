"""Tables of :mod:`experiments.fedswa.averages`: a method per model, and paired differences."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.fedswa.claims import gains
from experiments.fedswa.comparison import LAST_ROUNDS
from experiments.fedswa.settings import (
    ACCURACY,
    TEST_LOSS,
    TRAIN_LOSS,
    Options,
    Setting,
    describe,
)
from experiments.harness import Report, interval_text, late_scores, percent, unfinished

FAST, SLOW = 0.9, 0.99  # decays of the exponential means, which span about 10 and 100 rounds
FIRST = 0.75  # share of the rounds before the mean of SWA begins
# Prefix of the metrics in a run and name beside the method, from the outermost wrapper.
MODELS = {"fast": f"EMA {FAST:g}", "slow": f"EMA {SLOW:g}", "swa": "SWA", "raw": ""}


def by_model(history: pd.DataFrame) -> pd.DataFrame:
    """The tidy history with a method per model: method a with metric swa/x becomes "a + SWA".

    Example:
        >>> rows = {"method": ["a", "a"], "metric": ["swa/loss", "raw/loss"], "value": [1.0, 2.0]}
        >>> by_model(pd.DataFrame(rows)).values.tolist()
        [['a', 'loss', 2.0], ['a + SWA', 'loss', 1.0]]
    """
    parts = []
    for method in dict.fromkeys(history["method"].tolist()):
        for prefix, name in reversed(MODELS.items()):
            start = history["metric"].str.startswith(f"{prefix}/")
            own = pd.DataFrame(history[start & (history["method"] == method)])
            metric = own["metric"].str.removeprefix(f"{prefix}/")
            parts.append(own.assign(method=label(method, name), metric=metric))
    return pd.concat(parts, ignore_index=True)


def label(method: str, name: str) -> str:
    """The name of one of a method's models."""
    return f"{method} + {name}" if name else method


def report(setting: Setting, history: pd.DataFrame, options: Options) -> Report:
    """Text: accuracy and losses of every model, and paired differences to the first method's."""
    late = late_scores(history, ACCURACY, LAST_ROUNDS, "max")

    def by_method(metric: str) -> Any:
        scores = late_scores(history, metric, LAST_ROUNDS, "min")
        return scores.groupby("method")["score"].mean()

    train, test = by_method(TRAIN_LOSS), by_method(TEST_LOSS)
    methods = list(dict.fromkeys(history["method"].tolist()))
    rows = []
    for method in methods:
        accuracy = 100 * np.asarray(late.loc[late["method"] == method, "score"])
        rows.append(
            {"method": method, "accuracy": percent([accuracy.mean()])[0]}
            | {"interval": interval_text(accuracy), "train loss": train[method]}
            | {"test loss": test[method], "test - train loss": test[method] - train[method]}
        )
    explained = (
        f"Accuracy and losses: means of the evaluations in the last {LAST_ROUNDS} rounds; accuracy "
        "in percent with the 95 % interval over seeds.  Models of one method are those of one run: "
        f"SWA is the mean of the server's models after {100 * FIRST:g} % of the rounds, EMA their "
        "exponential mean from the first round on.  Intervals below are those of differences "
        "between equal seeds."
    )
    text = Report(f"averages: {setting.name}", describe(setting, options), explained)
    text.add(unfinished(history, methods, options.seeds), pd.DataFrame(rows))
    for base in (label(methods[0], name) for name in reversed(MODELS.values())):
        differences = gains(late, {}, base)
        text.section(f"Points over {base}", differences.drop(columns="paper", errors="ignore"))
    return text
