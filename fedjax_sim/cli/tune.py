"""``fedjax-sim tune``: from options to finished trials, tables and the best configuration."""

import dataclasses
import inspect
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedjax_sim.checks import import_extra
from fedjax_sim.cli import report
from fedjax_sim.cli.grid import SETTINGS, mode_of, swept_hyper
from fedjax_sim.cli.space import TUNING, Space, TuneOptions
from fedjax_sim.cli.sweep import FREE_IN_FOLDER, Header, Runs, names_varied
from fedjax_sim.reports import bounds_of, divergence_text, shown_interval
from fedjax_sim.runs import (
    Callback,
    Configuration,
    FolderError,
    Halving,
    SweepRun,
    Tuning,
    environment,
    locked,
    tune,
    write_json,
)
from fedjax_sim.studies.setups import (
    Study,
    all_differences,
    arithmetic,
    as_json,
    fields_of,
    fixed_values,
    members_of,
    record_of,
    replaced,
    seed_keys,
    shown_settings,
    to_json,
)

BEST = "best.json"


class TuneResult(NamedTuple):
    """Results of a tuning; the files of its output folder hold the same."""

    trials: pd.DataFrame  # a row per trial: its values, the mean score and its interval, rounds
    tuning: Tuning
    mode: Literal["max", "min"]
    command: str | None  # that runs the best configuration; None: no trial did all rounds


def run_tune(
    study: Study,
    config: TuneOptions,
    source: str,
    arguments: Sequence[str],
    callbacks: Sequence[Callback] = (),
) -> TuneResult:
    """Runs the trials of a sampler and writes the results to the folder ``config.run.output``.

    ``trials.csv`` (a row per trial in the order of the sampler), ``history.csv`` (tidy:
    configuration, seed, round, metric, value), ``best.json`` (the best configuration that did all
    rounds, as a comparison's config.json), ``privacy.csv`` (epsilon of every private
    configuration), and ``slices/``, the finished runs, which a later call does not repeat.  The
    runs that a rung has cut are in folders of that many rounds.
    """
    run = config.run
    study = study.replaced(options=run)
    space = Space(study, config)
    report.check_folder(run.output, "a sweep")
    search = _search(study, config, space)
    _refuse_other(study, search)
    runs = Runs(study, config.sweep, space.entries)
    _check_setups(runs)
    mode = mode_of(config.sweep)
    about = {
        "tuning": to_json(dataclasses.replace(config, metric=config.score_metric)),
        "settings": shown_settings(study, config) | {"metric": config.score_metric},
        "own": study.own_parts,
        "search": search,
        "environment": environment(),
    }

    def header() -> dict[str, Any]:
        _refuse_other(study, search)
        return about | {"examples": runs.examples(), **runs.own().members({})}

    with arithmetic(run.execution):
        result = tune(
            runs.factory(),
            runs.make_setup(),
            space,
            seed_keys(run.seed, run.seeds)[2],
            metric=config.score_metric,
            mode=mode,
            trials=config.trials,
            batch=config.batch,
            sampler=_sampler(config),
            halving=Halving(config.halving, config.eta) if config.halving else None,
            callbacks=[Header(run.output / "config.json", header), *callbacks],
            storage=runs.storage(),
            options=runs.options(),
        )
    trials, command = _trials(config, result), None
    runs.entries = [one.configuration for one in result.tried]
    files: dict[str, Any] = {"trials.csv": trials, "history.csv": result.sweep.to_frame()}
    if len(guarantees := runs.guarantees()):
        files["privacy.csv"] = guarantees
    best: dict[str, Any] | None = None
    if any(one.complete and np.isfinite(one.score) for one in result.tried):
        configuration = result.best.configuration
        best = _best(study, runs, configuration)
        words = [str(run.output / BEST)]
        if study.own_parts:  # which a file does not name
            words = [source, *_others(arguments, configuration), *_words(configuration)]
            words += ["--output", str(run.output / "best")]
        command = best["command"] = shlex.join(["fedjax-sim", "run", *words])
    if result.tried and not report.is_read_only(run.output):
        with locked(run.output, wait=True):
            write_json(run.output / "config.json", as_json(header()))
            report.write_all(run.output, files)
            if best is not None:
                write_json(run.output / BEST, as_json(best))
    return TuneResult(trials, result, mode, command)


def _check_setups(runs: Runs) -> None:
    """Refuses settings with which no setup can be made, and a metric that the setups lack.

    Ends of ranges and choices are tried once each, not in every combination, since a setup divides
    the data.
    """
    make, seen = runs.make_setup(), set[tuple[str, Any]]()
    seed = {"seed": runs.study.options.seed} if "seed" in inspect.signature(make).parameters else {}
    for entry in runs.entries:
        settings = {n: v for n, v in entry.items() if n in SETTINGS and SETTINGS[n].of_setup}
        if entry is runs.entries[0] or not settings.items() <= seen:
            make(entry["algorithm"], **seed, **settings)
            seen |= settings.items()


def _sampler(config: TuneOptions) -> Any:
    samplers = import_extra("optuna", "tune").samplers
    kinds = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler}
    return kinds[config.sampler](seed=config.sampler_seed)


