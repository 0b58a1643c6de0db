"""FedMoSWA's parts on CIFAR-100 with a narrow LeNet-5: gamma x controls x alpha x rho.

    python -m experiments.fedswa.factorial --seeds 3     # about 30 core-hours

Rows are late means of every setting and seed at the paper's rate.  The paper has no such table;
the page of the study ``experiments.questions.fedmoswa`` shows the effects beside its own.
A run has a folder with checkpoints of its own, so a killed command continues.
"""

import dataclasses
import itertools
import pathlib
from typing import Any, Literal

import jax
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fedswa import settings
from experiments.fedswa.runs import kept_history, unprepared
from experiments.harness import Folders, Report, check_grid, late_scores, save_report
from experiments.harness import settings as values_of
from experiments.harness.controls import (
    CONTROLS,
    FACTORS,
    LAST,
    MEASURES,
    NONE,
    OWN,
    SCAFFOLD,
    last_on_worker,
    settings_of,
    workers_of,
)
from experiments.harness.effects import effects, levels_of
from fedjax_sim.checks import check_at_least

COLUMN = "cifar100-lenet5"
METHODS = {OWN: "FedMoSWA", NONE: "FedSWA", LAST: "FedMoSWA", SCAFFOLD: "SCAFFOLD"}
LATE = 50  # rounds whose evaluations count


@dataclasses.dataclass(frozen=True)
class Factorial(Folders):
    """Options of this experiment."""

    scale: Literal["paper", "gpu", "cpu", "cpu-wide", "smoke"] = "cpu"
    gammas: tuple[float, ...] = (0.05, 0.2, 0.4, 1.0)
    alphas: tuple[float, ...] = (1.0, 1.5)
    rhos: tuple[float, ...] = (0.1, 1.0)
    seeds: int = 3
    finished: bool = False  # report the finished runs of --work and start none
    work: pathlib.Path = pathlib.Path("results/fedswa")  # finished runs, to continue from

    def __post_init__(self) -> None:
        check_grid(gammas=self.gammas, alphas=self.alphas, rhos=self.rhos)
        check_at_least(2, seeds=self.seeds)

    @property
    def runner(self) -> settings.Options:
        """Options of the runs: the paper's rate, without a pilot."""
        return settings.Options(
            scale=self.scale, seeds=self.seeds, pilot_rounds=0, finished=self.finished,
            data_dir=self.data_dir, work=self.work, output=self.output,
        )  # fmt: skip


def rows_of(setting: settings.Setting, options: Factorial) -> pd.DataFrame:
    """A row per setting of the factors and seed; none of unfinished runs with ``finished``."""
    rows = []
    for seed, controls in itertools.product(range(options.seeds), CONTROLS):
        own, prepared = setting, unprepared
        if controls == LAST:  # its runs have the hyper-parameters of those with own controls
            own, prepared = setting._replace(name=f"{setting.name}-last-on-worker"), _on_workers
        for values in settings_of(controls, options.gammas, options.alphas, options.rhos):
            hyper = {name: value for name, value in values.items() if not np.isnan(value)}
            if controls == SCAFFOLD:
                hyper = {"server_lr": values["alpha"]}
            configuration = {"method": METHODS[controls], "lr": settings.LR, **hyper}
            history = kept_history(own, configuration, seed, options.runner, prepared=prepared)
            if len(history):
                row = {"controls": controls, **values, "lr": settings.LR, "seed": seed}
                rows.append(row | _late(history))
    return pd.DataFrame(rows)


def _on_workers(algorithm: fs.FedAlgorithm, setup: fs.Setup) -> tuple[fs.FedAlgorithm, fs.Setup]:
    """The algorithm of one seed whose clients start from the last control of their worker."""
    one = jax.tree.map(lambda x: x[0], setup.timeline)
    return last_on_worker(algorithm, workers_of(one, setup.task.num_clients)), setup


def _late(history: pd.DataFrame) -> dict[str, float]:
    """Means of the evaluations in the last rounds."""
    row = {}
    for label in MEASURES[:-1]:
        mode = "max" if label == MEASURES[0] else "min"
        score = late_scores(history, label.replace(" ", "/"), LATE, mode)["score"]
        row[label] = float(score.iloc[0])
    return row | {"gap": row["test loss"] - row["train loss"]}


def main(options: Factorial) -> None:
    """Runs what is not kept and writes the table."""
    setting = settings.skewed(settings.COLUMNS[COLUMN])
    print(settings.describe(setting, options.runner), flush=True)
    rows = rows_of(setting, options)
    if rows.empty:
        raise SystemExit(f"{options.work} has no finished run of {setting.name}")
    save_report(
        options.runner.folder("factorial"), "factorial", {"": rows}, build,
        options=values_of(options), setting=setting._asdict(),
    )  # fmt: skip


def build(tables: dict[str, pd.DataFrame], facts: dict[str, Any]) -> tuple[Report, dict]:
    """The report from the files; it has no figure."""
    setting, options = settings.Setting(**facts["setting"]), settings.Options.of(facts)
    described = settings.describe(setting, dataclasses.replace(options, pilot_rounds=0))
    text = Report("Controls, gamma, alpha and rho of FedMoSWA", f"{described}.")
    cells: Any = tables[""].groupby(["controls", *FACTORS], sort=False, dropna=False)
    means = cells[[*MEASURES]].mean().reset_index()
    text.section(f"Means over the last {LATE} rounds and seeds", means.round(4))
    for measure in MEASURES:
        text.section(
            f"Effects on {measure}, 95 % intervals over seeds",
            effects(tables[""], measure, levels_of(facts)).round(5),
        )
    return text, {}


if __name__ == "__main__":
    main(tyro.cli(Factorial, description=__doc__))
