"""Histories of several folders as one, with a method per configuration."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from fedjax_sim.reports.folders import (
    Bits,
    FolderHistory,
    default_metrics,
    read_config,
    read_folder,
)
from fedjax_sim.reports.frames import configuration_columns, grid_values
from fedjax_sim.reports.labels import (
    PARTIAL,
    PARTIAL_NOTE,
    algorithm_labels,
    better,
    setting_label,
)
from fedjax_sim.reports.selection import Mode, best, complete, scores

_FIXED = ("seed", "diverged_at", "round", "metric", "value")


def read_folders(
    paths: Sequence[str | pathlib.Path],
    *,
    configurations: Literal["best", "all"] = "best",
    metric: str | None = None,
    mode: Mode | None = None,
    last: int = 1,
    bits: Bits | None = None,
) -> FolderHistory:
    """Returns the histories of several folders as one, with a method per value of ``algorithm``.

    A sweep's folder gives the best configuration of every algorithm and of every cell that the
    sweep had, among those with the most seeds, or all of them, of all grids that ran there; the
    values of its hyper-parameters follow the name.  With several folders, the folder's name
    follows.  The names of methods whose server's model is no complete one (FedPer) end with a
    dagger, which the setting explains.

    Args:
        paths: folders, as for :func:`read_folder`.
        configurations: of a sweep, "best" or "all".
        metric: metric by which the best is chosen; default: as ``fedjax-sim sweep`` chose it, else
            the first.
        mode: whether larger ("max") or smaller ("min") values of ``metric`` are better; default: as
            ``fedjax-sim sweep`` was told for this metric, else as its name says, "min" if it does
            not.
        last: number of evaluations at the end of a run over which ``metric`` is averaged.
        bits: as for :func:`read_folder`.

    Raises:
        ValueError: as :func:`read_folder`; no folders; another value of ``configurations``; no
            metric to choose the best by.

    Example:
        >>> history = read_folders(["results/quickstart", "results/mine"])  # doctest: +SKIP
        >>> sorted(history.history["algorithm"].unique())  # doctest: +SKIP
    """
    if not paths:
        raise ValueError("paths is empty; expected at least one folder")
    if configurations not in ("best", "all"):
        raise ValueError(f"configurations is {configurations!r}; expected 'best' or 'all'")
    folders = [pathlib.Path(path) for path in paths]
    names = distinct_names(folders) if len(folders) > 1 else [""]
    parts, settings, targets = [], [], []
    compared: dict[str, str] = {}
    for folder, name in zip(folders, names, strict=True):
        part = read_folder(folder, bits)
        config = read_config(folder)
        rule = rule_of(config, metric, mode, last)
        cells = [cell for cell in config.get("cells", ()) if cell in part.history]
        frame = labelled(part.history, configurations, rule, name, part.partial, cells)
        for method, *values in frame[["algorithm", *cells]].drop_duplicates().values.tolist():
            compared[method] = ", ".join([part.setting, *map(str, values)])
        parts.append(frame.drop(columns=cells))
        settings.append(part.setting)
        targets.append(part.target)
    if len(set(settings)) == 1:
        setting = settings[0]
    else:
        setting = "\n".join(f"{name}: {text}" for name, text in zip(names, settings, strict=True))
    history = pd.concat(parts, ignore_index=True)
    partial = frozenset(x for x in history["algorithm"].unique() if x.endswith(PARTIAL))
    if partial:
        setting = f"{setting}\n{PARTIAL_NOTE}".strip()
    return FolderHistory(history, setting, targets[0], partial, compared)


class Rule(NamedTuple):
    """Rule by which the best configuration of a sweep is chosen."""

    metric: str | None = None  # None: the first
    mode: Mode | None = None  # None: as the metric's name says
    last: int = 1
    reduce: Literal["mean", "best"] = "mean"


def rule_of(
    config: Mapping[str, Any], metric: str | None = None, mode: Mode | None = None, last: int = 1
) -> Rule:
    """Returns the rule for a folder whose config.json has these options."""
    known = config.get("mode")
    recorded = known if known in ("max", "min") else None
    if metric is None and "metric" in config:
        reduce = "best" if config.get("best") else "mean"
        return Rule(config["metric"], recorded, config.get("last", 1), reduce)
    if mode is None and metric == config.get("metric"):
        mode = recorded
    return Rule(metric, mode, last)


def labelled(
    history: pd.DataFrame,
    configurations: str,
    rule: Rule,
    folder: str,
    partial: Collection[str] = (),
    cells: Sequence[str] = (),
) -> pd.DataFrame:
    """Returns the history with columns "algorithm", of the configuration, and the cells."""
    hyper = [name for name in history.columns if name not in (*_FIXED, "algorithm")]
    if "algorithm" not in history:
        history = history.assign(algorithm="")
    if hyper and configurations == "best":
        if not (metric := rule.metric or next(iter(default_metrics(history)), None)):
            raise ValueError(
                f"history has the metrics {history['metric'].unique().tolist()}; expected one of "
                "the model, by which the best configuration is chosen, or configurations='all'"
            )
        history = _best_only(history, rule._replace(metric=metric), cells)
    known = algorithm_labels(str(name) for name in history["algorithm"].unique())
    varied = [name for name in hyper if len(grid_values(history, name)) > 1]
    shown = hyper if configurations == "best" else varied
    labels = []
    columns = [history["algorithm"], *(history[name] for name in shown)]
    texts = {name: _value_texts(history[name].unique().tolist()) for name in shown}
    cache: dict[tuple, str] = {}
    for name, *values in zip(*columns, strict=True):
        key = (name, *map(str, values))
        if key not in cache:
            settings = [
                f"{setting_label(h)} {texts[h][str(v)]}"
                for h, v in zip(shown, values, strict=True)
                if not pd.isna(v)
            ]
            parts = [known[str(name)], *settings, folder]
            mark = f" {PARTIAL}" if name in partial else ""
            cache[key] = ", ".join(filter(None, parts)) + mark
        labels.append(cache[key])
    return history.assign(algorithm=labels).loc[:, ["algorithm", *cells, *_FIXED]]


def _value_texts(values: Sequence[Any]) -> dict[str, str]:
    """Returns short texts by the full ones; the full ones where two short ones would be equal."""
    full = {str(value): value for value in values}
    short = {key: f"{v:g}" if isinstance(v, float) else key for key, v in full.items()}
    twice = collections.Counter(short.values())
    return {key: text if twice[text] == 1 else key for key, text in short.items()}


def _best_only(history: pd.DataFrame, rule: Rule, cells: Sequence[str]) -> pd.DataFrame:
    """Returns the best configuration of every algorithm and cell, among those with all seeds."""
    assert rule.metric is not None
    mode = rule.mode or better(rule.metric)
    score = scores(history, rule.metric, last=rule.last, reduce=rule.reduce, mode=mode)
    config = configuration_columns(score)
    chosen = best(complete(score), per=["algorithm", *cells], mode=mode)[config]
    return pd.DataFrame(history.merge(pd.DataFrame(chosen), on=config))


def distinct_names(folders: Sequence[pathlib.Path]) -> list[str]:
    """Returns the shortest ends of the paths that differ."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"folders has {[str(folder) for folder in folders]}; expected distinct ones")
