"""``fedjax-sim fork``: a run of a folder continues under alternatives."""

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from fedjax_sim.cli import measured
from fedjax_sim.cli.report import write_all
from fedjax_sim.studies.forks import fork as forking
from fedjax_sim.studies.forks.stored import state_at
from fedjax_sim.studies.setups import build, config_file
from fedjax_sim.studies.setups.build import ResolvedRun
from fedjax_sim.studies.setups.code_digest import changed_code
from fedjax_sim.studies.setups.registry import SHARED, algorithms_of
from fedjax_sim.studies.setups.settings import resolve_hyper
from fedjax_sim.timelines import delay_clients, lose_uploads_of, remove_clients
from fedjax_sim.types import FedAlgorithm, Timeline

DESCRIPTION = """\
Continues a run of FOLDER, which fedjax-sim run wrote, from the state after --round under several
alternatives with the same cohorts and minibatches, and compares them with the unchanged run. An
alternative is [ALGORITHM:]NAME=VALUE,... or ALGORITHM, for example lr=0.05, fedprox:mu=0.1,
remove=3/5 (clients that leave), lose=3 (clients whose uploads are lost), delay=3/5,by=2 (clients
that are 2 rounds late), or fedadam:restart=true (a new state of the algorithm, with the model).
The state is read from FOLDER if it is stored there, and computed again otherwise."""

UNCHANGED = "unchanged"


@dataclasses.dataclass(frozen=True)
class ForkOptions:
    """Options of ``fedjax-sim fork``."""

    round: int
    """Round of the fork: the alternatives differ from the next round on."""
    alternatives: tuple[str, ...]
    """Alternatives, such as lr=0.05 fedprox:mu=0.1 remove=3/5."""
    algorithm: str | None = None
    """Algorithm of the run; may be left out if FOLDER has only one."""
    metric: str = "test/accuracy"
    """Metric to compare."""
    output: pathlib.Path | None = None
    """File of the figure; default: fork_ROUND.png in FOLDER, or fork_ROUND_2.png and so on if there
    is one."""


