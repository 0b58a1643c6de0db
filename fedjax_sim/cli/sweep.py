"""``fedjax-sim sweep``: from options to finished runs, tables and figures."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedjax_sim import datasets
from fedjax_sim.analysis.selection import best, scores
from fedjax_sim.analysis.statistics import paired_differences, speed_up
from fedjax_sim.analysis.tables import markdown, table
from fedjax_sim.cli import build, registry, report
from fedjax_sim.cli.config import to_json
from fedjax_sim.cli.run import Problem, prepare, seed_keys
from fedjax_sim.cli.sweep_config import (
    SETTINGS,
    SweepConfig,
    configurations,
    swept_hyper,
    text_hyper,
    with_settings,
)
from fedjax_sim.plotting import heat_maps, sweeps
from fedjax_sim.sweeps.grid import Configuration
from fedjax_sim.sweeps.program import Setup
from fedjax_sim.sweeps.sweep import Sweep, SweepProgress, sweep
from fedjax_sim.types import FedAlgorithm


class SweepResult(NamedTuple):
    """What a sweep found; the same is in the files of its output folder."""

    history: pd.DataFrame  # algorithm, hyper-parameters, seed, round, metric, value, diverged_at
    scores: pd.DataFrame  # a row per run
    best: pd.DataFrame  # a row per algorithm and cell
    sweep: Sweep


def run_sweep(
    config: SweepConfig, on_progress: Callable[[SweepProgress], None] | None = None
) -> SweepResult:
    """Runs a grid and writes what it found to ``config.output``.

    ``history.csv`` (tidy: configuration, seed, round, metric, value), ``scores.csv`` (a row per
    run), ``best.csv`` (the best configuration per algorithm and cell, with the confidence interval
    over seeds), ``paired.csv`` (differences between the algorithms' best, seed by seed),
    ``cells.md`` (with two cells: a table), ``speed_up.csv`` (with ``over``), figures, and
    ``slices/``, the finished runs, which a later call does not repeat, also with a larger grid or
    more seeds.

    Raises:
        ValueError: a value out of range, or an output folder that holds another sweep; before
            anything is compiled or written.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run_sweep(SweepConfig(
        ...         output=pathlib.Path(folder), grid=("lr=0.001,0.2",), rounds=4, seeds=2))
        >>> result.best["lr"].tolist()
        [0.2]
    """
    entries = configurations(config)
    if config.dataset not in datasets.NAMES:
        raise ValueError(f"dataset is {config.dataset!r}; expected {', '.join(datasets.NAMES)}")
    dataset = datasets.load(config.dataset, config.data_dir)
    header = {"config": to_json(config), "environment": report.environment()}

    def record(news: SweepProgress) -> None:
        if news.round == 0:  # not before the folder is known to be this sweep's
            report.write_json(config.output / "config.json", header)
        if on_progress is not None:
            on_progress(news)

    with build.arithmetic(config):
        result = sweep(
            _setups(config, dataset, entries),
            entries,
            seed_keys(config)[2],
            static=("algorithm", *SETTINGS, *text_hyper()),
            seeds=[str(config.seed + i) for i in range(config.seeds)],
            memory=None if config.memory is None else int(config.memory * 1e9),
            directory=config.output,
            config={"dataset": config.dataset, "precision": config.precision},
            on_progress=record,
        )
    report.write_json(config.output / "config.json", header)
    return _write_results(config, result)


def frame(result: Sweep) -> pd.DataFrame:
    """The tidy history of a sweep: a column per name of the configurations.

    Columns: the configuration's names, seed, diverged_at, round, metric, value.
    """
    columns = list(dict.fromkeys(name for run in result.runs for name in run.configuration))
    rows = [
        (*(own.get(name, np.nan) for name in columns), int(seed), *rest)
        for own, seed, *rest in result.rows()
    ]
    return pd.DataFrame(rows, columns=[*columns, "seed", "diverged_at", "round", "metric", "value"])


class _Factory(NamedTuple):
    """Makes the algorithm from the numbers that vary; equal for equal fixed ones, so that groups of
    the same shapes share their program."""

    algorithm: str
    hyper: tuple[tuple[str, Any], ...]

    def __call__(self, **swept: Any) -> FedAlgorithm:
        return registry.algorithm(self.algorithm, {**dict(self.hyper), **swept})


def _unswept(
    algorithm: str, hyper: Mapping[str, Any], entries: Sequence[Configuration]
) -> dict[str, Any]:
    """The hyper-parameters that not every configuration of the algorithm sets itself."""
    own = [set(swept_hyper(entry)) for entry in entries if entry["algorithm"] == algorithm]
    return {name: value for name, value in hyper.items() if name not in set.intersection(*own)}


def _setups(
    config: SweepConfig, dataset: datasets.Dataset, entries: Sequence[Configuration]
) -> Callable[..., Setup]:
    """What the runs of an algorithm under some settings share."""
    resolved = registry.hyper_parameters(config)

    @functools.lru_cache(maxsize=4)  # algorithms under the same settings share the problem
    def problem(own: SweepConfig) -> Problem:
        return prepare(own, dataset)

    def setup(algorithm: str, **static: Any) -> Setup:
        own = with_settings(config, {"algorithm": algorithm, **static})
        found = problem(dataclasses.replace(own, algorithms=config.algorithms))
        first = jax.tree.map(lambda x: x[0], found.params)
        measured = jax.eval_shape(found.eval_fn, first)
        if config.metric not in measured:
            known = ", ".join(sorted(measured))
            raise ValueError(f"metric is {config.metric!r}; expected one of {known}")
        hyper = {**resolved[algorithm], **swept_hyper(static)}
        described = {name: getattr(own, name) for name in SETTINGS}
        return Setup(
            _Factory(algorithm, tuple(hyper.items())),
            found.task,
            found.timeline,
            found.params,
            eval_fn=found.eval_fn,
            eval_every=own.eval_every,
            weighting=build.weighting(own),
            cohort=None if own.execution == "auto" else build.execution(own),
            config={"settings": described, "hyper": _unswept(algorithm, hyper, entries)},
        )

    return setup


def _write_results(config: SweepConfig, result: Sweep) -> SweepResult:
    """Tables and figures of the runs that are finished."""
    output, history = config.output, frame(result)
    if history.empty:
        return SweepResult(history, history, history, result)
    history.to_csv(output / "history.csv", index=False)
    score = scores(
        history,
        config.metric,
        last=config.last,
        reduce="best" if config.best else "mean",
        mode=config.mode,
    )
    score.to_csv(output / "scores.csv", index=False)
    complete = _complete(score, config.seeds)
    if complete.empty:
        return SweepResult(history, score, complete, result)
    per = ["algorithm", *config.cells]
    chosen = best(complete, per=per, mode=config.mode)
    chosen.to_csv(output / "best.csv", index=False)
    label = config.metric
    if len(set(complete["algorithm"])) > 1 and config.seeds > 1:
        paired = paired_differences(complete, mode=config.mode)
        paired.to_csv(output / "paired.csv", index=False)
    if len(config.cells) == 2:
        rows, columns = config.cells
        text = markdown(table(chosen, ["algorithm", rows], columns))
        (output / "cells.md").write_text(text + "\n")
    for name, figure in _figures(config, complete, label).items():
        figure.savefig(output / f"{name}.png", dpi=110)
    if config.over is not None:
        others = [name for name in per if name != config.over]
        curve = speed_up(
            complete, config.over, per=others, mode=config.mode, reference=config.reference
        )
        curve.to_csv(output / "speed_up.csv", index=False)
        panel = next((name for name in others if name != "algorithm"), None)
        error = f"{label} - {config.reference:g}" if config.reference else label
        if config.mode == "max":
            error = f"{config.reference:g} - {label}"
        figure = sweeps.speed_up_figure(
            curve, config.over, by="algorithm", panel=panel, label=error
        )
        figure.savefig(output / "speed_up.png", dpi=110)
    return SweepResult(history, score, chosen, result)


def _figures(config: SweepConfig, score: pd.DataFrame, label: str) -> dict[str, Figure]:
    """Per algorithm the sensitivity to every swept number, and a heat map of the first two."""
    figures = {}
    for algorithm in score["algorithm"].unique():
        own = score.loc[score["algorithm"] == algorithm].dropna(axis="columns", how="all")
        if "score" not in own:  # all diverged
            continue
        swept = [
            name
            for name in own
            if name not in ("seed", "score", "diverged_at")
            and pd.api.types.is_numeric_dtype(own[name])
            and own[name].nunique() > 1
        ]
        for name in swept:
            key = f"sensitivity_{algorithm}_{name}"
            figures[key] = sweeps.sensitivity(own, name, mode=config.mode, label=label)
        if len(swept) > 1:
            heat_map = heat_maps.heat_map(own, swept[0], swept[1], mode=config.mode, label=label)
            figures[f"heat_map_{algorithm}"] = heat_map
    return figures


def _complete(score: pd.DataFrame, num_seeds: int) -> pd.DataFrame:
    """The configurations that have all their seeds: an interrupted sweep has others, too."""
    names = [name for name in score if name not in ("seed", "score", "diverged_at")]
    counts = score.groupby(names, dropna=False)["seed"].transform("size")
    return score.loc[counts == num_seeds]
