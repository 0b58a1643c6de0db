"""FedSWA beside means over rounds of the server's models: SWA and EMA, in the same runs.

    python -m experiments.fedswa.averages --rounds 1000 --pilot-rounds 0 --seeds 3
    python -m experiments.fedswa.averages --rounds 1000 --pilot-rounds 0 --seeds 3 --methods \\
        FedAvg FedSWA FedSWA-program FedSWA-README FedSWA-program-README   # also released rates

Liu et al., 2025, call FedSWA's server step an exponential moving average and its method stochastic
weight averaging (section 3.2, Appendix A.2).  With alpha = 1.5 the step extrapolates, and no model
is averaged over rounds.  Here FedAvg and FedSWA run once per seed, and four models are evaluated in
each run: the server's, the mean of the last quarter of the rounds (SWA), and two exponential means
over rounds.  The paper has no such table.  The rates of the released program and of its README are
further methods of the same table.
"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fedswa.claims import gains
from experiments.fedswa.comparison import LAST_ROUNDS
from experiments.fedswa.histories import tall, wide
from experiments.fedswa.runs import kept_history, tuned
from experiments.fedswa.settings import (
    ACCURACY,
    COLUMNS,
    METRICS,
    TEST_LOSS,
    TRAIN_LOSS,
    OneColumn,
    Options,
    Setting,
    describe,
    skewed,
)
from experiments.harness import (
    Report,
    interval_text,
    late_scores,
    percent,
    save_report,
    settings,
    unfinished,
)

METHODS = ("FedAvg", "FedSWA")
FAST, SLOW = 0.9, 0.99  # decays of the exponential means, which span about 10 and 100 rounds
FIRST = 0.75  # share of the rounds before the mean of SWA begins
# Prefix of the metrics in a run and name beside the method, from the outermost wrapper.
MODELS = {"fast": f"EMA {FAST:g}", "slow": f"EMA {SLOW:g}", "swa": "SWA", "raw": ""}


@dataclasses.dataclass(frozen=True)
class Averages(OneColumn):
    """Options of this experiment."""

    column: str = "cifar100-lenet5"


def with_means(algorithm: fs.FedAlgorithm, setup: fs.Setup) -> tuple[fs.FedAlgorithm, fs.Setup]:
    """The algorithm in three means over rounds, and the setup that evaluates all four models."""
    start = round(FIRST * setup.timeline.num_rounds)
    means = fs.ema_rounds(fs.ema_rounds(fs.average_rounds(algorithm, start), SLOW), FAST)
    part: Any = setup.eval_fn
    parts = {}
    for prefix in MODELS:
        parts[prefix], part = part, fs.evaluation.inner(part)
    return means, dataclasses.replace(setup, eval_fn=fs.evaluation.merge_evaluators(**parts))


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
            parts.append(own.assign(method=_label(method, name), metric=metric))
    return pd.concat(parts, ignore_index=True)


def main(options: Averages) -> None:
    """Runs both methods and writes the table."""
    setting = skewed(COLUMNS[options.column])
    print(describe(setting, options), flush=True)
    methods = options.methods or METHODS
    lrs = tuned(setting, methods, options)
    runs = setting._replace(name=f"{setting.name}-means")
    parts = [
        kept_history(
            runs, {"method": method, "lr": lrs[method]}, seed, options,
            prepared=with_means, metric=f"raw/{ACCURACY}",
        ).assign(method=method, lr=lrs[method])
        for seed in range(options.seeds)
        for method in methods
        if method in lrs
    ]  # fmt: skip
    history = pd.concat([part for part in parts if len(part)], ignore_index=True)
    facts = {"options": settings(options), "setting": setting._asdict(), "means": True}
    tables = {"": wide(by_model(history))}
    save_report(options.folder("averages"), options.file(setting), tables, build, **facts)


def build(tables: dict[str, pd.DataFrame], facts: dict[str, Any]) -> tuple[Report, dict]:
    """Report and figure from the files."""
    setting, options = Setting(**facts["setting"]), Options.of(facts)
    history = tall(tables[""])
    text = report(setting, history, options)
    drawn = [_label(method, name) for method in METHODS for name in MODELS.values()]
    curves = pd.DataFrame(history[history["method"].isin(drawn)])
    figure = fs.plotting.curves(curves, list(METRICS), by="method", band="minmax")
    return text, {options.file(setting): figure}


def _label(method: str, name: str) -> str:
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
    for base in (_label(methods[0], name) for name in reversed(MODELS.values())):
        differences = gains(late, {}, base)
        text.section(f"Points over {base}", differences.drop(columns="paper", errors="ignore"))
    return text


if __name__ == "__main__":
    main(tyro.cli(Averages, description=__doc__))
