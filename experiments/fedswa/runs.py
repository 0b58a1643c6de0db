"""Runs of methods on a column of the FedSWA paper's tables, kept on disk."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.fedswa.methods import LR, LR_DECAY, build
from experiments.fedswa.problem import problem
from experiments.fedswa.settings import ACCURACY, HELD_OUT, Options, Setting, describe
from experiments.harness import at_edge, late_scores, sweep
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
    held_out: bool = False,
    keep_models: bool = False,
) -> Any:
    """The sweep of ``{"method", "lr", further hyper-parameters}`` on a setting.

    Finished runs are kept in the directory, which is different for each decay of the rate.  With
    ``options.finished`` no other runs are there.

    Args:
        held_out: as for :func:`~experiments.fedswa.problem.problem`.
        keep_models: the final models are kept, too, and runs without them are repeated.
    """
    scale = options.size
    dataset = datasets.load(setting.dataset, options.data_dir)
    setup, keys = problem(
        setting, scale, rounds, seeds, dataset, eval_every=eval_every or scale.eval_every,
        pretrained=options.pretrained, held_out=held_out,
    )  # fmt: skip
    return sweep(
        functools.partial(build, decay=decay),
        setup,
        [dict(configuration) for configuration in configurations],
        keys,
        directory,
        static=("method",),
        identity={"setting": setting._asdict(), "scale": scale.described()},
        keep_models=keep_models,
        only_finished=options.finished,
    )


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
    ).to_frame()
    if not len(history):
        return {}
    if held_out:
        score = late_scores(history, HELD_OUT, rounds // 3, "max")
    else:
        score = scores(history, ACCURACY, mode="max")
    chosen = best(score, per="method", mode="max")
    return dict(zip(chosen["method"].tolist(), chosen["lr"].tolist(), strict=True))


def compared(setting: Setting, grid: Grid, options: Options) -> tuple[Any, dict[str, float]]:
    """The sweep of all methods and the methods' rates.

    The rates are the best ones of the pilot at the paper's other hyper-parameters.

    Raises:
        SystemExit: ``options.finished``, and nothing is.
    """
    print(describe(setting, options), flush=True)
    lrs = tuned(setting, list(grid), options)
    rounds = options.num_rounds(setting)
    directory = options.work / options.label / f"{setting.name}-{rounds}"
    configurations = [
        {"method": method, "lr": lrs[method], **point}
        for method, points in grid.items()
        for point in points
        if method in lrs
    ]
    if configurations:
        result = run(
            setting,
            configurations,
            options,
            directory,
            rounds=rounds,
            seeds=options.seeds,
            decay=options.lr_decay(setting),
            keep_models=options.models,
        )
        if result.runs:
            return result, lrs
    raise SystemExit(f"{directory} has no finished run of {', '.join(grid)}")


def edge(lr: float, options: Options) -> str:
    """A mark for a pilot's rate at the edge of the candidates."""
    return at_edge(lr, options.lrs) if options.pilot_rounds else ""
