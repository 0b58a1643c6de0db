"""Runs of methods on a column of the FedSWA paper's tables, kept on disk."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.fedswa.methods import LR, LR_DECAY, build
from experiments.fedswa.problem import problem
from experiments.fedswa.settings import ACCURACY, Options, Setting, describe
from experiments.harness import at_edge, swept
from fedjax_sim import datasets
from fedjax_sim.analysis.selection import best, scores

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
    keep_models: bool = False,
) -> pd.DataFrame:
    """The tidy history of ``{"method", "lr", further hyper-parameters}`` on a setting.

    Finished runs are kept in the directory, which is different for each decay of the rate, with
    their final models on request.
    """
    scale = options.size
    dataset = datasets.load(setting.dataset, options.data_dir)
    setup, keys = problem(
        setting, scale, rounds, seeds, dataset,
        eval_every=eval_every or scale.eval_every, pretrained=options.pretrained,
    )  # fmt: skip
    return swept(
        functools.partial(build, decay=decay),
        setup,
        [dict(configuration) for configuration in configurations],
        keys,
        directory,
        static=("method",),
        identity={"setting": setting._asdict(), "scale": scale.described()},
        keep_models=keep_models,
    )


def tuned(setting: Setting, methods: Sequence[str], options: Options) -> dict[str, float]:
    """The client rate of each method with the best test accuracy after the pilot's rounds."""
    if not options.pilot_rounds:
        return dict.fromkeys(methods, LR)
    history = run(
        setting,
        [{"method": method, "lr": lr} for method in methods for lr in options.lrs],
        options,
        options.work / options.scale / f"{setting.name}-pilot{options.pilot_rounds}",
        rounds=options.pilot_rounds,
        seeds=1,
        eval_every=max(1, options.pilot_rounds // 6),
    )
    chosen = best(scores(history, ACCURACY, mode="max"), per="method", mode="max")
    return dict(zip(chosen["method"].tolist(), chosen["lr"].tolist(), strict=True))


def compared(
    setting: Setting, grid: Grid, options: Options
) -> tuple[pd.DataFrame, dict[str, float]]:
    """The history of all methods and their rates.

    The rates are the best ones of the pilot at the paper's other hyper-parameters.
    """
    print(describe(setting, options), flush=True)
    lrs = tuned(setting, list(grid), options)
    rounds = options.num_rounds(setting)
    history = run(
        setting,
        [{"method": m, "lr": lrs[m], **point} for m, points in grid.items() for point in points],
        options,
        options.work / options.label / f"{setting.name}-{rounds}",
        rounds=rounds,
        seeds=options.seeds,
        decay=options.lr_decay(setting),
        keep_models=True,
    )
    return history, lrs


def edge(lr: float, options: Options) -> str:
    """A mark for a pilot's rate at the edge of the candidates."""
    return at_edge(lr, options.lrs) if options.pilot_rounds else ""
