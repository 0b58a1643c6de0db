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

import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fedswa.averages_report import FAST, FIRST, MODELS, SLOW, by_model, label, report
from experiments.fedswa.histories import tall, wide
from experiments.fedswa.runs import kept_history, tuned
from experiments.fedswa.settings import (
    ACCURACY,
    COLUMNS,
    METRICS,
    OneColumn,
    Options,
    Setting,
    describe,
    skewed,
)
from experiments.harness import Report, save_report, settings

METHODS = ("FedAvg", "FedSWA")


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
    drawn = [label(method, name) for method in METHODS for name in MODELS.values()]
    curves = pd.DataFrame(history[history["method"].isin(drawn)])
    figure = fs.plotting.curves(curves, list(METRICS), by="method", band="minmax")
    return text, {options.file(setting): figure}


if __name__ == "__main__":
    main(tyro.cli(Averages, description=__doc__))