def fork(folder: pathlib.Path, options: ForkOptions) -> tuple[str, pathlib.Path]:
    """Returns the table of the paired differences after the last round, and the figure's path.

    Raises:
        ValueError: no such folder, algorithm, round or metric; an alternative that is none.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"FOLDER is '{folder}', which has no config.json; expected a folder that "
                         "fedjax-sim run wrote")  # fmt: skip
    for option, text in config_file.named_code(config_file.read_saved(path).config):
        raise ValueError(
            f"FOLDER is '{folder}', which has {text!r} in {option}, and a folder may not say which "
            "code runs; expected fs.fork(fs.simulate(...), {...}, setup, keys) in Python, with the "
            "algorithm and the setup of the run"
        )
    comparison = build.resolve(config_file.read(path))
    if comparison.setup_of_seed is not None:
        raise ValueError("FOLDER has a partition per seed; expected one partition of all seeds")
    if changed := changed_code(config_file.read_saved(path).code, comparison.code):
        raise ValueError(f"FOLDER cannot be continued: {'; '.join(changed)}")
    name = _name(comparison, options.algorithm)
    hyper, count = comparison.hyper[name], comparison.problem.setup.task.num_clients
    parsed = {text: _parsed(text, name, hyper, count) for text in options.alternatives}
    with comparison.arithmetic():
        choice = measured.parse(comparison.options["measured"]).get(name)
        setup, execution = measured.executed(comparison, name, choice)
        algorithm, keys = comparison.algorithm(name), comparison.problem.keys
        alternatives = {UNCHANGED: forking.Alternative(algorithm)} | {
            text: forking.Alternative(_built(comparison, one), one.change, one.restart)
            for text, one in parsed.items()
        }
        start = state_at(
            algorithm, setup, keys, options.round, directory=folder / name, execution=execution
        )
        result = forking.fork(
            start, alternatives, setup, keys, execution=execution, seeds=comparison.seeds
        )
    figure = options.output or _unused(folder / f"fork_{options.round}.png")
    figure.parent.mkdir(parents=True, exist_ok=True)
    write_all(figure.parent, {figure.name: result.plot(options.metric)})
    return _table(result.differences(options.metric), options.metric), figure


class _Parsed(NamedTuple):
    """An alternative as it was written."""

    algorithm: str
    hyper: Mapping[str, Any]
    change: Callable[[Timeline], Timeline] | None
    restart: bool


def _name(comparison: ResolvedRun, chosen: str | None) -> str:
    names = list(comparison.hyper)
    if chosen is None and len(names) == 1:
        return names[0]
    if chosen not in names:
        raise ValueError(f"algorithm is {chosen!r}; expected one of {', '.join(names)}")
    return chosen


def _parsed(text: str, base: str, hyper: Mapping[str, Any], num_clients: int) -> _Parsed:
    """Returns an alternative.

    Example:
        >>> _parsed("fedprox:mu=0.1,remove=3/5", "fedavg", {"lr": 0.2}, num_clients=6)[:2]
        ('fedprox', {'lr': 0.2, 'mu': 0.1})
    """
    parts = re.fullmatch(r"(?:([^=]+?)(?::(?=[^:=]+=)|$))?((?:[^:=,]+=[^=,]+,?)*)", text)
    if parts is None or not text:
        raise ValueError(
            f"alternatives has {text!r}; expected ALGORITHM or [ALGORITHM:]NAME=VALUE,..."
        )
    name = parts[1] or base
    settings = dict(item.split("=", 1) for item in parts[2].split(",") if item)
    if "by" in settings and "delay" not in settings:
        raise ValueError(f"alternatives has {text!r}; expected delay=CLIENTS with by")
    delay = settings.pop("by", "1")
    changes = {
        "remove": remove_clients,
        "lose": lose_uploads_of,
        "delay": functools.partial(delay_clients, delay=_number(text, delay)),
    }
    asked = [
        functools.partial(changes[key], clients=_clients(text, settings.pop(key), num_clients))
        for key in list(settings)
        if key in changes
    ]
    restart = settings.pop("restart", "false")
    if restart not in ("true", "false"):
        raise ValueError(
            f"alternatives has {text!r} with restart={restart}; expected true or false"
        )
    with _naming(text):
        entries = algorithms_of([name])
    ((label, entry),) = entries.items()
    known = {k: v for k, v in hyper.items() if k in entry.hyper and (label == base or k in SHARED)}
    given = [f"{label}.{key}={value}" for key, value in settings.items()]
    kept = {key: value for key, value in known.items() if key in SHARED}
    rest = [
        f"{label}.{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in known.items()
        if key not in SHARED and value is not None
    ]
    with _naming(text):
        resolved = resolve_hyper(entries, [*rest, *given], kept)[label]
    change = functools.partial(_changed, asked) if asked else None
    return _Parsed(name, resolved, change, restart == "true")


@contextlib.contextmanager
def _naming(text: str) -> Iterator[None]:
    """Context whose errors begin with the alternative."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"alternatives has {text!r}: {error}") from error


def _changed(changes: list[Callable[[Timeline], Timeline]], timeline: Timeline) -> Timeline:
    return functools.reduce(lambda timeline, change: change(timeline), changes, timeline)


def _built(comparison: ResolvedRun, parsed: _Parsed) -> FedAlgorithm:
    (entry,) = algorithms_of([parsed.algorithm]).values()
    return comparison.problem.algorithm(entry, dict(parsed.hyper))


def _clients(text: str, value: str, num_clients: int) -> list[int]:
    clients = [_number(text, part) for part in value.split("/")]
    if max(clients) >= num_clients:
        raise ValueError(
            f"alternatives has {text!r} with client {max(clients)}; expected clients 0 .. "
            f"{num_clients - 1}"
        )
    return clients


def _number(text: str, value: str) -> int:
    if not value.isdecimal():
        raise ValueError(f"alternatives has {text!r} with {value!r}; expected a number")
    return int(value)


def _unused(path: pathlib.Path) -> pathlib.Path:
    """Returns the path, with a number behind its name if there is such a file."""
    later = (path.with_stem(f"{path.stem}_{number}") for number in itertools.count(2))
    return next(file for file in itertools.chain([path], later) if not os.path.lexists(file))


def _table(differences: pd.DataFrame, metric: str) -> str:
    last = differences.loc[differences["round"] == differences["round"].max()]
    rows = [
        f"{row.alternative:24s} {row.mean:+.4f} [{row.low:+.4f}, {row.high:+.4f}]"
        f"  p {row.p_value:.3g}  {row.num_seeds} seeds"
        for row in last.itertuples(index=False)
    ]
    done = last["round"].max()
    return "\n".join([f"{metric} minus that of the unchanged run, after round {done}:", *rows])
