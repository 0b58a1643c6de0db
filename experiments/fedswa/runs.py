"""Runs of methods on a column of the FedSWA paper's tables, kept on disk."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedswa.methods import LR, LR_DECAY, build
from experiments.fedswa.problem import problem
from experiments.fedswa.settings import ACCURACY, HELD_OUT, Options, Setting, describe
from experiments.harness import at_edge, check_finished, late_scores, print_progress, swept
from fedjax_sim.runs import replacing

Grid = Mapping[str, Sequence[Mapping[str, float]]]  # {method: hyper-parameters of its runs}


def run(
    setting: Setting,
    configurations: Sequence[Mapping[str, Any]],
    options: Options,
    directory: pathlib.Path,
    *,
    rounds: int,
    seeds: int,
    eval_every: int | None = None,
    decay: float = LR_DECAY,
    held_out: bool = False,
) -> pd.DataFrame:
    """The tidy history of ``{"method", "lr", further hyper-parameters}`` on a setting, by a sweep.

    Finished runs are kept in the directory, which is different for each decay of the rate.  With
    ``options.finished`` the history has no others.
    """
    scale = options.size
    dataset = fs.datasets.load(setting.dataset, options.data_dir)
    setup, keys = problem(
        setting, scale, rounds, seeds, dataset, eval_every=eval_every or scale.eval_every,
        pretrained=options.pretrained, held_out=held_out,
    )  # fmt: skip
    return swept(
        functools.partial(build, decay=decay),
        setup,
        [dict(configuration) for configuration in configurations],
        keys,
        directory,
        config={"setting": setting._asdict(), "scale": scale.described()},
        only_finished=options.finished,
    )


def unprepared(algorithm: fs.FedAlgorithm, setup: fs.Setup) -> tuple[fs.FedAlgorithm, fs.Setup]:
    """The algorithm and the setup as they are."""
    return algorithm, setup


def simulated(
    setting: Setting,
    configuration: Mapping[str, Any],
    seed: int,
    options: Options,
    *,
    prepared: Callable[[fs.FedAlgorithm, fs.Setup], tuple[fs.FedAlgorithm, fs.Setup]] = unprepared,
    metric: str = ACCURACY,
) -> fs.Simulation:
    """One run with its final state; a killed run continues where it was.

    ``prepared`` are the algorithm and the setup that run; None: as they are.
    """
    scale, rounds = options.size, options.num_rounds(setting)
    dataset = fs.datasets.load(setting.dataset, options.data_dir)
    every = scale.eval_every
    setup, keys = problem(setting, scale, rounds, seed + 1, dataset, eval_every=every)
    parts = (setup.timeline, setup.params, keys)
    timeline, params, keys = jax.tree.map(lambda x: x[seed:], parts)
    folder = run_folder(setting, configuration, seed, options)
    algorithm, setup = prepared(
        build(decay=options.lr_decay(setting), **configuration),
        dataclasses.replace(setup, timeline=timeline, params=params),
    )
    result = fs.simulate(
        algorithm,
        setup,
        keys,
        callbacks=[
            fs.callbacks.Divergence("record"),
            print_progress(folder.name, metric),
        ],
        storage=fs.Storage(
            folder,
            config={"run": dict(configuration), "setting": setting._asdict()},
            checkpoint_seconds=30,
        ),
        options=fs.Options(seeds=[str(seed)]),
    )
    check_finished(result, folder)
    return result


def run_folder(
    setting: Setting, configuration: Mapping[str, Any], seed: int, options: Options
) -> pathlib.Path:
    """Folder of one run with checkpoints; ``finished.csv`` is there once it is finished."""
    values = (v if isinstance(v, str) else f"{v:g}" for v in configuration.values())
    runs = f"{setting.name}-{options.num_rounds(setting)}-runs"
    return options.work / options.label / runs / "-".join([*values, f"seed{seed}"])


def kept_history(
    setting: Setting, configuration: Mapping[str, Any], seed: int, options: Options, **parts: Any
) -> pd.DataFrame:
    """The tidy history of :func:`simulated`, which runs once."""
    path = run_folder(setting, configuration, seed, options) / "finished.csv"
    if not path.exists():
        if options.finished:
            return pd.DataFrame()
        history = simulated(setting, configuration, seed, options, **parts).to_frame()
        with replacing(path) as partial:
            history.to_csv(partial, index=False)
    return pd.read_csv(path)


def simulated_history(
    setting: Setting,
    configurations: Sequence[Mapping[str, Any]],
    options: Options,
    reported: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The tidy history of runs with checkpoints; without unfinished ones with
    ``options.finished``.
    """
    parts = []
    for configuration in configurations:
        for seed in range(options.seeds):
            path = run_folder(setting, configuration, seed, options) / "finished.csv"
            earlier = _of_run(reported, configuration, seed, options.num_rounds(setting))
            if not path.exists() and len(earlier):
                parts.append(earlier)
                continue
            history = kept_history(setting, configuration, seed, options)
            if len(history):
                parts.append(history.assign(**configuration))
    if not parts:
        return pd.DataFrame()
    names = list(dict.fromkeys(name for entry in configurations for name in entry))
    history = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(history[[*names, *(c for c in history.columns if c not in names)]])