def _search(study: Study, config: TuneOptions, space: Space) -> dict[str, Any]:
    """Returns what decides which configurations the sampler proposes, and how they run."""
    run = config.run
    free = FREE_IN_FOLDER | names_varied(space.corners)
    search = {name: value for name, value in fixed_values(run).items() if name not in free}
    runs = Runs(study, config.sweep, space.corners)
    for algorithm, values in runs.hyper.items():
        own = names_varied([swept_hyper(e) for e in space.corners if e["algorithm"] == algorithm])
        search |= {f"{algorithm}.{name}": v for name, v in values.items() if name not in own}
    search |= {"algorithms": run.algorithms.algorithms, "seed": run.seed, "seeds": run.seeds}
    for name in ("batch", "mode", "sampler", "sampler_seed", "halving", "eta"):
        search[name] = getattr(config, name)
    search["metric"] = config.score_metric
    search |= {f"space.{name}": str(span) for name, span in config.space.items()}
    return as_json(search)


def _refuse_other(study: Study, search: Mapping[str, Any]) -> None:
    """Refuses an output folder with another tuning, a comparison or a sweep."""
    output = study.options.output
    path = output / "config.json"
    if not path.exists():
        return
    for member, kind in (("config", "a comparison"), ("sweep", "a sweep")):
        if member in members_of(path):
            raise FolderError(
                f"output is '{output}', which holds {kind}; expected another folder for a tuning"
            )
    known = TUNING.read_saved(path)
    differing = all_differences(known.search, search)
    differing += report.own_differences(known.own, study.own_parts)
    report.refuse_other(output, "tuning", differing)


def _trials(config: TuneOptions, result: Tuning) -> pd.DataFrame:
    """Returns a row per trial: the score after its last round, NaN if a seed failed."""
    metric, runs = config.score_metric, dict[Any, list[SweepRun]]()
    for run in result.sweep.runs:
        runs.setdefault(frozenset(run.configuration.items()), []).append(run)
    rows = []
    for number, one in enumerate(result.tried, 1):
        own = runs[frozenset(one.configuration.items())]
        values = np.array([float(run.history.metrics[metric][-1]) for run in own])
        values[[run.diverged_at > 0 for run in own]] = np.nan
        values[~np.isfinite(values)] = np.nan
        rows.append({
            "trial": number,
            **one.configuration,
            **shown_interval(values, 0.95, bounds_of(metric, values))._asdict(),
            "num_seeds": len(own),
            "num_failed": int(np.isnan(values).sum()),
            "diverged": divergence_text([run.diverged_at for run in own]),
            "rounds": one.rounds,
            "complete": one.complete,
        })  # fmt: skip
    names = ["trial", *dict.fromkeys(name for one in result.tried for name in one.configuration)]
    columns = [*names, *(name for name in (rows[0] if rows else ()) if name not in names)]
    return pd.DataFrame(rows, columns=columns)


def _best(study: Study, runs: Runs, configuration: Configuration) -> dict[str, Any]:
    """Returns a configuration as the members of a comparison's ``config.json``."""
    name, run = configuration["algorithm"], runs.run_of(configuration)
    hyper = {name: runs.hyper_of(configuration)}
    run = replaced(replaced(run, "algorithms", (name,)), "hyper", hyper)
    run = dataclasses.replace(run, output=run.output / "best")
    record = record_of(study.replaced(options=run), run.privacy)
    return {
        "config": record.config,
        "settings": record.settings,
        "algorithms": hyper,
        "privacy": record.privacy,
        "own": list(record.own),
    }


def _others(arguments: Sequence[str], configuration: Configuration) -> list[str]:
    """Returns the words of a command without those about the search and the configuration."""
    own = {field.name for field in fields_of(TuneOptions)} - {"run"}
    algorithm, kept, keeps = configuration["algorithm"], list[str](), True
    for word in arguments:
        name, colon, _ = word.removeprefix("--").partition("=")[0].partition(":")
        first, _, rest = name.replace("-", "_").partition(".")
        if word.startswith("--"):
            of_other = first == "hyper" and rest.partition(".")[0] != algorithm.replace("-", "_")
            keeps = first not in {*own, "output", "algorithms"} and not of_other
        elif colon and name.replace("-", "_") in SETTINGS:
            keeps = name.replace("-", "_") not in configuration
        if keeps:
            kept.append(word)
    return kept


def _words(configuration: Configuration) -> list[str]:
    """Returns the words that stand for a configuration in a command."""
    algorithm, words, flags = configuration["algorithm"], list[str](), list[str]()
    for name, value in configuration.items():
        setting = SETTINGS.get(name)
        if name == "algorithm":
            flags += ["--algorithms", algorithm]
        elif setting is not None and setting.depth < math.inf:
            words.append(f"{name}:{value}")
        else:
            place = name if setting is not None else f"hyper.{algorithm}.{name.rpartition('.')[2]}"
            group, dot, last = place.replace("_", "-").rpartition(".")
            if isinstance(value, bool):
                flags.append(f"--{group}{dot}{'' if value else 'no-'}{last}")
            else:
                flags += [f"--{group}{dot}{last}", str(value)]
    return [*words, *flags]