def _of_run(
    history: pd.DataFrame | None, configuration: Mapping[str, Any], seed: int, rounds: int
) -> pd.DataFrame:
    """The rows of one run of that many rounds; none if it is not in the history."""
    values = {**configuration, "seed": seed}
    if history is None or not set(values) <= set(history.columns):
        return pd.DataFrame()
    mine = [np.asarray(history[name] == value) for name, value in values.items()]
    rows = pd.DataFrame(history[np.logical_and.reduce(mine)])
    return rows if rounds in rows["round"].tolist() else pd.DataFrame()


def tuned(setting: Setting, methods: Sequence[str], options: Options) -> dict[str, float]:
    """The client rate of each method with the best accuracy late in the pilot.

    The accuracy is that on held-out training images in the last third of the pilot's rounds.
    ``options.pilot_on`` "test" is the choice of the first kept tables: by the test accuracy after
    the last round.
    """
    if not options.pilot_rounds:
        return dict.fromkeys(methods, LR)
    rounds, held_out = options.pilot_rounds, options.pilot_on == "held-out"
    folder = f"{setting.name}-{'held-out' if held_out else 'pilot'}{rounds}"
    history = run(
        setting,
        [{"method": method, "lr": lr} for method in methods for lr in options.lrs],
        options,
        options.work / options.scale / folder,
        rounds=rounds,
        seeds=1,
        eval_every=max(1, rounds // 6),
        held_out=held_out,
    )
    if not len(history):
        return {}
    if held_out:
        score = late_scores(history, HELD_OUT, rounds // 3, "max")
    else:
        score = fs.analysis.scores(history, ACCURACY, mode="max")
    chosen = fs.analysis.best(score, per="method", mode="max")
    lrs = dict(zip(chosen["method"].tolist(), chosen["lr"].tolist(), strict=True))
    return {method: lrs[method] for method in methods if method in lrs}


def compared(
    setting: Setting, grid: Grid, options: Options, reported: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, dict[str, float]]:
    """The history of all methods and their rates, the best ones of the pilot.

    ``reported`` is the history of an earlier report of the same setting.  With
    ``options.checkpoints`` its runs are not repeated, and methods in it keep their rates.
    """
    print(describe(setting, options), flush=True)
    lrs = {}
    if options.checkpoints and reported is not None and len(reported):
        lrs = dict(zip(reported["method"], reported["lr"].tolist(), strict=True))
    if missing := [method for method in grid if method not in lrs]:
        lrs |= tuned(setting, missing, options)
    lrs = {method: lrs[method] for method in grid if method in lrs}
    configurations = [
        {"method": method, "lr": lrs[method], **point}
        for method, points in grid.items()
        for point in points
        if method in lrs
    ]
    history = pd.DataFrame()
    if configurations and options.checkpoints:
        history = simulated_history(setting, configurations, options, reported)
    elif configurations:
        rounds = options.num_rounds(setting)
        directory = options.work / options.label / f"{setting.name}-{rounds}"
        decay, seeds = options.lr_decay(setting), options.seeds
        history = run(
            setting, configurations, options, directory, rounds=rounds, seeds=seeds, decay=decay
        )
    if not len(history):
        raise SystemExit(f"{options.work} has no finished run of {', '.join(grid)}")
    return history, lrs


def edge(lr: float, options: Options) -> str:
    """A mark for a pilot's rate at the edge of the candidates."""
    return at_edge(lr, options.lrs) if options.pilot_rounds else ""
